"""Texts kept beside a test: `GOLDEN=write pytest ...` writes them anew, to be read in the diff."""

from __future__ import annotations

import os
from pathlib import Path


def check_golden(path: Path, text: str) -> None:
    """The text is the one in the file."""
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="")
    assert path.read_bytes().decode() == text, f"{path.name} differs; if it should, write it anew with GOLDEN=write"
