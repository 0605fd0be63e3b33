"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from breaker_actors.errors import Invalid


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` when all went well and is gone otherwise."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise Invalid(f"{path} can't be written: {error.strerror}") from None
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        beside.chmod(0o666 & ~_umask())
        beside.replace(path)
    except OSError as error:
        raise Invalid(f"{path} can't be written: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
