"""Parts of a test: its samples, what happens meanwhile, and how its breaker stands when it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.model import Control, Override, Record
from breaker_actors.errors import Invalid
from pipelines.candidates import guess
from pipelines.ruletests.arrivals import Arrivals, of_file, of_series
from pipelines.ruletests.cases import Happening
from pipelines.ruletests.notation import expand
from pipelines.ruletests.times import span_ms, time_ms
from pipelines.sources.files import local_files

SERIES, FILE = ("series", "from", "interval", "metric", "late"), ("file", "columns", "time_unit", "metric")
HAPPENING = ("at", "record", "gap_until", "mode", "override", "by", "comment", "rule")
S = TypeVar("S", Control, Record)
Cache = dict[tuple[Any, ...], Arrivals]
"""Samples of files, by all that says how they are read."""


@dataclass(frozen=True, slots=True)
class Context:
    """What samples are read with."""

    folder: Path
    cache: Cache
    start_ms: int
    interval_ms: int


def listed(fields: Mapping[str, Any]) -> list[Any]:
    """The series and files of a test."""
    given = fields.get("samples")
    return given if isinstance(given, list) else [] if given is None else [given]


def first_ms(part: Any, folder: Path, cache: Cache) -> int | None:
    """When the first sample of a file arrives; None for a series, which begins with the test."""
    if not isinstance(part, Mapping) or "file" not in part:
        return None
    return int(_file(part, folder, cache).at[0])


def arrivals(part: Any, context: Context) -> Arrivals:
    """The samples of a series or a file. Raises Invalid."""
    fields: Mapping[str, Any] = part if isinstance(part, Mapping) else {"series": part}
    if "file" in fields:
        return _file(fields, context.folder, context.cache)
    _check(fields, SERIES)
    series = fields.get("series")
    if isinstance(series, bool) or not isinstance(series, str | int | float):
        raise Invalid('samples are a series as "ok x30", or an object with series or file')
    interval_ms = span_ms(fields.get("interval", context.interval_ms))
    if interval_ms < 1:
        raise Invalid("interval must be 1 ms at least")
    from_ms = time_ms(fields.get("from", 0), context.start_ms)
    return of_series(expand(str(series), interval_ms), from_ms, span_ms(fields.get("late", 0)), _metric(fields))


def _file(fields: Mapping[str, Any], folder: Path, cache: Cache) -> Arrivals:
    _check(fields, FILE)
    columns, name = fields.get("columns") or {}, fields.get("file")
    if not isinstance(name, str) or not isinstance(columns, Mapping):
        raise Invalid("file is a path, and columns an object of names")
    renamed = {str(ours): str(theirs) for ours, theirs in columns.items()}
    time_unit, metric = str(fields.get("time_unit", "ms")), _metric(fields)
    key = (folder / name, *sorted(renamed.items()), time_unit, metric)
    if key not in cache:
        _check_within(folder / name, folder)
        cache[key] = of_file(folder / name, renamed, time_unit, metric)
    return cache[key]


def _check_within(path: Path, folder: Path) -> None:
    """Raises Invalid for what lies elsewhere, also by a link: an error tells something of what is read, and who wrote
    the test may read only the error."""
    roots = [folder.resolve(), Path.cwd()]

    def check(one: Path) -> None:
        try:
            where = one.resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise Invalid(f"{one} is no path: {error}") from None
        if not any(where.is_relative_to(root) for root in roots):
            raise Invalid(f"{one} lies neither in the folder of its test nor in the current one")

    check(path)
    for one in local_files(path):
        check(one)


def _metric(fields: Mapping[str, Any]) -> str | None:
    metric = fields.get("metric")
    if metric is not None and (not isinstance(metric, str) or not metric):
        raise Invalid("metric is a name")
    return metric


def _check(fields: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in fields:
        if name not in known:
            raise Invalid(f"{name} is no field: {guess(name, ', '.join(known), known)}")


# -- what happens beside samples --------------------------------------------------------------------------------------


def happenings(given: Any, start_ms: int) -> tuple[Happening, ...]:
    """What happens, in order. Raises Invalid."""
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        raise Invalid("must be a list of objects with at, and one of gap_until, mode, override or rule")
    found, control = list[Happening](), Control()
    for number, fields in enumerate(given, 1):
        _check(fields, HAPPENING)
        at_ms, record = time_ms(fields.get("at"), start_ms), fields.get("record")
        if record is not None and (not isinstance(record, int) or isinstance(record, bool)):
            raise Invalid("record is a whole number")
        if record is None and at_ms < max([start_ms, *(one.at_ms for one in found[-1:])]):
            raise Invalid(f"number {number} comes before the one before it")
        what = _what(fields, at_ms, start_ms, number, control)
        control = what if isinstance(what, Control) else control
        found.append(Happening(at_ms, what, record))
    return tuple(found)


def _what(
    fields: Mapping[str, Any], at_ms: int, start_ms: int, number: int, before: Control
) -> Gap | Control | Mapping[str, Any]:
    if "gap_until" in fields:
        until_ms = time_ms(fields["gap_until"], start_ms)
        if until_ms < at_ms:
            raise Invalid("a gap ends after its beginning")
        return Gap(at_ms, until_ms)
    if "rule" in fields:
        rule = fields["rule"]
        if not isinstance(rule, Mapping):
            raise Invalid("rule is an object of the fields that change")
        return rule
    if not {"mode", "override"} & fields.keys():
        raise Invalid(f"number {number} has neither gap_until, mode, override nor rule")
    override = before.override if "override" not in fields else _override(fields["override"], at_ms, start_ms, number)
    told = {name: fields.get(name) for name in ("by", "comment")}
    return converted({"mode": fields.get("mode", before.mode), "override": override, **told}, Control)


def _override(given: Any, at_ms: int, start_ms: int, number: int) -> dict[str, Any] | None:
    if given is None or given == "none":
        return None
    if not isinstance(given, Mapping):
        raise Invalid("override is none, or an object with kind and until")
    _check(given, ("kind", "until", "reason", "by", "since_ms", "version", "allow_rate", "then"))
    until_ms = time_ms(given.get("until"), start_ms)
    defaults = {"reason": "", "by": "test", "since_ms": at_ms, "version": number}
    return {**defaults, **{name: value for name, value in given.items() if name != "until"}, "until_ms": until_ms}


# -- how a breaker stands ---------------------------------------------------------------------------------------------


def begin(given: Any, start_ms: int) -> Record | None:
    """The record of a breaker at the start of a test; what it does not say is as for a new one. Raises Invalid."""
    if given is None:
        return None
    fields = {"state": given} if isinstance(given, str) else given
    if not isinstance(fields, Mapping):
        raise Invalid("begin is a state, or an object of what a breaker's record has")
    _check(fields, Record.__struct_fields__)
    at_start = dict.fromkeys(("created_ms", "now_ms", "grid_ms", "state_since_ms"), start_ms)
    step = {"step": 1} if fields.get("state") == "half_open" else {}
    cause = {"open_cause": "threshold_exceeded"} if fields.get("state") == "open" else {}
    record = converted({**at_start, **step, **cause, **fields}, Record)
    if record.now_ms != start_ms:
        raise Invalid("now_ms of a record is the start of the test")
    if max(record.created_ms, record.grid_ms, record.state_since_ms) > start_ms:
        raise Invalid("the breaker is made, or comes to its state, after the start of the test: until then it is blind")
    return record


def converted(fields: Mapping[str, Any], kind: type[S]) -> S:
    """Fields as a struct of the core. Raises Invalid that names the field."""
    plain = {
        name: msgspec.to_builtins(value) if isinstance(value, Override) else value for name, value in fields.items()
    }
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise Invalid(str(error)) from None
