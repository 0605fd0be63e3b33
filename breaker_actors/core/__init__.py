"""The breaker itself: rules, windows, accumulators and the state machine, pure and without a clock. In: batches of
samples, log entries, rules, and times in milliseconds. Out: effects (transitions and rate changes), views, records to
be stored, and the time of the next wake-up.

Public: `accumulators`, `counters`, `definitions`, `evidence`, `log_entries`, `machine`, `model`, `moves`, `overlay`,
`rule_fields`, `rule_remarks`, `rules`, `schedule.OPEN_MIN_MS`, `window`.
"""
