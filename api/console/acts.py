"""What a page says when somebody has changed something: in words what happened, and how to take it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quart import Response

from api.console.asking import Answer
from api.console.looks import part


class Undo(NamedTuple):
    """A form that takes it back: where it is sent, and what with."""

    action: str
    fields: Mapping[str, str] = {}
    label: str = "Undo"


async def done(words: str, answer: Answer | None = None, undo: Undo | None = None) -> Response:
    """Says so on the page, whose live part is fetched anew; with what the API remarked on."""
    response = await part("done.html", words=words, undo=undo, warnings=[] if answer is None else answer.warnings)
    response.headers["HX-Trigger"] = "acted"
    return response


def lead_to(path: str) -> Response:
    """Has the browser go on to another page."""
    return Response("", headers={"HX-Redirect": path})
