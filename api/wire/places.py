"""Where a request is wrong, in words: the place in a text that is no JSON, the words a field may hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from breaker_actors.errors import BadRequest

_BYTE = re.compile(r"(?:JSON is malformed: )?(.*) \(byte ([0-9]{1,12})\)")


def not_json(body: bytes, error: Exception | None) -> BadRequest:
    """The error for a body that is no JSON. `details`: line and column (in bytes) from 1, offset in bytes from 0, of
    where the decoder stopped: at the first wrong byte or up to five bytes behind it."""
    place = _place(body, error)
    if place is None:
        return BadRequest("The body is not valid JSON.")
    problem, offset = place
    line = body.count(b"\n", 0, offset) + 1
    column = offset - body.rfind(b"\n", 0, offset)
    where = f"line {line}, column {column} (offset {offset})"
    return BadRequest(
        f"The body is not valid JSON: {problem} near {where}.", {"line": line, "column": column, "offset": offset}
    )


def _place(body: bytes, error: Exception | None) -> tuple[str, int] | None:
    if isinstance(error, RecursionError) or error is None:
        return None
    try:
        body.decode()
    except UnicodeDecodeError as no_text:
        return "a byte that is no UTF-8", no_text.start
    if found := _BYTE.fullmatch(str(error)):
        return found[1], int(found[2])
    return ("it ends too early", len(body)) if "truncated" in str(error) else None


def words_of(kind: Any, field: str) -> list[str]:
    """The words that a field of a struct may hold; none where it isn't one of words. "" stands for none given."""
    hint = get_type_hints(kind, include_extras=True).get(field)
    return [word for word in _literals(hint) if isinstance(word, str) and word]


def _literals(hint: Any) -> Iterator[object]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
        return
    for inner in get_args(hint):
        yield from _literals(inner)
