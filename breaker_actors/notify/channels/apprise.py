"""A notification as title and text for a service that apprise knows, and what an address of apprise must be. Pure.

What a service makes of text (Markdown, HTML) apprise escapes by itself. What calls people or groups it may read out of
the text, so names get a space without width where such a call begins.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any, Literal

import msgspec

from breaker_actors.clock import rfc3339
from breaker_actors.notify.channels.address import address_text
from breaker_actors.notify.channels.apprise_services import LEFT_OUT, OTHERS, WITH_HOST
from breaker_actors.notify.channels.wording import explanation, facts, headline
from breaker_actors.notify.model import Message, MessageKind
from breaker_actors.text.escaping import cut, for_line, for_people, link

TITLE_MAX, BODY_MAX = 250, 4096
NOT_INSTALLED = "apprise is not installed in the service: it comes with the extra breaker-actors[apprise]"
NoticeType = Literal["info", "success", "warning", "failure"]
TYPES: dict[MessageKind, NoticeType] = {
    "trip": "failure",
    "recover": "success",
    "resolve": "success",
    "test": "info",
    "observed": "info",
    "mute_ending": "warning",
}
_ADDRESS = re.compile(r"([a-z0-9]+)://(\S+)", re.IGNORECASE)
_PLACE = re.compile(r"(?:[^/?#]*@)?(\[[^\]/?#]*\]|[^/?#:]*)(?::([0-9]{1,5}))?(?=[/?#]|\Z)")


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What apprise is given to send."""

    title: str
    body: str
    type: NoticeType


class Place(msgspec.Struct, frozen=True):
    """Where an address leads to: `host` "" where only apprise knows."""

    schema: str
    host: str = ""
    port: int | None = None


def installed() -> bool:
    """Whether the extra `apprise` is there. Nothing of it is loaded here."""
    return find_spec("apprise") is not None


def render(message: Message) -> Notice:
    """The same words for all services; each cuts them to what it takes."""
    lines = [explanation(message), *(f"{label}: {words}" for label, words in facts(message).items())]
    if message.tells_of_a_breaker:
        lines.append(f"At: {rfc3339(message.ts_ms)}")
    said = "\n".join(for_people(for_line(line, 700)) for line in lines)
    if url := link(message.trace_url):
        said += f"\nNewest trace: {url}"
    return Notice(
        title=cut(for_people(for_line(headline(message))), TITLE_MAX),
        body=cut(said, BODY_MAX),
        type=TYPES[message.kind],
    )


def parse(given: Any) -> Place:
    """Where an address of apprise leads to. Raises ValueError saying what is wrong with it, without repeating it."""
    text = address_text(given)
    found = _ADDRESS.fullmatch(text)
    if found is None or not text.isprintable():
        raise ValueError("is not an address as apprise has them, such as ntfys://host/topic")
    schema = found[1].lower()
    if schema in LEFT_OUT:
        raise ValueError("names a service whose connections this one can't make in its place, so it is left out")
    if schema in OTHERS:
        return Place(schema)
    if schema not in WITH_HOST:
        raise ValueError("names no service that apprise knows; give its address as apprise spells it, not https://")
    place = _PLACE.match(found[2])
    if place is None or not place[1] or not (place[2] is None or 0 < int(place[2]) < 65_536):
        raise ValueError("has no host, or no port that can be")
    return Place(schema, place[1], None if place[2] is None else int(place[2]))
