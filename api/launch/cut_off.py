"""What a start says of channels that nobody is told on as its settings are: of those that were made while the service
might send to private addresses, once it may not, and those of mails without a mail server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from breaker_actors.notify.channels.reach import cut_off
from breaker_actors.settings import Settings
from breaker_actors.store.rows import ChannelKind
from breaker_actors.text.counting import counted

LOOKED_AT, TOLD = 2_000, 3
"""Channels that a start looks at, and lines that it has for those that are cut off."""
ALLOW = "start the service with BREAKERS_ALLOW_PRIVATE_DESTINATIONS=true, or give the channel another address"


def mail_words(enabled: Iterable[tuple[str, str, ChannelKind, Mapping[str, Any]]]) -> list[str]:
    """A line where channels wait for a mail server that no setting names."""
    n = sum(kind == "email" for _, _, kind, _ in enabled)
    wait = (
        f"{counted(n, 'e-mail channel')}, and no mail server: mails wait for a start with BREAKERS_SMTP_HOST, and are"
    )
    return [f"{wait} given up in time (`breakers doctor`)"] if n else []


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


def unsent_words(enabled: Sequence[tuple[str, str, ChannelKind, Mapping[str, Any]]], settings: Settings) -> list[str]:
    """All of it, for a start with these settings."""
    barred = [] if settings.allow_private_destinations else cut_off_words(enabled)
    return [*barred, *([] if settings.smtp_host else mail_words(enabled))]
