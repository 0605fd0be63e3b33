"""One channel's circuit breaker: whether, and how many deliveries at once, it may be tried with. No I/O, no clock.

A core `Breaker` fed with the outcomes of attempts, a pause that the receiver asked for, and a width: after any failure
one delivery at a time, after each success one more.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Record, StateWord
from breaker_actors.notify.limits import FAILURES_MAX, Pace
from breaker_actors.notify.model import Attempt
from breaker_actors.store.rows import CircuitRow

AHEAD_MAX_MS = 1_000
"""A circuit whose time is further ahead was moved by a clock that was wrong."""

NEVER_MS = 1 << 62

_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(Record).decode
_TIMES = tuple(name for name in Record.__struct_fields__ if name.endswith("_ms"))


class Circuit:
    """Made anew (closed) or from what was stored; a channel that was edited starts anew."""

    def __init__(self, channel_id: str, version: str, stored: CircuitRow | None, pace: Pace, now_ms: int) -> None:
        self.channel_id = channel_id
        self.version = version
        self.last_error: str | None = None
        self._last_status: int | None = None
        self._not_before_ms = 0
        self._width = self._width_max = pace.channel_max
        self._proven_seq = -1
        self._found = (0, 0, 0)  # from when until when it was found to have how much room
        if stored is not None and stored.version == version:
            self._breaker = Breaker.restore(pace.rule(), _decode_record(stored.record))
            self._not_before_ms = stored.not_before_ms
            self._last_status, self.last_error = stored.last_status, stored.last_error
            self._width = 1
        else:
            self._breaker, _ = Breaker.create(pace.rule(), now_ms)

    @property
    def seq(self) -> int:
        """Counts the circuit's moves: the outcome of an attempt begun under another one is no news."""
        return self._record().transition_seq

    @property
    def state(self) -> StateWord:
        return self._record().state

    @property
    def revision(self) -> tuple[int, int]:
        """Differs from an earlier one when the circuit has to be stored again."""
        return self.seq, self._not_before_ms

    def capacity(self, now_ms: int) -> int:
        """Returns how many deliveries may be under way at `now_ms`; 0: no delivery is attempted. There are as many
        circuits to be asked, again and again, as channels with something that waits."""
        since_ms, until_ms, room = self._found
        if since_ms <= now_ms < until_ms:
            return room
        self._set_back(now_ms)
        self._breaker.advance(now_ms)
        if now_ms < self._not_before_ms or self.state == "open":
            room, until_ms = 0, self.wake_ms()
        else:
            room, until_ms = 1 if self.state == "half_open" else self._width, self._breaker.next_wake() or NEVER_MS
        self._found = now_ms, until_ms, room
        return room

    def wake_ms(self) -> int:
        """When there may be room again; to be asked when there is none."""
        return max(self._not_before_ms, (self._breaker.next_wake() or 0) if self.state == "open" else 0)

    def note(self, attempt: Attempt, seq: int, now_ms: int) -> bool:
        """Takes an outcome in. True: the receiver is back, what waits for it is due now.

        A final refusal is an answer: whoever gives it is alive. Of a half-open circuit the first failure counts as
        many, so that one probe decides; once a probe got through, failures count as in a closed one.
        """
        self._found = (0, 0, 0)
        self._set_back(now_ms)
        self._breaker.advance(now_ms - 1)
        failed = attempt.result == "retry"
        if failed:
            self.last_error, self._last_status = attempt.error, attempt.status
            self._not_before_ms = max(self._not_before_ms, now_ms + (attempt.retry_after_ms or 0))
        self._width = 1 if failed else min(self._width_max, self._width + 1)
        if seq != self.seq:
            return False
        probing = self.state == "half_open" and self._proven_seq != seq
        weight = FAILURES_MAX if probing and failed else 1
        self._breaker.ingest(Batch.of([(now_ms, 0.0, not failed)] * weight), now_ms)
        if probing and not failed:
            self._proven_seq = seq
        return probing and not failed

    def _set_back(self, now_ms: int) -> None:
        """After a clock that was ahead: all times go back by as much, and what was left of a pause is left of it."""
        ahead_ms = self._breaker.now_ms - 1 - now_ms
        if ahead_ms <= AHEAD_MAX_MS:
            return
        record = self._record()
        times = {name: getattr(record, name) - ahead_ms for name in _TIMES}
        self._breaker = Breaker.restore(self._breaker.rule, replace(record, **times))
        self._not_before_ms -= ahead_ms

    def row(self) -> CircuitRow:
        """What is to be remembered of it."""
        return CircuitRow(
            channel_id=self.channel_id,
            version=self.version,
            record=_encode(self._record()),
            not_before_ms=self._not_before_ms,
            last_status=self._last_status,
            last_error=self.last_error,
        )

    def _record(self) -> Record:
        return self._breaker.record()
