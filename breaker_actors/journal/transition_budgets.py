"""How many transitions projects may store a minute: what goes beyond waits for its turn, nothing is lost.

Pure: time is an argument, in seconds of any steady clock.
"""

from __future__ import annotations

from breaker_actors.messages import ProjectShare

KNOWN_MAX = 10_000
"""So many projects are remembered before those with a whole budget are forgotten."""
STALE_S = 60.0
"""Who has not come by so long after its turn does not come any more: its breaker was deleted or has moved."""


class Budgets:
    """`per_minute` transitions for each project, `burst` of them at once. A commit beyond that is given a turn and let
    through when its breaker comes again then: at most one turn for each breaker."""

    def __init__(self, per_minute: int, burst: int) -> None:
        self._per_minute = per_minute
        self._gap_s = 60 / per_minute
        self._burst_s = burst * self._gap_s
        # when a project's budget is whole again
        self._whole_s: dict[str, float] = {}
        self._turns: dict[str, tuple[str, float]] = {}
        self.paced = 0

    @property
    def waiting(self) -> int:
        """Commits that were given a turn."""
        return len(self._turns)

    def wait_s(self, project_id: str, breaker_id: str, count: int, now_s: float) -> float:
        """How long a commit of `count` transitions has to wait; 0: it goes now and is charged."""
        if (turn := self._turns.get(breaker_id)) is not None:
            if now_s >= turn[1]:
                del self._turns[breaker_id]
            return max(0.0, turn[1] - now_s)
        whole_s = max(self._whole_s.get(project_id, now_s), now_s)
        if len(self._whole_s) > KNOWN_MAX:
            self._whole_s = {known: at for known, at in self._whole_s.items() if at > now_s}
        self._whole_s[project_id] = whole_s + count * self._gap_s
        at_s = whole_s - self._burst_s
        if at_s <= now_s:
            return 0.0
        self._turns[breaker_id] = (project_id, at_s)
        self.paced += count
        return at_s - now_s

    def refund(self, project_id: str, count: int) -> None:
        """A commit that was let through failed, and comes again."""
        if project_id in self._whole_s:
            self._whole_s[project_id] -= count * self._gap_s

    def forget(self, now_s: float) -> None:
        """Drops the turns that nobody came for; to be called now and then."""
        gone = [breaker_id for breaker_id, (_, at_s) in self._turns.items() if now_s - at_s > STALE_S]
        for breaker_id in gone:
            del self._turns[breaker_id]

    def limits(self, now_s: float) -> tuple[ProjectShare, ...]:
        """The projects whose transitions wait: so many are counted against the budget, stored or waiting."""
        return tuple(
            ProjectShare(
                project_id=project_id,
                limit="transitions",
                used=round((self._whole_s.get(project_id, now_s) - now_s) / self._gap_s),
                most=round(self._burst_s / self._gap_s),
            )
            for project_id in sorted({project_id for project_id, _ in self._turns.values()})
        )
