"""Which commit of each breaker is the newest that was stored: an earlier one that comes again, late, is passed over.

A call whose answer was lost is made again, and the first one may still arrive, behind all that its breaker has stored
since. Moves are known by their transition_seq; a change of allow_rate, and a checkpoint, by nothing but their number.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from breaker_actors.messages import Commit, CommitResult
from breaker_actors.telemetry.meters import Meters

Write = Callable[[list[Commit]], Awaitable[list[CommitResult]]]

KNOWN_MAX = 100_000
"""Breakers whose newest commit is known; of others nothing comes late that one knows of."""


class Newest:
    """Of this process alone: what was sent to one that is gone comes to nobody."""

    def __init__(self, meters: Meters) -> None:
        self._of: dict[str, tuple[int, int]] = {}
        self._meters = meters

    def late(self, commits: Sequence[Commit]) -> list[CommitResult | None]:
        """The answer of each that is late, None for the others: "ok" where a later one is stored, "failed", to come
        again, where a later one stands before it here."""
        found: list[CommitResult | None] = []
        here: dict[str, tuple[int, int]] = {}
        for commit in commits:
            found.append(
                "ok"
                if _is_before(commit, self._of.get(commit.breaker_id))
                else "failed"
                if _is_before(commit, here.get(commit.breaker_id))
                else None
            )
            if not found[-1]:
                mark = commit.epoch, commit.number
                here[commit.breaker_id] = max(mark, here.get(commit.breaker_id, mark))
        return found

    async def in_order(self, write: Write, commits: list[Commit]) -> list[CommitResult]:
        """Writes those that are not late."""
        answers = self.late(commits)
        if late := sum(answer is not None for answer in answers):
            self._meters.count("breakers_journal_commits_total", late, result="late")
        on_time = [c for c, answer in zip(commits, answers, strict=True) if answer is None]
        results = iter(await write(on_time) if on_time else ())
        return [next(results) if answer is None else answer for answer in answers]

    def note(self, commit: Commit) -> None:
        """It is stored."""
        mark = commit.epoch, commit.number
        self._of[commit.breaker_id] = max(mark, self._of.pop(commit.breaker_id, mark))
        for id_ in list(islice(self._of, max(0, len(self._of) - KNOWN_MAX))):
            del self._of[id_]


def _is_before(commit: Commit, other: tuple[int, int] | None) -> bool:
    """Of another epoch nothing is known here: the store knows whose it is."""
    return other is not None and not commit.events and commit.epoch == other[0] and 0 < commit.number < other[1]
