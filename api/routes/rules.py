"""Rules as code: what files of an owner would change, and the change itself. Additions of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple
from uuid import uuid4

from quart import Blueprint, Response, request

from api.context.current import (
    authorized_project,
    callers,
    configured,
    current_actor,
    current_key_id,
    expect_list,
    may,
    raw_body,
    remark,
    spend_reads,
)
from api.context.examining import examine
from api.context.fields import sent_fields
from api.context.replica import replica
from api.rules.comparing import Comparison, compared, drifted
from api.rules.deciding import Guards, adopting, applying
from api.rules.exporting import exported
from api.rules.model import NOT_COMPARED, Asked
from api.wire.http import json_response
from api.wire.query import flag, owner_asked
from api.wire.requests_rules import BODY_BYTES_MAX, RulesDocument, rules_document
from api.wire.responses_rules import RuleChange, RulesAdopted, RulesApplied, RulesPlan
from breaker_actors.errors import Invalid
from breaker_actors.notify.channels.config import ADDRESS_KEYS
from breaker_actors.store.rows import AuditFilter, ChannelRow, ProjectRow, ProjectRules, RulesChange

blueprint = Blueprint("rules", __name__, url_prefix="/v1/projects/<project_id>")
LOOKED_UP_MAX = 100
"""Changes by hand of one plan of which the audit log is asked who made them."""
NO_GUARDS = Guards(None, True, 100)
"""What an apply is looked at with where only whether it writes anything counts."""


class _Planned(NamedTuple):
    """`version`: of what a document was compared with; `applied`: when what is declared was; `is_there`: an apply of it
    would write nothing."""

    project: ProjectRow
    asked: Asked
    version: str
    changes: list[RuleChange]
    applied: Mapping[str, int]
    is_there: bool


@blueprint.get("/rules")
async def export_rules(project_id: str) -> Response:
    owner, now_ms = owner_asked(request.args), replica().clock.now_ms()
    async with _rules(await _project(project_id, "read_rules")) as rules:
        return json_response(await asyncio.to_thread(exported, rules, owner, now_ms))


@blueprint.get("/rules:drift")
async def drift_rules(project_id: str) -> Response:
    owner = owner_asked(request.args) or "default"
    project = await _project(project_id, "read_rules")
    async with _rules(project) as rules:
        changes = await asyncio.to_thread(drifted, rules, owner, replica().clock.now_ms())
        applied = _applied(rules)
    await _say_who(project, changes, applied)
    return json_response(RulesPlan(owner=owner, version="", count=len(changes), changes=changes))


@blueprint.post("/rules:plan")
async def plan_rules(project_id: str) -> Response:
    found = await _planned(await _project(project_id, "read_rules"), whole=False)
    await _say_who(found.project, found.changes, found.applied)
    await _say_open(found.project, found.changes)
    owner, changes = found.asked.document.owner, found.changes
    return json_response(RulesPlan(owner=owner, version=found.version, count=len(changes), changes=changes))


@blueprint.post("/rules:apply")
async def apply_rules(project_id: str) -> Response:
    """Whole or not at all; the same again changes nothing."""
    destructive = flag("allow_destructive", request.args)
    found, parts = await _planned(await _project(project_id, "manage")), replica()
    project, asked = found.project, found.asked
    if found.is_there:  # nobody's changes wait for that
        return json_response(RulesApplied(owner=asked.document.owner, changed=False, count=0, changes=[]))
    await _say_who(project, found.changes, found.applied)  # later the newest entry about each thing is this apply's
    guards = Guards(request.headers.get("If-Match"), destructive, parts.settings.bulk_removal_percent_max)
    done = list[Comparison]()

    def decide(current: ProjectRules) -> RulesChange | None:
        comparison, change = applying(asked, current, guards)
        done[:] = [comparison]
        return change

    _, change_ids = await parts.rules.apply_rules(project.id, decide, asked.now_ms, asked.by, current_actor())
    changes = done[0].changes
    _say_as_planned(changes, found.changes)
    if changes:
        await configured(project.id, change_ids)
    owner = asked.document.owner
    return json_response(RulesApplied(owner=owner, changed=bool(changes), count=len(changes), changes=changes))


@blueprint.post("/rules:adopt")
async def adopt_rules(project_id: str) -> Response:
    """Nothing changes but whose things are."""
    project = await authorized_project(project_id, "manage")
    asked, from_owner = await _asked(project), owner_asked(request.args, "from")
    told = list[str]()

    def decide(current: ProjectRules) -> RulesChange | None:
        told[:], change = adopting(asked, current, from_owner)
        return change

    await replica().rules.apply_rules(project.id, decide, asked.now_ms, asked.by, current_actor())
    return json_response(RulesAdopted(owner=asked.document.owner, adopted=told))


@asynccontextmanager
async def _rules(project: ProjectRow) -> AsyncIterator[ProjectRules]:
    """All that files may declare of a project, for a block. Thousands of things are a quarter of a second and some
    hundred MB, so one request at a time has them, callers in turn; they are read on a thread of such turns. Raises
    Overloaded where too many wait."""
    async with replica().intake.comparisons.turn(callers()):
        rules = await replica().rules.project_rules(project.id)
        many = 20 * (len(rules.mappings) + len(rules.mutes)) + len(rules.declared)
        spend_reads(project.id, len(rules.breakers) + len(rules.routers) + many)
        yield rules


async def _project(project_id: str, right: Literal["manage", "read_rules"]) -> ProjectRow:
    """The project whose rules the request is about. Raises Overloaded where its budget of reads is spent."""
    project = await authorized_project(project_id, right)
    await expect_list(project.id)
    return project


async def _planned(project: ProjectRow, whole: bool = True) -> _Planned:
    """What the request's document would change. `whole`: it has all secrets that it refers to; else those that it has
    not are taken to be as they are stored, and all of them where the caller may only read."""
    asked = await _asked(project)
    if not whole:
        asked = asked.as_far_as_known()
    async with _rules(project) as rules:
        if not may("manage"):
            asked = _without_secrets(asked, rules)
        comparison = await asyncio.to_thread(compared, asked, rules)
        is_there = not comparison.changes and (await asyncio.to_thread(applying, asked, rules, NO_GUARDS))[1] is None
        applied = _applied(rules)
    await _examine(project, asked, comparison)
    return _Planned(project, asked, comparison.version, comparison.changes, applied, is_there)


def _without_secrets(asked: Asked, rules: ProjectRules) -> Asked:
    found = asked.without_secrets(rules)
    if found.unset != asked.unset:
        remark([NOT_COMPARED])
    return found


async def _asked(project: ProjectRow) -> Asked:
    parts = replica()
    settings = parts.settings
    if not await raw_body(BODY_BYTES_MAX):  # a document that declares nothing takes all away that was declared
        raise Invalid("There is no body: say what is declared, {} for nothing.")
    fields = await sent_fields(RulesDocument, BODY_BYTES_MAX)
    return Asked(
        document=rules_document(fields),
        project_id=project.id,
        now_ms=parts.clock.now_ms(),
        by=current_key_id(),
        new_id=lambda: str(uuid4()),
        mute_max_ms=settings.mute_max_ms,
        allow_private=settings.allow_private_destinations,
    )


async def _examine(project: ProjectRow, asked: Asked, comparison: Comparison) -> None:
    """Refuses an address that the library of a channel's kind can't read. Raises Overloaded where there are too many to
    look at."""
    new = [
        (match.name, row)
        for match, row in comparison.wanted
        if isinstance(row, ChannelRow) and row != match.row and match.name not in asked.unset
    ]
    problems = await examine(project, [(row.channel, row.config) for _, row in new])
    for (name, row), problem in zip(new, problems, strict=True):
        if problem:
            place = f"channels.{name}.config.{ADDRESS_KEYS[row.channel]}"
            raise Invalid(f"{place} {problem}", {place: problem})


def _applied(rules: ProjectRules) -> dict[str, int]:
    """When each thing that is declared was applied."""
    return {row.thing_id: row.applied_ms for row in rules.declared}


async def _say_open(project: ProjectRow, changes: Sequence[RuleChange]) -> None:
    """Says of breakers that would be deleted which are not closed now: nobody hears of their recovery."""
    gone = {one.id: one for one in changes if one.act == "delete" and one.kind == "breakers" and one.id is not None}
    ids = list(gone)[:LOOKED_UP_MAX]
    readings = await replica().gateway.states(project.id, ids) if ids else {}
    for id_, reading in readings.items():
        if reading.view.state != "closed":
            told = f"is {reading.view.state} now"
            gone[id_].message = "; ".join(filter(None, (told, gone[id_].message)))


async def _say_who(project: ProjectRow, changes: Sequence[RuleChange], applied: Mapping[str, int]) -> None:
    """Says of changes by hand who made them and when: the newest entry about the thing, if that is of after it was
    applied. A router of a breaker that was deleted or renamed has none."""
    parts = replica()
    asked = [(change.by_hand, change.id) for change in changes if change.by_hand is not None and change.id is not None]
    for hand, id_ in asked[:LOOKED_UP_MAX]:
        for entry in await parts.config.audit(project.id, 1, only=AuditFilter(target_id=id_)):
            if entry.at_ms > applied.get(id_, 0):
                hand.who, hand.at_ms, hand.action = entry.who, entry.at_ms, entry.action
    names = await parts.config.names_of_keys(project.org_id, sorted({hand.who for hand, _ in asked if hand.who}))
    for hand, _ in asked:
        hand.name = names.get(hand.who or "")


def _say_as_planned(changes: Sequence[RuleChange], planned: Sequence[RuleChange]) -> None:
    """Says of what an apply undid who had made it, where that is still what it was when it was looked up."""
    known = {(one.act, one.kind, one.name): one.by_hand for one in planned if one.by_hand is not None}
    for change in changes:
        hand = known.get((change.act, change.kind, change.name))
        if hand is not None and change.by_hand is not None and change.by_hand.fields == hand.fields:
            change.by_hand = hand
