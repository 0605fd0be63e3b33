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
from collections.abc import Sequence

from msgspec.structs import replace

from breaker_actors.clock import SystemClock
from breaker_actors.errors import Invalid
from breaker_actors.messages import RouterRef
from breaker_actors.persistence import check_in_use, make_log, make_store
from breaker_actors.settings import Settings, load_settings
from breaker_actors.store.base import Store
from breaker_actors.store.rows import UNREADABLE_RULE, BreakerRow
from breaker_actors.wal.base import SampleLog
from pipelines.sources.routing import RouterPlan, plans
from pipelines.sources.service_log import OwnLoop, Recorded

__all__ = ["Recorded", "recorded"]

NAMED = 10
"""Breakers that a message names."""


def recorded(breaker: str | None = None, settings: Settings | None = None) -> Recorded:
    """The samples of a breaker, by its id or name; without one, of the only breaker there is. Raises Invalid.

    `settings`: where the service keeps its data; BREAKERS_* variables where none are given."""
    found = load_settings() if settings is None else settings
    with OwnLoop() as loop:
        return loop.run(_located(breaker, found))


async def _located(wanted: str | None, settings: Settings) -> Recorded:
    await asyncio.to_thread(check_in_use, settings)
    store, log = make_store(settings), make_log(settings)
    await store.open()
    try:
        rows = await _breakers(store)
        row = _only(wanted, rows)
        if row.rule == UNREADABLE_RULE:
            raise Invalid(f"the rule of breaker {row.name!r} ({row.id}) can't be read; write it anew with a PATCH")
        links = [link for assigned in await store.breaker_assignments([row.id]) for link in assigned.routers]
        logs = await _upto(log, links, SystemClock().now_ms())
        routers, _ = plans(await store.list_routers(row.project_id), rows)
        return Recorded(row, logs, [router for router in routers if _gives(router, row.id)], settings)
    finally:
        await log.close()
        await store.close()


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


async def _upto(log: SampleLog, links: Sequence[RouterRef], now_ms: int) -> list[RouterRef]:
    """One reference per router, from its first link to where the log ends now. Which of the records in between concern
    the breaker, the log's own views tell."""
    routers: dict[str, RouterRef] = {}
    for link in links:
        known = routers.get(link.router_id, link)
        routers[link.router_id] = replace(known, since_offset=min(known.since_offset, link.since_offset))
    return [
        replace(router, until_offset=await log.find(router.log_slot, router.router_id, now_ms))
        for router in routers.values()
        if router.log_slot
    ]
