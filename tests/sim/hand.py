"""The operator's hand in a run, as logs and stored events tell of it: what must hold of every override whatever became
of the processes, and which of the states that matter were met."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from breaker_actors.core.log_entries import BREAKER, GAP, BreakerSet, Gap, LogRecord, decode_breaker, decode_gap
from breaker_actors.core.model import Control, Override, Record
from breaker_actors.core.overlay import BEGINS, STATES, shown

if TYPE_CHECKING:
    from tests.sim.checks import Event

_decode_record = msgspec.msgpack.Decoder(Record).decode
_BEGUN = frozenset(BEGINS.values())


class Told(msgspec.Struct, frozen=True):
    """An override as a log has it, and when it came there."""

    override: Override
    received_ms: int


class Hand:
    """Hears of every record and event when it comes. `reach` counts states that are worth being in; `is_served`:
    whether a breaker has an owner that works. Checks answer what is wrong, in words; "": nothing."""

    def __init__(self, reach: Callable[[str], None], is_served: Callable[[str], bool]) -> None:
        self._reach = reach
        self._is_served = is_served
        self._told: dict[str, list[Told]] = {}
        self._newest: dict[str, BreakerSet] = {}
        self._routers: dict[str, set[str]] = {}
        self._gaps: dict[str, list[Gap]] = {}
        self._stored: dict[str, tuple[int, Override | None]] = {}

    # the log

    def appended(self, record: LogRecord) -> None:
        if record.kind == GAP:
            self._gaps.setdefault(record.router_id, []).append(decode_gap(record.payload))
        elif record.kind == BREAKER:
            settings = decode_breaker(record.payload)
            self._routers.setdefault(settings.breaker_id, set()).add(record.router_id)
            self._settings(settings, record.received_ms)

    def _settings(self, settings: BreakerSet, now_ms: int) -> None:
        """A log has a new version of a breaker, or one that another log has already."""
        breaker_id = settings.breaker_id
        override, before = _override(settings), self._newest.get(breaker_id)
        if override is not None:
            self._told.setdefault(breaker_id, []).append(Told(override, now_ms))
        if before is not None and settings.version <= before.version and not settings.created:
            return
        earlier = _override(before)
        is_under = earlier is not None and now_ms < earlier.until_ms
        if settings.rule is None:
            if is_under:
                self._reach("a breaker is deleted under an override")
            self._newest.pop(breaker_id, None)
            return
        self._newest[breaker_id] = settings
        if override is not None and override.version == settings.version:
            if now_ms >= override.until_ms:
                self._reach("an override is over before it came")
            elif not self._is_served(breaker_id):
                self._reach("an override is set while its breaker's actor is dead")
            if is_under and now_ms < override.until_ms:
                self._reach("an override is replaced")
        elif is_under and override == earlier and before is not None and settings.rule != before.rule:
            self._reach("a rule is changed under an override")

    # the store

    def moved(self, breaker_id: str, event: Event) -> str:
        """What is wrong with an event, given the overrides that logs have told of."""
        if event.reason in _BEGUN:
            return self._begun(breaker_id, event)
        if event.reason == "override_expired":
            return self._expired(breaker_id, event)
        if event.reason == "override_ended":
            self._reach("an override is ended by hand")
        elif event.reason == "mode_enforce" and event.curr == "open":
            self._reach("a breaker that observed is to enforce while it is open")
        elif event.hidden_by == "observe" and event.curr == "open":
            self._reach("a breaker that observes trips")
        elif event.hidden_by == "override" and not any(
            told.received_ms <= event.ts_ms <= told.override.until_ms for told in self._told.get(breaker_id, ())
        ):
            return f"is hidden by an override at {event.ts_ms}, when none was in force"
        return ""

    def _begun(self, breaker_id: str, event: Event) -> str:
        of = [told.override for told in self._of(breaker_id, event) if BEGINS[told.override.kind] == event.reason]
        if not any(event.ts_ms < override.until_ms and event.curr == STATES[override.kind] for override in of):
            return f"begins an override ({event.reason}, {event.comment}) at {event.ts_ms}, the logs tell of {of}"
        return ""

    def _expired(self, breaker_id: str, event: Event) -> str:
        over = [told.override for told in self._of(breaker_id, event) if told.override.until_ms == event.ts_ms]
        if not over:
            of = [told.override.until_ms for told in self._of(breaker_id, event)]
            return f"ends an override at {event.ts_ms} that was to end at {of}"
        self._reach("an override expires")
        if event.curr == "half_open" and over[0].then == "half_open":
            self._reach("a ramp begins where an override ends")
        gaps = (gap for router_id in self._routers[breaker_id] for gap in self._gaps.get(router_id, ()))
        if any(gap.from_ms < event.ts_ms < gap.to_ms for gap in gaps):
            self._reach("an override expires inside an outage")
        return ""

    def _of(self, breaker_id: str, event: Event) -> list[Told]:
        """The overrides that an event names: who, and why; a request that came twice set two of them."""
        named = (event.by, event.comment)
        known = self._told.get(breaker_id, ())
        return [told for told in known if (told.override.by, told.override.reason) == named]

    def may_begin_ramp(self, breaker_id: str, now_ms: int) -> bool:
        """Whether the end of an override may have moved the machine to half_open by then."""
        known = self._told.get(breaker_id, ())
        return any(told.override.then == "half_open" and told.received_ms <= now_ms for told in known)

    def stored(self, breaker_id: str, epoch: int, record: bytes | None, state: str, rate: float) -> str:
        """What is wrong with a stored record: its row says what callers see of it."""
        if record is None:
            return ""
        known = _decode_record(record)
        before, self._stored[breaker_id] = self._stored.get(breaker_id), (epoch, known.override)
        if known.override is not None and before is not None and before[0] < epoch and before[1] == known.override:
            self._reach("a breaker is restarted or moved under an override")
        seen = shown(known, rate)
        if (state, rate) != seen:
            return f"the row says {state} and {rate}, its record {seen.state} and {seen.allow_rate}"
        return ""


def _override(settings: BreakerSet | None) -> Override | None:
    return None if settings is None else (settings.control or Control()).override
