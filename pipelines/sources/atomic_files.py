"""Files that are there as a whole or not at all, and tables in them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from breaker_actors.errors import Invalid
from breaker_actors.text.escaping import for_csv


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
        beside.chmod(0o666 & ~umask())
        beside.replace(path)
    except OSError as error:
        raise Invalid(f"{path} can't be written: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)


def umask() -> int:
    """What the process takes from the modes of files and folders that it makes."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def csv_of(frame: pl.DataFrame, *, header: bool = True) -> bytes:
    """A frame as CSV that a spreadsheet opens as what it is: text is quoted, and no text in it is a formula."""
    return _harmless(frame).write_csv(include_header=header, quote_style="non_numeric").encode()


def _harmless(frame: pl.DataFrame) -> pl.DataFrame:
    texts = (column for column in frame if column.dtype == pl.String)
    return frame.with_columns(_without_formulas(column) for column in texts)


def _without_formulas(column: pl.Series) -> pl.Series:
    changed = {text: cell for text in column.drop_nulls().unique() if (cell := for_csv(text)) != text}
    return column.replace(list(changed), list(changed.values())) if changed else column


WRITERS: dict[str, Callable[[pl.DataFrame, Path], object]] = {
    ".parquet": lambda frame, path: frame.write_parquet(path),
    ".csv": lambda frame, path: path.write_bytes(csv_of(frame)),
    ".ndjson": lambda frame, path: frame.write_ndjson(path),
}
"""How a frame becomes a file, by its suffix. CSV is for spreadsheets; the others keep text as it is."""
