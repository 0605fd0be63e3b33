"""`breakers recover`: makes damaged logs whole, by an operator's word. What is lost is said, and stands in the log as a
gap. Where a log has later configuration than the database, which was put back, the database's comes behind it.

Works on the data directory of a service that is stopped, or on the PostgreSQL database: who owned a log there loses it,
and takes it over anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.output import note, put_json, put_table
from api.cli.store_access import BY, AsJson, DataDir, instant, on_store, settings_of
from breaker_actors.errors import Invalid, NotFound

if TYPE_CHECKING:
    from api.launch.put_back import ToldAgain
    from breaker_actors.messages import RouterAssignment
    from breaker_actors.settings import Settings
    from breaker_actors.store.base import Store
    from breaker_actors.wal.base import Loss, SampleLog

TITLES = ("ROUTER", "FIRST", "LAST", "FROM", "TO")


def recover(
    routers: Annotated[list[str] | None, typer.Argument(help="Ids of routers; all of them with --all.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every router there is.")] = False,
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Also set logs back to now that are ahead of the clock.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only said what is lost.")] = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make damaged logs of routers whole again. What is lost of them is shown: records that are missing, or are not
    what was written, and when they were received. Their routers take samples again, behind a gap. With --ahead so do
    those whose logs are ahead of the clock: what is stamped later than now is lost; their breakers keep their states.
    Where a database was put back beside logs that went on, breakers go by its settings again, and those that were
    deleted since begin anew. Stop the service first, and start it afterwards."""

    from breaker_actors.persistence import newest_change

    async def work(store: Store, now_ms: int) -> tuple[list[Loss], list[str]]:
        if bool(routers) == everything:
            raise Invalid("name the routers, or all of them with --all")
        known = {one.id: one for one in await store.placements("router")}
        if unknown := sorted(set(routers or ()) - known.keys()):
            raise Invalid(f"there is no router {unknown[0]}")
        settings = settings_of(data_dir)
        ahead_max_ms = settings.clock_step_max_ms if ahead else None
        newest = newest_change(settings)
        if yes:
            await store.is_behind(newest)  # a start goes on where this ends early, or is of some routers alone
        losses, told = await _recovered(store, settings, sorted(routers or known), now_ms, not yes, ahead_max_ms)
        if everything and yes and not told.unread:
            await store.caught_up(newest)
        return losses, list(told.later)

    lock = _alone(data_dir)
    try:
        losses, later = on_store(data_dir, work)
    finally:
        if lock is not None:
            lock.close()
    if json:
        put_json({"recovered": yes, "losses": [_body(loss) for loss in losses], "later": later})
        return
    if losses:
        put_table(TITLES, ((*_body(loss).values(),) for loss in losses))
    if not losses:
        note("nothing is lost")
    for id_ in later:
        note(
            f"the log has later configuration of {id_} than the database, which {'counts again' if yes else 'is older'}"
        )
    if (losses or later) and not yes:
        note("nothing was changed: --yes makes these logs whole, with gaps where records are lost; what is later goes")


def _alone(data_dir: Any) -> Any:
    """Keeps a service away from a data directory; of a PostgreSQL database nobody has to be kept away."""
    from api.cli.errors import one_line_errors
    from api.launch.ray_environment import take_data_dir
    from breaker_actors.persistence import is_in_use

    with one_line_errors():
        settings = settings_of(data_dir)
        return take_data_dir(settings.data_dir) if settings.database_url is None and is_in_use(settings) else None


async def _recovered(
    store: Store, settings: Settings, router_ids: list[str], now_ms: int, dry: bool, ahead_max_ms: int | None
) -> tuple[list[Loss], ToldAgain]:
    from api.launch.put_back import all_routers, tell_again
    from breaker_actors.persistence import make_log

    log, found = make_log(settings), list[Any]()
    try:
        async for router in all_routers(store, router_ids):
            found += await make_whole(store, log, router, now_ms, dry, ahead_max_ms)
        told = await tell_again(store, log, set(router_ids), now_ms, BY, dry)
    finally:
        await log.close()
    return found, told


async def make_whole(
    store: Store, log: SampleLog, router: RouterAssignment, now_ms: int, dry: bool, ahead_max_ms: int | None = None
) -> list[Loss]:
    """Recovers one log, and answers what of it is lost. The routing table comes behind that: the one in the log may be
    lost, too."""
    place = (router.log_slot, router.router_id, router.reached_offset, now_ms)
    lost: list[Loss] = await log.recover(*place, None, ahead_max_ms)
    if not dry:
        try:
            entries = await store.router_entries(router.project_id, router.router_id, now_ms, BY) if lost else ()
        except NotFound:  # it is deleted: its last change is on the way
            entries = ()
        await log.recover(*place, entries, ahead_max_ms)
    return lost


def _body(loss: Loss) -> dict[str, Any]:
    return {
        "router_id": loss.router_id,
        "first": loss.first,
        "last": loss.last,
        "from": instant(loss.from_ms) if loss.from_ms else "the beginning",
        "to": instant(loss.to_ms),
    }
