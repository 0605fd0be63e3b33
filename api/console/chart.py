"""The chart of a breaker: its value over time out of its recorded samples, and its states out of the stored events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from quart import Response, request

from api.auth import path_uuid
from api.console.asking import ask
from api.console.blueprint import blueprint
from api.console.history import moves_of
from api.console.lanes import SPANS, YOUNG_MS
from api.console.project import open_project
from api.console.recorded import Wanted, desk
from api.context.replica import replica
from api.wire.http import text_bytes
from breaker_actors.clock import moment
from breaker_actors.core.model import Rule
from breaker_actors.errors import BreakersError, NotFound
from breaker_actors.notify.channels.wording import unit
from breaker_actors.store.rows import BreakerRow, EventQuery

if TYPE_CHECKING:
    from api.console.replays import Kept

JSON = "application/json"
LEAST_MS = 1_000
FRESH_S = 4.0
"""What was read so long ago is drawn again."""
AWAY_MAX = 100
"""Stretches without the service that are drawn, the newest."""
GAPS_MAX = 3
"""Stretches without the service that are told, the newest."""
EVENTS_MAX = 1_000
"""Moves of a span that are drawn; of more the newest."""
Stay = tuple[str, int, int]


@blueprint.get("/p/<project_id>/b/<breaker_id>/chart")
async def chart(project_id: str, breaker_id: str) -> Response:
    """What the chart draws, as JSON. Where the samples can't be read now, it says so and has the states alone."""
    project, breaker_id = await open_project(project_id), path_uuid(breaker_id)
    await ask("GET", f"/projects/{project.id}/breakers/{breaker_id}")  # whoever may not see it is refused
    row = await replica().config.get_breaker(project.id, breaker_id)
    if row is None:
        raise NotFound("There is no such breaker.")
    from_ms, to_ms = asked_span()
    # Before it was made there is nothing to see; a minute is shown at least.
    from_ms = max(from_ms, min(row.created_ms, to_ms - YOUNG_MS))
    stays, notes = await states_of(row, from_ms, to_ms)
    body = {
        "from": from_ms,
        "to": to_ms,
        "threshold": row.rule.threshold,
        "op": row.rule.op,
        "kind": row.rule.kind,
        "metric": row.rule.metric,
        **unit_of(row.rule),
        "bands": stays,
        "seen": "machine" if row.controls.mode == "observe" else "callers",
        "open_ms": sum(end - begin for state, begin, end in stays if state == "open"),
        "half_open_ms": sum(end - begin for state, begin, end in stays if state == "half_open"),
        "away": [],
        "at": [],
        "value": [],
        "notes": notes,
        "refused": "",
    }
    wanted = Wanted(project.id, breaker_id)
    try:
        found = await desk().work(wanted, None, FRESH_S, lambda kept, late: values_of(kept, late, from_ms, to_ms))
        body |= found | {"notes": [*notes, *found["notes"]]}
    except BreakersError as error:
        body["refused"] = error.message
    return json_text(body)


def unit_of(rule: Rule) -> dict[str, Any]:
    """What a chart multiplies the values of a rule by, and their unit: rates are percent everywhere."""
    times, words = unit({"kind": rule.kind, "kind_params": rule.kind_params})
    return {"times": times, "unit": words}


def json_text(body: Any) -> Response:
    """A body for the page's own script."""
    return text_bytes(msgspec.json.encode(body), JSON)


def asked_span() -> tuple[int, int]:
    """From when to when the chart is asked for: the last hour, day or week, or a stretch of the last week."""
    now_ms = replica().clock.now_ms()
    length = SPANS.get(request.args.get("span", "hour"), SPANS["hour"])
    first, last = (_number(request.args.get(name, "")) for name in ("from", "to"))
    if first is None or last is None:
        return now_ms - length, now_ms
    to_ms = min(max(last, now_ms - SPANS["week"] + LEAST_MS), now_ms)
    return max(now_ms - SPANS["week"], min(first, to_ms - LEAST_MS)), to_ms


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


async def states_of(row: BreakerRow, from_ms: int, to_ms: int) -> tuple[list[Stay], list[str]]:
    """The states of a breaker within a span, by its stored events: as callers saw them, of one that observes as its
    machine moved. And what is to be said of them."""
    hidden = None if row.controls.mode == "observe" else False
    query = EventQuery(project_id=row.project_id, breaker_id=row.id, hidden=hidden, until_ms=to_ms)
    within = msgspec.structs.replace(query, since_ms=from_ms, limit=EVENTS_MAX + 1)
    moves = (await moves_of(within))[::-1]
    notes = []
    begin_ms = max(from_ms, row.created_ms)
    if len(moves) > EVENTS_MAX:
        moves = moves[1:]
        begin_ms = moves[0].ts_ms
        notes.append(f"It moved more than {EVENTS_MAX:,} times in this span; the newest moves are drawn.")
    if moves:
        state: str = moves[0].prev
    else:
        before = await moves_of(msgspec.structs.replace(query, until_ms=from_ms, limit=1))
        state = before[0].curr if before else "closed"
    stays = list[Stay]()
    for move in moves:
        stays.append((state, begin_ms, max(begin_ms, move.ts_ms)))
        begin_ms, state = max(begin_ms, move.ts_ms), move.curr
    stays.append((state, begin_ms, max(begin_ms, to_ms)))
    return [one for one in stays if one[1] < one[2]], notes


def values_of(kept: Kept, late: Callable[[], bool], from_ms: int, to_ms: int) -> dict[str, Any]:
    """In the thread: the value of the breaker within a span."""
    from api.console.replays import LOOKS, courses, thinned

    (course,) = courses(kept, [kept.breaker], late, (from_ms, to_ms))
    rule = kept.breaker.rule
    hole_ms = max(rule.window_ms, 3 * (to_ms - from_ms) // LOOKS)
    points = thinned(course.values, hole_ms)
    numbers = [value for _, value in course.values]
    return {
        "at": [at for at, _ in points],
        "value": [value for _, value in points],
        "least": min(numbers, default=None),
        "most": max(numbers, default=None),
        "last": numbers[-1] if numbers else None,
        "hole_ms": hole_ms,
        "samples": kept.samples,
        "newest_ms": kept.last_ms,
        "away": away_of(kept, from_ms)[-AWAY_MAX:],
        "notes": told_of(kept, from_ms),
    }


def away_of(kept: Kept, from_ms: int) -> list[tuple[int, int]]:
    """Stretches that ended later, in which no samples could be taken."""
    from pipelines.away import joined

    return joined(gap for gap in kept.gaps if gap[1] > from_ms)


def told_of(kept: Kept, from_ms: int | None = None) -> list[str]:
    """What is to be said of the samples that were looked at. `from_ms`: since when they are wanted."""
    found = []
    if kept.left_out:
        found.append(f"Only the newest {kept.samples:,} samples are looked at, since {instant(kept.first_ms)}.")
    elif from_ms is not None and kept.first_ms > from_ms:
        found.append(f"Recorded samples begin at {instant(kept.first_ms)}.")
    away = [] if from_ms is None else away_of(kept, from_ms)
    found += [f"No samples could be taken from {instant(a)} to {instant(b)}." for a, b in away[-GAPS_MAX:]]
    if from_ms is not None and kept.samples and kept.last_ms < from_ms:
        found.append(f"No sample has come since {instant(kept.last_ms)}.")
    return found + [f"{remark[:1].upper()}{remark[1:]}." for remark in kept.remarks]


def instant(ms: int) -> str:
    """A point in time within a sentence."""
    return moment(ms).strftime("%Y-%m-%d %H:%M:%S UTC")
