"""What files probably only call otherwise: a thing that goes is like one that is to be made. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from shlex import quote

from api.rules.model import Thing
from api.wire.responses_rules import RuleChange
from breaker_actors.store.rows import BreakerRow, DeclaredKind, RouterRow

Likeness = Callable[[Thing], Hashable]
Rows = Mapping[tuple[DeclaredKind, str], Thing]
"""By kind and the name in files."""
_LOST = {
    "breakers": "with another id, and without its state, events and samples",
    "routers": "with another id than senders name",
}
_WAYS = {
    "breakers": "to keep them `breakers edit {old} --rename {new}` first",
    "routers": "to keep it PATCH its name first",
}


def tell_renames(changes: Sequence[RuleChange], gone: Rows, made: Rows, live: Rows, wanted: Rows) -> None:
    """Says of what would be deleted, and made anew under another name, what that costs and how to keep it. A breaker is
    the same with the same rule on the same routers, a router with the same breakers. `live`, `wanted`: the routers
    before and after."""
    before, after = _routers_of(live), _routers_of(wanted)
    breakers = _pairs(gone, made, "breakers", lambda row: _breaker(row, before), lambda row: _breaker(row, after))
    now = {gone["breakers", old].id: made["breakers", new].id for old, new in breakers.items()}
    routers = _pairs(gone, made, "routers", lambda row: _router(row, now), lambda row: _router(row, {}))
    names = {"breakers": breakers, "routers": routers}
    earlier = {kind: {new: old for old, new in pairs.items()} for kind, pairs in names.items()}
    for change in changes:
        if change.kind in names:
            _tell(change, names[change.kind].get(change.name), earlier[change.kind].get(change.name))


def _tell(change: RuleChange, new: str | None, old: str | None) -> None:
    """`new`, `old`: what it is probably called now, and was called before."""
    if change.act == "delete" and new is not None:
        change.message = f"is probably called {new} now"
    if change.act == "create" and old is not None:
        way = _WAYS[change.kind].format(old=quote(old), new=quote(change.name))
        change.message = f"is probably {old} by another name, and would be made anew {_LOST[change.kind]}; {way}"


def _pairs(gone: Rows, made: Rows, kind: DeclaredKind, of_gone: Likeness, of_made: Likeness) -> dict[str, str]:
    """Old and new names of those that are like each other, and like no other."""
    old, new = _by_likeness(gone, kind, of_gone), _by_likeness(made, kind, of_made)
    alike = [(names, new[like]) for like, names in old.items() if like in new]
    return {olds[0]: news[0] for olds, news in alike if len(olds) == 1 and len(news) == 1}


def _by_likeness(rows: Rows, kind: DeclaredKind, of: Likeness) -> dict[Hashable, list[str]]:
    found: dict[Hashable, list[str]] = {}
    for (of_kind, name), row in rows.items():
        if of_kind == kind and (like := of(row)) is not None:
            found.setdefault(like, []).append(name)
    return found


def _routers_of(routers: Rows) -> dict[str, list[str]]:
    """The names of the routers of each breaker. A project has thousands of both, so each link is looked at once."""
    found: dict[str, list[str]] = {}
    for (_, name), row in routers.items():
        assert isinstance(row, RouterRow)
        for breaker_id in row.breaker_ids:
            found.setdefault(breaker_id, []).append(name)
    return found


def _breaker(row: Thing, routers_of: Mapping[str, Sequence[str]]) -> Hashable:
    assert isinstance(row, BreakerRow)
    return repr((row.rule, sorted(routers_of.get(row.id, ()))))


def _router(row: Thing, now: Mapping[str, str]) -> Hashable:
    """None for one without breakers, which is like any other."""
    assert isinstance(row, RouterRow)
    return repr((row.mode, sorted(now.get(id_, id_) for id_ in row.breaker_ids))) if row.breaker_ids else None
