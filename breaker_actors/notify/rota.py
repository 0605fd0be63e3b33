"""Whose held deliveries are looked at next: organisations take turns, and within one its projects. Pure.

A look at a project goes to its end before the next one begins, however often it is asked for meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice


class Rota:
    """Projects with a look that is due or under way: by organisation, with the number up to which it came."""

    def __init__(self) -> None:
        self._orgs: OrderedDict[str, OrderedDict[str, int]] = OrderedDict()
        self._org_of: dict[str, str] = {}
        self._again: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._orgs)

    def add(self, projects: Iterable[tuple[str, str]]) -> None:
        """A look is due at each of these (organisation, project): where one is under way, after its end."""
        for org_id, project_id in projects:
            mine = self._orgs.get(self._org_of.get(project_id, org_id))
            after = None if mine is None else mine.get(project_id)
            if after is None:
                self._orgs.setdefault(org_id, OrderedDict())[project_id] = 0
                self._org_of[project_id] = org_id
            elif after > 0:
                self._again.add(project_id)

    def next(self, most: int) -> dict[str, int]:
        """So many projects at most in the order of their turns, and the number up to which each was looked at: one of
        each organisation, then a second one, and so on."""
        waiting = [iter(projects.items()) for projects in islice(self._orgs.values(), most)]
        found: dict[str, int] = {}
        while waiting and len(found) < most:
            left = []
            for projects in waiting:
                one = next(projects, None)
                if one is not None and len(found) < most:
                    found[one[0]] = one[1]
                    left.append(projects)
            waiting = left
        return found

    def note(self, looked: Mapping[str, int | None]) -> None:
        """What came of a turn: up to where each project was looked at, None at its end. The others keep theirs."""
        for project_id, last in looked.items():
            org_id = self._org_of[project_id]
            mine = self._orgs[org_id]
            self._orgs.move_to_end(org_id)
            if last is not None or project_id in self._again:
                mine[project_id] = last or 0
                mine.move_to_end(project_id)
                if last is None:
                    self._again.discard(project_id)
                continue
            del mine[project_id], self._org_of[project_id]
            if not mine:
                del self._orgs[org_id]
