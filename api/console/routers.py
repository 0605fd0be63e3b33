"""Routers and what comes to them: the list with what this replica has seen of samples, one router with its breakers and
programs that send to it, and the project's signatures."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from heapq import nsmallest
from typing import NamedTuple

from quart import Response, request

from api.auth import path_uuid
from api.console.acts import Undo, done, lead_to
from api.console.asking import ask
from api.console.blueprint import blueprint
from api.console.guard import form
from api.console.looks import is_part, page, part
from api.console.paging import address_of_page, asked_page, pages_of
from api.console.project import managed_project
from api.console.snippets import Target, address_for_programs, snippets
from api.context.replica import replica
from api.lookup.ingest_memory import Flow, Noted, Seen
from api.lookup.project_index import ProjectIndex
from breaker_actors.errors import NotFound
from breaker_actors.store.rows import ProjectRow, RouterRow

ROWS, LINKED_SHOWN, CHOICES_MAX = 50, 5, 100
MODES = ("static", "canary", "weighted")
WRONG = {
    "invalid_router_id": "no router of this project has that id",
    "invalid_metric": "the metric is missing or too long",
    "invalid_ts_ms": "there is no time, or it is no whole number of milliseconds",
    "ts_ms_too_old": "the time is too old",
    "ts_ms_in_future": "the time is too far ahead",
    "invalid_value": "the value is not a finite number",
    "invalid_ok": "ok is neither true nor false",
    "invalid_tags": "the tags are no texts by name, or too many",
    "invalid_trace_id": "the trace id is no text, or too long",
    "invalid_count": "the count is no whole number from 1 to 10,000,000",
    "unknown_field": "a field is unknown, and the sender is strict",
}
"""Codes of refused samples in words."""


class Line(NamedTuple):
    """A router on the screen. `linked`: id and name of its first breakers; `flow`: None, nothing came to it here."""

    row: RouterRow
    linked: list[tuple[str, str]]
    flow: Flow | None
    rate: float


class Lost(NamedTuple):
    """Samples of a metric that no breaker of their router has."""

    router_id: str
    router: str
    metric: str
    noted: Noted


@blueprint.get("/p/<project_id>/routers")
async def routers(project_id: str) -> Response:
    project, parts = await managed_project(project_id), replica()
    index, now_ms = await parts.indexes.get(project.id), parts.clock.now_ms()
    text, number = request.args.get("q", "").strip().lower()[:200], asked_page()
    found = [row for row in index.all_routers if text in row.name.lower() or text == row.id]
    seen = parts.ingested.of(project.id)
    return await page(
        "routers.html",
        project=project,
        text=text,
        lines=[_line(index, seen, row, now_ms) for row in found[(number - 1) * ROWS : number * ROWS]],
        total=len(found),
        there=len(index.all_routers),
        number=number,
        pages=pages_of(len(found), ROWS),
        page_address=address_of_page,
        seen=seen,
        refused=seen.lately(seen.samples, now_ms) if seen else {},
        turned_away=seen.lately(seen.requests, now_ms) if seen else {},
        lost=_lost(index, seen, now_ms),
        wrong=WRONG,
        replicas=parts.settings.replicas,
        overlap_ms=parts.settings.secret_overlap_ms,
        router_names={row.id: row.name for row in index.all_routers},
        n_breakers=len(index.rows),
        modes=MODES,
        once=secrets.token_hex(16),
    )


@blueprint.get("/p/<project_id>/routers/<router_id>")
async def router(project_id: str, router_id: str) -> Response:
    project, parts = await managed_project(project_id), replica()
    index, now_ms = await parts.indexes.get(project.id), parts.clock.now_ms()
    row = _one(index, router_id)
    linked = [(id_, index.rows[id_]) for id_ in row.breaker_ids if id_ in index.rows]
    number, hung = asked_page(), frozenset(row.breaker_ids)
    names = set() if is_part() else {one.name for id_, one in index.rows.items() if id_ not in hung}
    return await page(
        "router.html",
        project=project,
        line=_line(index, parts.ingested.of(project.id), row, now_ms),
        linked=linked[(number - 1) * ROWS : number * ROWS],
        total=len(linked),
        number=number,
        pages=pages_of(len(linked), ROWS),
        page_address=address_of_page,
        choices=nsmallest(CHOICES_MAX, names),
        snippets=snippets(_target(project, index, row)),
        replicas=parts.settings.replicas,
    )


@blueprint.post("/p/<project_id>/routers")
async def create_router(project_id: str) -> Response:
    given = await form()
    body = {"name": given.get("name", ""), "mode": given.get("mode", "static")}
    answer = await ask(
        "POST", f"/projects/{project_id}/routers", body, headers={"Idempotency-Key": given.get("once", "")}
    )
    return _changed(project_id, lead_to(f"/console/p/{project_id}/routers/{answer.body['id']}"))


@blueprint.post("/p/<project_id>/routers/<router_id>/enabled")
async def enable_router(project_id: str, router_id: str) -> Response:
    on = (await form()).get("enabled") == "true"
    answer = await ask("PATCH", f"/projects/{project_id}/routers/{router_id}", {"enabled": on})
    words = f"Router {answer.body['name']} is {'enabled' if on else 'disabled'}."
    undo = Undo(request.path, {"enabled": str(not on).lower()})
    return _changed(project_id, await done(words if on else f"{words} Its breakers hear no samples.", answer, undo))


@blueprint.post("/p/<project_id>/routers/<router_id>/delete")
async def delete_router(project_id: str, router_id: str) -> Response:
    await ask("DELETE", f"/projects/{project_id}/routers/{router_id}")
    return _changed(project_id, lead_to(f"/console/p/{project_id}/routers"))


@blueprint.post("/p/<project_id>/routers/<router_id>/link")
async def link_breaker(project_id: str, router_id: str) -> Response:
    """By its id, or by a name that one breaker has."""
    project = await managed_project(project_id)
    wanted = (await form()).get("breaker", "").strip()
    rows = (await replica().indexes.get(project.id)).rows
    alike = [id_ for id_, row in rows.items() if wanted in (id_, row.name)]
    if len(alike) != 1:
        raise NotFound("More than one breaker has that name: give its id." if alike else "No breaker has that name.")
    answer = await ask("POST", f"/projects/{project_id}/routers/{router_id}/breakers", {"breaker_id": alike[0]})
    root = f"/console/p/{project_id}/routers/{router_id}"
    words = f"{rows[alike[0]].name} hears this router's samples of {rows[alike[0]].rule.metric}."
    return _changed(project_id, await done(words, answer, Undo(f"{root}/unlink", {"breaker": alike[0]})))


@blueprint.post("/p/<project_id>/routers/<router_id>/unlink")
async def unlink_breaker(project_id: str, router_id: str) -> Response:
    breaker_id = path_uuid((await form()).get("breaker", ""))
    await ask("DELETE", f"/projects/{project_id}/routers/{router_id}/breakers/{breaker_id}")
    undo = Undo(f"/console/p/{project_id}/routers/{router_id}/link", {"breaker": breaker_id})
    return _changed(project_id, await done("The breaker hears no samples of this router any more.", None, undo))


@blueprint.post("/p/<project_id>/signatures")
async def sign_ingest(project_id: str) -> Response:
    on = (await form()).get("signed") == "true"
    answer = await ask("PATCH", f"/projects/{project_id}", {"enable_signed_ingest": on})
    words = "Samples without a signature are refused from now on." if on else "Samples need no signature any more."
    return await done(words, answer, Undo(request.path, {"signed": str(not on).lower()}))


@blueprint.post("/p/<project_id>/secret")
async def rotate_secret(project_id: str) -> Response:
    """The one answer that has the secret in it; nobody keeps it, and it can't be had again."""
    given = await form()
    answer = await ask(
        "POST",
        f"/projects/{project_id}/ingest_secret/rotate",
        query={"overlap_ms": given.get("overlap_ms", "")},
        headers={"Idempotency-Key": given.get("once", "")},
    )
    response = await part(
        "secret.html", secret=answer.body["ingest_secret"], until_ms=answer.body["previous_valid_until_ms"]
    )
    response.headers["HX-Trigger"] = "acted"
    response.headers["Cache-Control"] = "no-store"
    return response


def _changed(project_id: str, response: Response) -> Response:
    replica().indexes.forget(project_id.lower())
    return response


def _one(index: ProjectIndex, router_id: str) -> RouterRow:
    wanted = path_uuid(router_id)
    for row in index.all_routers:
        if row.id == wanted:
            return row
    raise NotFound("There is no such router.")


def _line(index: ProjectIndex, seen: Seen | None, row: RouterRow, now_ms: int) -> Line:
    linked = [(id_, index.rows[id_].name) for id_ in row.breaker_ids[:LINKED_SHOWN] if id_ in index.rows]
    flow = seen.routers.get(row.id) if seen else None
    return Line(row, linked, flow, flow.rate(now_ms) if flow else 0.0)


def _lost(index: ProjectIndex, seen: Seen | None, now_ms: int) -> list[Lost]:
    """What is still heard by nobody, newest first."""
    if seen is None:
        return []
    heard: Mapping[str, RouterRow] = {row.id: row for row in index.all_routers}
    found = []
    for (router_id, metric), noted in seen.lately(seen.unheard, now_ms).items():
        row = heard.get(router_id)
        metrics = {index.rows[id_].rule.metric for id_ in row.breaker_ids if id_ in index.rows} if row else {metric}
        if row is not None and metric not in metrics:
            found.append(Lost(router_id, row.name, metric, noted))
    return found


def _target(project: ProjectRow, index: ProjectIndex, row: RouterRow) -> Target:
    first = next((index.rows[id_] for id_ in row.breaker_ids if id_ in index.rows), None)
    return Target(
        base_url=address_for_programs(request.host_url),
        project_id=project.id,
        router_id=row.id,
        metric=first.rule.metric if first else "latency",
        breaker=first.name if first else "",
        signed=project.enable_signed_ingest,
    )
