"""From a project without breakers to its first trip and back, in four steps that turn green as they happen.

Test samples go to breakers alone that were made here: nobody's callers are touched.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Any, NamedTuple, cast

import msgspec
from quart import Response, redirect, request

from api.auth import uuid_or_none
from api.console.acts import done, lead_to
from api.console.asking import ask
from api.console.blueprint import blueprint
from api.console.guard import form
from api.console.history import moves_of
from api.console.looks import page
from api.console.project import open_project
from api.console.snippets import Target, address_for_programs, snippets
from api.context.current import authorized_project
from api.context.replica import replica
from breaker_actors.core.model import View
from breaker_actors.errors import Invalid, NotFound
from breaker_actors.store.rows import BreakerRow, EventQuery, ProjectRow

DEMO = {"made_by": "first-run"}
RULE: dict[str, Any] = {
    "metric": "latency",
    "kind": "error_rate",
    "op": "gt",
    "threshold": 0.5,
    "min_count": 5,
    "window_ms": 10_000,
    "eval_interval_ms": 1_000,
    "min_state_duration_ms": 0,
    "cooldown_ms": 3_000,
}
"""Opens when more than half of at least five samples of the last ten seconds failed, and is back ten seconds after."""
SENT = {"healthy": 10, "failing": 20}
"""Samples that one push of a button sends."""
LOOKED_MAX = 50


class Progress(NamedTuple):
    """Which steps are done. `stage`: what comes next."""

    sampled: bool
    tripped: bool
    recovered: bool

    @property
    def stage(self) -> str:
        if not self.tripped:
            return "trip" if self.sampled else "samples"
        return "done" if self.recovered else "recover"


@blueprint.get("/p/<project_id>/first-run")
async def first_run(project_id: str) -> Response:
    await open_project(project_id)
    project = await authorized_project(project_id, "manage")
    if not request.args.get("breaker"):
        return cast(Response, redirect(f"/console/p/{project.id}", 303))
    row = await _breaker(project, request.args["breaker"])
    return await page(
        "first_run_page.html",
        project=project,
        row=row,
        view=await _view(project, row.id),
        progress=await progress_of(project, row),
        is_demo=_is_demo(row),
        once=secrets.token_hex(16),
        snippets=snippets(
            Target(
                base_url=address_for_programs(request.host_url),
                project_id=project.id,
                router_id=next(iter(row.router_ids), ""),
                metric=row.rule.metric,
                breaker=row.name,
                signed=project.enable_signed_ingest,
            )
        ),
    )


@blueprint.post("/p/<project_id>/first-run")
async def make_demo(project_id: str) -> Response:
    """The breaker of the first step; a name of its own, as SDKs ask by name."""
    once = (await form()).get("once", "")
    body = {"name": f"demo checkout {hashlib.sha256(once.encode()).hexdigest()[:4]}", "metadata": DEMO, **RULE}
    answer = await ask("POST", f"/projects/{project_id}/breakers", body, headers={"Idempotency-Key": once})
    replica().indexes.forget(project_id.lower())
    return lead_to(f"/console/p/{project_id}/first-run?breaker={answer.body['id']}")


@blueprint.post("/p/<project_id>/first-run/samples")
async def send_test_samples(project_id: str) -> Response:
    """Healthy or failing samples for a demo breaker, through the API."""
    project, given = await authorized_project(project_id, "manage"), await form()
    row = await _breaker(project, given.get("breaker", ""))
    if not _is_demo(row) or not row.router_ids:
        raise Invalid("Test samples are for breakers made by the first run alone: callers could feel them elsewhere.")
    kind = "failing" if given.get("kind") == "failing" else "healthy"
    now_ms, ok = replica().clock.now_ms(), kind == "healthy"
    sample = {"router_id": row.router_ids[0], "metric": row.rule.metric, "value": 12 if ok else 900, "ok": ok}
    body = [sample | {"ts_ms": now_ms}] * SENT[kind]
    await ask("POST", f"/projects/{project.id}/ingest", body, headers=_signed(project, body, now_ms))
    return await done(f"Sent {SENT[kind]} {kind} samples to {row.name}.")


@blueprint.post("/p/<project_id>/first-run/delete")
async def delete_demo(project_id: str) -> Response:
    """Takes the demo breaker away again."""
    project = await authorized_project(project_id, "manage")
    row = await _breaker(project, (await form()).get("breaker", ""))
    if not _is_demo(row):
        raise Invalid("This breaker was not made by the first run.")
    await ask("DELETE", f"/projects/{project.id}/breakers/{row.id}")
    replica().indexes.forget(project.id)
    return lead_to(f"/console/p/{project.id}")


async def progress_of(project: ProjectRow, row: BreakerRow) -> Progress:
    """From the breaker's moves, its state, and what this replica saw of its samples."""
    parts = replica()
    events = await moves_of(EventQuery(project_id=project.id, breaker_id=row.id, limit=LOOKED_MAX))
    view, seen = await _view(project, row.id), parts.ingested.of(project.id)
    tripped = any(event.curr == "open" for event in events) or (view is not None and view.state != "closed")
    recovered = tripped and any(event.curr == "closed" for event in events)
    counted = view is not None and view.sample_count > 0
    came = seen is not None and any(router_id in seen.routers for router_id in row.router_ids)
    return Progress(tripped or counted or came, tripped, recovered)


async def _view(project: ProjectRow, breaker_id: str) -> View | None:
    reading = (await replica().states.read(project.id, [breaker_id])).get(breaker_id)
    return None if reading is None else reading.view


async def _breaker(project: ProjectRow, text: str) -> BreakerRow:
    wanted = uuid_or_none(text)
    rows = (await replica().config.list_breakers(project.id, [wanted]))[0] if wanted else []
    if not rows:
        raise NotFound("There is no such breaker.")
    return rows[0]


def _is_demo(row: BreakerRow) -> bool:
    return DEMO.items() <= row.metadata.items()


def _signed(project: ProjectRow, body: Any, now_ms: int) -> dict[str, str]:
    """What makes each push of the button count, and the signature where the project asks for one."""
    if not project.enable_signed_ingest:
        return {"Idempotency-Key": secrets.token_hex(16)}
    text = f"{now_ms}.".encode() + msgspec.json.encode(body)
    mac = hmac.new(bytes.fromhex(project.ingest_secret), text, hashlib.sha256).hexdigest()
    return {"X-EB-Timestamp": str(now_ms), "X-EB-Signature": f"v1={mac}"}
