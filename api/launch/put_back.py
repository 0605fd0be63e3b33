"""A database that was put back beside logs that went on: its configuration counts again.

What was edited, unlinked and deleted since the database was copied stands in the logs, under later versions: breakers
would go by that, and drop as many edits as it had. So the database's configuration comes behind it, with the next
changes. Logs of PostgreSQL lie in the database, and are never later than it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from breaker_actors.errors import BreakersError, LogDamaged, NotFound
from breaker_actors.settings import Settings
from breaker_actors.text.counting import counted

if TYPE_CHECKING:
    from breaker_actors.messages import RouterAssignment
    from breaker_actors.store.base import Store
    from breaker_actors.wal.base import SampleLog

BY = "service start"
AT_ONCE = 500
OLDER = "the database is older than the logs, as one that was put back: its configuration counts from here on"
AGAIN = "the logs had later configuration of {what}: by the database again"
LEFT = "not all of the database's configuration could be put behind that of the logs ({why}): the next start goes on"
UNREAD = "the logs of {what} can't be read: breakers recover"


async def count_again(store: Store, settings: Settings, now_ms: int, warn: Callable[[str], None]) -> None:
    """Looks whether the logs have a change that the database never made; only then reads them all. What could not be
    done is left to the next start."""
    from breaker_actors.persistence import make_log, newest_change

    newest = newest_change(settings)  # first: what is in a log is in the database before
    if not await store.is_behind(newest):
        return
    warn(OLDER)
    log, told = make_log(settings), ToldAgain()
    try:
        told = await tell_again(store, log, {one.id for one in await store.placements("router")}, now_ms, BY)
        if told.unread:
            warn(LEFT.format(why=UNREAD.format(what=counted(told.unread, "router"))))
        else:
            await store.caught_up(newest)
    except BreakersError as error:
        warn(LEFT.format(why=error))
    finally:
        await log.close()
    if told.later:
        warn(AGAIN.format(what=counted(len(told.later), "breaker or router", "breakers and routers")))


async def all_routers(store: Store, router_ids: Sequence[str]) -> AsyncIterator[RouterAssignment]:
    """Where the logs of routers lie."""
    for start in range(0, len(router_ids), AT_ONCE):
        for router in await store.router_assignments(router_ids[start : start + AT_ONCE]):
            yield router


class ToldAgain(NamedTuple):
    """`later`: whose configuration was later in the logs. `unread`: how many routers' logs could not be read."""

    later: Sequence[str] = ()
    unread: int = 0


async def tell_again(
    store: Store, log: SampleLog, router_ids: Collection[str], now_ms: int, by: str, dry: bool = False
) -> ToldAgain:
    """Has the database's configuration of routers come behind what their logs have later. The logs of all routers are
    read first, whoever is named: a breaker's settings get a version beyond what any of them has. Of a log that is
    damaged, or has settings that nobody can read, nothing is known."""
    from breaker_actors.breaker.replayed import configured
    from breaker_actors.messages import RouterRef

    known, highest, unread = list[Any](), dict[str, int](), 0
    async for router in all_routers(store, [one.id for one in await store.placements("router")]):
        try:
            view, told = await configured(log, RouterRef(router.router_id, "", router.log_slot, 0))
        except (LogDamaged, msgspec.MsgspecError):
            unread += 1
            continue
        if router.router_id in router_ids:
            known.append((router, view, told))
        for id_, last in told.items():
            highest[id_] = max(last.version, highest.get(id_, 0))
    later = dict[str, None]()
    for router, view, told in known:
        with contextlib.suppress(NotFound):  # the router is deleted: its last change is on the way
            beyond = {id_: highest[id_] for id_ in told}
            place = router.project_id, router.router_id
            later |= dict.fromkeys(await store.tell_again(*place, view, told, beyond, now_ms, by, dry))
    return ToldAgain(tuple(later), unread)
