"""What is said of channels that were made while the service might send to private addresses, once it may not: nobody is
told on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from breaker_actors.notify.channels.reach import cut_off
from breaker_actors.store.rows import ChannelKind
from breaker_actors.text.counting import counted

LOOKED_AT, TOLD = 2_000, 3
"""Channels that a start looks at, and lines that it has for those that are cut off."""
ALLOW = "start the service with BREAKERS_ALLOW_PRIVATE_DESTINATIONS=true, or give the channel another address"


def cut_off_words(enabled: Iterable[tuple[str, str, ChannelKind, Mapping[str, Any]]]) -> list[str]:
    """A line for each of the first TOLD channels that may not be sent to, and one for the rest; none where all may."""
    found = list(cut_off(enabled, allow_private=False))
    lines = [
        f"channel {name} ({kind}, project {project_id}) can't be sent to: {problem.message}; its alerts wait, and are"
        " given up in time (`breakers doctor`)"
        for project_id, name, kind, problem in found[:TOLD]
    ]
    if (more := len(found) - TOLD) > 0:
        lines.append(f"{counted(more, 'more channel')} can't be sent to either (`breakers doctor`)")
    return lines
