"""The forms that make a breaker and change one. Each sends what its reader changed and nothing else; what somebody else
changed meanwhile is shown before anything is written over it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
from quart import Response, g

from api.auth import path_uuid
from api.console import doubts, drafts
from api.console.acts import Undo, lead_to
from api.console.asking import NOT_WHOLE, Answer, Refused, ask
from api.console.blueprint import blueprint
from api.console.guard import FORM_BYTES_MAX, form
from api.console.looks import page, part
from api.console.project import managed_project, open_project
from api.context.replica import replica
from breaker_actors.core.rules import excess
from breaker_actors.errors import IdempotencyKeyReused, Invalid, NotFound

ROUTERS_MAX = 100
"""Routers that a new breaker's form offers."""


async def seen_breaker(project_id: str, breaker_id: str) -> tuple[dict[str, Any], str]:
    """A breaker as the API shows it, and its entity tag."""
    answer = await ask("GET", f"/projects/{project_id}/breakers/{path_uuid(breaker_id)}")
    return answer.body["breaker"], answer.headers["ETag"]


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a template's fields need."""
    return {
        "values": drafts.texts(fields),
        "metadata": [*(fields.get("metadata") or {}).items(), *[("", "")] * drafts.ROWS_MORE],
        "backoff": bool(fields.get("half_open_backoff_enabled")),
        "described": drafts.described_fields(),
        "labels": drafts.LABELS,
        "units": drafts.UNITS,
        "choices": drafts.words_of_choices(),
        "first": drafts.FIRST,
        "advanced": drafts.ADVANCED,
    }


# a new one


@blueprint.get("/p/<project_id>/new")
async def new_page(project_id: str) -> Response:
    project = await managed_project(project_id)
    routers = (await replica().indexes.get(project.id)).all_routers
    return await page(
        "edit.html", project=project, breaker=None, tag="", seen="", oob=False, once=secrets.token_hex(16), mode="",
        routers=routers[:ROUTERS_MAX], more_routers=max(0, len(routers) - ROUTERS_MAX), **_given(drafts.fresh()),
    )  # fmt: skip


@blueprint.post("/p/<project_id>/new")
async def make(project_id: str) -> Response:
    """Makes the breaker, then hangs it on the router that was chosen and takes its own router away. Leads to its page,
    which says what is remarked on."""
    project, given = await open_project(project_id), await form()
    try:
        drafted, doubt = doubts.answered(drafts.drafted(given, g.fields, drafts.fresh()), given)
        if doubt is not None:
            return await _doubtful(doubt, "Make it all the same")
        body = {name: value for name, value in drafted.items() if value is not None}
        if given.get("mode"):
            body["mode"] = given["mode"]
        once = {"Idempotency-Key": given.get("once") or secrets.token_hex(16)}
        made = await ask("POST", f"/projects/{project.id}/breakers", body, headers=once)
    except (Refused, Invalid) as error:
        if isinstance(error, Refused) and error.code == IdempotencyKeyReused.code:
            return await part("edit_again.html", error.status, project=project)
        return await _refused(error)
    breaker = made.body["breaker"]
    path, router_id = f"/console/p/{project.id}/b/{breaker['id']}", given.get("router", "")
    try:
        if router_id and router_id not in breaker["router_ids"]:
            await _hang(project.id, breaker, path_uuid(router_id))
    except (Refused, NotFound):
        return lead_to(f"{path}?said=alone")
    return lead_to(f"{path}?said=made" if made.warnings else path)


async def _hang(project_id: str, breaker: Mapping[str, Any], router_id: str) -> None:
    """Links a breaker that was just made to a router, and lets the one go that was made with it."""
    root = f"/projects/{project_id}/routers"
    await ask("POST", f"{root}/{router_id}/breakers", {"breaker_ids": [breaker["id"]]})
    for own in breaker["router_ids"]:
        for path in (f"{root}/{own}/breakers/{breaker['id']}", f"{root}/{own}"):
            try:
                await ask("DELETE", path)
            except Refused as error:
                if error.status != 404:  # it went with the link, or with the same form sent before
                    raise


# a change


@blueprint.get("/p/<project_id>/b/<breaker_id>/edit")
async def edit_page(project_id: str, breaker_id: str) -> Response:
    project = await open_project(project_id)
    breaker, tag = await seen_breaker(project.id, breaker_id)
    fields = drafts.edited(breaker)
    begun: dict[str, Any] = {"breaker": breaker, "tag": tag, "seen": _packed(fields), "oob": False}
    return await page("edit.html", project=project, **begun, **_given(fields))


@blueprint.post("/p/<project_id>/b/<breaker_id>/edit")
async def save(project_id: str, breaker_id: str) -> Response:
    """Sends the fields that were changed, for the breaker that the form began with; of another one it says so."""
    project, given = await open_project(project_id), await form()
    breaker, tag = await seen_breaker(project.id, breaker_id)
    now, before = drafts.edited(breaker), _unpacked(given.get("seen", ""))
    try:
        wanted = drafts.changed(before, drafts.drafted(given, g.fields, before))
        if wanted.keys() & {"threshold", "kind", "kind_params"}:
            drafted, doubt = doubts.answered({**before, **wanted}, given)
            if doubt is not None:
                return await _doubtful(doubt, "Save it all the same")
            wanted = drafts.changed(before, drafted) if doubts.MEANT in given else wanted
        if wanted or given.get("tag") != tag:
            answer = await _patch(project.id, breaker["id"], given, wanted)
    except (Refused, Invalid) as error:
        if isinstance(error, Refused) and error.status == 412:
            return await _meanwhile(project, breaker["id"], before, wanted)
        return await _refused(error)
    if not wanted:
        given_: dict[str, Any] = {"project": project, "breaker": breaker, "tag": tag, "seen": _packed(now)}
        return await part("edit_done.html", words="Nothing was changed.", undo=None, **given_, **_done(now))
    return await _changed(project, answer, {name: now[name] for name in wanted})


async def _patch(project_id: str, breaker_id: str, given: Mapping[str, str], fields: Mapping[str, Any]) -> Answer:
    """Changes the breaker that a form knows by its tag, and no other."""
    if not (known := given.get("tag", "")):
        raise Invalid(NOT_WHOLE)
    return await ask("PATCH", f"/projects/{project_id}/breakers/{breaker_id}", fields, headers={"If-Match": known})


@blueprint.post("/p/<project_id>/b/<breaker_id>/edit/undo")
async def undo(project_id: str, breaker_id: str) -> Response:
    """Sets the fields of an edit back, unless the breaker was changed since."""
    project, given = await open_project(project_id), await form()
    breaker, _ = await seen_breaker(project.id, breaker_id)
    before, now = _unpacked(given.get("before", "")), drafts.edited(breaker)
    back = {name: before[name] for name in drafts.EDITED if name in before}
    try:
        answer = await _patch(project.id, breaker["id"], given, back)
    except Refused as error:
        if error.status != 412:
            raise
        words = "The breaker was changed again since. Load the page again to see what it is now."
        raise Refused(412, error.code, words, {}) from None
    return await _changed(project, answer, {name: now[name] for name in back}, "Set back")


async def _changed(project: Any, answer: Answer, before: Mapping[str, Any], did: str = "Changed") -> Response:
    """Says what is other now, with the way back, and the form as the breaker is now."""
    breaker, tag = answer.body["breaker"], answer.headers["ETag"]
    fields = drafts.edited(breaker)
    words = "; ".join(f"{name}: {_short(old)} → {_short(fields[name])}" for name, old in before.items())
    back = {"before": _packed(before), "tag": tag}
    response = await part(
        "edit_done.html", words=f"{did} {breaker['name']}: {words}.", project=project, breaker=breaker, tag=tag,
        seen=_packed(fields), undo=Undo(f"/console/p/{project.id}/b/{breaker['id']}/edit/undo", back),
        warnings=answer.warnings, **_given(fields), oob=True,
    )  # fmt: skip
    response.headers["HX-Trigger"] = "acted"
    return response


def _done(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"warnings": [], "oob": True, **_given(fields)}


async def _meanwhile(project: Any, breaker_id: str, before: Mapping[str, Any], mine: Mapping[str, Any]) -> Response:
    """Nothing is written; the form becomes what is there now with what its reader changed in it."""
    breaker, tag = await seen_breaker(project.id, breaker_id)
    now = drafts.edited(breaker)
    theirs = drafts.changed(before, now)
    words = "; ".join(f"{name} is {_short(value)} now" for name, value in theirs.items())
    told = f"Somebody changed this breaker meanwhile{': ' + words if words else ''}."
    both = [name for name in mine if name in theirs]
    more = f"You changed {', '.join(both)}, too: saving again writes yours over it." if both else "Save again."
    error = Refused(412, "precondition_failed", f"{told} Your own changes are still in the form. {more}", {})
    given: dict[str, Any] = {"project": project, "breaker": breaker, "tag": tag, "seen": _packed(now), "merged": True}
    return await part("edit_refused.html", 412, error=error, oob=True, **given, **_given({**now, **mine}))


async def _doubtful(doubt: doubts.Doubt, label: str) -> Response:
    """Nothing is done yet: the form stays as it is, and is sent again with the answer."""
    return await part("edit_doubt.html", 422, doubt=doubt, label=label, fields=drafts.PLACES)


async def _refused(error: Refused | Invalid) -> Response:
    """The form stays as it is; what is wrong stands at its fields."""
    status = error.status if isinstance(error, Refused) else 422
    words = {name: told for name, told in error.details.items() if isinstance(told, str)}
    return await part("edit_wrong.html", status, error=error, told=words, fields=drafts.PLACES)


def _short(value: Any) -> str:
    text = drafts.shown(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _packed(fields: Mapping[str, Any]) -> str:
    return msgspec.json.encode(fields).decode()


def _unpacked(text: str) -> dict[str, Any]:
    """What a form brings back of what it began with."""
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise Invalid(NOT_WHOLE) from None
    if any(excess(value, FORM_BYTES_MAX, FORM_BYTES_MAX) for value in found.values()):  # deeper than any that is stored
        raise Invalid(NOT_WHOLE)
    return found
