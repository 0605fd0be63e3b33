"""A JSON file, or stdin, that a command is given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from breaker_actors.errors import Invalid

FILE_BYTES_MAX = 1 << 20


def read_bytes(file: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """A file of at most so many bytes, stdin for -. Raises Invalid."""
    shown = _shown(file)
    try:
        if file == "-":
            content = sys.stdin.buffer.read(bytes_max + 1)
        else:
            with Path(file).open("rb") as opened:
                content = opened.read(bytes_max + 1)
    except OSError as error:
        raise Invalid(f"{shown} can't be read: {error.strerror}") from None
    if len(content) > bytes_max:
        raise Invalid(f"{shown} has more than {bytes_max} bytes")
    return content


def read_object(file: str) -> dict[str, Any]:
    """The JSON object of a file of at most FILE_BYTES_MAX bytes, of stdin for -. Raises Invalid."""
    shown = _shown(file)
    content = read_bytes(file)
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{shown} is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise Invalid(f"{shown} is not a JSON object")
    return fields


def _shown(file: str) -> str:
    return "stdin" if file == "-" else file
