"""Keys of a project: made and shown once, and revoked; who is signed in with a revoked one is out within a second."""

from __future__ import annotations

import secrets
from typing import Any

from quart import Response, request

from api.console.acts import lead_to
from api.console.asking import ask
from api.console.blueprint import blueprint
from api.console.guard import form
from api.console.looks import page, part
from api.console.paging import address_of_page, asked_page, pages_of
from api.console.project import open_project
from api.console.refusing import ms_of, place, refused_at, wrong
from api.openapi.words import words_of
from breaker_actors.errors import NotFound
from breaker_actors.store.rows import ProjectKeyKind

ROWS = 50
KINDS: dict[ProjectKeyKind, str] = {
    "project": "read states",
    "reader": "read states and rules, and plan rules",
    "ingest": "post samples",
}
"""What a key of each kind may do, in words."""


@blueprint.get("/p/<project_id>/keys")
async def keys(project_id: str) -> Response:
    project = await open_project(project_id)
    found = sorted(await _keys(project.id), key=lambda key: str(key["inserted_at"]), reverse=True)
    pages = pages_of(len(found), ROWS)
    number = min(asked_page(), pages)
    return await page(
        "keys.html",
        project=project,
        rows=found[(number - 1) * ROWS : number * ROWS],
        total=len(found),
        number=number,
        pages=pages,
        page_address=address_of_page,
        kinds=KINDS,
        once=secrets.token_hex(16),
        said=request.args.get("said") == "revoked",
        ms_of=ms_of,
        place=place,
        words=words_of,
    )


@blueprint.post("/p/<project_id>/keys")
async def make_key(project_id: str) -> Response:
    """The only answer that shows the key; the page takes it into its notice and no cache keeps it."""
    given = await form()
    once = {"Idempotency-Key": given.get("once", "") or secrets.token_hex(16)}
    asked = {"name": given.get("name", ""), "kind": given.get("kind") or None}
    made = (await ask("POST", f"/projects/{project_id}/keys", asked, None, once)).body
    response = await part("key_made.html", made=made, once=secrets.token_hex(16))
    response.headers["HX-Trigger"] = "acted"
    response.headers["Cache-Control"] = "no-store"
    return response


@blueprint.get("/p/<project_id>/keys/<key_id>/revoke")
async def revoke_page(project_id: str, key_id: str) -> Response:
    project = await open_project(project_id)
    row = await _key(project.id, key_id)
    return await page("key_revoke.html", project=project, row=row, kinds=KINDS, ms_of=ms_of, place=place)


@blueprint.post("/p/<project_id>/keys/<key_id>/revoke")
async def revoke_key(project_id: str, key_id: str) -> Response:
    row = await _key(project_id, key_id)
    if (await form()).get("name", "").strip() != row["name"].strip():
        return await refused_at(wrong("name", "is not the name of this key"), ["name"])
    await ask("DELETE", f"/projects/{project_id}/keys/{row['id']}")
    return lead_to(f"/console/p/{project_id}/keys?said=revoked")


async def _keys(project_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await ask("GET", f"/projects/{project_id}/keys")).body["keys"]
    return found


async def _key(project_id: str, key_id: str) -> dict[str, Any]:
    found = next((key for key in await _keys(project_id) if key["id"] == key_id.lower()), None)
    if found is None:
        raise NotFound("There is no such key, or it was revoked.")
    return found
