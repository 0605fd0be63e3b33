"""`breakers deliveries`: what was told on a notification channel, what was not and why, and sending that again.

Works on the store itself; a running service goes on with what is redriven within a second.
"""

from __future__ import annotations

from collections.abc import Awaitable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.errors import one_line_errors
from api.cli.named import channel_id_of, project_id_of
from api.cli.output import note, put_json, put_table
from api.cli.store_access import BY, AsJson, DataDir, instant, newest, on_store
from breaker_actors.errors import Invalid, NotRedrivable

if TYPE_CHECKING:
    from breaker_actors.store.base import Store
    from breaker_actors.store.rows import DeliveryRow

deliveries = typer.Typer(
    name="deliveries", no_args_is_help=True, help="See what was told on notification channels; send dead letters again."
)

Project = Annotated[str | None, typer.Option(help="Name or id of the project; default: that of credentials.json.")]
Channel = Annotated[
    str, typer.Option(help="Name or id of the channel; the project's id stands for its slack_webhook_url.")
]


class State(StrEnum):
    """States of a delivery."""

    pending = "pending"
    sent = "sent"
    dead = "dead"
    cancelled = "cancelled"


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
    """List deliveries: id, time, kind, breaker, state, attempts, last status, last error, channel."""

    project_id, channel_id = _meant(project, channel, data_dir)

    async def work(store: Store, _: int) -> tuple[list[DeliveryRow], dict[str, str]]:
        await _check_project(store, project_id)
        names = {project_id: "slack_webhook_url"} | {row.id: row.name for row in await store.list_channels(project_id)}
        asked = [channel_id] if channel_id else list(names)
        found = [await _rows(store, project_id, of, state, limit) for of in asked]
        return sorted((row for rows in found for row in rows), key=lambda row: -row.number)[:limit], names

    rows, names = on_store(data_dir, work)
    _show(rows, json, names)


@deliveries.command("redrive")
def redrive(
    channel: Channel,
    project: Project = None,
    ids: Annotated[list[str] | None, typer.Argument(help="Dead deliveries, as `deliveries list` shows them.")] = None,
    all_dead: Annotated[bool, typer.Option("--all", help="All dead ones of the channel.")] = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Send dead deliveries again, each with the other dead ones of its outage; list them. Oldest first."""

    project_id, channel_id = _meant(project, channel, data_dir)

    async def work(store: Store, now_ms: int) -> tuple[list[DeliveryRow], list[str], dict[str, str]]:
        if bool(ids) == all_dead:
            raise Invalid("name the deliveries to send again, or all of them with --all")
        done: dict[str, DeliveryRow] = {}
        late: list[str] = []
        for id_ in ids or await _dead(store, project_id, channel_id):
            if id_ in done:
                continue
            try:
                rows = await store.redrive_delivery(project_id, channel_id, id_, now_ms, by=BY)
                done |= {row.id: row for row in rows}
            except NotRedrivable as error:
                if not all_dead:
                    raise
                late.append(f"{id_} was left alone: {error}")
        names = {row.id: row.name for row in await store.list_channels(project_id)}
        return list(done.values()), late, names

    rows, late, names = on_store(data_dir, work)
    _show(rows, json, {project_id: "slack_webhook_url"} | names)
    for line in late:
        note(line)


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


async def _dead(store: Store, project: str, channel: str) -> list[str]:
    """Oldest first, so that trips go before what came of them."""
    await _check_project(store, project)
    return [row.id for row in reversed(await _rows(store, project, channel, State.dead, 1 << 62))]


def _show(rows: list[DeliveryRow], json: bool, names: dict[str, str]) -> None:
    if json:
        import msgspec

        from api.wire.responses_deliveries import delivery

        put_json({"deliveries": [msgspec.to_builtins(delivery(row)) for row in rows]})
        return
    put_table(
        ("id", "time", "kind", "breaker", "state", "attempts", "last status", "last error", "channel"),
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
            )
            for row in rows
        ),
    )
