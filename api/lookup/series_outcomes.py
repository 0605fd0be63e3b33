"""What became of each series of a project, remembered, so that a point costs one look.

It holds as long as the project's mappings and routers do, and an hour at most: then it is judged anew, and how many
distinct series each mapping has taken is counted anew, too. A flood of series does not end it: what is forgotten first
are those that nothing becomes of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from api.lookup.mapping_plans import MappingPlan
from api.lookup.project_memories import ProjectMemories
from api.protocols.mapping import REQUEST_EFFORT, Outcome, Target, beyond, resolve
from api.protocols.points import Series
from breaker_actors.store.mutes.matching import Effort

HELD_S = 3_600.0
HELD_MAX = 500_000
"""Series of all projects of a replica; beyond it the organisation that has most forgets those of a project."""
PROJECT_MAX = 100_000
"""Of one project, and those of one request more. Beyond that the series that became samples stay, if they are no more
than half of it; the others are judged anew."""

Known = tuple[bytes, str | None, bool]


class SeriesOutcomes:
    """Those of one replica."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.of: ProjectMemories[_Project] = ProjectMemories(HELD_MAX, monotonic)

    def judging(
        self, org_id: str, project_id: str, plan: MappingPlan, series: Sequence[Series]
    ) -> Iterator[list[Outcome] | None]:
        """The outcome of each series in the end; None after each one that had to be judged. What is refused since they
        take too long to match together is judged anew the next time: the others are known by then."""
        known, effort = self._known(org_id, project_id, plan), Effort(REQUEST_EFFORT)
        found: list[Outcome] = []
        for one in series:
            key = (one.identity, one.temporality, one.monotonic)
            outcome = known.outcomes.get(key)
            if outcome is None:
                outcome = known.judge(one, effort)
                if effort.left > 0 or isinstance(outcome, Target):  # what is counted as taken is remembered, too
                    known.outcomes[key] = outcome
                yield None
            found.append(outcome)
        if self.of.get(project_id) is known:
            self.of.put(org_id, project_id, known, 1 + len(known.outcomes))
        yield found

    def _known(self, org_id: str, project_id: str, plan: MappingPlan) -> _Project:
        """What is known already, by this plan; requests at once share it."""
        now_s = self._monotonic()
        known = self.of.get(project_id)
        if known is None or known.plan is not plan or now_s > known.until_s:
            known = _Project(plan, now_s + HELD_S)
        elif len(known.outcomes) > PROJECT_MAX and not known.forget_idle(PROJECT_MAX // 2):
            known = _Project(plan, now_s + HELD_S)
        self.of.put(org_id, project_id, known, 1 + len(known.outcomes))
        return known


class _Project:
    """`taken`: how many distinct series each mapping has."""

    __slots__ = ("outcomes", "plan", "taken", "until_s")

    def __init__(self, plan: MappingPlan, until_s: float) -> None:
        self.plan, self.until_s = plan, until_s
        self.outcomes: dict[Known, Outcome] = {}
        self.taken: dict[str, int] = {}

    def judge(self, series: Series, effort: Effort) -> Outcome:
        outcome = resolve(series, self.plan.mappings, self.plan.routers, effort)
        if isinstance(outcome, Target):
            mapping = outcome.mapping_id or outcome.mapping
            n = self.taken.get(mapping, 0)
            if n >= outcome.series_max:
                return beyond(outcome)
            self.taken[mapping] = n + 1
        return outcome

    def forget_idle(self, most: int) -> bool:
        """Forgets the series that nothing becomes of, unless those that are left are more than `most`: then False."""
        left: dict[Known, Outcome] = {
            key: outcome for key, outcome in self.outcomes.items() if isinstance(outcome, Target)
        }
        if len(left) > most:
            return False
        self.outcomes = left
        return True
