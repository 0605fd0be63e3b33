"""`breakers backup`: a copy of the data directory, of one instant, also beside a running service."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from api.cli.errors import one_line_errors
from api.cli.history import bars
from api.cli.output import note, put, put_json
from api.cli.store_access import AsJson, DataDir, settings_of
from breaker_actors.errors import Invalid
from breaker_actors.text.counting import counted

if TYPE_CHECKING:
    from breaker_actors.settings import Settings

LOGS = "log"
MB = 1_000_000
Tell = Callable[[str, int, int], None]


class Made(msgspec.Struct, frozen=True):
    """`size`: bytes of the database and the logs; `held_ms`: how long writes to the database waited for it."""

    folder: str
    logs: int
    size: int
    held_ms: int


def backup(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make; it must be new or empty.")],
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Copy a data directory into a new folder, as it is at one instant; a service may run on it. The database, the
    logs, the key that secrets are sealed with, and the keys of the first start; not backfilled history. The folder is
    there when all of it is written; until then its name ends in .part. A PostgreSQL database is for pg_dump."""
    with one_line_errors():
        settings = settings_of(data_dir, whole=True)
        with bars(json) as tell:
            made = backed_up(settings, folder, tell)
    if json:
        put_json(msgspec.to_builtins(made))
    else:
        put(f"{made.folder}: the database and {counted(made.logs, 'log file')}, {made.size / MB:,.1f} MB")
    if settings.secret_key is not None:
        note("breakers: secrets in it are sealed with BREAKERS_SECRET_KEY, which is not in it")


def backed_up(settings: Settings, folder: Path, tell: Tell = lambda words, done, total: None) -> Made:
    """Raises Invalid for a folder that can't be made, or a database that is none of SQLite; Unavailable for what can't
    be read; OSError where the disk is full. Then nothing is left of it."""
    from breaker_actors.persistence import DATABASE, check_in_use
    from breaker_actors.sql import copies

    if settings.database_url is not None:
        raise Invalid("the data is in PostgreSQL: pg_dump makes a backup of it, of one instant")
    check_in_use(settings)
    database, logs = settings.data_dir / DATABASE, settings.data_dir / LOGS
    with _made_whole(folder) as (path, part):
        begun_s = time.perf_counter()
        with copies.pinned(database, lambda: sorted(logs.glob("*.sqlite"))) as files:
            held_ms = round((time.perf_counter() - begun_s) * 1000)
            size, done = sum(file.size for file in files), 0
            for file in files:
                copies.copy(
                    file,
                    part / file.path.relative_to(settings.data_dir),
                    lambda more, before=done: tell("MB", (before + more) // MB, size // MB),  # type: ignore[misc]
                )
                done += file.size
        _copy_keys(settings.data_dir, part)
    return Made(str(path), len(files) - 1, size, held_ms)


def _copy_keys(data_dir: Path, part: Path) -> None:
    from api.launch.bootstrap import FILE_NAME
    from breaker_actors.persistence import KEY_FILE
    from breaker_actors.store.own_file import read_own

    for name in (KEY_FILE, FILE_NAME):
        if (data_dir / name).exists():
            content = read_own(data_dir / name)
            descriptor = os.open(part / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)


@contextmanager
def _made_whole(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Its path, and the folder beside it that gets its name at the end, or goes."""
    from breaker_actors.own_path import check_parents, without_links
    from breaker_actors.sql.sqlite import sync_folder

    path = without_links(folder)
    if not path.parent.is_dir():
        raise Invalid(f"{folder} can't be made: there is no directory {path.parent}")
    if path.exists() and (not path.is_dir() or path.is_mount() or any(path.iterdir())):
        raise Invalid(f"{folder} is there and is no empty folder: name one that is to be made")
    check_parents(path)
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        part.mkdir(mode=0o700)
    except OSError as error:
        raise Invalid(f"{folder} can't be made: {error.strerror}") from None
    try:
        (part / LOGS).mkdir(mode=0o700)
        yield path, part
        for made in (part / LOGS, part):
            sync_folder(made)
        part.rename(path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync_folder(path.parent)
