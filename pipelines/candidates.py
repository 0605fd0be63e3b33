"""Breakers to be tried: from a file, from a dict, or as variants of one in a sweep."""

from __future__ import annotations

import difflib
import importlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np

from breaker_actors.core.model import Rule
from breaker_actors.core.rules import DEFAULTS, REQUIRED, parse_rule
from breaker_actors.errors import Invalid

RULE_FIELDS = (*REQUIRED, *DEFAULTS)
OTHER_FIELDS = (
    "id", "name", "metadata", "actions", "router_id", "router_ids", "half_open_confirmation_ms", "recovery_window_ms",
    "breaker", "status", "warnings", "mode", "shadow_of",
)  # fmt: skip
"""Of a Breaker object (interface.md), beside its rule, and of one as `breakers get --json` and the answers show it."""
SWEPT_PARAMS = {"percentile": "percentile", "alpha": "delta", "delta_of": "delta"}
SWEPT_FIELDS = (*(name for name in RULE_FIELDS if name not in ("metric", "kind", "kind_params")), *SWEPT_PARAMS)
"""Keys of kind_params that a sweep may set, with the kind that has them."""
SETTINGS_MAX = 10_000
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d|w))+")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
Value = float | int | str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A breaker to be tried. `router_ids`: of which routers it takes samples, where samples name theirs; none: of all.
    In small letters. `ignored`: fields that are none of a breaker. `follows_log`: over a log of the breaker's own, its
    rule is the one that was in force there. `hears`: the id of the breaker whose settings concern it, over a log of
    several breakers; "": it hears of none there. `apart`: it has not got all samples of that log that others got.
    `all_routers`: each of the routers has to be there."""

    name: str
    rule: Rule
    router_ids: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    follows_log: bool = False
    hears: str = ""
    apart: bool = False
    all_routers: bool = False

    def with_(self, **fields: Any) -> Candidate:
        """The breaker with some fields of its rule, or its name, changed. Raises Invalid for a field that is none."""
        for name in fields:
            if name not in (*RULE_FIELDS, "name"):
                raise Invalid(f"{name!r} is no field of a rule; {guess(name, ', '.join(RULE_FIELDS))}")
        name = str(fields.pop("name", self.name))
        return Candidate(name, _checked(plain(fields), name, self.rule), self.router_ids)


OK_KINDS = ("error_rate", "consecutive_failures")
"""Kinds that look at `ok` alone."""
RuleLike = Rule | Mapping[str, Any] | Candidate | str | Path
RULE_TYPES = (Rule, Mapping, Candidate, str, Path)


def candidates(given: RuleLike | Sequence[RuleLike]) -> list[Candidate]:
    """Breakers from a rule, a Breaker object, a file of them, or a list of any of these; names are made unique, and
    a rule without one is named by its own words."""
    things = [given] if isinstance(given, RULE_TYPES) else given
    if not isinstance(things, list | tuple) or not all(isinstance(thing, RULE_TYPES) for thing in things):
        raise Invalid("a rule is a dict, a Rule, a file, or a list of these")
    found: list[Candidate] = []
    for thing in things:
        if isinstance(thing, str | Path):
            found += _read(Path(thing))
        else:
            found.append(_one(thing, "", len(found)))
    if not found:
        raise Invalid("there is no rule")
    return _distinct(found)


def named_routers(routers: Sequence[str] | str) -> tuple[str, ...]:
    """Routers as they are compared with those that samples name: one, or several."""
    return tuple(name.lower() for name in ([routers] if isinstance(routers, str) else routers))


def _one(thing: Rule | Mapping[str, Any] | Candidate, where: str, number: int) -> Candidate:
    if isinstance(thing, Candidate):
        return thing
    if isinstance(thing, Rule):
        return Candidate(described(thing), thing)
    fields: dict[str, Any] = in_ms(plain(thing), where)
    given = fields.get("name") or fields.get("id")
    name = str(given or f"rule {number + 1}")
    ignored = tuple(str(key) for key in fields if key not in RULE_FIELDS and key not in OTHER_FIELDS)
    try:
        rule = _checked(fields, f"{where}{name}")
    except Invalid as error:
        raise Invalid("; ".join([str(error), *(f"{key} is no field: {guess(key)}" for key in ignored)])) from None
    router_ids = fields.get("router_ids") or [id_ for id_ in [fields.get("router_id")] if id_]
    if not isinstance(router_ids, Sequence) or isinstance(router_ids, str):
        raise Invalid(f"{where}{name}: router_ids must be a list")
    return Candidate(
        name if given else described(rule), rule, tuple(dict.fromkeys(str(id_).lower() for id_ in router_ids)), ignored
    )


def _checked(fields: Mapping[str, Any], where: str, base: Rule | None = None) -> Rule:
    """The rule of the fields, or of them and those of another one. Raises Invalid, in one line."""
    try:
        return parse_rule(fields, base)
    except Invalid as error:
        problems = "; ".join(f"{path} {problem}" for path, problem in error.details.items())
        raise Invalid(f"{where}: {problems}") from None


def plain(value: Any) -> Any:
    """Numbers as Python has them, for numpy's, also within objects."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return value.item() if isinstance(value, np.generic) else value


GUESSED_MAX, DURATION_MAX = 500, 40
"""Among so many names is looked for the one that was meant; so many signs a duration has at most."""


def guess(name: str, others: str = "", known: Sequence[str] = RULE_FIELDS) -> str:
    """Which of the known fields was probably meant, or which there are."""
    if name in SWEPT_PARAMS:
        return f"did you mean kind_params.{name}?"
    near = difflib.get_close_matches(name, known[:GUESSED_MAX], 1)
    return f"did you mean {near[0]}?" if near else f"there is {others}" if others else "it means nothing here"


def duration_ms(text: str) -> int | None:
    """Milliseconds of 500ms, 30s, 5m, 1h30m, 7d, 2w; None for what is no such text or no whole number of them."""
    if len(text) > DURATION_MAX or not _DURATION.fullmatch(text):
        return None
    total = sum(Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return int(total) if total == int(total) else None


SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def described(rule: Rule) -> str:
    """A rule in its own words: what it evaluates and when it opens."""
    params = "" if not rule.kind_params else f" {json.dumps(rule.kind_params)}"
    over = "" if rule.kind == "consecutive_failures" else f" over {rule.window_ms / 1000:g} s"
    return f"{rule.metric}: {rule.kind}{params} {SIGNS[rule.op]} {rule.threshold:g}{over}"


def _distinct(found: list[Candidate]) -> list[Candidate]:
    taken: set[str] = set()
    out = []
    for one in found:
        names = itertools.chain([one.name], (f"{one.name} ({count})" for count in itertools.count(2)))
        name = next(name for name in names if name not in taken)
        taken.add(name)
        out.append(replace(one, name=name))
    return out


def _read(path: Path) -> list[Candidate]:
    """The breakers of a JSON or YAML file: one object, a list, or an object that has them under `breakers`, as a list
    or, in a file of rules, by their names."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} can't be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        content = _yaml(path, text) if path.suffix.lower() in (".yaml", ".yml") else _json(path, text)
    except RecursionError:
        raise Invalid(f"{path}: lists and objects are nested too deeply in it") from None
    if isinstance(content, Mapping) and isinstance(declared := content.get("breakers"), list | Mapping):
        content = declared if isinstance(declared, list) else list(itertools.starmap(_named, declared.items()))
    things = content if isinstance(content, list) else [content]
    for thing in things:
        if not isinstance(thing, Mapping):
            raise Invalid(f"{path}: a rule is an object, not {json.dumps(thing, default=str)[:60]}")
    if not things:
        raise Invalid(f"{path}: there is no rule in it")
    return [_one(thing, f"{path}: ", number) for number, thing in enumerate(things)]


def _named(name: Any, fields: Any) -> Any:
    """A breaker of a file of rules."""
    return {"name": str(name)} | dict(fields) if isinstance(fields, Mapping) else fields


def in_ms(fields: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """A breaker whose durations may have units, as in files of rules (`window: 5m`): as the interface has it."""
    plainly: dict[str, Any] = {}
    for key, value in fields.items():
        full = _full(str(key))
        known = duration_ms(value) if full in RULE_FIELDS and full.endswith("_ms") and isinstance(value, str) else None
        name = key if known is None else full
        if name in plainly:
            raise Invalid(f"{where}{name} is there twice")
        plainly[name] = value if known is None else known
    return plainly


def _full(name: str) -> str:
    """The field of a rule that a duration's name without its unit means (window: window_ms); any other as it is."""
    return f"{name}_ms" if f"{name}_ms" in RULE_FIELDS else name


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Invalid(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except ValueError as error:  # a number of thousands of digits
        raise Invalid(f"{path}: {error}") from None


def _yaml(path: Path, text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")
        from pipelines.yaml_depth import check_depth
    except ModuleNotFoundError:
        raise Invalid(f"{path}: YAML needs the package pyyaml; JSON needs nothing") from None
    try:
        check_depth(text)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise Invalid(f"{path}{line}: not YAML: {getattr(error, 'problem', None) or 'it is damaged'}") from None
    except ValueError as error:  # also a date that does not exist
        raise Invalid(f"{path}: {error}") from None


# -- sweeps -----------------------------------------------------------------------------------------------------------


def parse_sweep(text: str) -> dict[str, list[Value]]:
    """`threshold=100:500:25,window=1m,5m`: for each field first:last:step (last included) or values; durations have a
    unit, or are milliseconds under the field's whole name (window_ms)."""
    grid: dict[str, list[Value]] = {}
    values: list[Value] | None = None
    timed = False
    for word in text.split(","):
        name, is_new, rest = word.partition("=")
        if is_new:
            name = name.strip()
            if name in grid:
                raise Invalid(f"--sweep names {name} twice")
            values = grid[name] = []
            timed = _full(name).endswith("_ms")
        if values is None:
            raise Invalid(f"--sweep {text!r}: expected field=first:last:step or field=value,value")
        values += _values((rest if is_new else word).strip(), word, timed)
    return checked_sweep(grid)


def _values(text: str, word: str, timed: bool) -> list[Value]:
    """`timed`: of a duration; one with a unit stays as it is written: `checked_sweep` reads it."""
    if ":" not in text:
        return [text] if timed and duration_ms(text) is not None else [_value(text, word)]
    parts = text.split(":")
    spans = [span for part in parts if timed and (span := duration_ms(part)) is not None]
    if len(spans) == len(parts) == 3:
        return [f"{ms}ms" for ms in _range(word, *map(Decimal, spans))]
    try:
        first, last, step = map(Decimal, parts)
    except (ValueError, InvalidOperation):
        raise Invalid(f"--sweep {word!r}: a range is first:last:step") from None
    return _range(word, first, last, step)


def _range(word: str, first: Decimal, last: Decimal, step: Decimal) -> list[Value]:
    if not all(part.is_finite() for part in (first, last, step)) or step <= 0 or last < first:
        raise Invalid(f"--sweep {word!r}: a range goes up from its first to its last value")
    count = int((last - first) / step) + 1
    if count > SETTINGS_MAX:
        raise Invalid(f"--sweep {word!r}: {count} values are more than {SETTINGS_MAX}")
    return [_number(first + i * step) for i in range(count)]


def _value(text: str, word: str) -> Value:
    if not text:
        raise Invalid(f"--sweep {word!r}: a value is missing")
    try:
        return _number(Decimal(text))
    except InvalidOperation:
        if text[0].isdecimal():
            raise Invalid(f"--sweep {word!r}: {text!r} is no number; a range is first:last:step") from None
        return text


def _number(value: Decimal) -> float | int:
    return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)


def checked_sweep(grid: Mapping[str, Sequence[Value]] | str) -> dict[str, list[Value]]:
    """The same, when its fields can be swept and there are not too many settings; text as `parse_sweep` takes it."""
    if isinstance(grid, str):
        return parse_sweep(grid)
    if not isinstance(grid, Mapping):
        raise Invalid(f"a sweep is an object of values per field, or text as of --sweep, not {type(grid).__name__}")
    count, found = 1, dict[str, list[Value]]()
    for given, some in grid.items():
        name = _full(given)
        if name in found:
            raise Invalid(f"the sweep names {name} twice")
        found[name] = values = [_swept_ms(given, value) if name.endswith("_ms") else value for value in _plain(some)]
        if name not in SWEPT_FIELDS:
            raise Invalid(f"{name!r} can't be swept; {guess(name, ', '.join(SWEPT_FIELDS), SWEPT_FIELDS)}")
        if not values:
            raise Invalid(f"the sweep has no value for {name}")
        count *= len(values)
    if count > SETTINGS_MAX:
        raise Invalid(f"the sweep has {count} settings, more than {SETTINGS_MAX}")
    return found


def _swept_ms(name: str, value: Value) -> Value:
    """A duration as its field has it, which has to have a unit where the name has none; text of none stays text."""
    known = duration_ms(value) if isinstance(value, str) else None
    if known is None and name != _full(name):
        raise Invalid(f"the sweep of {name}: {value!r} is no duration, such as 500ms, 30s, 5m, 1h30m")
    return value if known is None else known


def _plain(values: Any) -> list[Value]:
    """Values as Python has them, of a list, an array (numpy) or a Series (pandas, polars)."""
    listed = (
        values.tolist() if hasattr(values, "tolist") else values.to_list() if hasattr(values, "to_list") else values
    )
    if not isinstance(listed, Sequence | range) or isinstance(listed, str):
        raise Invalid(f"a sweep has a list of values for each field, not {values!r}")
    return [value.item() if hasattr(value, "item") else value for value in listed]


def variants(candidate: Candidate, grid: Mapping[str, Sequence[Value]]) -> list[tuple[dict[str, Value], Candidate]]:
    """Every setting of the grid, with the breaker under it."""
    out = []
    for values in itertools.product(*grid.values()):
        setting = dict(zip(grid, values, strict=True))
        shown = ", ".join(f"{name}={value}" for name, value in setting.items())
        rule = _with(candidate, setting, shown)
        out.append((setting, Candidate(f"{candidate.name} ({shown})", rule, candidate.router_ids)))
    return out


def _with(candidate: Candidate, setting: Mapping[str, Value], shown: str) -> Rule:
    rule = candidate.rule
    params = {name: value for name, value in setting.items() if name in SWEPT_PARAMS}
    for name in params:
        if rule.kind != SWEPT_PARAMS[name]:
            raise Invalid(f"{candidate.name}: only kind {SWEPT_PARAMS[name]} has a {name} to sweep")
    fields: dict[str, Any] = {name: value for name, value in setting.items() if name not in params}
    if params:
        fields["kind_params"] = {**(rule.kind_params or {}), **params}
    return _checked(fields, f"{candidate.name} ({shown})", rule)
