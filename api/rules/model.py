"""What is asked of a project by files of rules, and how things are named in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from api.rules.unset import secrets_in, unset_in
from api.wire.requests_rules import RulesDocument
from api.wire.unknown import FieldWarning
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
NOT_COMPARED = FieldWarning(
    "secrets_not_compared",
    "channels",
    "A key that may only read tries no secrets: those of channels are taken to be as they are stored.",
)


class Asked(NamedTuple):
    """A document, and what it is read with. `by`: whose key it is; `new_id`: makes ids; `mute_max_ms`: how long a mute
    may last; `allow_private`: whether channels may go to private addresses; `unset`: secrets of channels, by their
    paths within the channel, whose values the caller does not have, or may not try; `shows_configs`: whether the caller
    may see all of them that is no secret."""

    document: RulesDocument
    project_id: str
    now_ms: int
    by: str
    new_id: Callable[[], str]
    mute_max_ms: int
    allow_private: bool
    unset: Mapping[str, Collection[str]] = {}
    shows_configs: bool = True

    def as_far_as_known(self) -> Asked:
        """The same, of which secrets may be missing."""
        return self._replace(unset=unset_in(self.document))

    def without_secrets(self, rules: ProjectRules) -> Asked:
        """The same for who may only read: no secret of it is compared with what is stored, and of configs only is told
        that they change."""
        found = {name: {*paths} for name, paths in self.unset.items()}
        for name, paths in secrets_in(self.document, rules).items():
            found.setdefault(name, set()).update(paths)
        return self._replace(unset=found, shows_configs=False)

    def things(self, kind: DeclaredKind) -> Mapping[str, Mapping[str, Any]]:
        found: Mapping[str, Mapping[str, Any]] = getattr(self.document, kind)
        return found


class _Named:
    """Things by name. A document names tens of thousands: each is one look, however many the project has."""

    __slots__ = ("_ids", "names")

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names`: by id."""
        self.names = names
        self._ids: dict[str, str | None] = {}
        for id_, name in names.items():
            self._ids[name] = None if name in self._ids else id_

    def only(self, name: str) -> str | None:
        """The only one of this name, or where there is none that of this id."""
        if name in self._ids:
            return self._ids[name]
        return name if name in self.names else None


class Names:
    """How breakers and routers are named, by id, and what each shadow watches. `own_routers`: people made those.
    `others`: there may be more than these, so a name that is unknown stands for itself."""

    __slots__ = ("_breakers", "_others", "_own_routers", "_routers", "shadows")

    def __init__(
        self,
        breakers: Mapping[str, str],
        routers: Mapping[str, str],
        own_routers: Collection[str],
        shadows: Mapping[str, str],
        others: bool = False,
    ) -> None:
        self._others = others
        self._breakers, self._routers, self.shadows = _Named(breakers), _Named(routers), shadows
        self._own_routers = _Named({id_: routers[id_] for id_ in routers if id_ in own_routers})

    def breaker(self, id_: str) -> str:
        return self._breakers.names.get(id_, id_)

    def breaker_id(self, name: str) -> str | None:
        """The only breaker of this name, or of this id."""
        return self._breakers.only(name) or (name if self._others else None)

    def router(self, id_: str) -> str:
        """The name of a router where it leads back to it, else its id."""
        name = self._routers.names.get(id_, id_)
        return name if self.router_id(name) == id_ else id_

    def router_id(self, name: str) -> str | None:
        """The only router of this name, those that people made first, or of this id."""
        return self._own_routers.only(name) or self._routers.only(name) or (name if self._others else None)


def names_of(rules: ProjectRules, made: Sequence[tuple[DeclaredKind, str, str]] = (), others: bool = False) -> Names:
    """The names of what there is; `made`: (kind, id, name) of what files make, or call otherwise; `others`: there may
    be more."""
    breakers = {row.id: row.name for row in rules.breakers}
    routers = {row.id: row.name for row in rules.routers}
    breakers |= {id_: name for kind, id_, name in made if kind == "breakers"}
    routers |= {id_: name for kind, id_, name in made if kind == "routers"}
    own = {row.id for row in rules.routers if row.created_by == "user"}
    own |= {id_ for kind, id_, _ in made if kind == "routers"}
    shadows = {row.id: row.shadow_of for row in rules.breakers if row.shadow_of is not None}
    return Names(breakers, routers, own, shadows, others)


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
