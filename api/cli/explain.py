"""`breakers explain`: the rule language on the terminal, from the table that checks rules and describes the API."""

from __future__ import annotations

import shutil
import sys
import textwrap
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from api.cli.errors import one_line_errors
from api.cli.output import put, put_json
from api.cli.store_access import AsJson
from api.openapi.words import words_of
from breaker_actors.core.rule_fields import BY_NAME, FIELDS, KIND_MEANINGS, PARAMS, RuleField, described
from breaker_actors.errors import Invalid

STATE, NARROW = "BreakerState", 20
PARAMS_OF = {"percentile": ("percentile",), "delta": ("delta_of", "alpha")}


def explain(
    kind: Annotated[
        str | None, typer.Argument(help="A kind, or a field of a rule or state; default: all kinds.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Explain a kind of rule, or a field of a rule or a breaker's state: meaning, unit, bounds, default."""
    with one_line_errors():
        shown = _kinds() if kind is None else _kind(kind) if kind in KIND_MEANINGS else _field(kind)
    if json:
        put_json(shown)
        return
    for name, text in shown.items():
        if isinstance(text, dict):
            put("")
            put(f"{name}:")
            for inner, meaning in text.items():
                _put(f"  {inner}: {meaning}")
        else:
            _put(f"{name}: {text}")


def _put(line: str) -> None:
    """On a terminal in its width, later lines indented."""
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for part in textwrap.wrap(line, wide, subsequent_indent="    ") if wide > NARROW else (line,):
        put(part)


def _kinds() -> dict[str, Any]:
    return dict(KIND_MEANINGS)


def _kind(kind: str) -> dict[str, Any]:
    params = {field.name: _text(field) for field in PARAMS if field.name in PARAMS_OF.get(kind, ())}
    fields = {field.name: _text(field) for field in FIELDS if field.name not in ("kind", "kind_params")}
    return {kind: KIND_MEANINGS[kind]} | ({"kind_params": params} if params else {}) | {"fields": fields}


def _field(name: str) -> dict[str, Any]:
    fields = {field.name: field for field in PARAMS} | BY_NAME
    if name not in fields:
        if meaning := words_of(STATE, name):
            return {name: meaning}
        near = get_close_matches(name, [*KIND_MEANINGS, *fields], n=1)
        guess = f"did you mean {near[0]}?" if near else f"kinds: {', '.join(KIND_MEANINGS)}"
        raise Invalid(f"there is no kind or field {name}: {guess}; of a breaker: breakers get {name}")
    return {name: _text(fields[name])}


def _text(field: RuleField) -> str:
    bounds = "" if field.low is None else f" From {field.low} to {field.high}."
    return described(field) + bounds + (" Required." if field.required else "")
