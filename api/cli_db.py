"""`breakers db`: the schema of the database. A start upgrades SQLite by itself, PostgreSQL only when it is empty."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli_errors import one_line_errors
from breaker_actors.errors import Invalid

if TYPE_CHECKING:
    from breaker_actors.settings import Settings

db = typer.Typer(name="db", no_args_is_help=True, help="See and upgrade the schema of the database.")

DataDir = Annotated[Path | None, typer.Option(help="Where all data lives (BREAKERS_DATA_DIR; default ./.breakers).")]


@db.command()
def upgrade(data_dir: DataDir = None) -> None:
    """Bring the database to the schema of this program. Stop the service first."""
    with one_line_errors():
        from breaker_actors.stores import migrations
        from breaker_actors.stores.opening import store_url

        changed = migrations.upgrade(store_url(_settings(data_dir)))
    typer.echo(f"{'upgraded to' if changed else 'is up to date:'} schema {migrations.HEAD}")


@db.command()
def status(
    data_dir: DataDir = None, json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Show the schema of the database and the one this program knows."""
    with one_line_errors():
        from breaker_actors.stores import migrations
        from breaker_actors.stores.opening import store_url

        url = store_url(_settings(data_dir))
        current = migrations.current(url)
    found = {
        "database": "sqlite" if url.startswith("sqlite") else "postgresql",
        "current": current,
        "known": migrations.HEAD,
        "word": migrations.word(current),
    }
    if json:
        typer.echo(json_.dumps(found))
    else:
        typer.echo("\n".join(f"{name}\t{value or '-'}" for name, value in found.items()))


def _settings(data_dir: Path | None) -> Settings:
    """The settings of a store that is there; an empty PostgreSQL database counts, a file that would be new does not."""
    from breaker_actors.settings import load_settings
    from breaker_actors.stores.opening import is_in_use

    settings = load_settings(data_dir=data_dir)
    if settings.database_url is None and not is_in_use(settings):
        raise Invalid(f"there is no data in {settings.data_dir}; `breakers serve` makes it")
    return settings
