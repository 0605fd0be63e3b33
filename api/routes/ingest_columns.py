"""Samples that come as columns: an Arrow stream in the place of JSON, everything else alike.

A body is worked on in its caller's turn and on a thread, one body at a time: its signature, then its bytes to columns,
those judged and encoded. Where the store has to be asked for its routers, that is done between two turns, and its bytes
become columns a second time: a wait for the store is nobody else's, and who waits has his body alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from quart import request

from api.admission.inflate import Inflation
from api.arrow.frames import Frame, read_frame
from api.context.current import arrival, callers, raw_body, remark
from api.context.fields import strict
from api.context.replica import replica
from api.middleware.rate_limits import spend_samples
from api.routes import ingest_steps as steps
from api.wire.remarks import column_remarks
from api.wire.responses import SampleError
from api.wire.sample_columns import Judged, Pieces, frame_routers, judge_frame, names_bytes, rounds
from breaker_actors.errors import UnsupportedMedia
from breaker_actors.messages import Part
from breaker_actors.store.rows import ProjectRow

STREAM, FILE = "application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"
BODIES = 4
"""A body has so many times BREAKERS_MAX_INFLATED_BYTES at most without gzip, and so have its columns without theirs:
167 bytes a row where there are 100,000."""

LOOKED_UP = 1_000
"""Routers that are looked up at a time."""


@dataclass(frozen=True, slots=True)
class Content:
    """A body that was read: its columns, and the keys of its request."""

    frame: Frame
    keys: tuple[bytes, ...]


class Taken(NamedTuple):
    """What came of a request's rows."""

    accepted: int
    rejected: int
    errors: list[SampleError]


class Worked(NamedTuple):
    """What comes of a body: the answer, routers with their metrics, and the parts for the logs."""

    taken: Taken
    pairs: set[tuple[str, str]]
    sent: list[list[Part]]


def is_stream() -> bool:
    """Whether the request brings an Arrow stream. Raises UnsupportedMedia for an Arrow file."""
    if request.mimetype == FILE:
        raise UnsupportedMedia(f"An Arrow file can't be taken; write a stream, and send it as {STREAM}.")
    return bool(request.mimetype == STREAM)


async def take_columns(project: ProjectRow, asks_signature: bool) -> Taken:
    """The current request's rows, the good ones in their logs."""
    parts, signature = replica(), steps.request_signature() if asks_signature else None
    raw = await raw_body(parts.settings.max_body_bytes)
    if asks_signature:
        await steps.prove(project, raw, on_thread=True)
    make_keys = steps.key_maker(signature)
    async with parts.intake.decodes.turn(callers()):
        content = await _content(raw, make_keys)
        router_ids = await _named(content.frame)
        remembered = await _remembered(project.id, router_ids)
        found = None if remembered is None else await _worked_on(project, len(raw), content, remembered)
    if found is None:
        del content
        routers = await _looked_up(project.id, router_ids)
        async with parts.intake.decodes.turn(callers()):
            found = await _worked_on(project, len(raw), await _content(raw, make_keys), routers)
    taken, pairs, sent = found
    if taken.accepted:
        await steps.store(project, rounds(sent), pairs, taken.accepted, steps.is_named(signature))
    return taken


async def _content(raw: bytes, make_keys: Callable[[bytes, bytes | bytearray], tuple[bytes, ...]]) -> Content:
    bytes_max = BODIES * replica().settings.max_inflated_bytes
    body = Inflation(raw, request.headers.get("Content-Encoding"), bytes_max, structure_max=None)
    try:
        return await asyncio.to_thread(_read, body, bytes_max, partial(make_keys, raw))
    finally:
        arrival().work += len(body.plain)


async def _named(frame: Frame) -> set[str]:
    """The routers that rows name, known or not. The rows count before, also where too many are named; then it raises
    PayloadTooLarge."""
    await spend_samples(frame.rows)
    if not strict():
        remark(column_remarks(frame.unknown, frame.says_ok))
    return await asyncio.to_thread(frame_routers, frame)


async def _worked_on(project: ProjectRow, n_bytes: int, content: Content, routers: dict[str, bool]) -> Worked:
    """What comes of a body of so many bytes, as it was sent."""
    bounds = steps.judging_bounds(routers, strict())
    splitting = {router_id for router_id, splits in routers.items() if splits}

    def encode() -> tuple[Judged, Pieces, list[list[Part]]]:
        judged = judge_frame(content.frame, bounds)
        pieces = Pieces(judged, bounds, splitting, bool(project.trace_id_url_template), names_bytes(n_bytes))
        return judged, pieces, pieces.parts(content.keys)

    judged, pieces, sent = await asyncio.to_thread(encode)
    last = {error.code: error.index for error in judged.errors}
    steps.note_refused(project, judged.reasons, {code: judged.told(row) for code, row in last.items()})
    return Worked(Taken(judged.accepted, judged.rejected, judged.errors), pieces.pairs, sent)


def _read(body: Inflation, bytes_max: int, keys: Callable[[bytes | bytearray], tuple[bytes, ...]]) -> Content:
    while not body.done:
        body.step()
    return Content(read_frame(body.plain, bytes_max), keys(body.plain))


async def _remembered(project_id: str, wanted: Set[str]) -> dict[str, bool] | None:
    """As `_looked_up`; None where the store has to be asked."""
    found: dict[str, bool] = {}
    for some in _some(wanted):
        rows = replica().caches.remembered_routers(project_id, some)
        if rows is None:
            return None
        found |= rows
        await asyncio.sleep(0)
    return found


async def _looked_up(project_id: str, wanted: Set[str]) -> dict[str, bool]:
    """Those of them that the project has, and whether each splits samples; a thousand are looked up at a time."""
    found: dict[str, bool] = {}
    for some in _some(wanted):
        rows = await replica().caches.routers(project_id, some)
        found |= {name: rows[name] for name in some if name in rows}
        await asyncio.sleep(0)
    return found


def _some(wanted: Set[str]) -> Iterator[list[str]]:
    names = list(wanted)
    return (names[start : start + LOOKED_UP] for start in range(0, len(names), LOOKED_UP))
