"""Whom a mute matches: matchers over what is known of a breaker and of a channel. Pure.

All matchers have to match; those of `channel` look at the channel, all others at the breaker. What is not there
equals nothing: `=` and `glob` don't match it, `!=` does. Of several values (a breaker's routers; id, name and kind of
a channel) `=` and `glob` ask for any, `!=` for none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec

from breaker_actors.text import globs

Op = Literal["=", "!=", "glob"]
MATCHERS_MAX = 20
CHARS_MAX = 255
"""Characters of a value."""
OF_METADATA, OF_ROUTER = "metadata.", "router."
KEY_CHARS_MAX = 64
ROUTERS_MAX = 100
"""Routers of a breaker that are looked at: the first that were linked."""
COMPARISON = 200
"""What a comparison takes beside its characters, in units of Effort."""
PLAIN = ("name", "id", "metric", "kind")
OF_BREAKER = rf"{'|'.join(PLAIN)}|(metadata|router)\.[\s\S]{{1,{KEY_CHARS_MAX}}}"
FIELD = rf"({OF_BREAKER}|channel)"


class Matcher(msgspec.Struct, frozen=True, kw_only=True):
    """`field`: name, id, metric, kind, channel, metadata.KEY or router.KEY. A glob knows * and ? alone."""

    field: Annotated[str, msgspec.Meta(pattern=rf"\A{FIELD}\Z", examples=["metadata.team"])]
    op: Op
    value: Annotated[str, msgspec.Meta(max_length=CHARS_MAX, examples=["payments"])]


class BreakerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What matchers may look at of a breaker. `routers`: the metadata of those it hangs on, of ROUTERS_MAX at most.
    `open`: whether it is."""

    id: str
    name: str
    metric: str
    kind: str
    metadata: dict[str, str]
    routers: tuple[dict[str, str], ...] = ()
    open: bool = False


class ChannelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What matchers may look at of a channel."""

    id: str
    name: str
    kind: str


class Spent(Exception):
    """There is no effort left."""


class Effort:
    """What may be spent on matching: about nanoseconds, counted by lengths of texts, so the same everywhere."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, units: int) -> None:
        """Raises Spent once there is not so much left."""
        self.left -= units
        if self.left < 0:
            raise Spent


def matches_breaker(matchers: Iterable[Matcher], breaker: BreakerFacts, effort: Effort | None = None) -> bool:
    """Whether all matchers but those of channels match. Raises Spent."""
    return all(_holds(one, _values(one.field, breaker), effort) for one in matchers if one.field != "channel")


def matches_channel(matchers: Iterable[Matcher], channel: ChannelFacts, effort: Effort | None = None) -> bool:
    """Whether all matchers of channels match. Raises Spent."""
    known = (channel.id, channel.name, channel.kind)
    return all(_holds(one, known, effort) for one in matchers if one.field == "channel")


def asks_routers(matchers: Iterable[Matcher]) -> bool:
    """Whether they look at routers."""
    return any(one.field.startswith(OF_ROUTER) for one in matchers)


def cost(matcher: Matcher, value: str) -> int:
    """What a comparison takes at most, in units of Effort."""
    return COMPARISON + (globs.cost(matcher.value, value) if matcher.op == "glob" else 0)


def problem(matcher: Matcher) -> str:
    """Why a matcher can't be taken; "" when it can."""
    return globs.problem(matcher.value) if matcher.op == "glob" else ""


def _values(field: str, breaker: BreakerFacts) -> Sequence[str]:
    if field in PLAIN:
        return (str(getattr(breaker, field)),)
    kind, _, key = field.partition(".")
    sources = breaker.routers if kind == "router" else (breaker.metadata,)
    return list(dict.fromkeys(source[key] for source in sources if key in source))


def _holds(matcher: Matcher, values: Sequence[str], effort: Effort | None) -> bool:
    if effort is not None:
        effort.spend(COMPARISON)
    match matcher.op:
        case "=":
            return matcher.value in values
        case "!=":
            return matcher.value not in values
        case "glob":
            for value in values:
                if effort is not None:
                    effort.spend(globs.cost(matcher.value, value))
                if globs.matches(matcher.value, value):
                    return True
            return False
