"""What a campaign must have met at least once: states of the service in which something could go wrong. A campaign
that never was in one has not tested it, so it fails (see `Campaign.never`)."""

from __future__ import annotations

SEEDS_MIN = 400
"""So many seeds meet everything below: the rarest was met in one of 30."""

REACHED = frozenset(
    """
    a breaker is deleted under an override
    a breaker is restarted or moved under an override
    a breaker that observed is to enforce while it is open
    a breaker that observes trips
    a held trip is released
    a ramp begins where an override ends
    a recover of a told trip goes out inside a mute
    a rule is changed under an override
    a trip is held
    an alert is renewed
    an override expires
    an override expires inside an outage
    an override is ended by hand
    an override is over before it came
    an override is replaced
    an override is set while its breaker's actor is dead
    breaker catch_ups
    breaker commit_retries
    breaker fenced
    breaker inbox_overflows
    breaker passed_over
    breaker samples_late
    breaker samples_truncated
    breaker set_aside log
    breaker transitions half_open
    breaker transitions recover
    breaker transitions retrip
    breaker transitions trip
    breaker unpromised
    client is answered damaged
    client is answered duplicate
    client is answered failed
    client is answered full
    client is answered ok
    client sends counts
    directory says actor_misses
    directory says breakers_not_started
    directory says change_not_appended
    directory says changes_not_applied
    directory says config_not_announced
    directory says log_not_trimmed
    directory says rebalanced
    directory says round_failed
    directory says routers_moved_not_told
    directory says upkeep_put_off
    journal journal_commits failed
    journal journal_commits fenced
    notifier notifications_released
    notifier notifications webhook delivered
    notifier notifications webhook retry
    notifier says mute_ended
    notifier says notifier_replaced
    notifier says outbox_not_reached
    reader gets a stale state
    reader gets a state
    replica board_loads failed
    replica feed_failures
    replica feed_resets
    replica says snapshot_failed
    replica stream_messages_merged
    router delivery_marks
    router delivery_refusals
    router delivery_retries
    router duplicate_parts
    router log_failures
    router log_records gap
    router log_refusals
    router log_trimmed retention
    router set_aside log
    the operator recovers a log
    """.strip()
    .replace("    ", "")
    .splitlines()
)
"""Counters of the service's parts above 0 (by part, without `breakers_` and `_total`), lines of their logs, answers,
what operators did (tests/sim/hand.py)."""
