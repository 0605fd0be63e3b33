"""What many breakers have alike is held once: rules, links to routers, names. Most of a fleet's breakers differ in
their ids alone, and each came with copies of its own.

Bounded by KEPT; what is beyond that, or differs, is a copy as before.
"""

from __future__ import annotations

from functools import lru_cache
from sys import intern

import msgspec
from msgspec.structs import replace

from breaker_actors.core.log_entries import BreakerSet, decode_breaker
from breaker_actors.core.model import Rule
from breaker_actors.messages import RouterRef

KEPT = 1_024

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Rule).decode


def settings_of(payload: bytes, breaker_id: str) -> BreakerSet:
    """The settings in a record, of that breaker or another: its rule, and its own id, are those that are known."""
    settings = decode_breaker(payload)
    if settings.breaker_id != breaker_id:
        return settings
    rule = None if settings.rule is None else same_rule(settings.rule)
    return replace(settings, breaker_id=breaker_id, rule=rule)


def same_rule(rule: Rule) -> Rule:
    """An equal rule, to the bit. Where there is none yet, at least its numbers are those of one with another metric."""
    return _whole(_encode(rule))


@lru_cache(KEPT)
def _whole(encoded: bytes) -> Rule:
    rule = _decode(encoded)
    return replace(_figures(_encode(replace(rule, metric=""))), metric=intern(rule.metric))


@lru_cache(KEPT)
def _figures(encoded: bytes) -> Rule:
    return _decode(encoded)


def same_link(router: RouterRef) -> RouterRef:
    """An equal link; owners and slots are few, and all links have their names in common."""
    return _link(replace(router, owner=intern(router.owner), log_slot=intern(router.log_slot)))


@lru_cache(KEPT)
def _link(router: RouterRef) -> RouterRef:
    return router
