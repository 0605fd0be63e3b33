"""What a commit comes to in the database, in transitions: itself, and the deliveries of those who listen.

A transition that 100 channels hear is 100 rows of the outbox. How many listen is asked of the store now and then, for
the projects that had alerts since, so a new channel counts a moment later, and of a project that has its first alert
before that is written; what is written does not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from breaker_actors.messages import Commit
from breaker_actors.store.base import JournalStore
from breaker_actors.store.rows import alert_of

DELIVERIES_PER_TRANSITION = 10
"""So many deliveries cost as much as a transition."""
KNOWN_MAX = 100_000
"""So many projects are remembered; beyond, all are asked about anew."""


class Listeners:
    """How many channels take each kind of alert, by project."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store
        self._known: dict[str, dict[str, int]] = {}
        self._heard: set[str] = set()

    def cost(self, commit: Commit) -> int:
        """Transitions that a commit counts as: its own, and 1 for each whole DELIVERIES_PER_TRANSITION."""
        return len(commit.events) + self._deliveries(commit) // DELIVERIES_PER_TRANSITION

    def rows(self, commit: Commit) -> int:
        """How much a commit writes: its transitions and their deliveries."""
        return len(commit.events) + self._deliveries(commit)

    def weight(self, commit: Commit) -> int:
        """The same in a group, where nothing counts less than 1."""
        return max(1, self.rows(commit))

    def has_new(self, commits: Sequence[Commit]) -> bool:
        """Whether there are alerts of a project that was never asked about."""
        return any(commit.project_id not in self._known and _kinds_of(commit) for commit in commits)

    def hear(self, commits: Sequence[Commit]) -> None:
        """The projects of these that have alerts are asked about the next time."""
        self._heard.update(commit.project_id for commit in commits if _kinds_of(commit))

    def _deliveries(self, commit: Commit) -> int:
        kinds = _kinds_of(commit)
        if not kinds:
            return 0
        self._heard.add(commit.project_id)
        mine = self._known.get(commit.project_id, {})
        return sum(mine.get(kind, 0) for kind in kinds)

    async def learn(self) -> None:
        """Asks about the projects that had alerts since. Raises Unavailable: they are asked about the next time."""
        if not self._heard:
            return
        asked = sorted(self._heard)
        found = await self._store.listeners_of(asked)
        self._heard.difference_update(asked)
        if len(self._known) + len(asked) > KNOWN_MAX:
            self._known.clear()
        self._known |= {project_id: found.get(project_id, {}) for project_id in asked}


def _kinds_of(commit: Commit) -> list[str]:
    return [kind for event in commit.events if (kind := _kind_of(event.prev, event.curr, event.hidden_by))]


def _kind_of(prev: str, curr: str, hidden_by: str | None) -> str | None:
    """The kind of the deliveries of an event; None: nobody hears of it."""
    kind = alert_of(prev, curr)
    if kind is None or hidden_by == "override":
        return None
    return "observed" if hidden_by == "observe" else kind
