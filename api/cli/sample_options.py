"""What the commands that read files of samples share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from breaker_actors.errors import Invalid

Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="OURS=THEIRS",
        help="How the input names ts_ms, value, ok, received_ms, metric, router_id, trace_id or count; may be given "
        "again.",
    ),
]
TimeUnit = Annotated[Literal["s", "ms", "us", "ns"], typer.Option(help="Of times in the samples that are numbers.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def renamed(pairs: list[str] | None) -> dict[str, str]:
    """Our names of columns -> theirs."""
    names = {}
    for pair in pairs or []:
        ours, found, theirs = pair.partition("=")
        if not found or not ours or not theirs:
            raise Invalid(f"--column {pair!r}: expected OURS=THEIRS, for example ts_ms=timestamp")
        names[ours] = theirs
    return names


def check_folder(path: Path) -> None:
    """Whether a file can be put there: said before the work, not after it."""
    if not path.parent.is_dir():
        raise Invalid(f"{path} can't be written: there is no directory {path.parent}")
