"""What the commands on a data directory share: the open store, and how rows are printed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from api.cli_errors import one_line_errors

if TYPE_CHECKING:
    from breaker_actors.stores.base import Store

T = TypeVar("T")

BY = "command line"
"""Who did it, in the audit log."""

DataDir = Annotated[Path | None, typer.Option(help="Where all data lives (BREAKERS_DATA_DIR; default ./.breakers).")]


def on_store(data_dir: Path | None, work: Callable[[Store, int], Awaitable[T]]) -> T:
    """Runs `work` on a store that is in use: the data directory's, or the database of BREAKERS_DATABASE_URL."""
    from breaker_actors.clock import SystemClock
    from breaker_actors.settings import load_settings
    from breaker_actors.stores.opening import check_in_use, make_store

    async def run() -> T:
        settings = load_settings(data_dir=data_dir)
        await asyncio.to_thread(check_in_use, settings)
        store = make_store(settings)
        await store.open()
        try:
            return await work(store, SystemClock().now_ms())
        finally:
            await store.close()

    with one_line_errors():
        return asyncio.run(run())


def instant(ms: int | None) -> str:
    from api.bodies import rfc3339

    return "never" if ms is None else rfc3339(ms)


def table(rows: Iterable[tuple[Any, ...]]) -> None:
    """One line each, columns separated by tabs: for eyes and for `cut`."""
    for row in rows:
        typer.echo("\t".join("-" if cell is None else str(cell) for cell in row))
