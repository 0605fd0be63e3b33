"""The screen of overrides: those in force, the one that ends first first, and a form for many breakers at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from quart import Response

from api.console import overriding
from api.console.acts import Undo, done
from api.console.asking import Refused, ask
from api.console.blueprint import blueprint
from api.console.guard import fields, form
from api.console.looks import page, part, span
from api.console.paging import address_of_page, asked_page, pages_of
from api.console.project import managed_project, open_project
from api.context.replica import replica
from api.lookup.project_index import ProjectIndex, Shown
from breaker_actors.core.model import Override
from breaker_actors.core.overlay import shown_under
from breaker_actors.errors import Invalid
from breaker_actors.store.mutes.matching import MATCHERS_MAX

ROWS = 50
LABELS_FROM, LABELS_MAX = 500, 40
"""Breakers whose labels are suggested as fields, and how many labels."""


class Line(NamedTuple):
    """An override in force. `underneath`: what callers would see without it; "" where that is not known now."""

    row: Shown
    override: Override
    allow_rate: float
    underneath: str

    @property
    def tag(self) -> str:
        return f'W/"{self.override.version}"'


@blueprint.get("/p/<project_id>/overrides")
async def overrides(project_id: str) -> Response:
    project, parts = await managed_project(project_id), replica()
    number, now_ms = asked_page(), parts.clock.now_ms()
    index = await parts.indexes.get(project.id)
    found = [(override, row) for row in index.rows.values() if (override := row.override(now_ms)) is not None]
    found.sort(key=lambda pair: pair[0].until_ms)
    return await page(
        "overrides.html",
        project=project,
        lines=await _lines(project.id, found[(number - 1) * ROWS : number * ROWS]),
        total=len(found),
        number=number,
        pages=pages_of(len(found), ROWS),
        page_address=address_of_page,
        suggested=_suggested(index),
        matchers_max=MATCHERS_MAX,
    )


async def _lines(project_id: str, found: list[tuple[Override, Shown]]) -> list[Line]:
    readings = await replica().states.read(project_id, [row.id for _, row in found]) if found else {}
    lines = list[Line]()
    for override, row in found:
        reading = readings.get(row.id)
        view = None if reading is None else reading.view
        told = "" if view is None else overriding.underneath({"mode": view.mode, "machine_state": view.machine_state})
        lines.append(Line(row, override, shown_under(override).allow_rate, told))
    return lines


def _suggested(index: ProjectIndex) -> list[str]:
    """Fields that matchers may look at, with the labels that breakers have."""
    rows = list(index.rows.values())[:LABELS_FROM]
    labels = sorted({f"metadata.{key}" for row in rows for key in row.metadata})
    return ["name", "id", "metric", "kind", *labels[:LABELS_MAX]]


@blueprint.post("/p/<project_id>/overrides/preview")
async def preview(project_id: str) -> Response:
    """How many breakers matchers match, and the form that overrides just these."""
    project, given = await open_project(project_id), await form()
    meant = {"matchers": _rows(await fields()), "all": given.get("all") == "true"}
    found = (await ask("POST", f"/projects/{project.id}/overrides:preview", meant)).body
    return await part(
        "overrides_preview.html",
        project=project,
        found=found,
        meant=msgspec.json.encode(meant).decode(),
        endings=overriding.endings(project),
    )


def _rows(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
    """The matchers of a form, without rows that say nothing."""
    columns = [[value for name, value in pairs if name == wanted] for wanted in ("field", "op", "value")]
    rows = [{"field": field.strip(), "op": op, "value": value} for field, op, value in zip(*columns, strict=False)]
    return [row for row in rows if row["field"] or row["value"]]


@blueprint.post("/p/<project_id>/overrides")
async def act(project_id: str) -> Response:
    """Overrides all that were previewed, or ends their overrides."""
    project, given = await open_project(project_id), await form()
    path, meant = f"/projects/{project.id}/overrides", _meant(given.get("meant", ""))
    number = (await ask("POST", f"{path}:preview", meant)).body["matches"]
    if str(number) != given.get("number"):
        then = given.get("number", "")[:9]
        raise Refused(409, "changed", f"{then} matched when you looked, {number} do now. Preview again.", {})
    if given.get("kind") == "end":
        answer = await ask("POST", f"{path}:end", meant | {"reason": given.get("reason") or None})
        words = f"{_ended(answer.body['changed'])}: callers see of them what is underneath. This has no undo."
        return await done(words, answer)
    body = overriding.asked(given, project)
    sure = given.get("allow_destructive") == "true"
    try:
        answer = await ask("POST", path, meant | body, {"allow_destructive": "true" if sure else ""})
    except Refused as error:
        if error.code != "guardrail_blocked":
            raise
        return await _confirm(project.id, given, error)
    undo = {"kind": "end", "meant": given["meant"], "number": str(number), "reason": "undone"}
    return await done(
        _done_words(body, answer.body, overriding.longest_ms(project)),
        answer,
        Undo(f"/console/p/{project.id}/overrides", undo, f"End {_breakers(number, 'override')}"),
    )


def _meant(text: str) -> dict[str, Any]:
    """What was previewed. Raises Invalid."""
    try:
        given = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise Invalid("Preview the breakers first.", {"matchers": "is required"})
    return {name: given.get(name) for name in ("matchers", "all")}


async def _confirm(project_id: str, given: dict[str, str], error: Refused) -> Response:
    many, there = error.details.get("removed", 0), error.details.get("breakers", 0)
    words = f"This concerns {many} of {there} breakers: more than is done without asking twice."
    sent = {name: value for name, value in given.items() if name != "csrf"} | {"allow_destructive": "true"}
    label = f"{overriding.DO.get(given.get('kind', ''), 'Override')} {_breakers(many)} all the same"
    action = f"/console/p/{project_id}/overrides"
    return await part("confirm.html", 409, words=words, action=action, fields=sent, label=label)


def _done_words(body: dict[str, Any], told: dict[str, int], longest_ms: int) -> str:
    now_ms = replica().clock.now_ms()
    lasting_ms = body.get("for_ms") or min(body["until_ms"] - now_ms, longest_ms)
    same = told["matches"] - told["changed"]
    return (
        f"{_breakers(told['matches'])} {'is' if told['matches'] == 1 else 'are'} {overriding.DID[body['kind']]}"
        f" for {span(lasting_ms)}{f', {same} of them were so already' if same else ''}."
        f" {overriding.seen(body['kind'], body.get('allow_rate', 0.0))}"
        " Ended, it brings back no override that it took the place of."
    )


def _breakers(number: int, word: str = "breaker") -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _ended(number: int) -> str:
    return f"{_breakers(number, 'override')} {'is' if number == 1 else 'are'} ended"
