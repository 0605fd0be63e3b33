"""A load generator of its own process: prebuilt bodies over keep-alive connections, at a rate or as fast as they are
answered.

At a rate requests are due at fixed times (an open loop): latency counts from when one was due, not from when a
connection got round to it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from gzip import compress
from multiprocessing.connection import Connection

PERCENTILES = (50, 90, 99)
TIME = 1_234_567_890_123
"""Stands where a time will be."""


@dataclass(frozen=True)
class Target:
    host: str
    port: int
    path: str
    key: str
    secret: str
    """The ingest secret that signs bodies."""
    content: str = "Content-Type: application/json\r\nContent-Encoding: gzip\r\n"
    """The headers that say what bodies are."""


@dataclass
class Report:
    """Of one run: answers by status, those with a Retry-After of them, latencies (ms) in order, seconds it took, CPU
    seconds of the generator."""

    statuses: Counter[int] = field(default_factory=Counter)
    put_off: Counter[int] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu_s: float = 0.0
    accepted: int = 0

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else float("nan")


def body_of(samples: Sequence[dict[str, object]]) -> bytes:
    """A gzipped body."""
    return compress(json.dumps({"samples": samples}, separators=(",", ":")).encode(), 1)


def form_of(samples: Sequence[dict[str, object]]) -> bytes:
    """A body whose samples have no time yet (ts_ms: TIME)."""
    return json.dumps({"samples": samples}, separators=(",", ":")).encode()


def body_at(form: bytes, ts_ms: int) -> bytes:
    """A gzipped body of samples of one time."""
    return compress(form.replace(str(TIME).encode(), str(ts_ms).encode()), 1)


def signed(target: Target, body: bytes, now_ms: int) -> bytes:
    """One HTTP/1.1 request; the same body at another time is another request to the service."""
    mac = hmac.new(bytes.fromhex(target.secret), f"{now_ms}.".encode() + body, hashlib.sha256).hexdigest()
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.host}:{target.port}\r\nAuthorization: Bearer {target.key}\r\n"
        f"X-EB-Timestamp: {now_ms}\r\nX-EB-Signature: v1={mac}\r\n{target.content}"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def run(target: Target, bodies: Sequence[bytes], connections: int, seconds: float, per_s: float | None) -> Report:
    """Sends bodies over and over in a process of its own; `per_s` None: as fast as they are answered."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, target, bodies, connections, seconds, per_s))
    process.start()
    report: Report = ours.recv()
    process.join()
    return report


def _child(
    pipe: Connection, target: Target, bodies: Sequence[bytes], connections: int, seconds: float, per_s: float | None
) -> None:
    began = time.process_time()
    report = asyncio.run(_run(target, bodies, connections, seconds, per_s))
    report.cpu_s = time.process_time() - began
    pipe.send(report)


async def _run(
    target: Target, bodies: Sequence[bytes], connections: int, seconds: float, per_s: float | None
) -> Report:
    report, start = Report(), time.perf_counter()
    due: asyncio.Queue[float | None] = asyncio.Queue()
    senders = [asyncio.create_task(_send(target, bodies[i::connections], due, report)) for i in range(connections)]
    if per_s is None:
        while (now := time.perf_counter()) - start < seconds:
            while due.qsize() < connections:
                due.put_nowait(now)
            await asyncio.sleep(0.001)
    else:
        for n in range(int(seconds * per_s)):
            at = start + n / per_s
            if (wait := at - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            due.put_nowait(at)
    for _ in senders:
        due.put_nowait(None)
    await asyncio.gather(*senders)
    report.seconds = time.perf_counter() - start
    return report


async def _send(target: Target, bodies: Sequence[bytes], due: asyncio.Queue[float | None], report: Report) -> None:
    reader, writer = await asyncio.open_connection(target.host, target.port)
    n = 0
    while (at := await due.get()) is not None:
        writer.write(signed(target, bodies[n % len(bodies)], time.time_ns() // 1_000_000))
        n += 1
        status, fields = await _head_of(reader)
        body = await reader.readexactly(int(fields["content-length"]))
        report.statuses[status] += 1
        report.put_off[status] += int(fields.get("retry-after", 0)) > 0
        report.latencies_ms.append((time.perf_counter() - at) * 1000)
        if status == 202:
            report.accepted += json.loads(body)["accepted"]
        if not _is_kept(fields):
            writer.close()
            reader, writer = await asyncio.open_connection(target.host, target.port)
    writer.close()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Status and body of the next answer on a connection, and whether that is kept: HAProxy ends those of callers who
    are refused, and of a source with many."""
    status, fields = await _head_of(reader)
    return status, await reader.readexactly(int(fields["content-length"])), _is_kept(fields)


async def _head_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers, names in lower case."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    return int(lines[0].split()[1]), dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)


def _is_kept(fields: dict[str, str]) -> bool:
    return fields.get("connection") != "close"
