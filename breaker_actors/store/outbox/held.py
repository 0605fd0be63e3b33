"""What mutes hold back, as the Notifier looks after it under its epoch: the release of what stands when nothing mutes
it any more, the end of what is over, warnings before a mute ends, and mutes that match nothing.

Every look goes by what is stored now, so one that is lost, or done twice, changes nothing. What takes long is decided
in a transaction that reads (`look`, `match`); a second one writes what is to change, and looks again whether it may.
Sync functions over a `Connection`, each inside one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    bindparam,
    case,
    delete,
    exists,
    func,
    or_,
    select,
    type_coerce,
    update,
)

from breaker_actors.store import tables as t
from breaker_actors.store.alerts import warning, write_warnings
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.fencing import NOTIFIER
from breaker_actors.store.mutes.matching import (
    ROUTERS_MAX,
    BreakerFacts,
    Effort,
    Spent,
    asks_routers,
    matches_breaker,
)
from breaker_actors.store.outbox.channel_queue import channels_of
from breaker_actors.store.outbox.claims import GONE
from breaker_actors.store.outbox.judging import EFFORT_MAX, LOADED, Judge
from breaker_actors.store.outbox.muting import (
    FACTS,
    HELD,
    LIVE,
    MUTE_COLUMNS,
    Routers,
    breaker_facts,
    channel_facts,
    facts_of,
    live_mutes,
    mute_of,
    mutes_named,
    stands,
    told_late,
)
from breaker_actors.store.outbox.payloads import TOLD, drop_unused, point_to_payloads, store_payloads
from breaker_actors.store.quotas import UNMUTED, add, weight_of
from breaker_actors.store.rows import (
    ALERTS_ALONE,
    SYSTEM,
    AlertPayload,
    HeldLook,
    MutedBy,
    MuteEnd,
    MuteRow,
    MutesTended,
)
from breaker_actors.store.section import IDS, bump, by_ids, chunks

LOOK_MAX, ENDED_MAX, MATCHED_MAX = 200, 500, 20
"""Held deliveries, mutes that are over, and mutes that are held against their project, of one transaction."""
WARNED_PART = 4
"""At most this part of a mute's length is behind its warning: a quarter."""
SHARE_MIN = 20
"""Held deliveries of a project in its turn, at least: LOOK_MAX by the number of projects."""
FACTS_COST, MATCH_EFFORT_MAX = 5_000, 200_000_000
"""In units of Effort: to load a breaker or one of its routers; and what one transaction, which writes nothing, spends
on mutes that are held against their projects."""
MUTES = "mutes"
"""The counter of changes of mutes."""
_IS_PLAIN = type_coerce(t.mutes.c.windows, String) == "[]"
"""Whether a mute has no windows, by what is stored."""
_NEWS = select(
    select(t.counters.c.value).where(t.counters.c.name == MUTES).scalar_subquery(),
    select(func.max(t.outbox.c.number)).where(HELD).scalar_subquery(),
)


def news(c: Connection) -> tuple[int, int]:
    """What tells that held deliveries are to be looked at: the count of changes of mutes, and the newest held one."""
    changes, newest = c.execute(_NEWS).one()
    return changes or 0, newest or 0


def count(c: Connection) -> int:
    return int(c.execute(select(func.count()).select_from(t.outbox).where(HELD)).scalar_one())


def _newer_trip() -> ColumnElement[bool]:
    """Whether a later trip of the same outage tells of it."""
    o, newer = t.outbox.c, t.outbox.alias()
    return exists().where(
        newer.c.incident == o.incident,
        newer.c.channel_id == o.channel_id,
        newer.c.kind == "trip",
        newer.c.number > o.number,
        newer.c.state.in_(("pending", "held", "sent")),
    )


def _page_statement() -> Select[Any]:
    o = t.outbox.c
    columns = (o.number, o.project_id, o.channel_id, o.breaker_id, TOLD, o.mute_id, o.payload_id)
    query = select(*columns, stands().label("stands"), _newer_trip().label("superseded"))
    return query.where(HELD).order_by(o.number)


def _now_statement() -> Select[Any]:
    o = t.outbox.c
    query = select(o.number, (stands() & ~_newer_trip()).label("stands")).where(HELD, o.number.in_(IDS))
    return query.order_by(o.number).with_for_update(of=t.outbox)


def _projects_statement() -> Select[Any]:
    """From one project with held deliveries to the next, by the index on them: however many each has."""
    held, p, w = t.outbox.c, t.projects.c, t.workspaces.c
    first = select(func.min(held.project_id).label("id")).where(HELD).cte("found", recursive=True)
    more = select(func.min(held.project_id)).where(HELD, held.project_id > first.c.id).scalar_subquery()
    found = first.union_all(select(more).where(first.c.id.is_not(None)))
    query = select(func.coalesce(w.org_id, found.c.id), found.c.id).select_from(found)
    query = query.outerjoin(t.projects, p.id == found.c.id).outerjoin(t.workspaces, w.id == p.workspace_id)
    return query.where(found.c.id.is_not(None)).order_by(found.c.id)


_PAGE, _NOW, _PROJECTS = _page_statement(), _now_statement(), _projects_statement()
_VERSION = (
    select(t.mutes.c.project_id, func.count(), func.sum(t.mutes.c.number), func.sum(t.mutes.c.updated_ms))
    .where(LIVE, t.mutes.c.project_id.in_(IDS))
    .group_by(t.mutes.c.project_id)
)


class Fate(NamedTuple):
    """What is to become of a held delivery: its new state, or None and another mute. `judged`: not so where all the
    effort was spent on it."""

    row: Any
    state: str | None
    mute_id: str | None = None
    judged: bool = True


class Plan(NamedTuple):
    """What a look has decided. `versions`: of the mutes that the released ones were held against, by project."""

    looked: HeldLook
    fates: tuple[Fate, ...] = ()
    named: Mapping[str, MuteRow] = {}
    versions: Mapping[str, tuple[int, ...]] = {}


def projects(c: Connection) -> list[tuple[str, str]]:
    """(organisation, project) of those with held deliveries."""
    return [(org_id, project_id) for org_id, project_id in c.execute(_PROJECTS)]


def look(c: Connection, epoch: int, now_ms: int, after: int, turns: Mapping[str, int], ahead_ms: int = 0) -> Plan:
    """Decides about the first held deliveries behind a number, each of them by itself; with `turns` about a share of
    each of these projects behind its own. Reads only. Ends early where the effort is spent, and goes on there the next
    time; a delivery on which all of it was spent is heard."""
    NOTIFIER.look(c, epoch)
    share = max(SHARE_MIN, LOOK_MAX // max(1, len(turns)))
    o = t.outbox.c
    if turns:
        pages = [(id_, share, _PAGE.where(o.project_id == id_, o.number > last)) for id_, last in turns.items()]
    else:
        pages = [("", LOOK_MAX, _PAGE.where(o.number > after))]
    looking, ends, last = _Look(c, now_ms, ahead_ms), dict[str, int | None](), None
    for project_id, most, query in pages:
        rows = c.execute(query.limit(most)).all()
        seen = looking.judge(rows)
        last = rows[seen - 1].number if seen else last
        if seen or not rows:
            ends[project_id] = None if seen == len(rows) < most else last
        if seen < len(rows) or looking.count >= LOOK_MAX:
            break
    times, behind = min(looking.times, default=None), looking.behind
    looked = HeldLook(last=last, next_ms=times, turns=ends if turns else {}, behind=behind)
    released = sorted({fate.row.project_id for fate in looking.fates if fate.state == "pending"})
    named = mutes_named(c, (fate.row.mute_id for fate in looking.fates if fate.state == "pending"))
    return Plan(looked, tuple(looking.fates), named, _versions(c, released))


class _Look:
    """The rows of one look, judged one after the other; all projects of it share the effort."""

    def __init__(self, c: Connection, now_ms: int, ahead_ms: int) -> None:
        self._c = c
        self._now_ms = now_ms
        self._ahead_ms = ahead_ms
        self._effort = Effort(EFFORT_MAX)
        self._routers = Routers(c)
        self._judges: dict[str, Judge] = {}
        self.count = 0
        self.fates: list[Fate] = []
        self.times: set[int] = set()
        self.behind = Counter[tuple[str, str, str]]()

    def judge(self, rows: Sequence[Any]) -> int:
        """How many of the rows were judged before the effort was spent; of all of them the first one always is."""
        channel_ids = sorted({row.channel_id for row in rows})
        there, channels = channels_of(self._c, channel_ids), channel_facts(self._c, channel_ids)
        breakers = breaker_facts(self._c, sorted({row.breaker_id for row in rows}))
        for seen, row in enumerate(rows):
            breaker = breakers.get(row.breaker_id)
            if row.channel_id not in there:
                self.fates.append(Fate(row, "cancelled"))
            elif breaker is None or not row.stands or row.superseded:
                self.fates.append(Fate(row, "suppressed"))
            else:
                try:
                    found = self._judge_of(row).last_to_end(breaker, channels[row.channel_id], self._now_ms)
                except Spent:
                    if self.count:
                        return seen
                    self.fates.append(Fate(row, "pending", judged=False))
                else:
                    self._note(row, found)
            self.count += 1
        return len(rows)

    def _note(self, row: Any, found: tuple[MuteRow, int] | None) -> None:
        if found is None:
            self.fates.append(Fate(row, "pending"))
            return
        self.times.add(found[1])
        if _is_near(found[0], self._now_ms, self._ahead_ms):
            self.behind[row.project_id, found[0].id, row.channel_id] += 1
        if found[0].id != row.mute_id:
            self.fates.append(Fate(row, None, found[0].id))

    def _judge_of(self, row: Any) -> Judge:
        judge = self._judges.get(row.project_id)
        if judge is None:
            mutes = live_mutes(self._c, [row.project_id]).get(row.project_id, ())
            judge = self._judges[row.project_id] = Judge(mutes, self._routers.of, self._effort)
            self._effort.spend(LOADED * len(mutes))
        return judge


def _versions(c: Connection, project_ids: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """What is another one whenever the mutes of a project have changed."""
    found = dict.fromkeys(project_ids, (0, 0, 0))
    return found | {id_: (n, int(numbers), int(times)) for id_, n, numbers, times in by_ids(c, _VERSION, project_ids)}


def carry_out(c: Connection, epoch: int, now_ms: int, plan: Plan) -> HeldLook:
    """Writes what a look has decided, of what is still held. What is over by now is not released, and nothing is whose
    mutes were changed meanwhile: it is looked at again for that."""
    NOTIFIER.check(c, epoch)
    stands_now = {row.number: row.stands for row in by_ids(c, _NOW, [fate.row.number for fate in plan.fates])}
    changed = {id_ for id_, version in _versions(c, sorted(plan.versions)).items() if version != plan.versions[id_]}
    ends: dict[str, list[int]] = {}
    mutes: dict[str, list[int]] = {}
    released: list[int] = []
    retold: list[dict[str, Any]] = []
    channels, unjudged = set[str](), 0
    for row, state, mute_id, judged in plan.fates:
        if row.number not in stands_now:
            continue
        if state is None:
            mutes.setdefault(mute_id or "", []).append(row.number)
        elif state != "pending" or not stands_now[row.number]:
            ends.setdefault("suppressed" if state == "pending" else state, []).append(row.number)
        elif row.project_id not in changed:
            mute = plan.named.get(row.mute_id)
            released.append(row.number)
            if mute is not None:
                told = told_late(row.told, mute)
                retold.append({"its": row.number, "project_id": row.project_id, "told": told, "before": row.payload_id})
            channels.add(row.channel_id)
            unjudged += not judged
    _retell(c, retold)
    _change(c, released, {"state": "pending", "next_ms": 0})
    if unjudged:
        bump(c, UNMUTED, unjudged)
    for state, numbers in sorted(ends.items()):
        error = {"last_error": GONE} if state == "cancelled" else {}
        _change(c, numbers, {"state": state, "ended_ms": now_ms} | error)
    for mute_id, numbers in sorted(mutes.items()):
        _change(c, numbers, {"mute_id": mute_id})
    states = {state: len(numbers) for state, numbers in ends.items()}
    states |= {"pending": len(released)} if released else {}
    return replace(plan.looked, released=tuple(channels), states=states)


_POINT = (
    update(t.outbox)
    .where(t.outbox.c.number == bindparam("its"), t.outbox.c.state == "held")
    .values(told=None, payload_id=bindparam("what"))
)


def _retell(c: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Changes what held deliveries tell, by their numbers; what they told before goes, unless others tell it."""
    if not rows:
        return
    store_payloads(c, point_to_payloads(rows), rows)
    c.execute(_POINT, [{"its": row["its"], "what": row["payload_id"]} for row in rows])
    drop_unused(c, [row["before"] for row in rows])


def _change(c: Connection, numbers: Sequence[int], values: Mapping[str, Any]) -> None:
    for some in chunks(numbers):
        c.execute(update(t.outbox).where(t.outbox.c.number.in_(some), HELD).values(dict(values)))


def tend(c: Connection, epoch: int, now_ms: int, ahead_ms: int) -> MutesTended:
    """How mutes stand, and which are over; at most ENDED_MAX of those. Reads only."""
    NOTIFIER.look(c, epoch)
    m = t.mutes.c
    over = list(c.execute(select(m.id).where(LIVE, m.ends_ms <= now_ms).order_by(m.ends_ms).limit(ENDED_MAX)).scalars())
    unwarned = LIVE & (m.ends_ms > now_ms) & (_IS_PLAIN)
    unwarned &= or_(m.warned_ms.is_(None), m.warned_ms != m.ends_ms)
    due_ms = m.ends_ms - _lead_ms(ahead_ms)
    running = LIVE & (m.starts_ms <= now_ms) & or_(m.ends_ms.is_(None), m.ends_ms > now_ms)
    count, oldest_ms = c.execute(select(func.count(), func.min(m.starts_ms)).where(running)).one()
    first_end = select(func.min(m.ends_ms)).where(LIVE, m.ends_ms > now_ms)
    first_warning = select(func.min(due_ms)).where(unwarned, due_ms > now_ms)
    times = [ms for one in (first_end, first_warning) if (ms := c.execute(one).scalar()) is not None]
    times += [now_ms] if len(over) == ENDED_MAX else []
    return MutesTended(ended=tuple(over), next_ms=min(times, default=None), running=count, oldest_ms=oldest_ms)


def end_over(c: Connection, epoch: int, now_ms: int, ids: Sequence[str]) -> tuple[str, ...]:
    """Ends those of these mutes that are over; their ids. What they held is looked at after that."""
    NOTIFIER.check(c, epoch)
    m = t.mutes.c
    over = select(m.id).where(m.id.in_(ids), LIVE, m.ends_ms <= now_ms).order_by(m.id).with_for_update()
    ended = list(c.execute(over).scalars())
    expired = {"ended_ms": m.ends_ms, "ended_reason": "expired"}
    c.execute(update(t.mutes).where(m.id.in_(ended)).values(expired))
    if ended:
        bump(c, MUTES, len(ended))
    return tuple(ended)


def _lead_ms(ahead_ms: int) -> ColumnElement[int]:
    """So long before its end a mute is warned of: `ahead_ms`, and of a short one the last part of its length, so that
    it is quiet for most of it. `_is_near` says the same."""
    length = t.mutes.c.ends_ms - t.mutes.c.starts_ms
    return case((length < WARNED_PART * ahead_ms, length // WARNED_PART), else_=ahead_ms)


def _is_near(mute: MuteRow, now_ms: int, ahead_ms: int) -> bool:
    """Whether its end is to be warned of where it holds something, and was not yet."""
    if mute.ends_ms is None or mute.windows or mute.warned_ms == mute.ends_ms:
        return False
    length = mute.ends_ms - mute.starts_ms
    lead_ms = length // WARNED_PART if length < WARNED_PART * ahead_ms else ahead_ms
    return mute.ends_ms - lead_ms <= now_ms < mute.ends_ms


def end_mute(c: Connection, mute: MuteRow, reason: MuteEnd, at_ms: int) -> MuteRow:
    """Ends a mute; what it held is looked at by the Notifier."""
    values = {"ended_ms": at_ms, "ended_reason": reason}
    c.execute(update(t.mutes).where(t.mutes.c.id == mute.id).values(values))
    bump(c, MUTES)
    return replace(mute, ended_ms=at_ms, ended_reason=reason)


def warn(
    c: Connection, epoch: int, now_ms: int, ahead_ms: int, behind: Mapping[str, Mapping[str, int]]
) -> tuple[str, ...]:
    """One row for each channel on which something waits behind one of these mutes, once per end of the mute. `behind`:
    by mute and channel how much, as looks have found it. The channels."""
    NOTIFIER.check(c, epoch)
    mutes = select(*MUTE_COLUMNS).where(t.mutes.c.id.in_(IDS), LIVE).order_by(t.mutes.c.id).with_for_update()
    warned: set[str] = set()
    for row in by_ids(c, mutes, sorted(behind)):
        if _is_near(mute := mute_of(row), now_ms, ahead_ms):
            warned |= _warn(c, mute, behind[mute.id], now_ms)
    return tuple(sorted(warned))


def _warn(c: Connection, mute: MuteRow, waiting: Mapping[str, int], now_ms: int) -> set[str]:
    """Those channels that know alerts alone hear nothing."""
    there = channels_of(c, sorted(waiting))
    told = AlertPayload(
        name=mute.comment, prev="closed", curr="closed", ts_ms=now_ms, reason="mute_ending", value=None, rule={}, agg={}
    )
    by = MutedBy(mute_id=mute.id, comment=mute.comment, by=mute.created_name, ends_ms=mute.ends_ms)
    rows = [
        warning(mute.project_id, id_, replace(told, muted_by=replace(by, holding=n)), mute.id)
        for id_, n in sorted(waiting.items())
        if id_ in there and there[id_].channel not in ALERTS_ALONE
    ]
    c.execute(update(t.mutes).where(t.mutes.c.id == mute.id).values(warned_ms=mute.ends_ms))
    return write_warnings(c, rows)


class Matched(NamedTuple):
    """What was found of some mutes. `last`: the number of the last one, None at the end; `ids`: of those that match a
    breaker; `lost`: those that matched none for too long."""

    last: int | None
    ids: list[str]
    lost: list[MuteRow]


def match(c: Connection, epoch: int, now_ms: int, limit_ms: int, after: int) -> Matched:
    """Holds some mutes with an end against the breakers of their projects. Reads only. Ends early where the effort is
    spent; a mute on which all of it was spent is left alone."""
    NOTIFIER.look(c, epoch)
    m = t.mutes.c
    query = select(*MUTE_COLUMNS).where(LIVE, m.number > after, m.starts_ms <= now_ms, _IS_PLAIN)
    mutes = [mute_of(row) for row in c.execute(query.order_by(m.number).limit(MATCHED_MAX))]
    routed = {mute.project_id for mute in mutes if asks_routers(mute.matchers)}
    breakers: dict[str, list[BreakerFacts]] = {}
    effort = Effort(MATCH_EFFORT_MAX)
    found = Matched(None, [], [])
    for mute in mutes:
        if effort.left < 0:
            break
        spent = found.last is not None
        try:
            if mute.project_id not in breakers:
                mine = breakers[mute.project_id] = project_facts(c, mute.project_id, mute.project_id in routed)
                effort.spend(FACTS_COST * sum(1 + len(one.routers) for one in mine))
            if any(matches_breaker(mute.matchers, breaker, effort) for breaker in breakers[mute.project_id]):
                found.ids.append(mute.id)
            elif now_ms - max(mute.starts_ms, mute.matched_ms or 0) >= limit_ms:
                found.lost.append(mute)
        except Spent:
            if spent:
                break
        found = found._replace(last=mute.number)
    return found


def end_unmatched(c: Connection, epoch: int, now_ms: int, found: Matched) -> list[str]:
    """Notes which mutes match, and ends those that matched none, unless they were changed meanwhile; their ids."""
    NOTIFIER.check(c, epoch)
    m = t.mutes.c
    if found.ids:
        c.execute(update(t.mutes).where(m.id.in_(found.ids), LIVE).values(matched_ms=now_ms))
    ended: list[str] = []
    for mute in found.lost:
        query = select(*MUTE_COLUMNS).where(m.id == mute.id, LIVE).with_for_update()
        if (row := c.execute(query).first()) is None or mute_of(row) != mute:
            continue
        done = end_mute(c, mute, "matched_nothing", now_ms)
        write_down(c, Place(SYSTEM, now_ms, mute.project_id), [Note("mute.end", mute.id, mute, done)])
        ended.append(mute.id)
    return ended


def project_facts(c: Connection, project_id: str, routers: bool = True) -> list[BreakerFacts]:
    """What matchers may look at of all breakers of a project, in order of creation; `routers`: and of routers."""
    b, r, links = t.breakers.c, t.routers.c, t.links.c
    hangs: dict[str, list[dict[str, str]]] = {}
    if routers:
        metadata = {id_: of for id_, of in c.execute(select(r.id, r.metadata).where(r.project_id == project_id))}
        linked = select(links.breaker_id, links.router_id).join_from(t.links, t.routers, r.id == links.router_id)
        linked = linked.where(r.project_id == project_id, r.deleted_ms.is_(None)).order_by(links.number)
        for breaker_id, router_id in c.execute(linked):
            if len(mine := hangs.setdefault(breaker_id, [])) < ROUTERS_MAX:
                mine.append(metadata[router_id])
    query = FACTS.where(b.project_id == project_id).order_by(b.created_ms, b.number)
    return [facts_of(row, hangs.get(row.id, ())) for row in c.execute(query)]


def holding(c: Connection, project_id: str) -> dict[str, int]:
    """How many deliveries each mute of a project holds."""
    o = t.outbox.c
    mine = (o.project_id == project_id) & o.mute_id.is_not(None)
    query = select(o.mute_id, func.count()).where(mine, HELD).group_by(o.mute_id)
    return {mute_id: n for mute_id, n in c.execute(query)}


def forget_mutes(c: Connection, numbers: Sequence[int]) -> int:
    """Removes mutes, which count no more; how many."""
    m = t.mutes.c
    mine = m.number.in_(numbers)
    sizes = select(m.project_id, func.sum(weight_of(t.mutes))).where(mine)
    for project_id, size in c.execute(sizes.group_by(m.project_id).order_by(m.project_id)).all():
        add(c, project_id, "configuration", -int(size))
    return c.execute(delete(t.mutes).where(mine)).rowcount
