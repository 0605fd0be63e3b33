"""The demo from start to end: a service on an empty temporary data directory, its breakers, the samples, the outcome.

What is shown is what the service answered; nothing is computed beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from rich.console import Console

from api.demo.client import Client
from api.demo.screen import Board, Screen, report
from api.demo.series import (
    BREAKERS,
    FAILED_ABOVE_MS,
    METRIC,
    POINTS,
    POINTS_PER_POST,
    STEP_MS,
    Course,
    Series,
    load,
    summary,
)
from api.launch.bootstrap import FILE_NAME, read
from api.launch.supervisor import Service, Stopped, run
from breaker_actors.clock import SystemClock
from breaker_actors.errors import BreakersError
from breaker_actors.settings import load_settings

CLOCK = SystemClock()
LOOK_EACH_S, STOP_LOOK_S = 0.4, 0.1
# After the last sample, for the last trip to be committed.
SETTLE_S = 0.7
# A service that takes samples late makes the demo longer instead of sending a burst.
LATE_S = 0.05
SECONDS = round(STEP_MS * POINTS / 1000)
LENGTH = (
    f"two weeks of a real latency series in {SECONDS} seconds; before that the service starts, which takes 15 to 30 "
    "seconds, more on a busy machine ..."
)


class DemoFailed(BreakersError):
    """A trip outside the labelled failures, or fewer than two of them seen."""


def play(as_json: bool) -> None:
    """Runs the demo; raises DemoFailed when the service did not do what the labels say."""
    console = Console(stderr=as_json)
    console.print(LENGTH)
    begun = CLOCK.monotonic()
    outcomes: list[dict[str, Any]] = []

    def work(service: Service, stopped: Stopped) -> None:
        console.print(f"ready {service.base_url}; the series takes {SECONDS} seconds, Ctrl-C ends it")
        started_s = round(CLOCK.monotonic() - begun, 1)
        outcome = asyncio.run(_until_stopped(_perform(service, None if as_json else console), stopped))
        if outcome is not None:
            outcomes.append(outcome | {"start_s": started_s})

    with tempfile.TemporaryDirectory(prefix="breakers-demo-") as folder:
        settings = load_settings(host="127.0.0.1", port=0, data_dir=Path(folder))
        # On loopback, under a name that no certificate is for.
        settings = settings.model_copy(update={"tls_cert": None, "tls_key": None})
        run(Service(settings, warn=lambda line: print(line, file=sys.stderr)), work)
    for outcome in outcomes:
        _conclude(outcome, console, as_json)


def _conclude(outcome: dict[str, Any], console: Console, as_json: bool) -> None:
    if as_json:
        print(json.dumps(outcome), flush=True)
    else:
        console.print(report(outcome))
    if not outcome["ok"]:
        raise DemoFailed


async def _until_stopped(work: Coroutine[Any, Any, dict[str, Any]], stopped: Stopped) -> dict[str, Any] | None:
    """The work's result, None when a signal came first."""
    task = asyncio.create_task(work)
    while not task.done():
        await asyncio.wait([task], timeout=STOP_LOOK_S)
        if stopped(0.0):
            task.cancel()
            await asyncio.wait([task])
            return None
    return task.result()


async def _perform(service: Service, console: Console | None) -> dict[str, Any]:
    """Breakers, samples, outcome, with the stream and the state reads running beside."""
    credentials = read(service.data_dir / FILE_NAME)
    assert credentials is not None, "a new data directory gets its credentials at the start"
    series, board, course = load(), Board(), Course()
    begun = CLOCK.monotonic()
    async with Client(service.base_url, credentials, CLOCK) as client:
        await client.ask_for_signatures()
        router_id, ids = await client.create(BREAKERS)
        with Screen(series, board, console) as screen:
            beside = [
                asyncio.create_task(_follow(client, screen, board, course, ids)),
                asyncio.create_task(_look(client, board, ids)),
            ]
            try:
                accepted = await _send(client, router_id, series, board, course)
                await asyncio.sleep(SETTLE_S)
            finally:
                await _end(beside)
        events = {name: await client.events(breaker_id) for name, breaker_id in ids.items()}
    return summary(series, course, events) | {
        "accepted": accepted,
        "play_s": round(CLOCK.monotonic() - begun, 1),
    }


async def _send(client: Client, router_id: str, series: Series, board: Board, course: Course) -> int:
    """All points at their pace; a point's ts_ms is the instant it stands for."""
    accepted = 0
    due = CLOCK.monotonic()
    for first in range(0, len(series), POINTS_PER_POST):
        values = series.batch.value[first : first + POINTS_PER_POST].tolist()
        due = max(due + len(values) * STEP_MS / 1000, CLOCK.monotonic() - LATE_S)
        await asyncio.sleep(max(0.0, due - CLOCK.monotonic()))
        now_ms = CLOCK.now_ms()
        stamps = [now_ms - STEP_MS * back for back in reversed(range(len(values)))]
        accepted += await client.ingest(
            [
                {"router_id": router_id, "metric": METRIC, "ts_ms": ts, "value": value, "ok": value <= FAILED_ABOVE_MS}
                for ts, value in zip(stamps, values, strict=True)
            ]
        )
        course.sent_ms += stamps
        board.passed += [board.word(BREAKERS[0]["name"])] * len(values)
    return accepted


async def _follow(client: Client, screen: Screen, board: Board, course: Course, ids: dict[str, str]) -> None:
    """The state stream, onto the board. A transition is shown at the time of its event, which the stream doesn't tell:
    what comes some milliseconds later would stand minutes later in the series than in the summary."""
    async for message in client.follow():
        name, word = message["breaker"], message["state"]
        before = board.words.get(name)
        board.words[name] = word
        board.rates[name] = message["allow_rate"]
        if before not in (None, word) and course.sent_ms:
            times = [event["ts_ms"] for event in await client.events(ids[name]) if event["curr"] == word]
            screen.note(name, str(before), word, course.point_at(times[-1] if times else CLOCK.now_ms()))


async def _look(client: Client, board: Board, ids: dict[str, str]) -> None:
    """The current values, read now and then: the stream tells states only."""
    while True:
        for name, breaker_id in ids.items():
            board.values[name] = (await client.state(breaker_id)).get("value")
        await asyncio.sleep(LOOK_EACH_S)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Stops what ran beside; an error in it (not the stop itself) is the demo's error."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task
