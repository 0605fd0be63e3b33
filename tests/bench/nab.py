"""How good suggestions are on the Numenta Anomaly Benchmark, by its own scoring (tests/support/nab_scoring.py).

python -m tests.bench nab [--corpus FOLDER] [--json FILE] [--smoke]

FOLDER is a checkout of github numenta/NAB: `data/` and `labels/combined_windows.json`. Without it the three series that
the tests have are taken, which says little of the whole: the defaults were chosen while looking at them. Three ways,
each by breakers on both sides, a trip out of
closed being a detection:

- one global rule: largest and least value of a window, of the same length for all files, against limits that are so
  many times as far from the middle of the file's first 15 % as its usual extremes are; how many is chosen once for all
  files, as the benchmark lets a detector choose one threshold.
- unlabelled: `suggest` without labels on the first 15 % of each file; nothing else is known of it.
- fitted: `suggest` with all labels of the file. An upper bound of single breakers, no detector to compare with.

And a split of time: the first half of each file chooses, with its labels, or without where it has none; the second half
counts. `dense sweep` is what the best setting of the second half itself would have come to. The benchmark is known to
have doubtful labels (Wu and Keogh, arXiv 2009.13807): its score is a common measure, no truth.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from breaker_actors.core.model import Rule, Transition
from breaker_actors.core.rules import parse_rule
from pipelines.columns import Samples
from pipelines.frames import read_series
from pipelines.replay.scoring import Labelled, Tally, labelled
from pipelines.replay.vectorized.judge import Judge
from pipelines.suggest.budget import within_budget
from pipelines.suggest.measures import measures, timed, usual_measures
from pipelines.suggest.search import Search
from tests.support.figures import options_of, show
from tests.support.nab_scoring import PROFILES, normalised, probation, raw
from tests.support.series import LATENCY, SERIES, WINDOWS

FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
LENGTH = 12
"""Samples in the window of the global rule."""
USUAL = 0.99


@dataclass(frozen=True)
class File:
    """A series with its labelled windows."""

    name: str
    samples: Samples
    windows: list[Labelled]


def main(argv: list[str]) -> None:
    parser = options_of("nab")
    parser.add_argument("--corpus", type=Path)
    options = parser.parse_args(argv)
    files = corpus(options.corpus) if options.corpus else shared()
    show(measure(files[:1] if options.smoke else files), options.json)


def shared() -> list[File]:
    """The series of the tests."""
    return [
        of_path(path, labelled(path.parent / WINDOWS.name if path == LATENCY else WINDOWS, [path.name]))
        for path in SERIES
    ]


def corpus(folder: Path) -> list[File]:
    """All labelled series of a checkout."""
    windows = json.loads((folder / "labels" / "combined_windows.json").read_text())
    return [of_path(folder / "data" / name, labelled(those, [name])) for name, those in sorted(windows.items())]


def of_path(path: Path, windows: list[Labelled]) -> File:
    batch = read_series(path)
    return File(path.name, Samples(batch.ts_ms, batch.ts_ms, batch.value, batch.ok), windows)


def measure(files: Sequence[File]) -> dict[str, float]:
    """Figures by name."""
    begun = time.process_time()
    fitted = {file.name: fit(file.samples, file.windows) for file in files}
    figures: dict[str, float] = {"files": len(files), "windows": sum(len(file.windows) for file in files)}
    figures["s CPU a file, up to 10,000 settings"] = (time.process_time() - begun) / len(files)
    ways: dict[str, dict[str, list[Rule]]] = {
        "unlabelled, first 15 %": {file.name: unlabelled(head(file)) for file in files},
        "fitted to the labels": fitted,
    }
    tried = {factor: {file.name: globally(head(file), factor) for file in files} for factor in FACTORS}
    for profile in PROFILES:
        best = max(FACTORS, key=lambda factor: score(files, tried[factor], profile))
        figures[f"{profile}: one global rule"] = score(files, tried[best], profile)
        figures[f"{profile}: its factor"] = best
        figures |= {f"{profile}: {name}": score(files, rules, profile) for name, rules in ways.items()}
    return figures | split(files)


def head(file: File) -> Samples:
    return file.samples.part(0, max(1, probation(len(file.samples))))


def fit(samples: Samples, windows: list[Labelled]) -> list[Rule]:
    """The suggestion for labels; without any of them that for a budget."""
    search = Search(Judge(samples), windows)
    found = search.best(measures(samples, "value")) if search.windows else None
    return unlabelled(samples) if found is None else [found.outcome.rule]


def unlabelled(samples: Samples) -> list[Rule]:
    judge = Judge(samples)
    found = (within_budget(judge, one, 1.0) for one in usual_measures(samples, "value", None))
    return [one.rule for one in found if one is not None]


def globally(samples: Samples, factor: float) -> list[Rule]:
    """Both sides of the global rule, for a file whose beginning is known."""
    window_ms = LENGTH * int(np.median(np.diff(samples.at)))
    middle = float(np.median(samples.value))
    rules = []
    for kind, op, part in (("max", "gt", USUAL), ("min", "lt", 1 - USUAL)):
        usual = float(np.quantile(samples.value, part))
        threshold = middle + factor * 2 * (usual - middle)
        fields = {"metric": "value", "kind": kind, "op": op, "threshold": threshold, "window_ms": window_ms}
        rules.append(parse_rule(fields | timed(window_ms)))
    return rules


def detections(samples: Samples, rules: Sequence[Rule]) -> list[int]:
    """Rows at which a breaker trips out of closed."""
    found, judge = set(), Judge(samples)
    for rule in rules:
        tally = Tally()
        judge.follow(rule, tally)
        found |= {
            int(np.searchsorted(samples.at, one.ts_ms, "right")) - 1
            for one in tally.effects
            if isinstance(one, Transition) and (one.prev, one.curr) == ("closed", "open")
        }
    return sorted(found)


def score(files: Sequence[File], rules: Mapping[str, list[Rule]], profile: str) -> float:
    """Normalised score of all files under a profile."""
    weights, total = PROFILES[profile], 0.0
    for file in files:
        at = file.samples.at
        rows = [
            (int(np.searchsorted(at, one.start_ms)), int(np.searchsorted(at, one.end_ms, "right")) - 1)
            for one in file.windows
        ]
        total += raw(len(at), rows, detections(file.samples, rules[file.name]), weights)
    return normalised(total, sum(len(file.windows) for file in files), weights)


def split(files: Sequence[File]) -> dict[str, float]:
    """What the first halves choose, counted on the second ones."""
    names = ("windows", "caught", "false trips", "caught, dense sweep", "false trips, dense sweep")
    found = dict.fromkeys((f"second half: {name}" for name in names), 0.0)
    for file in files:
        middle = len(file.samples) // 2
        rules = fit(file.samples.part(0, middle), file.windows)
        search = Search(Judge(file.samples.part(middle, len(file.samples))), file.windows)
        done = [search.outcome(rule) for rule in rules]
        hindsight = search.best(measures(file.samples.part(middle, len(file.samples)), "value"))
        came = [float(len(search.windows)), max((one.caught for one in done), default=0)]
        came += [sum(one.false_trips for one in done)]
        came += [0, 0] if hindsight is None else [hindsight.outcome.caught, hindsight.outcome.false_trips]
        for name, value in zip(names, came, strict=True):
            found[f"second half: {name}"] += value
    return found
