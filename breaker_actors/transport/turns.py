"""A line in which owners take turns: one item of each, then a second one, and so on; those of one owner in order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """What a Lane may have instead of a deque. `owner_of` is asked once for each item."""

    def __init__(self, owner_of: Callable[[T], str]) -> None:
        self._owner_of = owner_of
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __getitem__(self, place: int) -> T:
        """The next one: there is no other place."""
        assert place == 0
        return next(iter(self._lines.values()))[0]

    def append(self, item: T) -> None:
        owner = self._owner_of(item)
        line = self._lines.get(owner)
        if line is None:
            line = self._lines[owner] = deque()
        line.append(item)

    def popleft(self) -> T:
        owner, line = next(iter(self._lines.items()))
        item = line.popleft()
        if line:
            self._lines.move_to_end(owner)
        else:
            del self._lines[owner]
        return item
