"""The audit log of a project, and of an organisation: who changed what, page by page, newest first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quart import Blueprint, Response, request

from api.auth import uuid_or_none
from api.context.current import authenticate, authorized_project, callers, departure, tell
from api.context.replica import replica
from api.wire.query import audit_query, number_cursor
from api.wire.responses_accounts import AuditList, audit_entry
from breaker_actors.store.rows import AuditFilter, AuditRow

blueprint = Blueprint("audit", __name__, url_prefix="/v1")

PAGE_BYTES = 2 << 20
"""About what a page takes at most, which lists its entries under two names."""

Read = Callable[[str, int, int | None, AuditFilter], Awaitable[list[AuditRow]]]


@blueprint.get("/projects/<project_id>/audit")
async def list_audit(project_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    return await _tell(project.id, project.org_id, replica().config.audit)


@blueprint.get("/audit")
async def list_org_audit() -> Response:
    """What the organisation has beside the logs of its projects: its workspaces, and its user and admin keys."""
    key = await authenticate("manage")
    return await _tell(key.org_id, key.org_id, replica().config.org_audit)


async def _tell(of_id: str, org_id: str, read: Read) -> Response:
    limit, before, only = audit_query(request.args)
    await departure().expect(callers(), PAGE_BYTES)
    page = await read(of_id, limit, before, only)
    # A page may end early, for its size: whether there is another one is asked.
    more = bool(page) and bool(await read(of_id, 1, page[-1].number, only))
    cursor = number_cursor(page[-1].number) if more else None
    ids = sorted({row.who for row in page if uuid_or_none(row.who)})
    names = await replica().config.names_of_keys(org_id, ids) if ids else {}
    return await tell(page, lambda row: audit_entry(row, names), AuditList, next_cursor=cursor)
