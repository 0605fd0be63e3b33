"""How much each project keeps in the database: bytes of configuration and of the audit log, numbers of events and
deliveries; and each organisation: of configuration, events and deliveries so much as some full projects, its own audit
log, that of its deleted projects, kept answers, and how many projects, workspaces and keys it has.

The sums change in the transaction of what they count, at its end (`section.sums_at_the_end`); what is asked about one
project or organisation knows what the transaction adds. Sizes are those of the stored texts, measured in the database
before and after a write: they are what a new sum over all rows would say. Configuration and audit are written in serial
transactions only, so two writers can't pass a bound together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Select,
    Table,
    bindparam,
    cast,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from breaker_actors.errors import Invalid
from breaker_actors.messages import ProjectShare, ShareLimit
from breaker_actors.store import tables as t
from breaker_actors.store.org_sums import largest_projects, organisations_beyond, own_and_owners, sum_of_owner
from breaker_actors.store.rows import BreakerRow, StoredFigures
from breaker_actors.store.section import IDS, StorePart, by_ids, chunks, drop_sum, raise_sum, raised

Counted = Literal["projects", "workspaces", "keys"]
OfProject = Literal["configuration", "audit", "events", "deliveries"]
What = Literal[OfProject, "ended_links", "redrives", "org_audit", "gone_audit", "answers", Counted]

ROW_BYTES, LINK_BYTES = 200, 100
"""What a row counts beside its texts: its ids, times and places in indexes."""
FULL = 0.95
"""From so much of a share on `limits` shows the project."""
LIMITS_MAX = 100
BEYOND_MAX, LARGEST_MAX = 1_000, 10
"""So many that keep too much are named at once; of an organisation that does, so many of its projects."""
SHORTENED, DROPPED = "audit_shortened", "events_dropped"
DELIVERIES_DROPPED, UNSENT, UNMUTED = "deliveries_dropped", "alerts_unsent", "alerts_unmuted"
"""Counters: audit entries written without before and after; events and ended deliveries that went before their time;
alerts that were given up, or never written, since too many waited; alerts that went out since it would have taken too
long to find out whether they are muted."""
GONE_TIMES = 16
"""So many times the bound of one audit log those of an organisation's deleted projects may take together."""

TOGETHER: tuple[OfProject, ...] = ("configuration", "events", "deliveries")
"""What an organisation keeps so much of as `full_projects` projects may."""

_S = t.stored.c
_LIVE = exists().where(t.projects.c.id == _S.of_id, t.projects.c.deleted_ms.is_(None))
_OWNER = (
    select(t.workspaces.c.org_id)
    .join(t.projects, t.projects.c.workspace_id == t.workspaces.c.id)
    .where(t.projects.c.id == _S.of_id)
    .correlate(t.stored)
    .scalar_subquery()
)


class Excess(NamedTuple):
    """What is beyond one share. `org_id`: in whose turn it goes, "" for what belonged to deleted projects. `share`:
    whose, a project's id, or "" for the organisation's. `projects`: those that may give it up, and how much at most;
    the first one that can does."""

    org_id: str
    share: str
    projects: tuple[tuple[str, int], ...]


class Shares(NamedTuple):
    """What one project may keep, and one organisation. Of `audit_bytes` and `deliveries` twice as much is the end.
    `links`: that count, and as many that have ended. `gone_names`: that streams begin with. `full_projects`: so many
    times what a project may an organisation keeps of configuration, events, deliveries and links that have ended."""

    configuration_bytes: int = 64 << 20
    links: int = 20_000
    audit_bytes: int = 256 << 20
    events: int = 10_000_000
    deliveries: int = 1_000_000
    projects: int = 1_000
    workspaces: int = 1_000
    keys: int = 10_000
    answer_bytes: int = 64 << 20
    mutes: int = 200
    mappings: int = 200
    gone_names: int = 20_000
    full_projects: int = 10


class octets(FunctionElement[int]):  # named like the function of SQL it stands for
    """Bytes of a text or of bytes."""

    type = BigInteger()
    inherit_cache = True


@compiles(octets)
def _octets(element: octets, compiler: Any, **options: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **options)})"


@compiles(octets, "sqlite")
def _octets_of_sqlite(element: octets, compiler: Any, **options: Any) -> str:
    return f"length(CAST({compiler.process(element.clauses, **options)} AS BLOB))"


def weight(*columns: Column[Any]) -> ColumnElement[int]:
    """What one row counts."""
    sizes: ColumnElement[int] = literal(ROW_BYTES, BigInteger)
    for column in columns:
        sizes = sizes + func.coalesce(octets(column), 0)
    return sizes


_B, _C, _M = t.breakers.c, t.channels.c, t.mutes.c
_WEIGHTS: dict[Table, ColumnElement[int]] = {
    t.breakers: weight(_B.name, _B.rule, _B.actions, _B.metadata, _B.control),
    t.routers: weight(t.routers.c.name, t.routers.c.metadata),
    t.channels: weight(_C.name, _C.config),
    t.api_keys: weight(t.api_keys.c.name),
    t.mappings: weight(t.mappings.c.name, t.mappings.c.matchers, t.mappings.c.to),
    t.mutes: weight(_M.matchers, _M.windows, _M.comment, _M.created_name),
}


def _sum_of(table: Table) -> Select[Any]:
    query = select(cast(func.coalesce(func.sum(_WEIGHTS[table]), 0), BigInteger)).where(table.c.id.in_(IDS))
    return query.where(table.c.deleted_ms.is_(None)) if "deleted_ms" in table.c else query


_SUMS = {table: _sum_of(table) for table in _WEIGHTS}
_USED = select(_S.used).where(_S.of_id == bindparam("of"), _S.what == bindparam("which"))
AUDIT_WEIGHT = weight(t.audit.c.before, t.audit.c.after)
_D = t.declared.c
DECLARED_WEIGHT = weight(_D.owner, _D.name, _D.fields, _D.labels)
_DECLARED = select(cast(func.coalesce(func.sum(DECLARED_WEIGHT), 0), BigInteger))


class Stored(StorePart):
    async def stored_figures(self) -> StoredFigures:
        return await self._db.read(_figures)

    async def configuration_bytes(self, project_id: str) -> int:
        return await self._db.read(lambda c: used(c, project_id, "configuration"))


def shares(c: Connection) -> Shares:
    """The bounds that this store was opened with."""
    found: Shares = c.get_execution_options()["shares"]
    return found


def used(c: Connection, of_id: str, what: What) -> int:
    stored = c.execute(_USED, {"of": of_id, "which": what}).scalar() or 0
    return max(0, stored + raised(c, _S.used, of_id, what))


def add(c: Connection, of_id: str, what: What, count: int) -> None:
    """Changes a sum; several may do it at once."""
    raise_sum(c, _S.used, count, of_id, what)


def add_one(c: Connection, org_id: str, what: Counted) -> None:
    """Counts a new thing of an organisation. Raises Invalid where it has as many as it may have, which undoes the
    transaction."""
    most: int = getattr(shares(c), what)
    if used(c, org_id, what) >= most:
        raise Invalid(
            f"An organisation has at most {most} {what}: delete some that nobody needs.",
            {"limit": f"BREAKERS_{what.upper()}_PER_ORG_MAX"},
        )
    add(c, org_id, what, 1)


def forget(c: Connection, project_id: str) -> None:
    """Drops the sums of a project whose configuration has gone."""
    for what in ("configuration", "ended_links", "redrives"):
        drop_sum(c, _S.used, project_id, what)


def hand_over(c: Connection, project_id: str, org_id: str) -> None:
    """The audit log of a project that was deleted stays as long as all others, and counts for its organisation."""
    add(c, org_id, "gone_audit", used(c, project_id, "audit"))
    drop_sum(c, _S.used, project_id, "audit")


def audit_sum(c: Connection, project_id: str) -> tuple[str, Literal["audit", "gone_audit"]]:
    """Which sum a project's audit entries are in: its own, or its organisation's once it was deleted."""
    a = t.audit.c
    if c.execute(select(_S.used).where(_S.of_id == project_id, _S.what == "audit")).first() is None:
        named = select(a.org_id).where(a.project_id == project_id, a.org_id.is_not(None))
        org_id = c.execute(named.order_by(a.number.desc()).limit(1)).scalar()
        if org_id is not None:
            return org_id, "gone_audit"
    return project_id, "audit"


def refuse_churn(c: Connection, org_id: str) -> None:
    """Raises Invalid where what deleted projects left in the audit log is too much for another project."""
    most = GONE_TIMES * shares(c).audit_bytes
    if used(c, org_id, "gone_audit") >= most:
        raise Invalid(
            f"The audit logs of this organisation's deleted projects have {most} bytes, and old entries are not given"
            " up early: no project can be made before some are old enough.",
            {"limit": "BREAKERS_AUDIT_BYTES_MAX"},
        )


def beyond(c: Connection, what: Literal["events", "deliveries"]) -> list[Excess]:
    """Who keeps more than a share: each project beyond its own; each deleted one, of which all is too much; each
    organisation beyond its own. BEYOND_MAX of each kind at most, the largest first."""
    most: int = getattr(shares(c), what)
    mine = _S.what == what
    live = select(_S.of_id, _S.used, _OWNER).where(mine, _S.used > most, _LIVE)
    found = [
        Excess(org_id, of_id, ((of_id, count - most),)) for of_id, count, org_id in c.execute(_largest_first(live))
    ]
    gone = select(_S.of_id, _S.used).where(mine, _S.used > 0, ~_LIVE)
    found += [Excess("", of_id, ((of_id, count),)) for of_id, count in c.execute(_largest_first(gone))]
    together = most * shares(c).full_projects
    for _, org_id, count in organisations_beyond(c, {what: together}, BEYOND_MAX):
        largest = largest_projects(c, org_id, what, LARGEST_MAX)
        found.append(Excess(org_id, "", tuple((of_id, min(used, count - together)) for of_id, used in largest)))
    return found


def _largest_first(query: Select[Any]) -> Select[Any]:
    return query.order_by(_S.used.desc()).limit(BEYOND_MAX)


def sweep(c: Connection) -> None:
    """Drops empty sums of deleted projects. Those that somebody adds to stay: nobody is waited for."""
    empty = select(_S.of_id, _S.what).where(_S.what.in_(("events", "deliveries")), _S.used <= 0, ~_LIVE)
    for some in chunks(c.execute(empty.with_for_update(of=t.stored, skip_locked=True)).all()):
        c.execute(delete(t.stored).where(tuple_(_S.of_id, _S.what).in_([tuple(row) for row in some])))


def weight_of(table: Table) -> ColumnElement[int]:
    """What a row of the configuration counts."""
    return _WEIGHTS[table]


def weigh(c: Connection, table: Table, ids: Sequence[str]) -> int:
    """What rows of the configuration count now; those marked as deleted nothing."""
    return sum(weight for (weight,) in by_ids(c, _SUMS[table], ids))


@contextmanager
def reweighed(c: Connection, project_id: str, table: Table, ids: Sequence[str]) -> Iterator[None]:
    """Counts what a block adds to rows and takes from them."""
    before = weigh(c, table, ids)
    yield
    add(c, project_id, "configuration", weigh(c, table, ids) - before)


@contextmanager
def redeclared(c: Connection, project_id: str) -> Iterator[None]:
    """Counts what a block adds to the declarations of a project and takes from them."""
    query = _DECLARED.where(_D.project_id == project_id)
    before = c.execute(query).scalar_one()
    yield
    add(c, project_id, "configuration", c.execute(query).scalar_one() - before)


def add_link_count(c: Connection, project_id: str, count: int) -> None:
    add(c, project_id, "configuration", count * LINK_BYTES)


@contextmanager
def within_share(c: Connection, project_id: str) -> Iterator[None]:
    """Refuses a block after which the project's configuration is larger than before and beyond its share. Raises
    Invalid, which undoes the transaction."""
    before = used(c, project_id, "configuration")
    yield
    if (after := used(c, project_id, "configuration")) > before:
        _refuse_beyond(c, after, sum_of_owner(c, project_id, "configuration"))


def add_ended_links(c: Connection, project_id: str, count: int) -> None:
    """Counts links that ended, or are forgotten. The sum is never below 0: what ended before there was one is not in
    it. In serial transactions only."""
    add(c, project_id, "ended_links", count if count > 0 else max(count, -used(c, project_id, "ended_links")))


def refuse_many_links(c: Connection, project_id: str, more: int) -> None:
    """Refuses links beyond what a project may have: each change of a breaker goes to all routers it is linked to, and
    each router's routing table names all of its own. Raises Invalid, also where as many have ended and are not
    forgotten, or many times as many of its organisation: unlinking always goes through, so it is what is linked anew
    that is bounded."""
    if more:
        _refuse_beside_ended(c, project_id)
    linked = t.links.join(t.breakers, t.breakers.c.id == t.links.c.breaker_id)
    count = c.execute(
        select(func.count()).select_from(linked).where(t.breakers.c.project_id == project_id)
    ).scalar_one()
    most = shares(c).links
    if count + more > max(count, most):
        raise Invalid(
            f"A project has at most {most} links between routers and breakers, and this one would have {count + more}.",
            {"limit": "BREAKERS_BREAKERS_PER_PROJECT_MAX"},
        )


def _refuse_beside_ended(c: Connection, project_id: str) -> None:
    own, together = own_and_owners(c, project_id, "ended_links")
    most, full_projects = shares(c).links, shares(c).full_projects
    for whose, ended, bound, limit in (
        ("this project", own, most, "BREAKERS_BREAKERS_PER_PROJECT_MAX"),
        ("this organisation's projects", together, most * full_projects, "BREAKERS_ORG_FULL_PROJECTS"),
    ):
        if ended >= bound:
            raise Invalid(
                f"{ended} links of {whose} have ended of late, and beside {bound} no new ones are made: wait until the"
                " windows of their breakers reach back to them no more, and an hour longer.",
                {"limit": limit},
            )


def refuse_many_mutes(c: Connection, project_id: str, now_ms: int) -> None:
    """Refuses one more mute where a project has as many that have not ended as it may have. Raises Invalid."""
    m, most = t.mutes.c, shares(c).mutes
    live = (m.project_id == project_id) & m.ended_ms.is_(None) & or_(m.ends_ms.is_(None), m.ends_ms > now_ms)
    if c.execute(select(func.count()).select_from(t.mutes).where(live)).scalar_one() >= most:
        raise Invalid(
            f"A project has at most {most} mutes that have not ended.", {"limit": "BREAKERS_MUTES_PER_PROJECT_MAX"}
        )


def refuse_many_mappings(c: Connection, before: int, after: int) -> None:
    """Refuses more mappings than a project had and may have. Raises Invalid."""
    most = shares(c).mappings
    if after > max(before, most):
        raise Invalid(f"A project has at most {most} mappings.", {"limit": "BREAKERS_MAPPINGS_PER_PROJECT_MAX"})


def room(c: Connection, project_id: str) -> int:
    """Bytes by which the project's configuration may grow."""
    most = shares(c).configuration_bytes
    own, together = own_and_owners(c, project_id, "configuration")
    return min(most - own, shares(c).full_projects * most - together)


def refuse_larger(c: Connection, project_id: str, growth: int) -> None:
    """Refuses what makes the project's configuration so many bytes larger. Raises Invalid."""
    if growth > 0:
        own, together = own_and_owners(c, project_id, "configuration")
        _refuse_beyond(c, own + growth, together + growth)


def refuse_overfull(c: Connection, project_id: str) -> None:
    """Refuses a configuration beyond its share. Raises Invalid."""
    _refuse_beyond(c, *own_and_owners(c, project_id, "configuration"))


def breaker_bytes(row: BreakerRow) -> int:
    """What a breaker counts, with the router that is made with it."""
    texts = [
        msgspec.json.encode(value) for value in (row.rule, row.actions, row.metadata, row.control) if value is not None
    ]
    return 2 * ROW_BYTES + LINK_BYTES + 2 * len(row.name.encode()) + sum(map(len, texts)) + len(b"{}")


def _refuse_beyond(c: Connection, after: int, together: int) -> None:
    """`after`: bytes that a project's configuration would take; `together`: all of its organisation's."""
    most = shares(c).configuration_bytes
    if after > most:
        raise Invalid(
            f"This project's breakers, routers, links, channels, mappings, mutes, keys and what files declare of them"
            f" would take {after} bytes, and {most} is the most: delete some, or make their actions and metadata"
            " smaller.",
            {"limit": "BREAKERS_CONFIGURATION_BYTES_MAX"},
        )
    most *= shares(c).full_projects
    if together > most:
        raise Invalid(
            f"What the projects of this organisation are configured with would take {together} bytes, and {most} is"
            " the most, however many there are: delete some of it.",
            {"limit": "BREAKERS_ORG_FULL_PROJECTS"},
        )


_LIMITS: dict[What, tuple[ShareLimit, str, int]] = {
    "configuration": ("configuration_bytes", "configuration_bytes", 1),
    "audit": ("audit_bytes", "audit_bytes", 1),
    "events": ("events", "events", 1),
    "deliveries": ("deliveries", "deliveries", 1),
    "org_audit": ("org_audit_bytes", "audit_bytes", 1),
    "gone_audit": ("gone_audit_bytes", "audit_bytes", GONE_TIMES),
    "projects": ("projects", "projects", 1),
    "workspaces": ("workspaces", "workspaces", 1),
    "keys": ("keys", "keys", 1),
}
"""What is shown near its bound: under which name, and of which of the Shares so many times is the bound."""


def _figures(c: Connection) -> StoredFigures:
    most = {what: times * getattr(shares(c), field) for what, (_, field, times) in _LIMITS.items()}
    full = or_(*((_S.what == what) & (_S.used >= ceil(FULL * bound)) for what, bound in most.items()))
    query = select(_S.of_id, _S.what, _S.used).where(full).order_by(_S.used.desc()).limit(LIMITS_MAX)
    told = t.counters.c.name.in_((SHORTENED, DROPPED, DELIVERIES_DROPPED, UNSENT, UNMUTED))
    counts = {row.name: row.value for row in c.execute(select(t.counters).where(told))}
    return StoredFigures(
        shares=tuple(
            ProjectShare(
                project_id=of_id if what in get_args(OfProject) else None,
                org_id=None if what in get_args(OfProject) else of_id,
                limit=_LIMITS[what][0],
                used=n,
                most=most[what],
            )
            for of_id, what, n in c.execute(query)
        )
        + _figures_together(c),
        shortened=counts.get(SHORTENED, 0),
        dropped=counts.get(DROPPED, 0),
        deliveries_dropped=counts.get(DELIVERIES_DROPPED, 0),
        unsent=counts.get(UNSENT, 0),
        unmuted=counts.get(UNMUTED, 0),
    )


def _figures_together(c: Connection) -> tuple[ProjectShare, ...]:
    """The organisations near what their projects may keep together."""
    limits = {str(what): (_LIMITS[what][0], getattr(shares(c), _LIMITS[what][1])) for what in TOGETHER}
    most = {what: shares(c).full_projects * of_one for what, (_, of_one) in limits.items()}
    near = {what: ceil(FULL * bound) - 1 for what, bound in most.items()}
    return tuple(
        ProjectShare(org_id=org_id, limit=limits[what][0], used=n, most=most[what])
        for what, org_id, n in organisations_beyond(c, near, LIMITS_MAX)
    )
