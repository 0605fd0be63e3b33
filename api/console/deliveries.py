"""Deliveries of a channel: what was sent, what waits and why, what was given up; and sending that again."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import urlencode

from quart import Response, request

from api.console.acts import done
from api.console.asking import Refused, ask
from api.console.blueprint import blueprint
from api.console.channels import quiet_of
from api.console.looks import page
from api.console.project import open_project
from api.console.refusing import ms_of
from api.context.current import authorized_project
from api.context.replica import replica
from api.openapi.words import words_of
from api.wire.query import DELIVERY_STATES, LIMIT_MAX
from breaker_actors.store.rows import DeliveryQuery, DeliveryRow

ROWS = 50
BADGES = {"sent": "good", "dead": "bad", "held": "hand", "suppressed": "hand"}

Outage = tuple[str, int | str]


@blueprint.get("/p/<project_id>/channels/<channel_id>/deliveries")
async def deliveries(project_id: str, channel_id: str) -> Response:
    project = await open_project(project_id)
    wanted = {name: request.args.get(name, "") for name in ("state", "cursor")}
    path = f"/projects/{project.id}/notification-channels/{channel_id}"
    found = (await ask("GET", f"{path}/deliveries", None, {**wanted, "limit": ROWS})).body
    own = channel_id == project.id
    name = "The project's own Slack address" if own else (await ask("GET", path)).body["name"]
    dead = await _dead(project.id, channel_id)
    outages = Counter(map(_outage, dead))
    return await page(
        "deliveries.html",
        project=project,
        channel_id=channel_id,
        title=name,
        own=own,
        rows=found["deliveries"],
        quiet=(await quiet_of(project.id)).get(channel_id),
        dead=dead,
        dead_max=LIMIT_MAX,
        outages=len(outages),
        breakers=len({row.breaker_id for row in dead}),
        oldest_ms=min((row.created_ms for row in dead), default=None),
        with_it={row.id: outages[_outage(row)] for row in dead},
        overtaken=await _overtaken(project.id, channel_id, dead),
        badges=BADGES,
        states=DELIVERY_STATES,
        state=wanted["state"],
        older=_address(wanted["state"], found["next_cursor"]) if found["next_cursor"] else None,
        newest=_address(wanted["state"], "") if wanted["cursor"] else None,
        ms_of=ms_of,
        words=words_of,
    )


@blueprint.post("/p/<project_id>/channels/<channel_id>/deliveries/redrive")
async def redrive_all(project_id: str, channel_id: str) -> Response:
    """Sends the dead ones again, oldest first, so that trips go before what came of them."""
    project = await authorized_project(project_id, "manage")
    rows, again, left = await _dead(project.id, channel_id), set[str](), list[str]()
    if not rows:
        raise Refused(409, "not_redrivable", "There is no dead delivery on this channel.", {})
    for row in reversed(rows):
        if row.id not in again:
            try:
                again |= {one["id"] for one in await _redrive(project.id, channel_id, row.id)}
            except Refused as error:
                left.append(error.message)
    if not again:
        raise Refused(409, "not_redrivable", f"None of {len(rows)} could be sent again. {left[0]}", {})
    rest = f" {len(left)} were left alone: {left[0]}" if left else ""
    return await done(f"{_count(len(again))} will be sent again within seconds, oldest first.{rest}")


@blueprint.post("/p/<project_id>/channels/<channel_id>/deliveries/<delivery_id>/redrive")
async def redrive(project_id: str, channel_id: str, delivery_id: str) -> Response:
    rows = await _redrive(project_id, channel_id, delivery_id)
    rest = f": this one, and {len(rows) - 1} of the same outage" if len(rows) > 1 else ""
    return await done(f"{_count(len(rows))} will be sent again within seconds{rest}.")


async def _redrive(project_id: str, channel_id: str, delivery_id: str) -> list[dict[str, Any]]:
    path = f"/projects/{project_id}/notification-channels/{channel_id}/deliveries/{delivery_id}/redrive"
    found: list[dict[str, Any]] = (await ask("POST", path)).body["deliveries"]
    return found


async def _dead(project_id: str, channel_id: str) -> list[DeliveryRow]:
    """The newest dead ones, LIMIT_MAX at most."""
    query = DeliveryQuery(project_id=project_id, channel_id=channel_id, state="dead", limit=LIMIT_MAX)
    return await replica().outbox.deliveries(query)


async def _overtaken(project_id: str, channel_id: str, dead: list[DeliveryRow]) -> set[str]:
    """Dead ones that would be left alone, for their channel was told the contrary since; as far as that is seen among
    its newest LIMIT_MAX deliveries of a state."""
    if not dead:
        return set()
    newest: dict[str, DeliveryRow] = {}
    for state in ("pending", "sent"):
        query = DeliveryQuery(project_id=project_id, channel_id=channel_id, state=state, limit=LIMIT_MAX)
        rows = await replica().outbox.deliveries(query)
        if state == "pending" and len(rows) == LIMIT_MAX:
            return set()  # one that is not seen here may put it right
        for row in rows:
            if row.breaker_id not in newest or row.number > newest[row.breaker_id].number:
                newest[row.breaker_id] = row
    last = {_outage(row): row for row in sorted(dead, key=lambda row: row.number)}
    found = set[str]()
    for row in dead:
        told, mine = newest.get(row.breaker_id), last[_outage(row)]
        if told is not None and told.state == "sent" and told.number > mine.number:
            found |= {row.id} if (told.kind == "trip") != (mine.kind == "trip") else set()
    return found


def _outage(row: DeliveryRow) -> Outage:
    """What is sent again together: all of one outage of a breaker."""
    return row.breaker_id, row.id if row.incident is None else row.incident


def _count(number: int) -> str:
    return f"{number} deliver{'y' if number == 1 else 'ies'}"


def _address(state: str, cursor: str) -> str:
    """The screen of a state, from a cursor on."""
    return f"{request.path}?{urlencode({'state': state, 'cursor': cursor})}"
