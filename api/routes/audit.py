"""The audit log of a project: who changed what, page by page, newest first."""

from __future__ import annotations

from quart import Blueprint, Response, request

from api.context.current import authorized_project, callers, departure, tell
from api.context.replica import replica
from api.wire.query import audit_query, number_cursor
from api.wire.responses_accounts import AuditList, audit_entry

blueprint = Blueprint("audit", __name__, url_prefix="/v1/projects/<project_id>/audit")

PAGE_BYTES = 2 << 20
"""About what a page takes at most, which lists its entries under two names."""


@blueprint.get("")
async def list_audit(project_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    limit, before = audit_query(request.args)
    await departure().expect(callers(), PAGE_BYTES)
    config = replica().config
    page = await config.audit(project.id, limit, before)
    # A page may end early, for its size: whether there is another one is asked.
    more = bool(page) and bool(await config.audit(project.id, 1, page[-1].number))
    cursor = number_cursor(page[-1].number) if more else None
    return await tell(page, audit_entry, AuditList, next_cursor=cursor)
