"""The score of the Numenta Anomaly Benchmark, for detections that are either there or not.

Written anew from its description: Lavin and Ahmad, "Evaluating Real-time Anomaly Detection Algorithms: the Numenta
Anomaly Benchmark" (2015, arXiv 1510.03336), and, where code and paper differ, as version 1.1 of github numenta/NAB
counts (`nab/sweeper.py`: probation, positions in a window; `config/profiles.json`: weights).

- The first 15 % of a file, at most 750 rows, are probation: detections there do not count.
- A window is worth its earliest detection: 1 at its first row, falling as a sigmoid to 0 behind its last. Missed: -fn.
- A detection outside costs up to fp: little right behind a window, all of it three widths behind or where none was
  before.
- 0 is what no detection gets, 100 what a perfect one gets. Above that line false detections may lead below 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PROBATION, PROBATION_ROWS = 0.15, 5000


@dataclass(frozen=True)
class Profile:
    """What a caught window, a false detection and a missed window weigh."""

    tp: float
    fp: float
    fn: float


PROFILES = {"standard": Profile(1.0, 0.11, 1.0), "low FP": Profile(1.0, 0.22, 1.0)}


def probation(rows: int) -> int:
    """How many rows at the beginning do not count."""
    return math.ceil(min(math.floor(PROBATION * rows), PROBATION * PROBATION_ROWS))


def scaled(position: float) -> float:
    """1 far before 0, 0 at it, -1 far behind it."""
    return -1.0 if position >= 3 else 2 / (1 + math.exp(5 * position)) - 1


def raw(rows: int, windows: Sequence[tuple[int, int]], detections: Sequence[int], profile: Profile) -> float:
    """The score of one file. `windows`: first and last row of each, in order; `detections`: rows."""
    first = probation(rows)
    counted = sorted({row for row in detections if row >= first})
    score = 0.0
    for begin, end in windows:
        if end < first:
            continue
        inside = [row for row in counted if begin <= row <= end]
        width = end - begin + 1
        score += profile.tp * scaled(-(end - inside[0] + 1) / width) / scaled(-1.0) if inside else -profile.fn
    for row in counted:
        if any(begin <= row <= end for begin, end in windows):
            continue
        before = [(begin, end) for begin, end in windows if end < row]
        behind = (row - before[-1][1]) / max(1, before[-1][1] - before[-1][0]) if before else 3.0
        score += profile.fp * scaled(behind)
    return score


def normalised(total: float, windows: int, profile: Profile) -> float:
    """Of all files, in percent between no detection and a perfect one."""
    nothing, perfect = -profile.fn * windows, profile.tp * windows
    return 100 * (total - nothing) / (perfect - nothing)
