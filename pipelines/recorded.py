"""What a breaker of a service got, out of the service's sample logs: record by record, in the order it was received;
before that, what the history store has, shared out as routers are now.

    from pipelines.backtest import backtest
    from pipelines.recorded import recorded

    log = recorded("checkout latency")              # by name or id; the service of ./.breakers, or of the settings
    backtest(log.breaker, log).transitions          # what it did
    backtest(log.breaker.with_(threshold=390), log) # what it would have done with another threshold
    backtest({...}, log).transitions                # what another rule would have done

The breaker is created when the service created it, or with the first sample where that is not in the log any more
(setting log_retention_ms: a day) or history goes before it. Spans in which nothing could be received are no silence.
The breaker itself has the rules that were in force, as the log tells of them; another one has its rule throughout.
Nothing is written; the service may go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from breaker_actors.clock import SystemClock
from breaker_actors.core.log_entries import Splitter
from breaker_actors.core.model import Rule
from breaker_actors.errors import Invalid, NotFound
from breaker_actors.messages import RouterRef
from breaker_actors.persistence import check_in_use, make_log, make_store
from breaker_actors.settings import Settings, load_settings
from breaker_actors.store.base import Store
from breaker_actors.store.rows import UNREADABLE_RULE, BreakerRow
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.reader import LogReader
from pipelines.sources.before_log import may_have_history
from pipelines.sources.routing import RouterPlan, plans
from pipelines.sources.service_log import OwnLoop, Recorded
from pipelines.sources.together import NOBODY, Alike, Member, alike, nobodys

__all__ = ["Recorded", "of_breaker", "of_router", "recorded"]

NAMED = 10
"""Breakers that a message names."""
WAYS = "; give data_dir= or set BREAKERS_DATA_DIR"
"""Of a caller in Python to say where the data is."""

T = TypeVar("T")


class Asked(NamedTuple):
    """A breaker by its id, and the metric that its samples should be of; or one to be made, on a router that exists."""

    breaker_id: str | None
    router_id: str
    metric: str


def recorded(
    breaker: str | None = None, settings: Settings | None = None, *, data_dir: str | Path | None = None
) -> Recorded:
    """The samples of a breaker, by its id or name; without one, of the only breaker there is. Raises Invalid.

    `data_dir`: where the service keeps its data, or `settings` that say so; BREAKERS_* variables where neither is
    given."""
    if settings is not None and data_dir is not None:
        raise Invalid("give data_dir or settings, not both")
    given = None if data_dir is None else Path(data_dir).expanduser()
    found = load_settings(data_dir=given) if settings is None else settings
    with OwnLoop() as loop:
        return loop.run(_located(breaker, found, WAYS if settings is None and found.database_url is None else ""))


def of_breaker(
    project_id: str, breaker_id: str, settings: Settings, within_ms: int = 0, *, with_history: bool = False
) -> Recorded:
    """The same of a breaker that is known, without a look at any other, and without history: what its machine got.
    `within_ms`: only what was received so long before the logs end; 0: all. `with_history`: where they don't reach so
    far back, with what history has of then. Raises NotFound, and Invalid for a rule that can't be read."""

    async def found(store: Store, log: SampleLog) -> tuple[Recorded, Recorded | None, int]:
        row = await store.get_breaker(project_id, breaker_id)
        if row is None:
            raise NotFound("There is no such breaker.")
        newest = await _of_row(store, log, row, (), settings, within_ms)
        if not with_history:
            return newest, None, 0
        routers, _ = plans(await store.list_routers(project_id), (await store.list_breakers(project_id))[0])
        whole = await _of_row(store, log, row, routers, settings)
        return newest, whole, await _end_ms(log, await _links(store, row.id, ""))

    with OwnLoop() as loop:
        return _reaching(*loop.run(_opened(settings, found)), within_ms)


def _reaching(newest: Recorded, whole: Recorded | None, end_ms: int, within_ms: int) -> Recorded:
    """The newest part of a log, or where that is all of it, it with history before it."""
    if whole is None:
        return newest
    from_ms, begins_ms = (end_ms - within_ms if within_ms else 0), whole.begins_ms()
    return newest if begins_ms is not None and begins_ms <= from_ms else whole.only("all", max(0, from_ms))


def of_router(
    project_id: str, router_id: str, rule: Rule, settings: Settings, within_ms: int = 0, *, with_history: bool = False
) -> Recorded:
    """What a breaker of this rule would have got, had it hung on the router all the time: of a canary or weighted one
    all samples, too. `within_ms`, `with_history`: as of a breaker. Raises NotFound."""

    async def found(store: Store, log: SampleLog) -> tuple[Recorded, Recorded | None, int]:
        router = await store.get_router(project_id, router_id)
        if router is None:
            raise NotFound("There is no such router.")
        row = BreakerRow(
            id=NOBODY, project_id=project_id, name="draft", rule=rule, actions=None, metadata={}, version=1,
            created_ms=0, updated_ms=0, router_ids=(router_id,),
        )  # fmt: skip
        links, now_ms, taking = await _links(store, None, router_id), SystemClock().now_ms(), nobodys(rule.metric)
        newest = Recorded(row, await _upto(log, links, now_ms, within_ms), (), settings, Splitter(taking))
        if not with_history:
            return newest, None, 0
        gives = [RouterPlan(router_id, taking, rule.window_ms)] if router.enabled else []
        whole = Recorded(row, await _upto(log, links, now_ms), gives, settings, Splitter(taking))
        return newest, whole, await _end_ms(log, links)

    with OwnLoop() as loop:
        return _reaching(*loop.run(_opened(settings, found)), within_ms)


def gathered(project_id: str, asked: Sequence[Asked], settings: Settings, within_ms: int) -> list[Alike]:
    """Which of them, by their numbers, got the same samples, so that one reading does for all. Left out is who shares
    with none, what can't be found, and who has history of before its log."""

    async def found(store: Store, log: SampleLog) -> list[Alike]:
        now_ms, ends = SystemClock().now_ms(), dict[str, int]()
        by_metric: dict[str, list[Member]] = {}
        for number, one in enumerate(asked):
            row = await store.get_breaker(project_id, one.breaker_id) if one.breaker_id is not None else None
            if one.breaker_id is None or (row is not None and row.rule.metric == one.metric):
                links = await _links(store, one.breaker_id, one.router_id)
                whole, end_ms = await _upto(log, links, now_ms, 0, ends), await _end_ms(log, links)
                if await may_have_history(log, settings.history, project_id, whole, max(0, end_ms - within_ms)):
                    continue
                logs = await _upto(log, links, now_ms, within_ms, ends)
                logs = [replace(ref, owner="") for ref in logs]
                by_metric.setdefault(one.metric, []).append(Member(row, tuple(logs), number))
        return [one for metric, members in by_metric.items() for one in await alike(log, metric, members)]

    with OwnLoop() as loop:
        return loop.run(_opened(settings, found))


async def _links(store: Store, breaker_id: str | None, router_id: str) -> list[RouterRef]:
    """The routers of a breaker; of one that is not made yet the one that it is to hang on."""
    if breaker_id is not None:
        return [link for assigned in await store.breaker_assignments([breaker_id]) for link in assigned.routers]
    return [RouterRef(one.router_id, "", one.log_slot, 0) for one in await store.router_assignments([router_id])]


async def _located(wanted: str | None, settings: Settings, ways: str) -> Recorded:
    """`ways`: what to say where there is no data."""
    try:
        await asyncio.to_thread(check_in_use, settings)
    except Invalid as error:
        raise Invalid(f"{error}{ways}") from None

    async def found(store: Store, log: SampleLog) -> Recorded:
        rows = await _breakers(store)
        row = _only(wanted, rows)
        routers, _ = plans(await store.list_routers(row.project_id), rows)
        return await _of_row(store, log, row, routers, settings)

    return await _opened(settings, found)


async def _opened(settings: Settings, work: Callable[[Store, SampleLog], Awaitable[T]]) -> T:
    """What is found in a store and a log that are open meanwhile."""
    store, log = make_store(settings), make_log(settings)
    await store.open()
    try:
        return await work(store, log)
    finally:
        await log.close()
        await store.close()


async def _of_row(
    store: Store, log: SampleLog, row: BreakerRow, routers: Sequence[RouterPlan], settings: Settings, within_ms: int = 0
) -> Recorded:
    """`routers`: all that may share history out to the breaker."""
    if row.rule == UNREADABLE_RULE:
        raise Invalid(f"the rule of breaker {row.name!r} ({row.id}) can't be read; write it anew with a PATCH")
    logs = await _upto(log, await _links(store, row.id, ""), SystemClock().now_ms(), within_ms)
    return Recorded(row, logs, [router for router in routers if _gives(router, row.id)], settings)


async def _breakers(store: Store) -> list[BreakerRow]:
    projects = [project.id for org in await store.list_orgs() for project in await store.list_projects(org.id)]
    return [row for project_id in projects for row in (await store.list_breakers(project_id))[0]]


def _only(wanted: str | None, rows: Sequence[BreakerRow]) -> BreakerRow:
    if not rows:
        raise Invalid("the service has no breaker")
    found = [row for row in rows if wanted is None or row.id == wanted] or [row for row in rows if row.name == wanted]
    if len(found) == 1:
        return found[0]
    if wanted is not None and found:
        raise Invalid(
            f"{len(found)} breakers are called {wanted!r}; give the id of one: {_shown([r.id for r in found])}"
        )
    said = "say which breaker's samples are meant" if wanted is None else f"the service has no breaker {wanted!r}"
    raise Invalid(f"{said}; there are {_shown([row.name for row in rows])}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _gives(router: RouterPlan, breaker_id: str) -> bool:
    """Whether the breaker gets samples of the router now."""
    return router.view.enabled and any(link.breaker_id == breaker_id for link in router.view.links)


async def _upto(
    log: SampleLog,
    links: Sequence[RouterRef],
    now_ms: int,
    within_ms: int = 0,
    ends: dict[str, int] | None = None,
) -> list[RouterRef]:
    """One reference per router, from its first link to where the log ends now, or from so long before that. Which of
    the records in between concern the breaker, the log's own views tell. `ends`: the ends of those asked before."""
    ends = {} if ends is None else ends
    routers: dict[str, RouterRef] = {}
    for link in links:
        known = routers.get(link.router_id, link)
        routers[link.router_id] = replace(known, since_offset=min(known.since_offset, link.since_offset))
    found = []
    for router in (one for one in routers.values() if one.log_slot):
        if router.router_id not in ends:
            ends[router.router_id] = await log.find(router.log_slot, router.router_id, now_ms)
        found.append(replace(router, until_offset=ends[router.router_id]))
    return await _newest(log, found, within_ms) if within_ms else found


async def _end_ms(log: SampleLog, links: Sequence[RouterRef]) -> int:
    """When the last of the logs' records was received; of none it is now."""
    now_ms, reader, ends_ms = SystemClock().now_ms(), LogReader(log), list[int]()
    for router in await _upto(log, links, now_ms):
        record = await reader.at(router, router.until_offset) if router.until_offset else None
        ends_ms += [] if record is None else [record.received_ms]
    return max(ends_ms, default=now_ms)


async def _newest(log: SampleLog, routers: Sequence[RouterRef], within_ms: int) -> list[RouterRef]:
    """Of what is read the part that was received so long before the last of it."""
    ends_ms, reader = [0], LogReader(log)
    for router in routers:
        record = await reader.at(router, router.until_offset) if router.until_offset else None
        ends_ms += [] if record is None else [record.received_ms]
    begins = [await log.find(one.log_slot, one.router_id, max(ends_ms) - within_ms) for one in routers]
    pairs = zip(routers, begins, strict=True)
    return [replace(router, since_offset=max(begin, router.since_offset)) for router, begin in pairs]
