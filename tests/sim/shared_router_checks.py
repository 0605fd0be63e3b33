"""What must hold for breakers on several routers, whose records they take as they arrive: no replay knows that order.

Their moves keep the durations, and at rest their windows hold what all their logs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from breaker_actors.core.log_entries import (
    BREAKER,
    SAMPLES,
    VIEW,
    LogRecord,
    RouterView,
    SampleColumns,
    Splitter,
    decode_breaker,
    decode_view,
)
from breaker_actors.core.model import BY_HAND, Batch, Record, Rule
from breaker_actors.store.rows import StoredState
from breaker_actors.wal.reader import concerned
from tests.sim.checks import Event, Violation

_decode_record = msgspec.msgpack.Decoder(Record).decode


def check_durations(breaker_id: str, events: Sequence[Event], rules: Sequence[Rule]) -> None:
    """Time does not go back, and no state of the machine, seen or not, is left earlier than the mildest rule there was
    allows; open lasts 100 ms at least."""
    stay_ms = min(rule.min_state_duration_ms for rule in rules)
    open_ms = min(max(rule.cooldown_ms, rule.min_state_duration_ms) for rule in rules)
    for before, after in pairwise(event for event in events if event.reason not in BY_HAND):
        least_ms = max(100, open_ms) if before.curr == "open" else stay_ms
        if after.prev == before.curr and after.ts_ms - before.ts_ms < least_ms:
            lasted = f"{after.ts_ms - before.ts_ms} ms in {before.curr}"
            raise Violation(f"breaker {breaker_id}: event {after.transition_seq} after {lasted}, at least {least_ms}")


def rules_of(logs: Mapping[str, Sequence[LogRecord]]) -> dict[str, list[Rule]]:
    """Every rule that any log tells of, by breaker."""
    found: dict[str, list[Rule]] = {}
    for records in logs.values():
        for record in records:
            if record.kind == BREAKER and (told := decode_breaker(record.payload)).rule is not None:
                found.setdefault(told.breaker_id, []).append(told.rule)
    return found


def count(stored: StoredState, logs: Mapping[str, Sequence[LogRecord]], at_ms: int, samples_max: int) -> int | None:
    """Observations in a breaker's window at a time, drawn from all logs. None for kinds without a window, and where not
    all samples are held and it matters which."""
    if stored.record is None or stored.rule.kind == "consecutive_failures":
        return None
    record = _decode_record(stored.record)
    low_ms = max(at_ms - stored.rule.window_ms, record.evidence_floor_ms - 1)
    samples = observations = 0
    for records in logs.values():
        for received_ms, batch in _batches(records, stored, record.created_ms):
            times = np.minimum(batch.ts_ms, received_ms)
            inside = (times > low_ms) & (times <= at_ms)
            samples += int(inside.sum())
            observations += int((inside if batch.count is None else batch.count[inside]).sum())
    if samples > samples_max:
        return None if observations > samples else samples_max
    return observations


def _batches(records: Sequence[LogRecord], stored: StoredState, since_ms: int) -> Iterator[tuple[int, Batch]]:
    """What one log has for a breaker since its creation, of the metric that it looks at now."""
    splitter = Splitter(RouterView(version=0))
    for record in records:
        if record.kind == SAMPLES and record.received_ms >= since_ms:
            for taker, body, start, stop in concerned(record, splitter):
                if taker != stored.breaker_id or not isinstance(body, SampleColumns):
                    continue
                if body.metric_at(start) == stored.rule.metric:
                    yield record.received_ms, body.batch.slice(start, stop)
        elif record.kind == VIEW:
            splitter = Splitter(decode_view(record.payload))
