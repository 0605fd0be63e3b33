"""What benches that print a list of figures share: their options, and how the figures are shown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path


def options_of(bench: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m tests.bench {bench}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true")
    return parser


def show(figures: Mapping[str, float], path: Path | None) -> None:
    """Prints them, and writes them to a file if there is to be one."""
    for name, value in figures.items():
        print(f"{name:36} {value:12.2f}")
    if path is not None:
        path.write_text(json.dumps(figures, indent=1))
