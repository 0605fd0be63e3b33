"""Samples that come as columns: an Arrow stream in the place of JSON, everything else alike.

A body is worked on in its caller's turn and on a thread, one body at a time: its signature, then its bytes to columns,
those judged and encoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
    """A body that was read: its columns, the routers they name, and the keys of its request."""

    frame: Frame
    router_ids: set[str]
    keys: tuple[bytes, ...]


class Taken(NamedTuple):
    """What came of a request's rows."""

    accepted: int
    rejected: int
    errors: list[SampleError]


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
    # All in one turn: whoever waits has its body alone, which is counted, and not the columns of it.
    async with parts.intake.decodes.turn(callers()):
        taken, pairs, sent = await _worked_on(project, raw, steps.key_maker(signature))
    if taken.accepted:
        await steps.store(project, rounds(sent), pairs, taken.accepted, steps.is_named(signature))
    return taken


async def _worked_on(
    project: ProjectRow, raw: bytes, make_keys: Callable[[bytes, bytes | bytearray], tuple[bytes, ...]]
) -> tuple[Taken, set[tuple[str, str]], list[list[Part]]]:
    """What comes of a body: the answer, routers with their metrics, and the parts for the logs."""
    bytes_max = BODIES * replica().settings.max_inflated_bytes
    body = Inflation(raw, request.headers.get("Content-Encoding"), bytes_max, structure_max=None)
    try:
        content = await asyncio.to_thread(_read, body, bytes_max, partial(make_keys, raw))
    finally:
        arrival().work += len(body.plain)
    await spend_samples(content.frame.rows)
    frame, is_strict = content.frame, strict()
    if not is_strict:
        remark(column_remarks(frame.unknown, frame.says_ok))
    routers = await _routers(project.id, content.router_ids)
    bounds = steps.judging_bounds(routers, is_strict)
    splitting = {router_id for router_id, splits in routers.items() if splits}

    def encode() -> tuple[Judged, Pieces, list[list[Part]]]:
        judged = judge_frame(frame, bounds)
        names_max = names_bytes(len(raw))
        pieces = Pieces(judged, bounds, splitting, bool(project.trace_id_url_template), names_max)
        return judged, pieces, pieces.parts(content.keys)

    judged, pieces, sent = await asyncio.to_thread(encode)
    last = {error.code: error.index for error in judged.errors}
    steps.note_refused(project, judged.reasons, {code: judged.told(row) for code, row in last.items()})
    return Taken(judged.accepted, judged.rejected, judged.errors), pieces.pairs, sent


def _read(body: Inflation, bytes_max: int, keys: Callable[[bytes | bytearray], tuple[bytes, ...]]) -> Content:
    while not body.done:
        body.step()
    frame = read_frame(body.plain, bytes_max)
    return Content(frame, frame_routers(frame), keys(body.plain))


async def _routers(project_id: str, wanted: set[str]) -> dict[str, bool]:
    """Those of them that the project has, and whether each splits samples; a thousand are looked up at a time."""
    found: dict[str, bool] = {}
    names, caches = list(wanted), replica().caches
    for start in range(0, len(names), LOOKED_UP):
        some = names[start : start + LOOKED_UP]
        rows = await caches.routers(project_id, some)
        found |= {name: rows[name] for name in some if name in rows}
        await asyncio.sleep(0)
    return found
