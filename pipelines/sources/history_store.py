"""The history store: samples that were not received live, as Parquet partitioned by project, router and day.

`samples/project=<id>/router=<id>/day=<YYYY-MM-DD>/<run>.<chunk>.parquet`, so that polars, pandas and DuckDB read it as
it is. The day is the UTC one of received_ms, which is ts_ms where a sample came with no time of arrival. A file is
named by who wrote it: written again it takes its own place, so nothing is there twice.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence

import polars as pl

from breaker_actors.clock import moment
from breaker_actors.errors import Invalid
from pipelines.sources.object_store import Place

INSTANT = pl.Datetime("ms", "UTC")
"""The type of a readable time."""
SCHEMA = {
    "router_id": pl.String,
    "metric": pl.String,
    "ts_ms": pl.Int64,
    "received_ms": pl.Int64,
    "value": pl.Float64,
    "ok": pl.Boolean,
    "trace_id": pl.String,
    "count": pl.Int64,
}
DAY_MS = 86_400_000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


def folder_of(project_id: str, router_id: str | None = None, day: int | None = None) -> str:
    """The partition of a project, of one of its routers, or of one day (since 1970) of that. Raises Invalid for an id
    that would be more than the name of a folder: a database may be somebody else's."""
    for id_ in (project_id, *([] if router_id is None else [router_id])):
        if _ID.fullmatch(id_) is None:
            raise Invalid(f"{id_!r} is no id: no folder can have that name")
    parts = ["samples", f"project={project_id}"]
    if router_id is not None:
        parts.append(f"router={router_id}")
    if day is not None:
        parts.append(f"day={moment(day * DAY_MS).date().isoformat()}")
    return "/".join(parts)


def by_partition(project_id: str, frame: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """The frame in pieces, each with the partition it belongs to, in order of arrival."""
    days = frame.with_columns(day=pl.col("received_ms") // DAY_MS)
    for (router_id, day), piece in days.group_by("router_id", "day", maintain_order=True):
        ordered = piece.drop("day").sort("received_ms", maintain_order=True)
        yield folder_of(project_id, str(router_id), int(str(day))), ordered


def add(place: Place, project_id: str, frame: pl.DataFrame, part: str) -> None:
    """Writes samples in the shape of SCHEMA; `part` names them for good."""
    for folder, piece in by_partition(project_id, frame):
        place.write(f"{folder}/{part}.parquet", parquet(piece))


def parquet(frame: pl.DataFrame) -> bytes:
    """The frame as the content of a Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=1)
    return buffer.getvalue()


def files(
    place: Place,
    project_id: str,
    router_ids: Iterable[str] | None = None,
    *,
    from_ms: int = 0,
    to_ms: int | None = None,
    run: str | None = None,
) -> list[str]:
    """The files that may hold samples received in [from_ms, to_ms), of a run if one is named, in order of routers, then
    days."""
    under = [folder_of(project_id)] if router_ids is None else [folder_of(project_id, id_) for id_ in router_ids]
    first = moment(from_ms).date().isoformat()
    last = "9999" if to_ms is None else moment(to_ms - 1).date().isoformat()
    found = (name for folder in under for name in place.names(folder) if name.endswith(".parquet"))
    return [
        name
        for name in found
        if first <= name.rsplit("day=", 1)[-1][:10] <= last and run in (None, name.rpartition("/")[2].partition(".")[0])
    ]


def frame_of(place: Place, name: str) -> pl.DataFrame:
    """The samples of one file."""
    content = io.BytesIO(place.read(name) or b"")
    try:
        there = pl.read_parquet_schema(content)
        return with_count(pl.read_parquet(content, columns=[one for one in SCHEMA if one != "count" or one in there]))
    except pl.exceptions.PolarsError as error:
        first = (str(error).strip().splitlines() or ["it is damaged"])[0]
        raise Invalid(f"{place.url}/{name} can't be read: {first}") from None


def with_count(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with a count in each row; one of before there were any has none, and each stands for one."""
    given = pl.col("count").fill_null(1) if "count" in frame.columns else pl.lit(1, pl.Int64)
    return frame.with_columns(count=given)


class History:
    """A source (see `pipelines.sources.files`) over files of the store, one after the other, cut to [from_ms, to_ms).
    To be put in order by `pipelines.sources.external_sort`."""

    def __init__(self, place: Place, names: Sequence[str], *, from_ms: int = 0, to_ms: int | None = None) -> None:
        self.names = [place.url]
        self._place, self._files = place, names
        self._from_ms, self._to_ms = from_ms, to_ms

    def rows(self) -> int | None:
        return None

    def batches(self) -> Iterator[pl.DataFrame]:
        for name in self._files:
            frame = within(frame_of(self._place, name), self._from_ms, self._to_ms)
            if len(frame):
                yield frame


def within(frame: pl.DataFrame, from_ms: int, to_ms: int | None) -> pl.DataFrame:
    """The samples received in [from_ms, to_ms)."""
    received = pl.col("received_ms")
    return frame.filter(received >= from_ms) if to_ms is None else frame.filter(received.is_between(from_ms, to_ms - 1))
