"""What the timeline's address looks for, and a page of the moves that are like that.

The rows and their cursors are those of the API's history. The API has no filter by reason and kind of move: for these
SCANNED_MAX moves are looked through at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from quart import request

from api.admission.intake import Turn
from api.auth import uuid_or_none
from api.console.history import moves_of
from api.console.lanes import SPANS
from api.context.current import callers
from api.context.replica import replica
from api.lookup.project_index import ProjectIndex, Search
from api.wire.query import cursor_after, events_query
from breaker_actors.core.model import StateWord
from breaker_actors.notify.channels.wording import REASONS
from breaker_actors.store.rows import EventQuery, EventRow, ProjectRow

ROWS, SCANNED_MAX, CHOICES_MAX = 50, 1_000, 20
"""Rows of a page, moves looked through for one, and breakers offered where a name is not clear."""
KINDS: dict[str, str] = {"trips": "Trips", "recoveries": "Recoveries", "observed": "Observed moves"}
SOURCES = {"live": "Live", "backfill": "Backfill", "all": "Live and backfill"}
ENDS: dict[str, StateWord] = {"trips": "open", "recoveries": "closed"}


class Asked(NamedTuple):
    """What the address looks for. `breaker`: as its reader wrote it; `span`: of the picture."""

    breaker: str
    reason: str
    kind: str
    source: str
    span: str
    cursor: str

    def address(self, **other: str) -> str:
        """That of the same screen, with something else looked for."""
        given = {name: value for name, value in (self._asdict() | other).items() if value}
        return f"{request.path}?{urlencode(given)}"


class Found(NamedTuple):
    """`cursor`: of the next page; `looked`: through how many moves, where not all on the way are shown; `ends_ms`: the
    times of the last move of the page before and of the last that was looked at here, None where there is no page."""

    events: list[EventRow]
    cursor: str | None
    looked: int
    ends_ms: tuple[int | None, int | None] = (None, None)


def asked_timeline() -> Asked:
    """What is none of its words asks for nothing."""
    given = request.args
    return Asked(
        breaker=given.get("breaker", "").strip()[:200],
        reason=_one_of(given.get("reason", ""), REASONS, ""),
        kind=_one_of(given.get("kind", ""), KINDS, ""),
        source=_one_of(given.get("source", ""), SOURCES, "live"),
        span=_one_of(given.get("span", ""), SPANS, "hour"),
        cursor=given.get("cursor", "")[:200],
    )


async def meant(index: ProjectIndex, text: str) -> tuple[str | None, list[tuple[str, str]]]:
    """The id of the breaker that is meant, "" where all are; None where that is not clear, and those it may be."""
    if not text:
        return "", []
    if (found := uuid_or_none(text)) is not None:
        return found, []
    alike = [row for row in index.rows.values() if row.name == text]
    if not alike:
        async with Turn(replica().intake.turns, callers()) as turn:
            alike = (await index.find(Search(text=text), 0, CHOICES_MAX, replica().clock.now_ms(), turn.next)).rows
    if len(alike) == 1:
        return alike[0].id, []
    return None, [(row.id, row.name) for row in alike[:CHOICES_MAX]]


async def find(project: ProjectRow, asked: Asked, breaker_id: str) -> Found:
    """A page of moves."""
    query = _query(project.id, asked, breaker_id)
    if not asked.reason and asked.kind not in ENDS:
        rows = await moves_of(msgspec.structs.replace(query, limit=ROWS + 1))
        more = len(rows) > ROWS
        return _found(query, rows[:ROWS], rows[ROWS - 1] if more else None, 0)
    return await _sift(query, asked)


async def _sift(query: EventQuery, asked: Asked) -> Found:
    """The first moves of those that are looked for among the next SCANNED_MAX."""
    rows = await moves_of(msgspec.structs.replace(query, limit=SCANNED_MAX + 1))
    good = list[EventRow]()
    for row in rows[:SCANNED_MAX]:
        if len(good) == ROWS:
            return _found(query, good, good[-1], 0)
        if _is_meant(row, asked):
            good.append(row)
    more = len(rows) > SCANNED_MAX
    return _found(query, good, rows[SCANNED_MAX - 1] if more else None, SCANNED_MAX if more else 0)


def _found(query: EventQuery, events: list[EventRow], last: EventRow | None, looked: int) -> Found:
    """`last`: behind which the next page begins, if there is one."""
    ends_ms = None if query.before is None else query.before[0], None if last is None else last.ts_ms
    return Found(events, None if last is None else cursor_after(query, last), looked, ends_ms)


def _is_meant(row: EventRow, asked: Asked) -> bool:
    if asked.reason and row.reason != asked.reason:
        return False
    return asked.kind not in ENDS or (row.curr == ENDS[asked.kind] and row.hidden_by is None)


def _query(project_id: str, asked: Asked, breaker_id: str, **more: str) -> EventQuery:
    given = {"breaker_id": breaker_id, "source": asked.source, "cursor": asked.cursor, **more}
    return events_query(project_id, given | ({"observed": "true"} if asked.kind == "observed" else {}))


def _one_of(text: str, words: Any, otherwise: str) -> str:
    return text if text in words else otherwise
