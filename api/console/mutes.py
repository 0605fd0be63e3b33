"""Mutes: what people don't hear of, and when; made after a look at what they would match, and ended early."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

import msgspec
from quart import Response, request

from api.console import mute_forms
from api.console.acts import Undo, done, lead_to
from api.console.asking import Refused, ask
from api.console.blueprint import blueprint
from api.console.guard import form
from api.console.looks import page, part
from api.console.paging import address_of_page, asked_page, pages_of
from api.console.project import managed_project, open_project
from api.console.refusing import place, refused_at, wrong
from api.context.current import authorized_project
from api.context.replica import replica
from api.openapi.words import words_of
from breaker_actors.store.mutes.schedule import WEEKDAYS
from breaker_actors.store.rows import ProjectRow

ROWS = 50
ORDER = ("active", "pending", "expired")
CHANGEABLE = ("matchers", "all", "windows", "zone", "comment", "ends_ms")
"""What of a mute can be changed at any time, and with its start makes it anew."""


@blueprint.get("/p/<project_id>/mutes")
async def mutes(project_id: str) -> Response:
    """Those in force first; what has ended only where it is asked for."""
    project, state = await open_project(project_id), request.args.get("state", "")
    rows: list[dict[str, Any]] = (await ask("GET", f"/projects/{project.id}/mutes")).body["mutes"]
    wanted = (state,) if state in ORDER else ORDER if state == "all" else ORDER[:2]
    found = sorted((row for row in rows if row["state"] in wanted), key=_rank)
    pages = pages_of(len(found), ROWS)
    number = min(asked_page(), pages)
    return await page(
        "mutes.html",
        project=project,
        rows=found[(number - 1) * ROWS : number * ROWS],
        counts=Counter(row["state"] for row in rows),
        state=state if state in (*ORDER, "all") else "",
        states=ORDER,
        number=number,
        pages=pages,
        page_address=address_of_page,
        matcher=mute_forms.matcher_words,
        window=mute_forms.window_words,
    )


@blueprint.get("/p/<project_id>/mutes/new")
async def new_mute(project_id: str) -> Response:
    project = await managed_project(project_id)
    return await page("mute_new.html", project=project, **await _form_of(project, mute_forms.EMPTY))


@blueprint.post("/p/<project_id>/mutes/new")
async def make_mute(project_id: str) -> Response:
    await authorized_project(project_id, "manage")
    given = await form()
    once = {"Idempotency-Key": given.get("once", "") or secrets.token_hex(16)}
    try:
        body = mute_forms.asked(given, replica().clock.now_ms())
        made = (await ask("POST", f"/projects/{project_id}/mutes", body, None, once)).body["mute"]
    except Refused as error:
        return await _refused(error)
    return lead_to(f"/console/p/{project_id}/mutes/{made['id']}?said=made")


@blueprint.post("/p/<project_id>/mutes/preview")
async def preview_mute(project_id: str) -> Response:
    """What the mute of a form would match now."""
    await authorized_project(project_id, "manage")
    body = mute_forms.matched(await form())
    try:
        if not body["all"] and not body["matchers"]:
            raise wrong("matchers", "say what it matches, or that it matches everything")
        found = (await ask("POST", f"/projects/{project_id}/mutes:preview", body)).body
    except Refused as error:
        return await part("mute_preview.html", found=None, words=error.message, channels=False)
    channels = any(one["field"] == "channel" for one in body["matchers"])
    return await part("mute_preview.html", found=found, words="", channels=channels)


@blueprint.post("/p/<project_id>/mutes/again")
async def mute_again(project_id: str) -> Response:
    """Makes one anew as it was: what takes the end of a mute back."""
    await authorized_project(project_id, "manage")
    answer = await ask("POST", f"/projects/{project_id}/mutes", await _given_mute())
    made = answer.body["mute"]
    back = Undo(f"/console/p/{project_id}/mutes/{made['id']}/end", label="End it again")
    return await done("The mute was made again, with what was left of its time.", answer, back)


@blueprint.get("/p/<project_id>/mutes/<mute_id>")
async def mute(project_id: str, mute_id: str) -> Response:
    project = await open_project(project_id)
    row = (await ask("GET", f"/projects/{project.id}/mutes/{mute_id}")).body["mute"]
    return await page(
        "mute.html",
        project=project,
        row=row,
        said=request.args.get("said") == "made",
        matcher=mute_forms.matcher_words,
        window=mute_forms.window_words,
        **await _form_of(project, mute_forms.filled(row, replica().clock.now_ms())),
    )


@blueprint.post("/p/<project_id>/mutes/<mute_id>")
async def change_mute(project_id: str, mute_id: str) -> Response:
    path, given = f"/projects/{project_id}/mutes/{mute_id}", await form()
    before = (await ask("GET", path)).body["mute"]
    try:
        answer = await ask("PATCH", path, mute_forms.changed(given, before, replica().clock.now_ms()))
    except Refused as error:
        return await _refused(error)
    moved = answer.body["mute"]["starts_ms"] != before["starts_ms"]
    old = {name: before[name] for name in (*CHANGEABLE, *(["starts_ms"] if moved else []))}
    fields = {"mute": msgspec.json.encode(old).decode()}
    undo = Undo(f"/console/p/{project_id}/mutes/{mute_id}/restore", fields, "Undo: as it was before")
    return await done("The mute was changed.", answer, undo)


@blueprint.post("/p/<project_id>/mutes/<mute_id>/restore")
async def restore_mute(project_id: str, mute_id: str) -> Response:
    """Gives it the fields that it had before: what takes a change back."""
    await authorized_project(project_id, "manage")
    answer = await ask("PATCH", f"/projects/{project_id}/mutes/{mute_id}", await _given_mute())
    return await done("The mute is as it was before. Load the page again to see that in its form.", answer)


@blueprint.post("/p/<project_id>/mutes/<mute_id>/end")
async def end_mute(project_id: str, mute_id: str) -> Response:
    path = f"/projects/{project_id}/mutes/{mute_id}"
    row = (await ask("GET", path)).body["mute"]
    await ask("DELETE", path)
    words = "The mute has ended: people hear again."
    if row["holding"]:
        words += f" What it held and still stands is told now, of {row['holding']} notifications."
    rest = {name: row[name] for name in (*CHANGEABLE, "starts_ms")}
    fields = {"mute": msgspec.json.encode(rest).decode()}
    undo = Undo(f"/console/p/{project_id}/mutes/again", fields, "Undo: make it again")
    return await done(words, None, None if row["state"] == "expired" else undo)


async def _given_mute() -> dict[str, Any]:
    """A mute in a field of an undo."""
    try:
        return msgspec.json.decode((await form()).get("mute", ""), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise wrong("mute", "is none") from None


async def _refused(error: Refused) -> Response:
    """At the form's fields; its rows are numbered as they are on the page, the API's as they were sent."""
    given = await form()
    details = mute_forms.placed(error.details, given)
    return await refused_at(Refused(error.status, error.code, error.message, details), mute_forms.places(given))


async def _form_of(project: ProjectRow, values: mute_forms.Values) -> dict[str, Any]:
    """What the form knows, and the labels that breakers have, to choose a field from."""
    index = await replica().indexes.get(project.id)
    labels = Counter(key for row in index.rows.values() for key in row.metadata)
    return {
        "values": values,
        "fields": [*mute_forms.FIELDS, *(f"metadata.{key}" for key, _ in labels.most_common(50))],
        "ops": mute_forms.OPS,
        "spans": mute_forms.SPANS,
        "weekdays": WEEKDAYS,
        "zones": mute_forms.ZONES,
        "once": secrets.token_hex(16),
        "place": place,
        "words": words_of,
    }


def _rank(row: dict[str, Any]) -> tuple[int, int]:
    """Active ones first; of one state the newest."""
    return ORDER.index(row["state"]), -(row["ended_ms"] or row["inserted_ms"])
