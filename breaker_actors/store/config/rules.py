"""What files of rules declare of a project, read at once and applied at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, delete, func, insert, select

from breaker_actors.errors import Invalid, NotFound, Overloaded, too_many_breakers
from breaker_actors.store import tables as t
from breaker_actors.store.alerts import ends_each
from breaker_actors.store.base import Decide
from breaker_actors.store.config import mappings, mutes
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.change_set import Plan, carry_out, edited, load_breakers
from breaker_actors.store.config.channels import Channels, remove_channel
from breaker_actors.store.config.router_set import (
    CHANGEABLE,
    Linking,
    change_routers,
    create_routers,
    link_routers,
    link_shadows,
    live_routers,
    remove_routers,
    unlink_routers,
    unlinked,
    watched_routers,
)
from breaker_actors.store.config.routers import load_router_rows
from breaker_actors.store.quotas import redeclared, within_share
from breaker_actors.store.rows import SYSTEM, DeclaredRow, MuteRow, ProjectRules, RouterRow, RulesChange
from breaker_actors.store.section import lock_project
from breaker_actors.store.steps import Who

RULES_MAX = 1_000
"""Things that one apply changes at most: it is one transaction, for which other writers wait about half a second."""
RULES_LINKS_MAX = 10_000
"""Links of routers to breakers that one apply changes at most, those of breakers that it changes among them but for the
first of each: as many as one request to link them."""
RULES_ENDS_MAX = 4_000
"""Notifications that one apply writes at most of open breakers that it deletes, one for each channel: half a second."""
DECLARED_MAX = 20_000
"""Things of a project that all owners together declare, those that were deleted by hand since included."""
DECIDED_TIMES = 5
"""How often an apply is decided on anew since the project was changed meanwhile, before it is refused."""
_D, _P = t.declared.c, t.projects.c
_COLUMNS = [_D[field] for field in DeclaredRow.__struct_fields__]


class _Applier(NamedTuple):
    """An apply to a locked project."""

    c: Connection
    place: Place
    by_name: str

    @property
    def project_id(self) -> str:
        return self.place.project_id or ""


class _Seen(NamedTuple):
    """What a project's configuration is known by: another one after each change of it. Changes of breakers and links
    raise the one, all others have an entry in the audit log."""

    breakers_version: int
    newest_entry: int


class Rules(Channels):
    async def project_rules(self, project_id: str) -> ProjectRules:
        return await self._db.read_in_turn(lambda c: self._project_rules(c, project_id))

    async def apply_rules(
        self, project_id: str, decide: Decide, now_ms: int, by: str = SYSTEM, by_name: str = SYSTEM
    ) -> tuple[RulesChange | None, list[int]]:
        place = Place(by, now_ms, project_id)
        who = (await self._steps.whose(project_id))._replace(is_large=True)
        return await self._steps.whole(who, lambda: self._decide_and_apply(who, place, by_name, decide))

    async def _decide_and_apply(
        self, who: Who, place: Place, by_name: str, decide: Decide
    ) -> tuple[RulesChange | None, list[int]]:
        """What there is is read, and decided on, while others write: of a large project that takes a second. It is
        written if nothing was changed since."""
        project_id = who.project_id
        for _ in range(DECIDED_TIMES):
            seen, change = await self._steps.read(who, partial(self._decided, project_id, decide))
            if change is None:
                return None, []
            change_ids = await self._steps.write(who, partial(self._apply, place, by_name, seen, change))
            if change_ids is not None:
                return change, change_ids
        raise Overloaded("The project is being changed by others all the time: try again.", {"retry_after_s": 1})

    def _decided(self, project_id: str, decide: Decide, c: Connection) -> tuple[_Seen, RulesChange | None]:
        seen, rules = _seen(c, project_id), self._project_rules(c, project_id)
        change = decide(rules)
        if change is not None:
            _refuse_many(change, rules)
        return seen, change

    def _project_rules(self, c: Connection, project_id: str) -> ProjectRules:
        declared = select(*_COLUMNS).where(_D.project_id == project_id).order_by(_D.kind, _D.name, _D.thing_id)
        return ProjectRules(
            breakers=load_breakers(c, project_id),
            routers=load_router_rows(c, project_id),
            mappings=mappings.load_mappings(c, project_id),
            channels=self._channels(c, project_id),
            mutes=mutes.load_mutes(c, project_id),
            declared=[DeclaredRow(**row._mapping) for row in c.execute(declared)],
        )

    def _apply(self, place: Place, by_name: str, seen: _Seen, change: RulesChange, c: Connection) -> list[int] | None:
        """The ids of the change rows; None, and nothing is changed, where the project is another one by now."""
        applier = _Applier(c, place, by_name)
        lock_project(c, applier.project_id)
        if _seen(c, applier.project_id) != seen or not mutes.all_live(c, _mutes_of(change)):
            return None
        self._apply_channels(applier, change)
        change_ids = _apply_breakers(applier, change, self._breakers_max)
        change_ids += _apply_routers(applier, change)
        _apply_mappings(applier, change)
        _apply_mutes(applier, change)
        _declare(applier, change)
        after = {"owner": change.owner, "declared": len(change.declared)}
        write_down(c, place, [Note("rules.apply", applier.project_id, after=after)])
        return change_ids

    def _apply_channels(self, applier: _Applier, change: RulesChange) -> None:
        for row in change.channels_removed:
            remove_channel(applier.c, applier.place, row)
        for row in change.channels_made:
            self._put_channel(applier.c, applier.place, row)
        for old, new in change.channels_edited:
            self._change_channel(applier.c, applier.place, old, new)


def _seen(c: Connection, project_id: str) -> _Seen:
    """Raises NotFound."""
    versions = select(_P.breakers_version).where(_P.id == project_id, _P.deleted_ms.is_(None))
    version = c.execute(versions).scalar()
    if version is None:
        raise NotFound("There is no such project.")
    newest = select(func.max(t.audit.c.number)).where(t.audit.c.project_id == project_id)
    return _Seen(version, c.execute(newest).scalar() or 0)


def _refuse_many(change: RulesChange, rules: ProjectRules) -> None:
    counts = (len(value) for name in change.__struct_fields__ if isinstance(value := getattr(change, name), tuple))
    count = sum(counts) - len(change.declared) - len(change.mappings or ())
    if count > RULES_MAX:
        raise Invalid(
            f"{count} things would change, and at most {RULES_MAX} do at once: apply in parts.", {"changes": count}
        )
    links = sum(len(row.breaker_ids) for row in change.routers_removed)
    links += sum(len(draft.breaker_ids) for _, draft in change.routers_made)
    links += sum(len({*old.breaker_ids} ^ {*new.breaker_ids}) for old, new in change.routers_edited)
    watched = Counter(row.shadow_of for row in change.breakers_made if row.shadow_of is not None)
    links += sum(watched[row.id] * len(row.router_ids) for row in rules.breakers if row.id in watched)
    touched = [*change.breakers_removed, *(old for old, _ in change.breakers_edited)]
    links += sum(max(0, len(row.router_ids) - 1) for row in touched)
    if links > RULES_LINKS_MAX:
        words = f"{links} links would change, and at most {RULES_LINKS_MAX} do at once"
        raise Invalid(f"{words}, those of breakers that change among them: apply in parts.", {"links": links})


def _apply_breakers(applier: _Applier, change: RulesChange, breakers_max: int) -> list[int]:
    c, place, project_id = applier.c, applier.place, applier.project_id
    if len(change.breakers_made) > len(change.breakers_removed):
        mine = t.breakers.c.project_id == project_id
        count = c.execute(select(func.count()).select_from(t.breakers).where(mine)).scalar_one()
        if count + len(change.breakers_made) - len(change.breakers_removed) > breakers_max:
            raise too_many_breakers(breakers_max)
    ends = sum(ends_each(c, project_id, [row.id for row in change.breakers_removed]).values())
    if ends > RULES_ENDS_MAX:
        words = f"{ends} notifications that breakers were deleted while they are open, and at most {RULES_ENDS_MAX}"
        raise Invalid(f"{words} are written at once: apply in parts.", {"notifications": ends})
    pairs = [(old, edited(old, new, place.now_ms)) for old, new in change.breakers_edited]
    change_ids = carry_out(c, place, Plan(change.breakers_made, pairs, change.breakers_removed))
    made = [row for row in change.breakers_made if row.shadow_of is not None]
    watched = watched_routers(c, project_id, [row.shadow_of for row in made if row.shadow_of is not None])
    return change_ids + link_shadows(c, place, project_id, {row.id: watched[row.shadow_of or ""] for row in made})


def _apply_routers(applier: _Applier, change: RulesChange) -> list[int]:
    """Links end first, so that routers that go have none."""
    c, place, project_id = applier.c, applier.place, applier.project_id
    wanted = [(old, set[str]()) for old in change.routers_removed]
    wanted += [(old, set(new.breaker_ids)) for old, new in change.routers_edited]
    ids = [old.id for old, _ in wanted]
    rows = live_routers(c, project_id, ids)
    ended = list[Linking]()
    for old, kept in wanted:
        had = set(old.breaker_ids) - kept
        ended.append(Linking(rows[old.id], [id_ for id_ in rows[old.id].breaker_ids if id_ in had]))
    change_ids = unlink_routers(c, place, [one for one in ended if one.breaker_ids])
    rows = live_routers(c, project_id, ids)
    change_ids += remove_routers(c, place, [rows[old.id] for old in change.routers_removed])
    change_ids += create_routers(c, place, project_id, change.routers_made)[1]
    edits = [(rows[new.id], _edited(rows[new.id], new)) for _, new in change.routers_edited]
    changed, changes = change_routers(c, place, edits)
    pairs = zip(changed, change.routers_edited, strict=True)
    _, links = link_routers(c, place, [unlinked(row, new.breaker_ids) for row, (_, new) in pairs])
    return change_ids + changes + links


def _edited(row: RouterRow, wanted: RouterRow) -> RouterRow:
    return msgspec.structs.replace(row, **{name: getattr(wanted, name) for name in CHANGEABLE})


def _apply_mappings(applier: _Applier, change: RulesChange) -> None:
    if change.mappings is not None:
        rows = mappings.load_mappings(applier.c, applier.project_id)
        paths = {row.id: "" for row in rows} | {row.id: f"mappings.{row.name}." for row in change.mappings}
        mappings.carry_out_mappings(applier.c, applier.place, rows, change.mappings, paths)


def _mutes_of(change: RulesChange) -> list[MuteRow]:
    return [*change.mutes_ended, *(old for old, _ in change.mutes_edited)]


def _apply_mutes(applier: _Applier, change: RulesChange) -> None:
    for row in change.mutes_ended:
        mutes.remove_mute(applier.c, applier.place, row)
    for old, new in change.mutes_edited:
        mutes.change_mute(applier.c, applier.place, old, new)
    if change.mutes_made:
        with mutes.making_mutes(applier.c, applier.project_id):
            for id_, draft in change.mutes_made:
                mutes.put_mute(applier.c, applier.place, id_, draft, applier.by_name)


def _declare(applier: _Applier, change: RulesChange) -> None:
    """Writes what the owner declares in the place of what it declared, and takes it from those who did before."""
    c, project_id = applier.c, applier.project_id
    with within_share(c, project_id), redeclared(c, project_id):
        _write_declared(c, project_id, change)
    count = select(func.count()).select_from(t.declared).where(_D.project_id == project_id)
    if c.execute(count).scalar_one() > DECLARED_MAX:
        raise Invalid(f"At most {DECLARED_MAX} things of a project may be declared in files.")


def _write_declared(c: Connection, project_id: str, change: RulesChange) -> None:
    mine = _D.project_id == project_id
    c.execute(delete(t.declared).where(mine, _D.owner == change.owner))
    for kind in {row.kind for row in change.declared}:
        ids = [row.thing_id for row in change.declared if row.kind == kind]
        for start in range(0, len(ids), 500):
            c.execute(delete(t.declared).where(mine, _D.kind == kind, _D.thing_id.in_(ids[start : start + 500])))
    if change.declared:
        c.execute(insert(t.declared), _values(project_id, change.declared))


def _values(project_id: str, rows: Sequence[DeclaredRow]) -> list[dict[str, object]]:
    return [msgspec.structs.asdict(row) | {"project_id": project_id} for row in rows]
