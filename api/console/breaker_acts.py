"""What operators do about one breaker: override it and end that, observe or enforce it, delete it. Each says in words
what callers see from then on, and how to take it back."""

from __future__ import annotations

from typing import Any, NoReturn

from quart import Response

from api.auth import path_uuid
from api.console import overriding
from api.console.acts import Undo, done, lead_to
from api.console.asking import Refused, ask
from api.console.blueprint import blueprint
from api.console.breaker import name_to_type
from api.console.breaker_facts import row_of
from api.console.guard import form
from api.console.looks import ago, part, span
from api.console.project import open_project
from api.context.replica import replica
from breaker_actors.errors import Invalid
from breaker_actors.text.escaping import for_line

ONE = "/p/<project_id>/b/<breaker_id>"


class Place:
    """A breaker: where it is in the API and on the console, and what it is called."""

    def __init__(self, project_id: str, breaker_id: str) -> None:
        self.project_id, self.id = project_id, path_uuid(breaker_id)
        self.api = f"/projects/{project_id}/breakers/{self.id}"
        self.console = f"/console/p/{project_id}/b/{self.id}"

    async def state(self) -> dict[str, Any]:
        body: dict[str, Any] = (await ask("GET", f"{self.api}/state")).body
        return body

    async def override(self) -> tuple[dict[str, Any] | None, str]:
        """The override in force and its tag."""
        answer = await ask("GET", f"{self.api}/override")
        return answer.body["override"], answer.headers["ETag"]

    def back_to(self, before: dict[str, Any] | None, tag: str) -> Undo:
        """Restores the override before, or ends the one that took no other's place."""
        if before is None:
            return Undo(f"{self.console}/override/end", {"tag": tag, "reason": "undone"})
        return Undo(f"{self.console}/override", overriding.again(before, tag))


@blueprint.post(f"{ONE}/override")
async def set_override(project_id: str, breaker_id: str) -> Response:
    project, given = await open_project(project_id), await form()
    place = Place(project.id, breaker_id)
    before, _ = await place.override()
    body = overriding.asked(given, project)
    try:
        answer = await ask("PUT", f"{place.api}/override", body, headers=_if_match(given))
    except Refused as error:
        await _tell_who(place, error)
    made = answer.body["override"]
    words = (
        f"{_name(await place.state())} is {overriding.DID[made['kind']]}"
        f" for {span(made['until_ms'] - replica().clock.now_ms())}. {overriding.seen(made['kind'], made['allow_rate'])}"
    )
    return await done(words, answer, place.back_to(before, answer.headers["ETag"]))


@blueprint.post(f"{ONE}/override/end")
async def end_override(project_id: str, breaker_id: str) -> Response:
    project, given = await open_project(project_id), await form()
    place = Place(project.id, breaker_id)
    before, _ = await place.override()
    query = {"reason": given.get("reason", "")}
    try:
        answer = await ask("DELETE", f"{place.api}/override", query=query, headers=_if_match(given))
    except Refused as error:
        await _tell_who(place, error)
    state = await place.state()
    if before is None:
        return await done(f"{_name(state)} has no override any more. {overriding.underneath(state)}")
    words = f"The override of {_name(state)} is ended. {overriding.underneath(state)}"
    if before["then"]:
        words = (
            f"The override of {_name(state)} is ended, and it goes to half_open: a part of the calls is let through."
        )
    return await done(words, answer, place.back_to(before, overriding.NONE_TAG))


def _if_match(given: dict[str, str]) -> dict[str, str]:
    """So that nobody overwrites what they have not seen."""
    tag = given.get("tag", "")
    if not tag.isascii() or not tag.isprintable() or not tag:
        raise Invalid("Load the page again.", {"tag": "is required"})
    return {"If-Match": tag}


async def _tell_who(place: Place, error: Refused) -> NoReturn:
    """Raises what the API refused; of a race, with who was quicker."""
    if error.status != 412:
        raise error
    override, _ = await place.override()
    if override is not None:
        did = f"{for_line(override['by'])} has {overriding.DID[override['kind']]} this breaker"
        since = f"{ago(override['since_ms']).striptags()}: {for_line(override['reason'])}"
        raise Refused(412, error.code, f"Somebody was quicker. {did} {since}", {})
    raise Refused(412, error.code, f"Somebody was quicker. {await _last(place)} There is no override now.", {})


async def _last(place: Place) -> str:
    """Who ended it, where the audit log has that."""
    query: dict[str, str | int | bool | None] = {"target_id": place.id, "action": "override.", "limit": 1}
    entries = (await ask("GET", f"/projects/{place.project_id}/audit", query=query)).body["entries"]
    return f"{for_line(entries[0]['who'])} ended it." if entries and entries[0]["action"] == "override.end" else ""


OBSERVED = "observes from now on: callers see closed, and 100 % of calls are let through"


@blueprint.post(f"{ONE}/mode")
async def set_mode(project_id: str, breaker_id: str) -> Response:
    project, given = await open_project(project_id), await form()
    place, mode = Place(project.id, breaker_id), given.get("mode", "")
    if mode not in ("observe", "enforce"):
        raise Invalid("Observe or enforce.", {"mode": "Expected observe or enforce"})
    body = {"mode": mode, **({"confirm": True} if given.get("confirm") == "true" else {})}
    try:
        answer = await ask("PATCH", place.api, body)
    except Refused as error:
        if error.code != "confirmation_needed":
            raise
        return await _confirm_mode(place, error)
    observes = mode == "observe"
    state = await place.state()
    words = OBSERVED if observes else "is enforced"
    if observes and state["override"]:
        words = f"observes once its override ends: until then callers see {state['state']}"
    name, other = for_line(answer.body["name"], 255), "enforce" if observes else "observe"
    seen = "" if observes or state["override"] else f" {overriding.underneath(state | {'mode': 'enforce'})}"
    return await done(f"{name} {words}.{seen}", answer, Undo(f"{place.console}/mode", {"mode": other}))


async def _confirm_mode(place: Place, error: Refused) -> Response:
    machine = str(error.details.get("machine_state", "open"))
    words = (
        f"Callers feel it at once when {_name(await place.state())} is enforced:"
        f" its machine is {overriding.UNDERNEATH[machine]}."
    )
    fields = {"mode": "enforce", "confirm": "true"}
    label = "Enforce 1 breaker all the same"
    return await part("confirm.html", 409, words=words, action=f"{place.console}/mode", fields=fields, label=label)


@blueprint.post(f"{ONE}/delete")
async def delete(project_id: str, breaker_id: str) -> Response:
    project, given = await open_project(project_id), await form()
    place = Place(project.id, breaker_id)
    row = await row_of(place.api)
    if for_line(given.get("name", ""), 255) != name_to_type(row):
        raise Invalid("Type the breaker's name to delete it.", {"name": "is another one"})
    await ask("DELETE", place.api)
    return lead_to(f"/console/p/{project.id}")


def _name(state: dict[str, Any]) -> str:
    return for_line(state["name"], 255)
