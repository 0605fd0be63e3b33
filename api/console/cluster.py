"""The cluster, for whoever operates the service: machines, actors, logs, limits, and in words what is wrong on top."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quart import Response

from api.console.acts import done
from api.console.asking import Refused, ask
from api.console.blueprint import blueprint
from api.console.looks import page, span
from api.console.project import open_project
from api.context.current import authorized_project
from api.context.replica import replica
from api.openapi.words import words_of
from breaker_actors.errors import BreakersError
from breaker_actors.text.counting import counted

ACTORS_MAX = 200
NAMED_MAX = 5
"""Routers that a line names; the API names more."""
BADGES = {"up": "good", "starting": "hand", "away": "bad"}
LATE_MS = 10_000
LIMITS = {
    "log_bytes": "its samples are refused",
    "transitions": "its moves wait",
    "window_samples": "the oldest samples of windows leave early",
    "events": "the oldest events leave early",
    "deliveries": "the oldest deliveries leave early",
    "configuration_bytes": "changes are refused",
    "audit_bytes": "changes are refused",
}


@blueprint.get("/p/<project_id>/cluster")
async def cluster(project_id: str) -> Response:
    """The screen; for who does not operate the service a plain word in its place."""
    project = await open_project(project_id)
    try:
        status = (await ask("GET", "/admin/status")).body
    except Refused as error:
        if error.status != 403:
            raise
        return await page("cluster.html", 403, project=project, told=None)
    actors = sorted(status["actors"], key=lambda actor: actor["state"] == "up")
    return await page(
        "cluster.html",
        project=project,
        told=status,
        actors=actors[:ACTORS_MAX],
        unshown=max(0, len(actors) - ACTORS_MAX),
        troubles=[*await _notices(), *troubles_of(status)],
        limits=[_limit(limit) for limit in status["limits"]],
        badges=BADGES,
        words=words_of,
        log_bytes=_bytes,
        late_ms=LATE_MS,
    )


@blueprint.post("/p/<project_id>/cluster/rebalance")
async def rebalance(project_id: str) -> Response:
    await authorized_project(project_id, "manage")
    moved = (await ask("POST", "/admin/rebalance", {})).body
    if not moved["moved"]:
        return await done("Nothing to move: routers and breakers are spread evenly.")
    left = f" {moved['left']} are left: rebalance again." if moved["left"] else " It is even now."
    return await done(f"Moved {moved['moved']} routers and breakers to other actors.{left} No state was lost by it.")


def troubles_of(status: dict[str, Any]) -> list[str]:
    """What of a status is not as it has to be, in words."""
    away = [one["name"] for one in status["journals"] if one["sequence"] is None]
    found = []
    if away and len(away) == len(status["journals"]):
        found.append("The journal does not answer: nobody hears of changes as they happen.")
    elif away:
        found.append(f"{', '.join(away)} does not answer: nobody hears of changes of its projects as they happen.")
    aside = status["set_aside"]
    if aside is None:
        found.append("The store does not answer.")
    elif aside:
        found.append(f"{aside} stored things could not be read: breakers aside list")
    for actor in status["actors"]:
        found += [f"{actor['name']}: {words}" for words in _of_actor(actor)]
    return found


def _of_actor(actor: dict[str, Any]) -> Iterator[str]:
    if actor["state"] == "away":
        yield "it does not answer."
    if fault := actor["fault"]:
        yield f"samples can't be stored: {fault}"
    if damaged := actor["damaged"]:
        yield f"logs are damaged, of routers {_some(damaged)}: breakers recover"
    if ahead := actor["logs_ahead"]:
        yield (
            f"logs are up to {span(actor['ahead_ms'])} ahead of the clock, of routers {_some(ahead)}: their samples"
            " are refused until it gets there, or breakers recover --ahead"
        )
    if count := actor["ahead"]:
        ahead = f"{counted(count, 'breaker')} {'is' if count == 1 else 'are'} ahead of the clock"
        yield f"{ahead}: samples of now do not count there."
    if doubted := actor["clock_doubted_ms"]:
        yield f"the clock stepped ahead by {span(doubted)}, believed if that lasts a minute."
    if (actor["overdue_ms"] or 0) > LATE_MS:
        yield f"its timers are {span(actor['overdue_ms'])} late."


async def _notices() -> list[str]:
    """What readyz says: that a part does not take work, or what it has to remark."""
    gateway = replica().gateway
    try:
        await gateway.ready()
        notice = await gateway.notice()
    except BreakersError as error:
        return [f"Not ready: {error.message}"]
    return [notice] if notice else []


def _some(ids: list[str]) -> str:
    more = len(ids) - NAMED_MAX
    return ", ".join(ids[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _limit(limit: dict[str, Any]) -> dict[str, Any]:
    whose = f"organisation {limit['org_id']}" if limit["project_id"] is None else f"project {limit['project_id']}"
    return limit | {"whose": whose, "so": LIMITS.get(limit["limit"], "no more can be made")}


def _bytes(count: int) -> str:
    """Bytes for people."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
