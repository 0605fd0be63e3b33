"""One caller's floods beside others: bad bodies are paid for with waiting, heavy work is done a piece at a time."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from api.admission.intake import SMALL_S
from api.admission.shares import keyless
from api.context import payloads, previewing
from api.context.receiving import SLICE
from api.context.replica import EXTENSION
from api.middleware import waste
from api.middleware.waste import BURST_S, REQUEST_BYTES, Waste
from api.protocols import remote_write1
from api.routes.ingest_steps import HEAVY_BYTES
from api.wire import samples
from breaker_actors.settings import Settings
from breaker_actors.store.rows import EventQuery, EventRow
from tests.support.remote_write import Sent, body1
from tests.support.senders import sender_of
from tests.support.web_world import World, error_of

RATE = 30_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, rate_waste_bytes_per_s=RATE)


def test_a_budget_of_waste_is_spent_and_fills_up_again() -> None:
    budget = Waste(100)
    assert not budget.charge("a", 100 * BURST_S, 0.0)
    assert budget.charge("a", 1, 0.0)
    assert not budget.charge("b", 1, 0.0)
    assert not budget.charge("a", 99, 1.0)
    assert budget.charge("a", 10**9, 1.0)
    assert budget.late == 2
    assert not budget.charge("a", 1, 2.0 * BURST_S + 1.0), "what is owed is bounded"


def test_of_too_many_callers_the_one_unheard_of_longest_is_forgotten() -> None:
    budget = Waste(100, callers_max=2)
    for caller in ("a", "b", "a", "c"):
        budget.charge(caller, 100 * BURST_S, 0.0)
    assert budget.charge("a", 1, 0.0)
    assert not budget.charge("b", 1, 0.0)


def test_without_a_rate_nothing_is_late() -> None:
    assert not Waste(0).charge("a", 1 << 40, 0.0)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long answers were held back."""
    found = list[float]()
    sleep = asyncio.sleep

    async def noted(seconds: float, *result: Any) -> None:
        if seconds == waste.LATE_S:
            found.append(seconds)
            seconds = 0
        await sleep(seconds, *result)

    monkeypatch.setattr(asyncio, "sleep", noted)
    return found


async def test_refusals_come_late_once_bad_bodies_have_cost_too_much(world: World, pauses: list[float]) -> None:
    """What was read counts; good samples of the same project and address are neither counted nor held back; the bytes
    of the body are given back before the wait."""
    body = json.dumps([{"value": "x", "metric": "m" * 400}] * 60).encode()
    for _ in range(RATE * BURST_S // (2 * len(body) + REQUEST_BYTES)):
        await error_of(await world.call("POST", "ingest", None, data=body), 422, "validation_failed")
    assert not pauses
    await error_of(await world.call("POST", "ingest", None, data=body), 422, "validation_failed")
    assert len(pauses) == 1
    router = await world.router()
    good = [{"router_id": router.id, "metric": "m", "ts_ms": world.clock.now_ms(), "value": 1}]
    assert (await world.call("POST", "ingest", None, json=good)).status_code == 202
    assert len(pauses) == 1
    world.clock.seconds += BURST_S
    await error_of(await world.call("POST", "ingest", None, data=body), 422, "validation_failed")
    assert len(pauses) == 1


async def test_a_body_that_nobody_asked_for_counts_as_well(world: World, pauses: list[float]) -> None:
    """It is refused by its length, then thrown away: the next refusal is late, of this project alone."""
    body = bytes(RATE * BURST_S)
    strange = f"/v1/projects/{world.workspace_id}/ingest"
    for late in range(3):
        headers = {"Content-Length": str(len(body) // 2)}
        response = await world.call("POST", strange, None, data=body[len(body) // 2 :], headers=headers)
        assert response.status_code == 404
        assert len(pauses) == late
    assert (await world.call("POST", "ingest", None, data=b"x")).status_code == 400
    assert len(pauses) == 2


async def test_bad_samples_are_judged_in_slices_one_request_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two slices run in one round of the loop, however many requests there are."""
    rounds = list[int]()
    judged = samples._judge_loose

    def counted(*given: Any) -> Any:
        rounds.append(now)
        return judged(*given)

    monkeypatch.setattr(samples, "_judge_loose", counted)
    body = json.dumps([{"value": "x"}] * 200).encode()
    calls = [asyncio.create_task(world.call("POST", "ingest", None, data=body)) for _ in range(4)]
    now = 0
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        now += 1
    assert [call.result().status_code for call in calls] == [422] * 4
    assert len(rounds) == 800
    # the end of one round of the loop and the beginning of the next may fall between two looks
    assert max(rounds.count(n) for n in set(rounds)) <= 100


async def test_bodies_that_are_heavy_to_read_take_turns(world: World) -> None:
    """A body of more than HEAVY_BYTES waits for a turn, one below does not."""
    turns = world.app.extensions[EXTENSION].intake.turns
    async with turns.turn(keyless("10.0.0.9", "another")):
        small = await world.call("POST", "ingest", None, data=b"[" + b" " * 9 + b"]")
        assert small.status_code == 202
        large = asyncio.create_task(world.call("POST", "ingest", None, data=b"[" + b" " * HEAVY_BYTES + b"]"))
        await asyncio.wait([large], timeout=0.1)
        assert not large.done()
    assert (await large).status_code == 202


@pytest.mark.parametrize("protocol", ["json", "remote_write"])
async def test_small_bodies_that_are_slow_to_read_do_not_share_a_round_of_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """Each may take some milliseconds, and hundreds may come at once."""
    rounds, now = list[int](), 0
    of, name = (samples, "Request") if protocol == "json" else (remote_write1, "decode")
    read = getattr(of, name)

    def slow(*given: Any) -> Any:
        rounds.append(now)
        world.clock.seconds += 2 * SMALL_S
        return read(*given)

    monkeypatch.setattr(of, name, slow)
    monkeypatch.setitem(payloads._REMOTE_WRITE, payloads.V1, slow)
    sender = await sender_of(world)
    small = body1(Sent(labels={"__name__": "up"}, value=1.0))

    async def send() -> int:
        if protocol == "json":
            return int((await world.call("POST", "ingest", None, data=b"[]")).status_code)
        return int((await sender.remote_write(small, v1=True)).status_code)

    calls = [asyncio.create_task(send()) for _ in range(8)]
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        now += 1
    assert {call.result() for call in calls} == {202 if protocol == "json" else 204}
    assert len(rounds) == 8
    # the end of one round of the loop and the beginning of the next may fall between two looks
    assert max(rounds.count(n) for n in set(rounds)) <= 2


async def test_series_are_previewed_in_slices_one_request_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, now, resolve = list[int](), 0, previewing.resolve_all

    def counted(*given: Any) -> Any:
        for number, outcome in enumerate(resolve(*given)):
            if number >= SLICE:  # the first slice costs no turn
                rounds.append(now)
            yield outcome

    monkeypatch.setattr(previewing, "resolve_all", counted)
    body = {"series": [{"name": f"m{n}", "type": "gauge"} for n in range(30)]}
    calls = [asyncio.create_task(world.call("POST", "mappings:preview", "user", json=body)) for _ in range(6)]
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        now += 1
    assert [call.result().status_code for call in calls] == [200] * 6
    assert len(rounds) == 6 * (30 - SLICE)
    # the end of one round of the loop and the beginning of the next may fall between two looks
    assert max(rounds.count(n) for n in set(rounds)) <= 2 * SLICE


async def test_long_reads_of_an_organisation_leave_a_thread_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks through all events of a large project: however many ask for that at once."""
    go_on, read = threading.Event(), world.store.events

    async def slow(query: EventQuery) -> list[EventRow]:
        if query.project_id == world.project.id:
            await world.store._db.read(lambda _: go_on.wait(30))
        return await read(query)

    monkeypatch.setattr(world.store, "events", slow)
    asked = [asyncio.create_task(world.call("GET", "events")) for _ in range(12)]
    try:
        await asyncio.wait(asked, timeout=0.3)
        async with asyncio.timeout(10):
            other = await world.call("GET", f"/v1/projects/{world.other.id}/events", "stranger")
            assert other.status_code == 200
        assert not any(one.done() for one in asked)
    finally:
        go_on.set()
    assert {(await one).status_code for one in asked} == {200}
