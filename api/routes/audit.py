"""The audit log of a project: who changed what, page by page, newest first."""

from __future__ import annotations

from quart import Blueprint, Response, request

from api.bodies_accounts import audit_list
from api.context import reach, replica
from api.query import audit_query, number_cursor
from api.reply import json_response

blueprint = Blueprint("audit", __name__, url_prefix="/v1/projects/<project_id>/audit")


@blueprint.get("")
async def list_audit(project_id: str) -> Response:
    project = await reach(project_id, "manage")
    limit, before = audit_query(request.args)
    # One row more than the page tells whether there is another page.
    rows = await replica().store.audit(project.id, limit + 1, before)
    page = rows[:limit]
    return json_response(audit_list(page, number_cursor(page[-1].number) if len(rows) > limit else None))
