"""`breakers db`: the schema of the database. A start upgrades SQLite by itself, PostgreSQL only when it is empty."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.errors import one_line_errors
from api.cli.output import put, put_json, put_rows
from api.cli.store_access import AsJson, DataDir, refuse_running, settings_of
from breaker_actors.errors import Invalid

if TYPE_CHECKING:
    from breaker_actors.settings import Settings

db = typer.Typer(name="db", no_args_is_help=True, help="See and upgrade the schema of the database.")


@db.command()
def upgrade(
    data_dir: DataDir = None,
    yes: Annotated[bool, typer.Option("--yes", help="Also while a service runs on the data directory.")] = False,
) -> None:
    """Bring the database to the schema of this program. Stop the service first: SQLite under a running one is refused
    without --yes."""
    with one_line_errors():
        from breaker_actors.persistence import store_url
        from breaker_actors.store import migrations

        told: list[str] = []
        settings = _settings(data_dir)
        if settings.database_url is None and not yes:
            refuse_running(settings.data_dir)
        changed = migrations.upgrade(store_url(settings), told)
    for line in told:
        put(f"repaired {line}")
    put(f"{'upgraded to' if changed else 'is up to date:'} schema {migrations.HEAD}")


@db.command()
def status(data_dir: DataDir = None, json: AsJson = False) -> None:
    """Show the schema of the database and the one this program knows."""
    with one_line_errors():
        from breaker_actors.persistence import store_url
        from breaker_actors.store import migrations

        url = store_url(_settings(data_dir))
        current = migrations.current(url)
    found = {
        "database": "sqlite" if url.startswith("sqlite") else "postgresql",
        "current": current,
        "known": migrations.HEAD,
        "word": migrations.word(current),
    }
    if json:
        put_json(found)
    else:
        put_rows((name, value or None) for name, value in found.items())


def _settings(data_dir: Path | None) -> Settings:
    """The settings of a store that is there; an empty PostgreSQL database counts, a file that would be new does not."""
    from breaker_actors.persistence import is_in_use

    settings = settings_of(data_dir)
    if settings.database_url is None and not is_in_use(settings):
        raise Invalid(f"there is no data in {settings.data_dir}; `breakers serve` makes it")
    return settings
