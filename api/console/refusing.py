"""What the API refuses of a form, told at its fields; and the times that it tells as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from quart import Response

from api.console.asking import Refused
from api.console.looks import part
from breaker_actors.clock import unix_ms

_NO_ID = re.compile(r"[^A-Za-z0-9]+")


def place(path: str) -> str:
    """The id of the line below a field, which says what is wrong with it."""
    return f"at-{_NO_ID.sub('-', path).strip('-')}"


async def refused_at(error: Refused, fields: Iterable[str]) -> Response:
    """Says what was not done, and at each of the form's fields what is wrong with it; nothing at those that are right.
    A place within a field is told at the field."""
    told = dict.fromkeys(fields, "")
    for path, words in error.details.items():
        field = next((name for name in sorted(told, key=len, reverse=True) if _within(path, name)), None)
        if field is not None and isinstance(words, str):
            told[field] = words if path == field else f"{path.removeprefix(field).strip('.')}: {words}"
    return await part("refused_at.html", error.status, error=error, told=told, place=place)


def wrong(field: str, words: str) -> Refused:
    """A form that can't even be asked for."""
    return Refused(422, "validation_failed", f"{field}: {words}", {field: words})


def ms_of(text: str | None) -> int | None:
    """Milliseconds of a time that the API tells as text."""
    return None if text is None else unix_ms(datetime.fromisoformat(text))


def _within(path: str, field: str) -> bool:
    return path == field or path.startswith((f"{field}.", f"{field}["))
