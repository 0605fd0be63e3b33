"""Files against what there is and what was applied last: three ways, pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec

from api.rules.differing import declared_form, differences, hand_fields, hide_configs, shown
from api.rules.forms import Form, form_of, sparse
from api.rules.model import (
    KINDS,
    Asked,
    Names,
    Thing,
    declarations,
    name_of,
    names_of,
    names_twice,
    rows_of,
)
from api.rules.renaming import tell_renames
from api.rules.wanted import at_thing, is_over, wanted_row
from api.wire.responses_rules import ByHand, RuleChange, RuleField
from breaker_actors.errors import Invalid
from breaker_actors.store.rows import ChannelRow, DeclaredKind, DeclaredRow, MuteRow, ProjectRules

Standing = Literal["own", "new", "adopt", "foreign", "several"]


class Match(NamedTuple):
    """One thing of the files and what it means: `row` as it is, `id_` also of one to be made; `known`: what was
    applied of it last; `owner`: whose it is, if somebody else's."""

    kind: DeclaredKind
    name: str
    fields: Mapping[str, Any]
    standing: Standing
    id_: str
    row: Thing | None = None
    known: DeclaredRow | None = None
    owner: str | None = None


class Comparison(NamedTuple):
    """`wanted`: each match that the owner may have, with its row as files want it; `gone`: what was the owner's and
    is in no file any more; `version`: of all the changes."""

    changes: list[RuleChange]
    wanted: list[tuple[Match, Thing]]
    gone: list[tuple[DeclaredKind, Thing]]
    version: str
    names: Names


def compared(asked: Asked, rules: ProjectRules) -> Comparison:
    """What the document would change. Raises Invalid with all that is wrong in it."""
    matches = [match for kind in KINDS for match in matched(asked, rules, kind)]
    names = names_of(rules, [(match.kind, match.id_, match.name) for match in matches if match.standing != "foreign"])
    wanted = _wanted(asked, matches, names)
    gone = list(_gone(asked, rules, {(match.kind, match.id_) for match in matches}))
    changes = [
        change
        for kind in KINDS
        for change in sorted(
            [
                *_refused(matches, kind),
                *_changed(asked, wanted, kind, names),
                *_removed(asked, rules, gone, kind, names),
            ],
            key=lambda change: (change.name, change.act),
        )
    ]
    changes = with_order(changes, wanted, rules)
    _tell_renames(changes, rules, wanted, gone)
    if not asked.shows_configs:
        hide_configs(changes)
    return Comparison(changes, wanted, gone, _version(asked, changes, wanted), names)


def _tell_renames(
    changes: list[RuleChange],
    rules: ProjectRules,
    wanted: list[tuple[Match, Thing]],
    gone: list[tuple[DeclaredKind, Thing]],
) -> None:
    known = declarations(rules)
    tell_renames(
        changes,
        {(kind, known[kind, row.id].name): row for kind, row in gone},
        {(match.kind, match.name): row for match, row in wanted if match.row is None},
        {("routers", name_of(row)): row for row in rows_of(rules, "routers")},
        {("routers", match.name): row for match, row in wanted if match.kind == "routers"},
    )


def matched(asked: Asked, rules: ProjectRules, kind: DeclaredKind) -> Iterator[Match]:
    """What each thing of a kind in the files means: what the owner declared under the name, else what is called so."""
    known, rows = declarations(rules), rows_of(rules, kind)
    by_id = {row.id: row for row in rows}
    mine = {row.name: row for row in rules.declared if row.kind == kind and row.owner == asked.document.owner}
    taken = {one.thing_id for name, one in mine.items() if name in asked.things(kind) and one.thing_id in by_id}
    twice = names_twice([row for row in rows if row.id not in taken])
    by_name = {name_of(row): row for row in rows if row.id not in taken}
    for name, fields in asked.things(kind).items():
        own = mine.get(name)
        if own is not None and _lives(row := by_id.get(own.thing_id), fields, asked.now_ms):
            yield Match(kind, name, fields, "own", own.thing_id, row, own)
        elif (found := by_name.get(name)) is None or not _lives(found, fields, asked.now_ms):
            yield Match(kind, name, fields, "new", asked.new_id(), None, own)
        elif name in twice:
            yield Match(kind, name, fields, "several", found.id, found)
        else:
            other = known.get((kind, found.id))
            if other is None:
                yield Match(kind, name, fields, "adopt", found.id, found)
            elif other.owner == asked.document.owner:
                yield Match(kind, name, fields, "own", found.id, found, other)
            else:
                yield Match(kind, name, fields, "foreign", found.id, found, other, other.owner)


def _lives(row: Thing | None, fields: Mapping[str, Any], now_ms: int) -> bool:
    """Whether a thing is there; a mute that has ended is so only for files that say that it has."""
    if isinstance(row, MuteRow) and row.state(now_ms) == "expired":
        return is_over(fields, now_ms)
    return row is not None


def _wanted(asked: Asked, matches: list[Match], names: Names) -> list[tuple[Match, Thing]]:
    found, problems = list[tuple[Match, Thing]](), dict[str, Any]()
    for match in matches:
        if match.standing in ("foreign", "several"):
            continue
        if match.kind == "mutes" and is_over(match.fields, asked.now_ms):
            if match.row is not None:
                found.append((match, match.row))
            continue
        try:
            row = wanted_row(asked, match.kind, match.name, match.fields, match.row, match.id_, names)
            found.append((match, row))
        except Invalid as error:
            problems |= at_thing(match.kind, match.name, error)
    if problems:
        place, text = next(iter(problems.items()))
        raise Invalid(f"{place}: {text}", problems)
    return found


def _gone(
    asked: Asked, rules: ProjectRules, meant: Collection[tuple[DeclaredKind, str]]
) -> Iterator[tuple[DeclaredKind, Thing]]:
    """What the owner declared and no file does any more. `meant`: what files mean, under whatever name."""
    for kind in KINDS:
        by_id = {row.id: row for row in rows_of(rules, kind)}
        for known in rules.declared:
            if known.kind != kind or known.owner != asked.document.owner or (kind, known.thing_id) in meant:
                continue
            row = by_id.get(known.thing_id)
            if row is not None and not (isinstance(row, MuteRow) and row.state(asked.now_ms) == "expired"):
                yield kind, row


def _refused(matches: list[Match], kind: DeclaredKind) -> Iterator[RuleChange]:
    for match in matches:
        if match.kind != kind:
            continue
        if match.standing == "foreign":
            words = f"is declared by {match.owner}: one of the two has to let it go"
            yield RuleChange(act="conflict", kind=kind, name=match.name, id=match.id_, owner=match.owner, message=words)
        elif match.standing == "several":
            words = "several have this name: rename the others"
            yield RuleChange(act="conflict", kind=kind, name=match.name, message=words)


def _changed(asked: Asked, wanted: list[tuple[Match, Thing]], kind: DeclaredKind, names: Names) -> Iterator[RuleChange]:
    for match, row in wanted:
        if match.kind != kind:
            continue
        after = form_of(row, names)
        if match.row is None:
            if isinstance(row, MuteRow) and row.starts_ms == asked.now_ms:
                after.pop("starts_ms")  # it starts when it is applied, whenever that is
            fields = [shown(path, None, value) for path, value in sparse(kind, after).items()]
            hand = None if match.known is None else ByHand(fields=[])
            id_ = None if match.known is None else match.known.thing_id
            yield RuleChange(act="create", kind=kind, name=match.name, id=id_, fields=fields, by_hand=hand)
            continue
        before = form_of(match.row, names)
        fields = [shown(*one) for one in differences(before, after)]
        if name_of(match.row) != match.name and kind != "mutes":
            fields.insert(0, RuleField(field="name", before=name_of(match.row), after=match.name))
        if match.standing == "adopt":
            words = "is there and nobody's: breakers adopt takes it over as it is"
            yield RuleChange(act="adopt", kind=kind, name=match.name, id=match.id_, fields=fields, message=words)
        elif fields:
            hand = by_hand(match.known, match.row, before)
            yield RuleChange(act="update", kind=kind, name=match.name, id=match.id_, fields=fields, by_hand=hand)


def by_hand(known: DeclaredRow | None, row: Thing, form: Form) -> ByHand | None:
    """What of a thing was changed since it was applied."""
    fields = [] if known is None else hand_fields(known, row, form)
    return ByHand(fields=fields) if fields else None


def _removed(
    asked: Asked, rules: ProjectRules, gone: list[tuple[DeclaredKind, Thing]], kind: DeclaredKind, names: Names
) -> Iterator[RuleChange]:
    known = declarations(rules)
    for of_kind, row in gone:
        if of_kind == kind:
            one = known[(kind, row.id)]
            hand = by_hand(one, row, form_of(row, names))
            yield RuleChange(act="delete", kind=kind, name=one.name, id=row.id, by_hand=hand)


def with_order(changes: list[RuleChange], wanted: list[tuple[Match, Thing]], rules: ProjectRules) -> list[RuleChange]:
    """The changes, and those of mappings that only change places among those of the owner."""
    ids = [match.id_ for match, _ in wanted if match.kind == "mappings" and match.row is not None]
    place = {id_: n for n, id_ in enumerate(ids)}
    there = [row.id for row in rules.mappings if row.id in place]
    for n, id_ in enumerate(there):
        if place[id_] != n:
            match = next(match for match, _ in wanted if match.kind == "mappings" and match.id_ == id_)
            moved = RuleField(field="order", before=n + 1, after=place[id_] + 1)
            same = next((one for one in changes if one.kind == "mappings" and one.id == id_), None)
            if same is None:
                changes.append(RuleChange(act="update", kind="mappings", name=match.name, id=id_, fields=[moved]))
            elif same.act != "adopt":
                same.fields.append(moved)
    order = {kind: n for n, kind in enumerate(KINDS)}
    return sorted(changes, key=lambda change: (order[change.kind], change.name, change.act))


def _version(asked: Asked, changes: list[RuleChange], wanted: list[tuple[Match, Thing]]) -> str:
    """Two plans of one version do the same to the same things. Secrets count by when they were set."""
    stamps = [(row.id, row.updated_ms) for match, _ in wanted if isinstance(row := match.row, ChannelRow)]
    told = msgspec.json.encode([asked.document.owner, changes, stamps])
    return blake2b(told, digest_size=16).hexdigest()


def drifted(rules: ProjectRules, owner: str, now_ms: int) -> list[RuleChange]:
    """What it would take to get back to what the owner applied last: what was changed by hand since, and deleted."""
    names, changes = names_of(rules), list[RuleChange]()
    for kind in KINDS:
        by_id = {row.id: row for row in rows_of(rules, kind)}
        for known in rules.declared:
            if known.kind != kind or known.owner != owner or (kind == "mutes" and is_over(known.fields, now_ms)):
                continue
            row = by_id.get(known.thing_id)
            if row is None or not _lives(row, known.fields, now_ms):
                hand = ByHand(fields=[])
                changes.append(RuleChange(act="create", kind=kind, name=known.name, id=known.thing_id, by_hand=hand))
                continue
            form = form_of(row, names)
            if fields := hand_fields(known, row, form):
                told = [shown(*one) for one in declared_form(known, row, form)]
                change = RuleChange(act="update", kind=kind, name=known.name, id=row.id, fields=told)
                change.by_hand = ByHand(fields=fields)
                changes.append(change)
    return changes
