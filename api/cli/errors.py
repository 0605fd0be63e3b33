"""How the commands fail: one line on stderr and an exit code."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from api.cli.output import note
from breaker_actors.errors import BreakersError, Invalid, SchemaMismatch

WRONG_USE, FAILED = 2, 1
OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Errors an operator can act on are one line on stderr: exit code 2 for wrong use, 1 for a failure."""
    try:
        yield
    except (Invalid, SchemaMismatch) as error:
        _fail(str(error), WRONG_USE)
    except BreakersError as error:
        _fail(str(error), FAILED)
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        _fail(": ".join(str(part) for part in (error.filename, error.strerror) if part), FAILED)


def _fail(message: str, code: int) -> None:
    note(f"breakers: {' '.join(message.split())}")
    raise typer.Exit(code)
