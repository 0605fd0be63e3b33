"""The screen of one breaker: its state and what comes next, its last moves, and what operators may do about it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from quart import Response, request

from api.auth import path_uuid
from api.console import breaker_facts as facts
from api.console.asking import ask
from api.console.blueprint import blueprint
from api.console.looks import is_part, page
from api.console.outages import outage_of
from api.console.overriding import endings, seen, underneath
from api.console.project import may_act, open_project
from api.console.unreached import unreached_of
from api.context.replica import replica
from api.wire.remarks import name_remarks, rule_remarks
from breaker_actors.core.rule_fields import POLICY_MEANINGS
from breaker_actors.store.rows import ProjectRow
from breaker_actors.text.escaping import for_line

SAID = {
    "made": "The breaker was made.",
    "alone": "The breaker was made. It hangs on a router of its own: the one that was chosen did not take it.",
}
"""What its page says of one that was just made, by a word of the address."""


@blueprint.get("/p/<project_id>/b/<breaker_id>")
async def breaker(project_id: str, breaker_id: str) -> Response:
    """A project key sees the state alone."""
    project, breaker_id = await open_project(project_id), path_uuid(breaker_id)
    path = f"/projects/{project.id}/breakers/{breaker_id}"
    state = (await ask("GET", f"{path}/state")).body
    if not may_act():
        return await page(
            "breaker.html",
            project=project,
            state=state,
            row=None,
            rule=None,
            remarks=facts.remarks(state, None),
            outage=None,
            said=[],
            unreached=[],
        )
    return await _whole(project, path, state)


async def _whole(project: ProjectRow, path: str, state: dict[str, Any]) -> Response:
    row = await facts.row_of(path)
    readings = await replica().states.read(project.id, [row.id])
    overridden = await ask("GET", f"{path}/override")
    moves, cursor = await facts.moves_of(project.id, row.id, request.args.get("cursor", ""))
    channels = await facts.channels_of(project.id)
    told = await facts.told_of(project, moves, channels)
    links = await facts.links_of(project.id, row)
    return await page(
        "breaker.html",
        project=project,
        state=state,
        row=row,
        rule=row.rule,
        typed=name_to_type(row),
        view=readings[row.id].view if row.id in readings else None,
        remarks=facts.remarks(state, row),
        outage=await outage_of(project.id, row.id, state["state"], state["state_since_ms"]),
        said=[] if is_part() else await said_of_new(project.id, row),
        override=overridden.body["override"],
        tag=overridden.headers["ETag"],
        underneath=underneath(state),
        seen=seen,
        policies=POLICY_MEANINGS,
        mutes=await facts.mutes_of(project.id, row),
        moves=moves,
        more=_address(cursor),
        newest=_address("") if request.args.get("cursor") else "",
        told=told,
        unheard=[] if request.args.get("cursor") else facts.unheard(state["state"], moves, told),
        untold=facts.untold,
        moves_at=urlencode(
            {"breaker": row.id, "source": "all", "span": "day", "cursor": request.args.get("cursor", "")}
        ),
        links=links,
        unreached=await unreached_of(project.id),
        channels=channels[: facts.CHANNELS_MAX],
        compared=None if is_part() else await facts.comparison(path, row, links),
        differences_max=facts.DIFFERENCES_MAX,
        endings=endings(project),
    )


async def said_of_new(project_id: str, row: facts.Row) -> list[str]:
    """What is told of a breaker that was just made, as the address says: what is allowed and hardly meant, too."""
    told = SAID.get(request.args.get("said", ""))
    if told is None:
        return []
    alike = await replica().config.named_alike(project_id, row.name)
    return [told, *(one.message for one in (*rule_remarks(row.rule), *name_remarks(row.name, alike)))]


def name_to_type(row: facts.Row) -> str:
    """What is to be typed before the breaker is deleted: its name as one line, or its id where nothing is left."""
    return for_line(row.name, 255) or row.id


def _address(cursor: str | None) -> str:
    return "" if cursor is None else f"{request.path}?{urlencode({'cursor': cursor})}" if cursor else request.path
