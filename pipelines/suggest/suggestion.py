"""Suggestion: which threshold, and which window, would have caught the failures of a history.

    from pipelines.suggest.suggestion import suggest

    found = suggest("samples/*.parquet", windows="windows.json")
    found.frame         # a polars frame: one row per breaker suggested
    found.why           # what speaks for each, a sentence or two
    found.run           # the backtest of what is suggested: which trips would have happened
    found.yaml          # the breakers as a file of rules; found.json: the same as JSON
    found.report("r.html")  # a page with charts, which works offline

With labelled failures the best of many settings is looked for (`pipelines.suggest.search`); without, a threshold that
trips no more often than a budget allows (`pipelines.suggest.budget`).
"""

from __future__ import annotations

import importlib
import json
import warnings as python_warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from breaker_actors.core.model import Rule
from breaker_actors.core.rules import DEFAULTS
from breaker_actors.errors import Invalid
from pipelines.backtest import Backtest, BacktestWarning, backtest, source_of
from pipelines.candidates import OK_KINDS, RULE_FIELDS, Candidate, RuleLike, candidates, in_ms, named_routers
from pipelines.frames import to_pandas
from pipelines.replay.memory import MEMORY_MB
from pipelines.replay.scoring import Labelled, labelled_files
from pipelines.replay.vectorized.judge import Judge
from pipelines.sources.files import PYTHON, Source, Words
from pipelines.suggest.budget import Budgeted, within_budget
from pipelines.suggest.history import history_of
from pipelines.suggest.measures import SETTINGS, Measure, at_first_step, measures, reachable, usual_measures
from pipelines.suggest.reasons import why_budget, why_found, why_none, why_waits
from pipelines.suggest.search import TIME_LIMIT_S, Found, Search

__all__ = ["Invalid", "Suggestion", "suggest"]

SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "breaker": pl.String, "metric": pl.String, "kind": pl.String, "op": pl.String, "threshold": pl.Float64,
    "window_ms": pl.Int64, "from_threshold": pl.Float64, "to_threshold": pl.Float64, "caught": pl.Int64,
    "windows": pl.Int64, "false_trips": pl.Int64, "latency_ms": pl.Int64, "open_ms": pl.Int64, "incidents": pl.Int64,
}  # fmt: skip
IN_PYTHON = PYTHON._replace(one_router="give routers=[...]")
"""A function without a rule asks for routers by themselves."""
NEVER = 1e300
"""A threshold that no average exceeds."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What is suggested. `frame`: one row per breaker; `from_threshold` to `to_threshold` is its plateau, where it was
    looked for. `rules`: fields of each breaker. `run`: what they would have done; None where nothing is suggested.
    `settings`: how many were looked at; `judged`: how many of them the machine had to judge. `cut_short`: the limit in
    time was met. `remarks`: what is probably not meant of the samples; `suggest` warns of them (`BacktestWarning`)."""

    frame: pl.DataFrame
    rules: dict[str, dict[str, Any]]
    why: list[str]
    run: Backtest | None
    settings: int = 0
    judged: int = 0
    cut_short: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def yaml(self) -> str:
        """The breakers as a file of rules; what is left to its default is left out."""
        yaml: Any = importlib.import_module("yaml")
        return str(yaml.safe_dump({"breakers": self.rules}, sort_keys=False, allow_unicode=True))

    @property
    def json(self) -> str:
        """The same file as JSON, which takes less to read."""
        return json.dumps({"breakers": self.rules}, indent=2) + "\n"

    def report(self, path: str | Path) -> Path:
        """Writes a page with charts and what speaks for each breaker. Raises Invalid."""
        if self.run is None:
            raise Invalid("nothing is suggested, so there is nothing to draw")
        return self.run.report(path)

    def to_pandas(self) -> Any:
        """The frame for pandas."""
        return to_pandas(self.frame)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: `suggested`, `rules`, `why`, `settings`, `judged`, `cut_short`, and the trips as
        `transitions`."""
        moves = [] if self.run is None else self.run.to_dict()["transitions"]
        return {
            "suggested": self.frame.to_dicts(),
            "rules": self.rules,
            "why": self.why,
            "settings": self.settings,
            "judged": self.judged,
            "cut_short": self.cut_short,
            "transitions": moves,
        }

    def _repr_html_(self) -> str:
        """The table, for a notebook."""
        return str(self.frame._repr_html_())


def suggest(
    samples: Any,
    *,
    rule: RuleLike | None = None,
    metric: str | None = None,
    routers: Sequence[str] = (),
    windows: Any = None,
    grace_ms: int = 0,
    trips_a_week: float = 1.0,
    settings: int = SETTINGS,
    time_limit_s: float = TIME_LIMIT_S,
    progress: Callable[[str], None] = lambda words: None,
    columns: Mapping[str, str] | None = None,
    sort: bool = False,
    time_unit: str = "ms",
    memory_mb: int = MEMORY_MB,
    words: Words = IN_PYTHON,
) -> Suggestion:
    """Suggests breakers for the samples of one metric. Raises Invalid.

    - samples, columns, sort, time_unit, memory_mb: as of `backtest`; words: how errors name arguments.
    - rule: only its threshold is wanted, and its window where it names none; all else stays as it is.
    - metric: which, where there is no rule and samples name several.
    - routers: of which routers alone, as the samples name them; without, of those that the rule names, or of all.
    - windows, grace_ms: labelled failures, as of `backtest`. With them the objective is, in this order: most failures
      caught, fewest false trips, caught earliest, least time open, widest plateau.
    - trips_a_week: without labels, so many incidents a week are borne.
    - settings: how many are looked at, at most.
    - time_limit_s: with labels, how long; then the best so far is suggested, and `why` says so.
    - progress: hears in words how far it is, often.
    """
    if not trips_a_week >= 0:
        raise Invalid(f"trips a week must be 0 or more, not {trips_a_week}")
    source = source_of(samples, columns, sort=sort, time_unit=time_unit, memory_mb=memory_mb, words=words)
    base = _base(rule)
    router_ids, complaint = _routers(base, routers, words)
    wanted = metric if base is None else base.candidate.rule.metric
    named, history = history_of(source, wanted, router_ids, complaint)
    judge, probe = Judge(history), _probe(named, router_ids, base)
    fields = None if base is None else base.given
    if windows is None:
        tried = usual_measures(history, named, fields)
        found = [one for one in _in_turn(judge, tried, trips_a_week, progress) if one is not None]
        suggested = [(one.rule, why_budget(one, trips_a_week), None) for one in found if reachable(one.rule, history)]
        why = [words for _, words, _ in suggested] or [why_none(found, tried)]
        why += [words for rule, _, _ in suggested for words in why_waits(rule, at_first_step(rule, history))]
        return _told(source, suggested, why, None, grace_ms, probe, base, (len(tried), 0, False))
    labels = labelled_files(windows, source.names)[0]
    search = Search(judge, labels, grace_ms, settings, limit_s=time_limit_s, tell=progress)
    if not search.windows:
        raise Invalid("no labelled failure has samples, so nothing says which setting is best")
    tried = measures(history, named, fields)
    best = search.best(tried)
    if best is None:
        none, counts = [_none(search, time_limit_s)], (0, search.judged, search.cut_short)
        return _told(source, [], none, labels, grace_ms, probe, base, counts)
    chosen = best.outcome.rule
    why = [why_found(best, len(tried)), *why_waits(chosen, at_first_step(chosen, history))]
    counts = best.settings, best.judged, best.cut_short
    return _told(source, [(chosen, why[0], best)], why, labels, grace_ms, probe, base, counts)


def _in_turn(
    judge: Judge, tried: Sequence[Measure], trips_a_week: float, progress: Callable[[str], None]
) -> Iterator[Budgeted | None]:
    for number, measure in enumerate(tried):
        progress(f"{number} of {len(tried)} measures tried")
        yield within_budget(judge, measure, trips_a_week)


@dataclass(frozen=True, slots=True)
class Base:
    """A rule whose threshold is wanted. `given`: the fields it names."""

    candidate: Candidate
    given: dict[str, Any]


def _base(rule: RuleLike | None) -> Base | None:
    if rule is None:
        return None
    fields = {"threshold": 0.0} | in_ms(rule) if isinstance(rule, Mapping) else rule
    found = candidates(fields)
    if len(found) != 1:
        raise Invalid(f"a threshold is suggested for one rule, not {len(found)}")
    one = found[0].rule
    whole = {name: getattr(one, name) for name in RULE_FIELDS}
    given = set(fields) if isinstance(fields, Mapping) else set(RULE_FIELDS)
    return Base(found[0], {name: value for name, value in whole.items() if name in given and name != "threshold"})


def _none(search: Search, time_limit_s: float) -> str:
    if search.cut_short:
        return f"the time limit of {time_limit_s:g} s was met before a setting was found that catches a failure"
    return f"no setting catches any of the {len(search.windows)} labelled failures"


def _probe(metric: str, router_ids: tuple[str, ...], base: Base | None) -> Candidate:
    """A breaker that takes the samples and never opens: where nothing is suggested, they are remarked on by it."""
    of_failures = base is not None and base.candidate.rule.kind in OK_KINDS
    kind, never = ("error_rate", 1.0) if of_failures else ("avg", NEVER)
    rule = {"name": "the rule", "metric": metric, "kind": kind, "op": "gt", "threshold": never}
    (found,) = candidates(rule | {"window_ms": 1_000})
    return replace(found, router_ids=router_ids)


def _routers(base: Base | None, routers: Sequence[str], words: Words) -> tuple[tuple[str, ...], str | None]:
    """Of which routers samples are taken, and what is wrong where samples name none."""
    if not routers:
        return (() if base is None else base.candidate.router_ids), None
    return named_routers(routers), words.without_routers


def _told(
    source: Source,
    suggested: Sequence[tuple[Rule, str, Found | None]],
    why: list[str],
    labels: list[Labelled] | None,
    grace_ms: int,
    probe: Candidate,
    base: Base | None,
    counts: tuple[int, int, bool],
) -> Suggestion:
    """The suggestion, with the backtest of its rules over the same samples; of none, what the `probe` remarks."""
    tried = [Candidate(_named(rule, base), rule, probe.router_ids) for rule, _, _ in suggested]
    with python_warnings.catch_warnings():
        python_warnings.simplefilter("ignore", BacktestWarning)
        run = backtest(tried or [probe], source, windows=labels, grace_ms=grace_ms)
    remarks = tuple(run.remarks if tried else run.remarks_on_samples())
    for remark in remarks:
        python_warnings.warn(remark, BacktestWarning, stacklevel=3)
    run.remarks[:0] = why
    rows = []
    for one, (rule, _, found) in zip(tried, suggested, strict=True):
        done = run.summary.row(by_predicate=pl.col("breaker") == one.name, named=True)
        plateau = (None, None) if found is None else (found.from_threshold, found.to_threshold)
        row = {"breaker": one.name, "from_threshold": plateau[0], "to_threshold": plateau[1]}
        row |= {name: getattr(rule, name) for name in ("metric", "kind", "op", "threshold", "window_ms")}
        rows.append({name: (row | done).get(name, row.get(name)) for name in SCHEMA})
    rules = {one.name: _fields(one.rule) for one in tried}
    return Suggestion(pl.DataFrame(rows, SCHEMA, orient="row"), rules, why, run if tried else None, *counts, remarks)


def _named(rule: Rule, base: Base | None) -> str:
    if base is not None and base.candidate.name:
        given = base.candidate.name
        return given if ":" not in given else f"{rule.metric}-{rule.kind}"
    return f"{rule.metric}-{rule.kind}-{'high' if rule.op in ('gt', 'gte') else 'low'}"


def _fields(rule: Rule) -> dict[str, Any]:
    """What a file of rules says of it: what differs from its default, and its window."""
    found = {name: getattr(rule, name) for name in RULE_FIELDS}
    return {k: v for k, v in found.items() if k == "window_ms" or k not in DEFAULTS or v != DEFAULTS[k]}
