"""One log line for each stored transition."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from breaker_actors.messages import Commit
from breaker_actors.telemetry.meters import Meters

log = structlog.get_logger()

_BY_HAND = ("hidden_by", "by", "comment")
LINES_PER_S, LINES_AT_ONCE = 50, 500
"""Lines that a Journal writes in the long run, and after a while of quiet. Beyond that they are counted: a storm of
transitions must not become one of lines."""


class TransitionLines:
    """Writes the lines of one Journal. Times are seconds of one clock."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._left: float = LINES_AT_ONCE
        self._at_s = 0.0
        self._unsaid = 0

    def write(self, commits: Iterable[Commit], now_s: float) -> None:
        """A line for each event of these commits."""
        self._left = min(LINES_AT_ONCE, self._left + max(0.0, now_s - self._at_s) * LINES_PER_S)
        self._at_s = now_s
        for commit in commits:
            for event in commit.events:
                if self._left < 1:
                    self._unsaid += 1
                    self._meters.count("breakers_transitions_unlogged_total")
                    continue
                self._left -= 1
                if self._unsaid:
                    log.info("transitions_unlogged", n=self._unsaid)
                    self._unsaid = 0
                log.info(
                    "transition",
                    project_id=commit.project_id,
                    breaker_id=commit.breaker_id,
                    name=event.name,
                    prev=event.prev,
                    curr=event.curr,
                    reason=event.reason,
                    value=event.value,
                    allow_rate=event.allow_rate,
                    at_ms=event.ts_ms,
                    transition_seq=event.transition_seq,
                    **{word: said for word in _BY_HAND if (said := getattr(event, word)) is not None},
                )
