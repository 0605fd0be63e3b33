"""How much lists and batches may tell of one project: a budget of things, since requests cost as much as they list. And
how many addresses of its channels are looked at, likewise.

Whatever is left grants a whole answer, however large; what was too much is waited for by the next one. So an answer is
never refused for its size, and a project that polls all it has once a second is never refused.
"""

from __future__ import annotations

from collections import OrderedDict

from breaker_actors.settings import Settings

PROJECTS_MAX = 10_000
EXAMINED_BURST = 200
"""Addresses looked at at once in any case: a plan of all channels that a project may have, and its apply."""
SETTING = "BREAKERS_RATE_READS_PER_S"


class ReadBudget:
    """What projects have used up. `burst`: things at once. When there are too many projects, the one unheard of longest
    is forgotten; its budget is whole then. With a rate of 0 there is no limit."""

    def __init__(self, per_s: float, burst: float, projects_max: int = PROJECTS_MAX) -> None:
        self._per_s = per_s
        self._burst = burst
        self._projects_max = projects_max
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @classmethod
    def of(cls, settings: Settings) -> ReadBudget:
        """Each replica grants its part of the rate, and all things of a project twice at once."""
        per_s = settings.rate_reads_per_s / settings.replicas
        return cls(per_s, max(per_s, 2 * settings.breakers_per_project_max))

    @classmethod
    def of_examined(cls, settings: Settings) -> ReadBudget:
        """The same of addresses, of which a minute's part may come at once."""
        per_minute = settings.rate_examined_per_minute / settings.replicas
        return cls(per_minute / 60, max(per_minute, EXAMINED_BURST))

    def spend(self, project_id: str, n: int, now_s: float, sure: bool = False) -> float:
        """Counts `n` things if anything is left, and returns 0; else in how many seconds there will be. `sure`: they
        are counted anyway, as what has begun is finished."""
        if not self._per_s:
            return 0.0
        used, then_s = self._used.pop(project_id, (0.0, now_s))
        used = max(0.0, used - self._per_s * (now_s - then_s))
        wait_s = (used - self._burst) / self._per_s
        granted = sure or used < self._burst
        self._used[project_id] = used + n * granted, now_s
        if len(self._used) > self._projects_max:
            self._used.popitem(last=False)
        return 0.0 if granted else max(wait_s, 0.001)

    def give_back(self, project_id: str, n: int) -> None:
        """Of things that were counted before their number was known, those that there were not."""
        used, then_s = self._used.get(project_id, (0.0, 0.0))
        if used:
            self._used[project_id] = max(0.0, used - n), then_s
