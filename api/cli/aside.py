"""`breakers aside`: what was stored and could not be read. It was set aside so that everybody else is served.

Works on the store itself, whether or not the service runs. Names and bytes come out escaped: they are what was wrong.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.output import note, put, put_json, put_table
from api.cli.store_access import DataDir, instant, newest, on_store
from breaker_actors.errors import Invalid

if TYPE_CHECKING:
    from breaker_actors.store.base import Store
    from breaker_actors.store.rows import AsideRow

aside = typer.Typer(
    name="aside", no_args_is_help=True, help="See what could not be read and was set aside, and drop it."
)


TITLES = ("number", "first seen", "last seen", "kind", "thing", "place", "project", "bytes", "reason")


@aside.command("list")
def list_aside(
    limit: Annotated[int, typer.Option(min=1, help="At most so many, newest first.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with the bytes.")] = False,
    data_dir: DataDir = None,
) -> None:
    """List what was set aside: number, seen first and last, kind, thing, place, project, bytes, reason."""

    async def work(store: Store, _: int) -> tuple[list[AsideRow], int]:
        return await newest(limit, store.list_aside), (await store.count_aside())[1]

    rows, dropped = on_store(data_dir, work)
    if json:
        put_json({"set_aside": [_body(row) for row in rows], "without_room": dropped})
        return
    put_table(TITLES, map(_line, rows))
    if dropped:
        note(f"{dropped} more found no room")


@aside.command("drop")
def drop_aside(
    numbers: Annotated[list[int] | None, typer.Argument(help="Numbers, as `aside list` shows them.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Forget what was set aside. What is still there and still can't be read is listed again after a restart."""

    async def work(store: Store, _: int) -> int:
        if bool(numbers) == everything:
            raise Invalid("name the numbers to drop, or all of them with --all")
        return await store.drop_aside(numbers or None)

    put(f"dropped {on_store(data_dir, work)}")


def _line(row: AsideRow) -> tuple[Any, ...]:
    times = (instant(row.first_ms), instant(row.seen_ms))
    return row.number, *times, row.kind, row.thing, row.place, row.project_id, row.size, row.reason


def _body(row: AsideRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "kind": row.kind,
        "thing": row.thing,
        "place": row.place,
        "project_id": row.project_id,
        "reason": row.reason,
        "size": row.size,
        "payload_base64": base64.b64encode(row.payload).decode(),
        "times": row.times,
        "first_at": instant(row.first_ms),
        "seen_at": instant(row.seen_ms),
    }
