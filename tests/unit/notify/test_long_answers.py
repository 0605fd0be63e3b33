"""Answers that would take the loop that sends everybody's alerts long to parse, and those that only look like it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpcore
import httpx
import pytest

from breaker_actors.notify.egress.apprise import ANSWER_MAX
from breaker_actors.notify.egress.guarded_backend import (
    ANSWER_BYTES_MAX,
    ANSWER_LINES_MAX,
    BLANKS_MAX,
    FRAMED,
    HEAD_BYTES_MAX,
    HEAD_LINES_MAX,
    LINES_AT_ONCE,
    PORTION_BYTES,
    READ_MAX,
    BoundedStream,
    time_limit,
)
from breaker_actors.notify.egress.http_outcome import BODY_MAX, Answer
from breaker_actors.notify.model import Attempt
from tests.unit.notify.attempts import sender

CUT = Attempt(result="retry", error="the answer was cut short or is not HTTP")
OK, EMPTY, CHUNKED = b"HTTP/1.1 200 OK\r\n", b"Content-Length: 0\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
CPU_S = 1.0
"""More than any of these takes on a loaded machine, and less than what is not bounded."""


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[httpx.URL]:
    """A receiver with one answer to everything; it keeps its connections."""
    talks = set[asyncio.Task[None] | None]()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n{}")
                writer.write(answer)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield httpx.URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    await asyncio.gather(*(task for task in talks if task is not None))


async def answer_of(answer: bytes, body_max: int = BODY_MAX) -> Answer | Attempt:
    async with answering(answer) as url, sender(notify_timeout_ms=60_000) as out:
        began = time.thread_time()
        found = await out._poster.request("POST", url, {"Content-Length": "2"}, b"{}", body_max=body_max)
        assert time.thread_time() - began < CPU_S
        return found


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"a:\r\n" * 15_000 + EMPTY,
        OK + b"a:\n" * 300 + EMPTY,
        OK + b"a: b\r\n" + b" c\r\n" * 14_000 + EMPTY,
        OK + b"a: " + b"x" * 60_000 + b"\r\n" + EMPTY,
        OK + b"a:" + b" " * 60_000 + b"\x00\r\n" + EMPTY,
        OK + b"a:" + b" \t" * 500 + b"\r\n" + EMPTY,
        b"HTTP/1.1 103 \r\n\r\n" * 3_500 + OK + EMPTY,
        b"HTTP/1.1 100 \r\n\r\n" * 200 + OK + EMPTY,
    ],
    ids=["headers", "bare line ends", "folded", "one header", "blanks", "few blanks", "103", "100"],
)
async def test_a_head_that_takes_long_to_parse_is_no_answer(answer: bytes) -> None:
    assert await answer_of(answer) == CUT


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"x-%d: y\r\n" % i for i in range(100)),
        b"a: " + b"x" * (HEAD_BYTES_MAX - READ_MAX) + b"\r\n",
        b"a:" + b" " * BLANKS_MAX + b"b" + b" " * BLANKS_MAX + b"\r\n",
    ],
)
@pytest.mark.parametrize("early", [b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 5])
async def test_a_usual_head_is_read_whatever_its_body_holds(head: bytes, early: bytes) -> None:
    for body in (b"ok", b"\n" * 2_000, b" " * 2_000, b"{\n" + b' "a": 1,\n' * 200 + b"}"):
        told = await answer_of(early + OK + head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert isinstance(told, Answer)
        assert told.status == 200
        assert body.startswith(told.body)
        assert told.body == body or body.isspace()


@pytest.mark.parametrize(
    "rest",
    [
        b"1\r\na\r\n" * 4_090 + b"0\r\n\r\n",
        b"1\r\na\r\n0\r\n" + b"t: v\r\n" * 9_000 + b"\r\n",
        b"1\r\na\r\n0\r\na:" + b" " * 60_000 + b"\x00\r\n\r\n",
        b"1\r\na\r\n1;" + b" " * 60_000 + b"\n\r\na\r\n0\r\n\r\n",
    ],
    ids=["chunks", "headers behind it", "blanks behind it", "blanks of a chunk"],
)
async def test_a_body_that_takes_long_to_parse_is_left_unread(rest: bytes) -> None:
    told = await answer_of(OK + CHUNKED + rest)
    assert isinstance(told, Answer)
    assert told.status == 200
    assert 1 <= len(told.body) <= ANSWER_LINES_MAX // 2


async def test_apprise_gets_long_answers_of_usual_lines() -> None:
    body = (b"x" * 79 + b"\n") * (ANSWER_MAX // 80)
    for framed in (
        b"Content-Length: %d\r\n\r\n" % len(body) + body,
        CHUNKED + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
    ):
        told = await answer_of(OK + framed, ANSWER_MAX)
        assert isinstance(told, Answer)
        assert told.body == body


class _Network(httpcore.AsyncMockStream):
    """One piece after the other, as they were sent."""

    def get_extra_info(self, info: str) -> bool:
        return False


async def _all(stream: BoundedStream) -> list[bytes]:
    found = list[bytes]()
    with contextlib.suppress(httpcore.RemoteProtocolError):
        while portion := await stream.read(1 << 16):
            found.append(portion)
    return found


@pytest.mark.parametrize("size", [PORTION_BYTES, 19, 101, 4_096])
async def test_portions_are_what_arrived_up_to_the_bounds(size: int) -> None:
    blank = b"a" + b" " * BLANKS_MAX
    for sent, most in (
        (b"ab\r\n" * 50, 200),
        (b"\n" * 1_000, HEAD_LINES_MAX),
        (blank * 5 + b"\t \t" * 9, 5 * len(blank)),
        (b"\t" * 5_000, BLANKS_MAX),
        (b"y" * 50_000, HEAD_BYTES_MAX),
    ):
        stream = BoundedStream(_Network([sent[i : i + size] for i in range(0, len(sent), size)]))
        portions = await _all(stream)
        got = b"".join(portions)
        assert sent.startswith(got)
        assert most <= (got.count(b"\n") if sent.isspace() and b"\n" in sent else len(got)) < most + size
        assert max(portion.count(b"\n") for portion in portions) <= LINES_AT_ONCE


async def test_an_answer_may_come_byte_by_byte_but_not_without_end() -> None:
    got = await _all(BoundedStream(_Network([b"y"] * 50_000)))
    assert len(got) == HEAD_BYTES_MAX // PORTION_BYTES


async def test_no_more_is_read_than_what_is_wanted_of_a_body_may_take() -> None:
    stream = BoundedStream(_Network([b"y" * READ_MAX] * 100))
    await stream.read(1 << 16)
    stream.end_head(READ_MAX)
    assert len(await _all(stream)) == FRAMED
    stream.end_head(1 << 20)
    assert READ_MAX * (1 + FRAMED + len(await _all(stream))) == ANSWER_BYTES_MAX


async def test_what_is_held_counts_as_readable_and_against_the_time() -> None:
    stream = BoundedStream(_Network([b"\n" * 100]))
    assert not stream.get_extra_info("is_readable")
    await stream.read(1 << 16)
    assert stream.get_extra_info("is_readable")
    with time_limit(0.0), pytest.raises(httpcore.ReadTimeout):
        await stream.read(1 << 16)
