"""Which of a breaker's events an outage begins with."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, literal


def begins_outage(of: Any) -> ColumnElement[bool]:
    """Whether the event with these columns is one that an outage begins with, as callers see it: in the words of the
    index `ix_events_outage`."""
    is_one: ColumnElement[bool] = (of.prev == literal("closed", literal_execute=True)) & of.hidden_by.is_(None)
    return is_one
