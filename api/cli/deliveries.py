"""`breakers deliveries`: what was told on a notification channel, what was not and why, and sending that again.

Works on the store itself; a running service goes on with what is redriven within a second.
"""

from __future__ import annotations

from collections.abc import Awaitable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.errors import FAILED, one_line_errors
from api.cli.named import BEGINNING, begun_id, channel_id_of, is_id, project_id_of, project_words
from api.cli.narrow import ID_CHARS
from api.cli.output import note, put_json, put_table
from api.cli.store_access import BY, AsJson, DataDir, Project, instant, newest, on_store
from breaker_actors.errors import Invalid, NotFound, NotRedrivable

if TYPE_CHECKING:
    from breaker_actors.store.base import Store
    from breaker_actors.store.rows import DeliveryRow

deliveries = typer.Typer(
    name="deliveries",
    no_args_is_help=True,
    help="See what was told on notification channels; send dead letters again. Where the data is: in the data directory"
    " of the service, or with its BREAKERS_DATABASE_URL.",
)

Channel = Annotated[
    str, typer.Option(help="Name or id of the channel; the project's id stands for its slack_webhook_url.")
]
DeadOnes = Annotated[
    list[str] | None, typer.Argument(help=f"Dead deliveries, as `deliveries list` shows them; {BEGINNING}.")
]


OLDER = "newer trips of the same outage tell of it"


class State(StrEnum):
    """States of a delivery."""

    pending = "pending"
    held = "held"
    sent = "sent"
    dead = "dead"
    cancelled = "cancelled"
    suppressed = "suppressed"


AnyChannel = Annotated[
    str | None,
    typer.Option(help="Name or id of the channel, the project's id for its slack_webhook_url; default: all of them."),
]


@deliveries.command("list")
def list_deliveries(
    channel: AnyChannel = None,
    project: Project = None,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 50,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List deliveries: id, time, kind, breaker, state, attempts, last status, last error, channel, mute."""

    project_id, channel_id = _meant(project, channel, data_dir)

    async def work(store: Store, _: int) -> tuple[list[DeliveryRow], dict[str, str], str]:
        await _check_project(store, project_id)
        names = {project_id: "slack_webhook_url"} | {row.id: row.name for row in await store.list_channels(project_id)}
        asked = [channel_id] if channel_id else list(names)
        found = [await _rows(store, project_id, of, state, limit) for of in asked]
        rows = sorted((row for rows in found for row in rows), key=lambda row: -row.number)[:limit]
        return rows, names, await project_words(store, project_id)

    rows, names, place = on_store(data_dir, work)
    if not rows:
        note(f"breakers: no {'' if state is None else f'{state.value} '}delivery in {place}")
    _show(rows, json, names)


@deliveries.command("redrive")
def redrive(
    channel: Channel,
    project: Project = None,
    ids: DeadOnes = None,
    all_dead: Annotated[bool, typer.Option("--all", help="All dead ones of the channel.")] = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Send dead deliveries again, each with the newest other dead ones of its outage, 200 in all; list them. Oldest
    first. Those that a later word of their breaker has overtaken are left alone. They are queued: what became of
    them is in `deliveries list`. Exit code 1 where all were left alone."""

    project_id, channel_id = _meant(project, channel, data_dir)

    async def work(store: Store, now_ms: int) -> tuple[list[DeliveryRow], dict[str, str], dict[str, str], str]:
        if bool(ids) == all_dead:
            raise Invalid("name the deliveries to send again, or all of them with --all")
        done: dict[str, DeliveryRow] = {}
        late: dict[str, str] = {}
        for id_ in await _named(store, project_id, channel_id, ids, late):
            if id_ in done:
                continue
            try:
                rows = await store.redrive_delivery(project_id, channel_id, id_, now_ms, by=BY)
                done |= {row.id: row for row in rows}
            except NotFound:
                place = await project_words(store, project_id)
                raise NotFound(f"there is no delivery {id_} of this channel in {place}") from None
            except NotRedrivable as error:
                late[id_] = str(error)
        names = {row.id: row.name for row in await store.list_channels(project_id)}
        return list(done.values()), late, names, await project_words(store, project_id)

    rows, late, names, place = on_store(data_dir, work)
    if not rows and not late:
        note(f"breakers: no dead delivery in {place}")
    _show(rows, json, {project_id: "slack_webhook_url"} | names)
    for id_, why in late.items():
        note(f"{id_} was left alone: {why}")
    if rows or late:
        reasons = "; ".join(dict.fromkeys(why.rstrip(".") for why in late.values()))
        note(f"queued again {len(rows)}" + (f", left alone {len(late)}: {reasons}" if late else ""))
    if late and not rows:
        raise typer.Exit(FAILED)


def _meant(project: str | None, channel: str | None, data_dir: Path | None) -> tuple[str, str]:
    """The ids of a project and of its channel; "" for no channel."""
    with one_line_errors():
        project_id = project_id_of(project, data_dir)
        return project_id, "" if channel is None else channel_id_of(channel, project_id, data_dir)


async def _check_project(store: Store, project: str) -> None:
    if await store.get_project(project) is None:
        raise Invalid(f"there is no project {project}")


async def _rows(store: Store, project: str, channel: str, state: State | None, limit: int) -> list[DeliveryRow]:
    """The newest deliveries of a channel, which may be gone already."""
    from breaker_actors.store.rows import DeliveryQuery

    def page(most: int, before: int | None) -> Awaitable[list[DeliveryRow]]:
        query = DeliveryQuery(
            project_id=project,
            channel_id=channel,
            state=None if state is None else state.value,
            before=before,
            limit=most,
        )
        return store.deliveries(query)

    return await newest(limit, page)


async def _named(store: Store, project: str, channel: str, ids: list[str] | None, late: dict[str, str]) -> list[str]:
    """The deliveries that are meant, by their ids or by beginnings of them. Without any all dead ones that are sent
    again with their outage, oldest first, so that trips go before what came of them; the others are noted as `late`."""
    if ids and not any(len(id_) >= ID_CHARS and not is_id(id_) for id_ in ids):
        return ids
    await _check_project(store, project)
    dead = (await _rows(store, project, channel, State.dead, 1 << 62))[::-1]
    if not ids:
        older = _older(dead)
        late |= dict.fromkeys(older, OLDER)
        return [row.id for row in dead if row.id not in older]
    known = [row.id for row in dead]
    return [id_ if is_id(id_) or len(id_) < ID_CHARS else begun_id("dead delivery", id_, known) for id_ in ids]


def _older(dead: list[DeliveryRow]) -> set[str]:
    """Those between the first one of an outage and its newest ones, which are sent again together."""
    from breaker_actors.store.rows import REDRIVEN_MAX

    outages: dict[tuple[str, str | int], list[str]] = {}
    for row in dead:
        outages.setdefault((row.breaker_id, row.id if row.incident is None else row.incident), []).append(row.id)
    return {id_ for ids in outages.values() for id_ in ids[1 : 1 - REDRIVEN_MAX]}


def _show(rows: list[DeliveryRow], json: bool, names: dict[str, str]) -> None:
    if json:
        import msgspec

        from api.wire.responses_deliveries import delivery

        put_json({"deliveries": [msgspec.to_builtins(delivery(row)) for row in rows]})
        return
    put_table(
        ("id", "time", "kind", "breaker", "state", "attempts", "last status", "last error", "channel", "mute"),
        (
            (
                row.id,
                instant(row.created_ms),
                row.kind,
                row.told.name,
                row.state,
                row.attempts,
                row.last_status,
                row.last_error,
                names.get(row.channel_id, row.channel_id),
                row.mute_id,
            )
            for row in rows
        ),
        short=("id", "mute"),
        least=("mute", "attempts", "channel", "last status"),
    )
