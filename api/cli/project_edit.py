"""`breakers projects create | edit`: projects, and what they ask of those who send to them, for a running service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from api.cli.breaker_client import DataDir, Insecure, Url, open_client
from api.cli.errors import one_line_errors
from api.cli.output import note, put, put_json
from api.cli.store_access import AsJson
from breaker_actors.errors import Invalid

Which = Annotated[
    str | None,
    typer.Argument(
        envvar="BREAKERS_PROJECT",
        help="Name or id of the project; default: that of credentials.json.",
        metavar="[NAME]",
    ),
]
Signed = Annotated[
    bool | None,
    typer.Option(
        "--signed-ingest/--no-signed-ingest",
        help="Take samples alone that are signed with the project's ingest secret (enable_signed_ingest).",
    ),
]
Rename = Annotated[str | None, typer.Option(help="New name of the project.")]


New = Annotated[str, typer.Argument(help="Name of the new project.", metavar="NAME")]
Workspace = Annotated[str | None, typer.Option(help="Name or id of its workspace; not needed while there is one only.")]


def create_project(
    name: New,
    workspace: Workspace = None,
    url: Url = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make a project; show its id. --json shows its ingest secret as well, which can't be shown again."""
    with one_line_errors(), open_client(url, name, data_dir, insecure_http) as client:
        row = client.create_project(name, workspace)
    put_json(row) if json else put(str(row["project_id"]))
    note(f"breakers: a key for it: breakers keys create --kind project --project {row['project_id']}")


def edit_project(
    name: Which = None,
    signed_ingest: Signed = None,
    rename: Rename = None,
    url: Url = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Change a project: what is not given stays. Samples without a signature are refused within a second of
    --signed-ingest: let those who send sign first."""
    given = {"enable_signed_ingest": signed_ingest, "name": rename}
    fields: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    with one_line_errors(), open_client(url, name, data_dir, insecure_http) as client:
        if not fields:
            raise Invalid("say what to change: --signed-ingest, --no-signed-ingest or --rename")
        row = client.change_project(fields)
    put_json(row) if json else put(f"changed {row.get('project_id')}")
    if signed_ingest:
        note("breakers: samples without a signature are refused; those who sign: docs/guides/signed-ingest.md")
