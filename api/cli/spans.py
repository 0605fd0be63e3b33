"""Options of commands that act on what matches, for a time: matchers, spans, moments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from api.cli.output import put, put_json
from breaker_actors.clock import unix_ms
from breaker_actors.errors import Invalid
from breaker_actors.text.counting import counted

UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
OPS = {"=": "=", "!=": "!=", "~": "glob"}
SINCE_HELP = "Only what is newer: a time in RFC 3339, or a span as 90m or 2d before now."
UNTIL_HELP = "Until when, in RFC 3339, in place of --for."
_SPAN = re.compile(r"(\d{1,6}[dhms])+")
_MATCH = re.compile(r"([^=!~]+)(!=|=|~)(.*)", re.DOTALL)

Match = Annotated[
    list[str] | None,
    typer.Option(
        help="What it matches, all of them: FIELD=VALUE, FIELD!=VALUE, or FIELD~GLOB with * and ?. FIELD is name, id,"
        " metric, kind, metadata.KEY, router.KEY (metadata of a router) or channel (id, name or kind).",
        metavar="FIELD=VALUE",
    ),
]


def matchers_of(match: list[str] | None, everything: bool) -> dict[str, Any]:
    """The matchers; nothing where none is given, so that a change leaves them alone."""
    matchers = []
    for text in match or ():
        parts = _MATCH.fullmatch(text)
        if parts is None:
            raise Invalid(f"--match {text}: say FIELD=VALUE, FIELD!=VALUE or FIELD~GLOB")
        field, sign, value = parts.groups()
        matchers.append({"field": field, "op": OPS[sign], "value": value})
    if everything:
        return {"all": True, "matchers": matchers}
    return {"matchers": matchers, "all": False} if matchers else {}


def ask_at_once(given: Mapping[str, bool]) -> None:
    """Raises Invalid, which asks for all that is not given."""
    if missing := [words for words, there in given.items() if not there]:
        raise Invalid("; ".join(missing))


def ends_ms(span: str | None, until: str | None, now_ms: int) -> int | None:
    """When something ends that begins now; None: nothing is said. Raises Invalid."""
    if span is not None and until is not None:
        raise Invalid("give --for or --until, not both")
    if until is not None:
        return moment("--until", until)
    return None if span is None else now_ms + span_ms(span)


def span_ms(text: str) -> int:
    """A span as 1d12h in milliseconds. Raises Invalid."""
    if not _SPAN.fullmatch(text):
        raise Invalid(f"--for {text}: say how long as 90m, 2h or 1d12h")
    return sum(int(part[:-1]) * UNITS[part[-1]] for part in re.findall(r"\d+[dhms]", text))


def since_ms(text: str | None, now_ms: int) -> int | None:
    """A time, or a span before now. Raises Invalid."""
    if text is None:
        return None
    return now_ms - span_ms(text) if _SPAN.fullmatch(text) else moment("--since", text, ", nor a span as 90m or 2d")


def moment(option: str, text: str, nor: str = "") -> int:
    """A time with its zone as Unix milliseconds. Raises Invalid; `nor`: what else it is not."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
        return unix_ms(moment)
    except (ValueError, OverflowError):
        raise Invalid(f"{option} {text}: not a time with a zone, as 2026-11-21T06:00:00Z{nor}") from None


def show_preview(found: dict[str, Any], json: bool) -> None:
    """Says what matches now."""
    if json:
        put_json(found)
        return
    put(f"matches {counted(found['matches'], 'breaker')}, {found['open']} open now")
    for name in found["breakers"]:
        put(f"  {name}")
