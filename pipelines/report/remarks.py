"""What is probably not meant: remarks on rules, samples and labels of a backtest, a sentence each."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from breaker_actors.clock import moment
from breaker_actors.core.rule_remarks import remarks_on
from pipelines.candidates import OK_KINDS, guess
from pipelines.replay.run import ROUTERS_TOLD, Run
from pipelines.replay.scoring import Labelled
from pipelines.sources.external_sort import Sorted
from pipelines.sources.files import EARLIEST_MS, Source, Unread, Words, early


def remarks_over(
    given: Sequence[Run], windows: list[Labelled] | None, source: Source | None, grid: Collection[str]
) -> list[str]:
    """What the caller should know of the input. A source without words has times that can't be in another unit, and
    samples that are one breaker's; `grid`: fields that were swept."""
    return [*_of_rules(given), *_of_sweep(given, grid), *remarks_on_samples(given, windows, source)]


def remarks_on_samples(given: Sequence[Run], windows: list[Labelled] | None, source: Source | None) -> list[str]:
    """The same without what is to be said of rules and sweeps."""
    if not given:
        return []
    words: Words | None = getattr(source, "words", None)
    found = [] if words is None else [early(_span(given)[0], words), *_unnamed(given, words), *_pooled(given, words)]
    return [
        *(remark for remark in found if remark),
        *_unread(source, given, words),
        *_outside(given, windows, words),
    ]


def _of_rules(given: Sequence[Run]) -> list[str]:
    """On fields that are none, and on rules that can hardly do what was meant."""
    found = []
    for one in (run.candidate for run in given):
        for name in one.ignored:
            found.append(f"{one.name}: ignored {name}, which is no field of a breaker; {guess(name)}")
        found += [f"{one.name}: {remark.message}" for remark in remarks_on(one.rule)]
    return found


def _of_sweep(given: Sequence[Run], grid: Collection[str]) -> list[str]:
    """A threshold means something else for every kind and metric."""
    meant = list(dict.fromkeys(f"{one.kind} of {one.metric}" for one in (run.candidate.rule for run in given)))
    if "threshold" not in grid or len(meant) < 2:
        return []
    return [
        f"the sweep tries the same thresholds for {', '.join(meant[:-1])} and {meant[-1]}, which hardly mean the same; "
        "try one rule at a time"
    ]


def _unnamed(given: Sequence[Run], words: Words) -> list[str]:
    """On columns that rules need and the samples don't have."""
    found = []
    blind = [run.candidate.name for run in given if "ok" not in run.columns and run.candidate.rule.kind in OK_KINDS]
    if blind:
        named = f"{', '.join(blind[:3])}{' and others' if len(blind) > 3 else ''}"
        found.append(
            f"the samples have no column ok, so none of them failed, and {named} can't open on failures; "
            f"name it by {words.rename.format('ok')}"
        )
    metrics = list(dict.fromkeys(run.candidate.rule.metric for run in given if "metric" not in run.columns))
    if len(metrics) > 1:
        found.append(
            f"the samples name no metric, so the rules of {', '.join(metrics[:-1])} and {metrics[-1]} all take all of "
            f"them; name the column by {words.rename.format('metric')}, or try the rules one metric at a time"
        )
    return found


def _pooled(given: Sequence[Run], words: Words) -> list[str]:
    """On rules that take the samples of several routers without naming any."""
    found = max((run.routers for run in given), key=len)
    if len(found) < 2:
        return []
    many = f"{len(found)} or more" if len(found) == ROUTERS_TOLD else len(found)
    named = ", ".join(sorted(found)[:ROUTERS_SHOWN]) + (", ..." if len(found) > ROUTERS_SHOWN else "")
    return [f"samples of {many} routers ({named}) count as one series; {words.one_router}"]


ROUTERS_SHOWN = 4
"""Routers that a remark names."""


def _unread(source: Source | None, given: Sequence[Run], words: Words | None) -> list[str]:
    """On columns that no sample takes anything from; one of them may tell several series apart."""
    unread: Unread | None = getattr(source, "unread", None)
    one_series = not any("router_id" in run.columns for run in given)
    remark = None if unread is None else unread.remark(words, one_series)
    return [] if remark is None else [remark]


def remarks_on_labels(files: Sequence[str], source: Source) -> list[str]:
    """On labels of several files that were put in order together."""
    if len(files) < 2 or not isinstance(source, Sorted):
        return []
    told = f"there are labels for {len(files)} files, whose samples count as one series"
    return [f"{told}; files of different things belong into runs of their own"]


def _outside(given: Sequence[Run], windows: list[Labelled] | None, words: Words | None) -> list[str]:
    reached = {number for run in given for number in run.judged()}
    outside = [window for i, window in enumerate(windows or ()) if i not in reached]
    if not outside:
        return []
    first, last = (moment(ms).isoformat(" ", "seconds") for ms in _span(given))
    which = ", ".join(moment(window.start_ms).isoformat(" ", "seconds") for window in outside[:3])
    more = f" and {len(outside) - 3} more" if len(outside) > 3 else ""
    told = f"{len(outside)} of {len(windows or ())} labelled windows lie outside of the samples ({first} to {last})"
    units = ""
    if min(window.start_ms for window in outside) < EARLIEST_MS:
        units = "; windows are Unix milliseconds or ISO 8601"
        units += "" if words is None else f"; {words.unit_option} is for samples alone"
    return [f"{told} and are not judged: those from {which}{more}{units}"]


def _span(runs: Sequence[Run]) -> tuple[int, int]:
    return min(run.first_ms for run in runs), max(run.last_ms for run in runs)
