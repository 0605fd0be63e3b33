"""How much a group of the Journal writes at most: what takes a tenth of a second, as the last groups went. Pure.

Whoever comes while a group is stored waits for its end, and for that of the next one, which has its own commit. What a
transition takes to store differs by a hundred: by how many channels are told, how full the machine is, where the
database lies. So a bound on their number alone bounds nobody's wait.
"""

from __future__ import annotations

LONG_S = 0.1
"""A group that took longer was too large, if it was full."""
LEAST_PART = 10
"""No group is smaller than this part of the most: each commit costs something, too, and everybody is to get on."""
GROWTH = 4
"""A full group that was short makes the next one larger by this part of it."""


class GroupSize:
    """`rows`: what the next group may have."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._least = max(1, most // LEAST_PART)
        self.rows = most

    def learn(self, rows: int, took_s: float) -> None:
        """A group of so much was stored. One that had room left says nothing: something else took its time."""
        if 2 * rows < self.rows:
            return
        if took_s > LONG_S:
            self.rows = max(self._least, min(self.rows // 2, int(rows * LONG_S / took_s)))
        elif 2 * took_s < LONG_S:
            self.rows = min(self._most, self.rows + self.rows // GROWTH + 1)
