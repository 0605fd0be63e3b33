"""What an apply, or an adoption, does to a project: made of its comparison, pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from api.rules.comparing import Comparison, Match, compared, matched
from api.rules.differing import declared_fields, stamp_of
from api.rules.forms import form_of
from api.rules.model import KINDS, Asked, Names, Thing, names_of
from api.wire.http import matches
from api.wire.requests_bulk import refuse_many
from breaker_actors.errors import GuardrailBlocked, NotOwned, PreconditionFailed
from breaker_actors.store.rows import (
    DeclaredKind,
    DeclaredRow,
    MappingRow,
    MuteDraft,
    MuteRow,
    ProjectRules,
    RouterDraft,
    RouterRow,
    RulesChange,
)

OWNED_GUARDED_FROM = 3
"""Who has fewer breakers may take all of them away without a word."""


class Guards(NamedTuple):
    """What may keep an apply from being carried out. `if_match`: None when the header is absent."""

    if_match: str | None
    allow_destructive: bool
    removal_percent_max: int


def applying(asked: Asked, rules: ProjectRules, guards: Guards) -> tuple[Comparison, RulesChange | None]:
    """What an apply does; None where all is as the files want it. Raises PreconditionFailed where it is not what was
    planned, NotOwned, GuardrailBlocked, and Invalid."""
    comparison = compared(asked, rules)
    if not comparison.changes:
        declared = _declared(asked, rules, comparison)
        is_known = sorted(map(_kept, declared)) == sorted(_kept(row) for row in _own(asked, rules))
        return comparison, None if is_known else RulesChange(owner=asked.document.owner, declared=declared)
    if guards.if_match is not None and not matches(guards.if_match, comparison.version):
        raise PreconditionFailed("The project was changed since the plan: plan again.", {"version": comparison.version})
    refused = [change for change in comparison.changes if change.act in ("adopt", "conflict")]
    if refused:
        raise NotOwned(details={f"{one.kind}.{one.name}": one.message for one in refused})
    change = _change(asked, rules, comparison)
    _refuse_removals(asked, rules, change, guards)
    return comparison, change


def _refuse_removals(asked: Asked, rules: ProjectRules, change: RulesChange, guards: Guards) -> None:
    """Nobody means to take away most of a project's breakers, or all that an owner has. Raises GuardrailBlocked."""
    removed = len(change.breakers_removed)
    if not removed or guards.allow_destructive:
        return
    refuse_many(removed, len(rules.breakers), guards.removal_percent_max)
    live = {row.id for row in rules.breakers}
    mine = sum(row.kind == "breakers" and row.thing_id in live for row in _own(asked, rules))
    takes_all = removed == len(rules.breakers) or removed >= max(mine, OWNED_GUARDED_FROM)
    if takes_all and not change.breakers_made:
        raise GuardrailBlocked(details={"breakers": mine, "removed": removed})


def adopting(asked: Asked, rules: ProjectRules, from_owner: str | None) -> tuple[list[str], RulesChange | None]:
    """Takes over what is there and is nobody's, or `from_owner`'s, as it is. Raises NotOwned for what is others'."""
    found = [match for kind in KINDS for match in matched(asked, rules, kind)]
    foreign = [match for match in found if match.standing == "foreign" and match.owner != from_owner]
    if foreign:
        raise NotOwned(details={f"{one.kind}.{one.name}": f"is declared by {one.owner}" for one in foreign})
    names = names_of(rules)
    taken = [match for match in found if match.standing in ("adopt", "foreign") and match.row is not None]
    rows = [_declaration(asked, match, match.row, names) for match in taken if match.row is not None]
    told = [f"{match.kind}.{match.name}" for match in taken]
    if not rows:
        return told, None
    return told, RulesChange(owner=asked.document.owner, declared=(*_own(asked, rules), *rows))


def _own(asked: Asked, rules: ProjectRules) -> list[DeclaredRow]:
    return [row for row in rules.declared if row.owner == asked.document.owner]


def _kept(row: DeclaredRow) -> tuple[str, str, bytes]:
    """What an apply that changes nothing else would write of it."""
    return row.kind, row.thing_id, msgspec.json.encode([row.name, row.fields, row.labels, row.stamp], order="sorted")


def _declared(asked: Asked, rules: ProjectRules, comparison: Comparison) -> tuple[DeclaredRow, ...]:
    return tuple(_declaration(asked, match, row, comparison.names) for match, row in comparison.wanted)


def _declaration(asked: Asked, match: Match, row: Thing, names: Names) -> DeclaredRow:
    references = match.fields.get("references")
    is_changed = match.row is None or match.row != row
    return DeclaredRow(
        kind=match.kind,
        thing_id=row.id,
        owner=asked.document.owner,
        name=match.name,
        fields=declared_fields(row, form_of(row, names), references if isinstance(references, dict) else {}),
        labels=dict(asked.document.labels),
        stamp=asked.now_ms if is_changed and stamp_of(row) else stamp_of(row),
        applied_ms=asked.now_ms,
        applied_by=asked.by,
    )


def _change(asked: Asked, rules: ProjectRules, comparison: Comparison) -> RulesChange:
    made = [(match.kind, row) for match, row in comparison.wanted if match.row is None]
    edited = [(match.kind, (match.row, row)) for match, row in comparison.wanted if match.row not in (None, row)]

    def of(kind: DeclaredKind, things: Sequence[tuple[DeclaredKind, Any]]) -> tuple[Any, ...]:
        return tuple(thing for one, thing in things if one == kind)

    return RulesChange(
        owner=asked.document.owner,
        declared=_declared(asked, rules, comparison),
        breakers_made=of("breakers", made),
        breakers_edited=of("breakers", edited),
        breakers_removed=of("breakers", comparison.gone),
        routers_made=tuple((row.id, _router_draft(row)) for row in of("routers", made)),
        routers_edited=of("routers", edited),
        routers_removed=of("routers", comparison.gone),
        channels_made=of("channels", made),
        channels_edited=of("channels", edited),
        channels_removed=of("channels", comparison.gone),
        mappings=_mappings(rules, comparison),
        mutes_made=tuple((row.id, _mute_draft(row)) for row in of("mutes", made)),
        mutes_edited=of("mutes", edited),
        mutes_ended=of("mutes", comparison.gone),
    )


def _router_draft(row: RouterRow) -> RouterDraft:
    return RouterDraft(
        name=row.name, mode=row.mode, enabled=row.enabled, metadata=row.metadata, breaker_ids=row.breaker_ids
    )


def _mute_draft(row: MuteRow) -> MuteDraft:
    return MuteDraft(**{field: getattr(row, field) for field in MuteDraft.__struct_fields__})


def _mappings(rules: ProjectRules, comparison: Comparison) -> tuple[MappingRow, ...] | None:
    """The whole list: the owner's in the order of the files, at the places that theirs had; all others stay."""
    if not any(change.kind == "mappings" for change in comparison.changes):
        return None
    gone = {row.id for kind, row in comparison.gone if kind == "mappings"}
    own = [row for match, row in comparison.wanted if match.kind == "mappings" and isinstance(row, MappingRow)]
    places = {match.id_ for match, _ in comparison.wanted if match.kind == "mappings" and match.row is not None}
    left, filled = len(places), list[MappingRow]()
    for row in rules.mappings:
        if row.id in places:
            left -= 1
            filled += [own.pop(0)] if left else own
            own = own if left else []
        elif row.id not in gone:
            filled.append(row)
    return (*filled, *own)
