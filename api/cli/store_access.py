"""What the commands on a data directory share: the open store, and how a time is shown."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from api.cli.errors import one_line_errors
from breaker_actors.clock import rfc3339

if TYPE_CHECKING:
    from breaker_actors.settings import Settings
    from breaker_actors.store.base import Store
    from breaker_actors.store.rows import AsideRow, DeliveryRow

T = TypeVar("T")
R = TypeVar("R", "AsideRow", "DeliveryRow")

PAGE = 500

BY = "command line"
"""Who did it, in the audit log."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DataDir = Annotated[Path | None, typer.Option(help="Where all data lives (BREAKERS_DATA_DIR; default ./.breakers).")]
Project = Annotated[
    str | None,
    typer.Option(envvar="BREAKERS_PROJECT", help="Name or id of the project; default: that of credentials.json."),
]


def settings_of(data_dir: Path | None, whole: bool = False, **given: Any) -> Settings:
    """The settings of a command, whose data directory is this user's alone or not there; one that nobody named is
    closed to others, too. Every command that takes --data-dir begins here. `whole`: it reads logs or history there, so
    each of their files is looked at. Raises Invalid."""
    from api.launch.ray_environment import check_data_dir
    from breaker_actors.settings import load_settings

    settings = load_settings(data_dir=data_dir, **given)
    check_data_dir(settings.data_dir, whole, found=not is_named(data_dir))
    return settings


def is_named(data_dir: Path | None) -> bool:
    """Whether the user said which data directory is meant. By default, and by a relative path of the environment, it is
    the one of the folder that a command runs in, which whoever made that folder may have put there."""
    return data_dir is not None or Path(os.environ.get("BREAKERS_DATA_DIR", "")).is_absolute()


def on_store(data_dir: Path | None, work: Callable[[Store, int], Awaitable[T]]) -> T:
    """Runs `work` on a store that is in use: the data directory's, or the database of BREAKERS_DATABASE_URL."""
    from breaker_actors.clock import SystemClock
    from breaker_actors.persistence import check_in_use, make_store

    log_to_stderr()

    async def run() -> T:
        await asyncio.to_thread(_refuse_keys_alone, settings)
        await asyncio.to_thread(check_in_use, settings)
        store = make_store(settings)
        await store.open()
        try:
            return await work(store, SystemClock().now_ms())
        finally:
            await store.close()

    with one_line_errors():
        settings = settings_of(data_dir)
        return asyncio.run(run())


def refuse_running(data_dir: Path) -> None:
    """Raises Invalid while a service runs on the data directory, also a deployed one; for commands with --yes."""
    from api.launch.doctor import running
    from breaker_actors.errors import Invalid
    from breaker_actors.store import holders

    pid = running(data_dir)
    if pid is not None:
        raise Invalid(f"a service runs on {data_dir} (pid {pid}): stop it first, or say --yes")
    try:
        holders.check(data_dir)
    except Invalid as error:
        raise Invalid(f"{error}; or say --yes") from None


def _refuse_keys_alone(settings: Settings) -> None:
    """Raises Invalid where there is but the credentials.json of a service elsewhere: a start would make another."""
    from api.launch.bootstrap import FILE_NAME, read
    from breaker_actors.errors import Invalid
    from breaker_actors.persistence import is_in_use

    if settings.database_url is None and not is_in_use(settings) and (known := read(settings.data_dir / FILE_NAME)):
        raise Invalid(
            f"{settings.data_dir} has the keys to {known.base_url}, not its data: run this where the service's data is"
            " (--data-dir, or BREAKERS_DATABASE_URL), or ask over HTTP"
        )


async def newest(limit: int, page: Callable[[int, int | None], Awaitable[list[R]]]) -> list[R]:
    """At most `limit` rows, newest first, by a `page` of at most so many of them before a number."""
    rows: list[R] = []
    while len(rows) < limit:
        more = await page(min(PAGE, limit - len(rows)), rows[-1].number if rows else None)
        if not more:
            break
        rows += more
    return rows


def log_to_stderr() -> None:
    """What could not be read is logged beside the results, not among them."""
    from breaker_actors.telemetry import logs

    logs.configure("command", level=logging.WARNING)


def instant(ms: int | None) -> str:
    return "never" if ms is None else rfc3339(ms)
