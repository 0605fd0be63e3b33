"""What a router's view says, from its configuration: pure (semantics.md section 7)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from breaker_actors.core.log_entries import Link, Mode, RouterView
from breaker_actors.errors import Invalid

_WORDS: dict[str, str] = {"canary": "canary:", "weighted": "weight:"}
_DEFAULTS: dict[str, float | None] = {"canary": None, "weighted": 1.0}


class Linked(NamedTuple):
    """What a view needs of a linked breaker."""

    breaker_id: str
    name: str
    metric: str


def names_matter(mode: str) -> bool:
    """Whether shares may be said by breakers' names."""
    return mode in _WORDS


def share_of(mode: Mode, metadata: Mapping[str, str], breaker_id: str, name: str) -> float | None:
    """The percent (canary; None = all) or weight (weighted) of one breaker; the key with its id wins over its name."""
    if not names_matter(mode):  # static; and what no reader of the view takes for a mode
        return None
    word = _WORDS[mode]
    for key in (word + breaker_id, word + name):
        if key in metadata:
            return parse_share(key, metadata[key])
    return _DEFAULTS[mode]


def parse_share(key: str, text: str) -> float:
    """A finite number >= 0. Raises Invalid naming the metadata key."""
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not math.isfinite(share) or share < 0:
        raise Invalid(f"metadata {key} must be a finite number >= 0", {"field": "metadata"})
    return share


def check_shares(metadata: Mapping[str, str]) -> None:
    """Every share in a router's metadata, used now or not: a later change of mode or name must not meet a bad one."""
    for key, text in metadata.items():
        if key.startswith(tuple(_WORDS.values())):
            parse_share(key, text)


def links_of(mode: Mode, metadata: Mapping[str, str], linked: Iterable[Linked]) -> tuple[Link, ...]:
    return tuple(Link(b.breaker_id, b.metric, share_of(mode, metadata, b.breaker_id, b.name)) for b in linked)


def view_of(
    version: int, mode: Mode, enabled: bool, metadata: Mapping[str, str], linked: Sequence[Linked]
) -> RouterView:
    return RouterView(version=version, mode=mode, enabled=enabled, links=links_of(mode, metadata, linked))
