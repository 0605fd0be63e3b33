"""What `breakers doctor` finds, and how it says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from breaker_actors.errors import BreakersError

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """What one look found. `remedy`: what to do about it, where it is not fine."""

    check: str
    level: Level
    message: str
    remedy: str | None = None


def told(error: BreakersError) -> str:
    """The text of an error in one line."""
    return " ".join(str(error).split())
