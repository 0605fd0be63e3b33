"""What is asked of a project by files of rules, and how things are named in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from api.rules.unset import unset_in
from api.wire.requests_rules import RulesDocument
from breaker_actors.store.rows import (
    BreakerRow,
    ChannelRow,
    DeclaredKind,
    DeclaredRow,
    MappingRow,
    MuteRow,
    ProjectRules,
    RouterRow,
)

Thing = BreakerRow | RouterRow | MappingRow | ChannelRow | MuteRow
KINDS: tuple[DeclaredKind, ...] = ("channels", "breakers", "routers", "mappings", "mutes")
"""In the order in which they are applied, and told."""


class Asked(NamedTuple):
    """A document, and what it is read with. `by`: whose key it is; `new_id`: makes ids; `mute_max_ms`: how long a mute
    may last; `allow_private`: whether channels may go to private addresses; `unset`: secrets of channels, by their
    paths within the channel, whose values the caller does not have."""

    document: RulesDocument
    project_id: str
    now_ms: int
    by: str
    new_id: Callable[[], str]
    mute_max_ms: int
    allow_private: bool
    unset: Mapping[str, Collection[str]] = {}

    def as_far_as_known(self) -> Asked:
        """The same, of which secrets may be missing."""
        return self._replace(unset=unset_in(self.document))

    def things(self, kind: DeclaredKind) -> Mapping[str, Mapping[str, Any]]:
        found: Mapping[str, Mapping[str, Any]] = getattr(self.document, kind)
        return found


class Names(NamedTuple):
    """How breakers and routers are named, by id, and what each shadow watches. `own_routers`: people made those.
    `others`: there may be more than these, so a name that is unknown stands for itself."""

    breakers: Mapping[str, str]
    routers: Mapping[str, str]
    own_routers: frozenset[str]
    shadows: Mapping[str, str]
    others: bool = False

    def breaker(self, id_: str) -> str:
        return self.breakers.get(id_, id_)

    def breaker_id(self, name: str) -> str | None:
        """The only breaker of this name, or of this id."""
        return _only(name, self.breakers, self.breakers) or (name if self.others else None)

    def router(self, id_: str) -> str:
        """The name of a router where it leads back to it, else its id."""
        name = self.routers.get(id_, id_)
        return name if self.router_id(name) == id_ else id_

    def router_id(self, name: str) -> str | None:
        """The only router of this name, those that people made first, or of this id."""
        own = {id_: self.routers[id_] for id_ in self.own_routers}
        return _only(name, own, own) or _only(name, self.routers, self.routers) or (name if self.others else None)


def _only(name: str, names: Mapping[str, str], ids: Mapping[str, str]) -> str | None:
    found = [id_ for id_, one in names.items() if one == name]
    if len(found) == 1:
        return found[0]
    return name if name in ids and not found else None


def names_of(rules: ProjectRules, made: Sequence[tuple[DeclaredKind, str, str]] = ()) -> Names:
    """The names of what there is; `made`: (kind, id, name) of what files make, or call otherwise."""
    breakers = {row.id: row.name for row in rules.breakers}
    routers = {row.id: row.name for row in rules.routers}
    breakers |= {id_: name for kind, id_, name in made if kind == "breakers"}
    routers |= {id_: name for kind, id_, name in made if kind == "routers"}
    own = {row.id for row in rules.routers if row.created_by == "user"}
    own |= {id_ for kind, id_, _ in made if kind == "routers"}
    shadows = {row.id: row.shadow_of for row in rules.breakers if row.shadow_of is not None}
    return Names(breakers, routers, frozenset(own), shadows)


def rows_of(rules: ProjectRules, kind: DeclaredKind) -> list[Thing]:
    """The things of a kind that files may declare: of routers those that people made."""
    rows: list[Thing] = list(getattr(rules, kind))
    if kind == "routers":
        return [row for row in rows if isinstance(row, RouterRow) and row.created_by == "user"]
    return rows


def name_of(row: Thing) -> str:
    """What a thing is called in files unless its owner says otherwise; mutes have no name of their own."""
    return f"mute-{row.id[:8]}" if isinstance(row, MuteRow) else row.name


def names_twice(rows: Sequence[Thing]) -> set[str]:
    return {name for name, count in Counter(map(name_of, rows)).items() if count > 1}


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    return msgspec.json.decode(msgspec.json.encode(value))


Declarations = Mapping[tuple[DeclaredKind, str], DeclaredRow]
"""What was declared, by kind and id."""


def declarations(rules: ProjectRules) -> Declarations:
    return {(row.kind, row.thing_id): row for row in rules.declared}
