"""A database that was put back beside logs that went on: its configuration counts again.

What was edited, unlinked and deleted since the database was copied stands in the logs, under later versions: breakers
would go by that, and drop as many edits as it had. So the database's configuration comes behind it, with the next
changes. Logs of PostgreSQL lie in the database, and are never later than it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

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
AGAIN = "{what} had later configuration in the logs, and will go by the database again"
LEFT = "not all of the database's configuration could be put behind that of the logs ({error}): the next start goes on"


async def count_again(store: Store, settings: Settings, now_ms: int, warn: Callable[[str], None]) -> None:
    """Looks whether the logs have a change that the database never made; only then reads them all. What could not be
    done is left to the next start."""
    from breaker_actors.persistence import make_log, newest_change

    newest = newest_change(settings)  # first: what is in a log is in the database before
    if newest <= await store.last_change():
        return
    warn(OLDER)
    log, later = make_log(settings), list[str]()
    try:
        later = await tell_again(store, log, [one.id for one in await store.placements("router")], now_ms, BY)
        await store.skip_changes(newest)
    except BreakersError as error:
        warn(LEFT.format(error=error))
    finally:
        await log.close()
    if later:
        warn(AGAIN.format(what=counted(len(later), "breaker or router")))


async def all_routers(store: Store, router_ids: Sequence[str]) -> AsyncIterator[RouterAssignment]:
    """Where the logs of routers lie."""
    for start in range(0, len(router_ids), AT_ONCE):
        for router in await store.router_assignments(router_ids[start : start + AT_ONCE]):
            yield router


async def tell_again(
    store: Store, log: SampleLog, router_ids: Sequence[str], now_ms: int, by: str, dry: bool = False
) -> list[str]:
    """Has the database's configuration of routers come behind what their logs have later; answers whose that is. All
    logs are read first: a breaker's settings get a version beyond what any of them has. Of a damaged log nothing is
    known."""
    from breaker_actors.breaker.replayed import configured
    from breaker_actors.messages import RouterRef

    known, highest = list[Any](), dict[str, int]()
    async for router in all_routers(store, router_ids):
        with contextlib.suppress(LogDamaged):
            view, told = await configured(log, RouterRef(router.router_id, "", router.log_slot, 0))
            known.append((router, view, told))
            for id_, last in told.items():
                highest[id_] = max(last.version, highest.get(id_, 0))
    later = dict[str, None]()
    for router, view, told in known:
        with contextlib.suppress(NotFound):  # the router is deleted: its last change is on the way
            beyond = {id_: highest[id_] for id_ in told}
            place = router.project_id, router.router_id
            later |= dict.fromkeys(await store.tell_again(*place, view, told, beyond, now_ms, by, dry))
    return list(later)
