"""Long work goes in slices, organisations in turn: what others are sent meanwhile is applied."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest

from breaker_actors.breaker.applying import STEP_EFFORT
from breaker_actors.breaker.host import BreakerHost
from breaker_actors.breaker.hosted import INBOX_ROWS_MAX, HostedBreaker, Item, Watermark
from breaker_actors.breaker.slices import ENTRY_ROWS, MOVED_ROWS, SLICE_ROWS, STEP_ROWS, Slices
from breaker_actors.clock import SystemClock
from breaker_actors.core.log_entries import SAMPLES, BreakerSet, decode_samples, encode_entry, encode_samples
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Record
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import (
    BreakerAssignment,
    Commit,
    DeliveredEntry,
    Delivery,
    Paced,
    RouterRef,
    Target,
    WatermarkAnswer,
)
from breaker_actors.settings import Settings
from tests.support.cluster import until

AT_MS = 1_000_000_000
LONG_MS = 100_000
EAGER = {"kind": "delta", "window_ms": 2 * LONG_MS, "eval_interval_ms": 1, "kind_params": {"alpha": 1e-9}}
"""A tick in each millisecond, and each moves the baseline."""
PLAIN = {"kind": "max", "window_ms": LONG_MS, "min_state_duration_ms": 0}


class Net:
    """A log's owner that gives each watermark, and a Journal that stores everything."""

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        if method == "advance_watermark":
            return [WatermarkAnswer("given") for _ in args[1]]
        assert method == "commit", method
        return ["ok"] * len(args[0])

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def assigned(id_: str, org: str, rule: dict[str, Any]) -> BreakerAssignment:
    parsed = parse_rule({"metric": "m", "op": "gt", "threshold": 100.0, **rule})
    settings = encode_entry(BreakerSet(breaker_id=id_, version=1, name=id_, rule=parsed, created=True))
    return BreakerAssignment(
        breaker_id=id_,
        project_id=f"project of {org}",
        org_id=org,
        shard=0,
        epoch=1,
        name=id_,
        routers=(RouterRef("r", "router-0", "slot", 0),),
        applied_offsets={"r": 0},
        settings=settings,
    )


def hosted(id_: str, org: str, rule: dict[str, Any]) -> HostedBreaker:
    one = HostedBreaker(assigned(id_, org, rule))
    assert one.settings is not None
    one.breaker, _ = Breaker.create(one.settings.rule, AT_MS)
    return one


@pytest.fixture
def host() -> BreakerHost:
    return BreakerHost("breaker-0", "i", None, Net(), SystemClock(), Settings())  # type: ignore[arg-type]


def held_by(host: BreakerHost, *breakers: HostedBreaker) -> None:
    for one in breakers:
        host._hosted[one.id] = one
        assert host._applying.unblock(one) is None


def delivery(one: HostedBreaker, offset: int, at_ms: int, value: float) -> Delivery:
    payload = encode_samples(["m"], [1], np.array([at_ms]), np.array([value]), np.array([True]))
    target = Target(one.id, 1, "r", offset - 1, offset, ((0, 0, 1),))
    return Delivery([DeliveredEntry(offset, at_ms, SAMPLES, payload)], [target])


def seed(breakers: list[HostedBreaker]) -> None:
    """A baseline of 1, and an average of 2: it takes as many ticks as there are to get there."""
    for one in breakers:
        assert one.breaker is not None
        for at_ms, value in ((AT_MS + 10, 1.0), (AT_MS + 1_000, 3.0)):
            one.breaker.ingest(Batch(np.array([at_ms]), np.array([value]), np.array([True])), at_ms)


async def test_a_trip_beside_millions_of_ticks(host: BreakerHost) -> None:
    """A hundred thousand ticks of each of fifty breakers, due in one round: another organisation's breaker opens
    meanwhile, as soon as it is told."""
    eager = [hosted(f"eager {i}", "greedy", EAGER) for i in range(50)]
    other = hosted("other", "quiet", PLAIN)
    held_by(host, *eager, other)
    seed(eager)
    upto_ms = AT_MS + LONG_MS
    begun = host._applying.worked
    firing = asyncio.create_task(host._fire(eager, upto_ms))
    while host._applying.worked == begun:
        await asyncio.sleep(0)
    before = host._applying.worked
    assert await host.deliver(delivery(other, 1, AT_MS + 50, 900.0)) == []
    await opened(other)
    assert host._applying.worked - before < 12 * SLICE_ROWS
    assert not any(at_end(one, upto_ms) for one in eager)
    assert all(len(one.inbox) == 0 for one in eager)
    await firing
    await until(partial(all_at_end, eager, upto_ms), 60.0)
    await host.stop()


async def opened(one: HostedBreaker) -> None:
    async with asyncio.timeout(30):
        while one.committed is None or one.committed.state != "open":
            await asyncio.sleep(0)  # all that is ready goes on once


def at_end(one: HostedBreaker, upto_ms: int) -> bool:
    return one.breaker is not None and one.breaker.now_ms > upto_ms


async def all_at_end(breakers: list[HostedBreaker], upto_ms: int) -> bool:
    return all(at_end(one, upto_ms) for one in breakers)


async def test_a_delivery_beside_one_that_costs_much(host: BreakerHost) -> None:
    """In one call: samples for breakers that have a hundred thousand ticks before them, and another organisation's. The
    call ends, and that one is open, long before those are through; they come out as if nobody had been in between."""
    eager = [hosted(f"eager {i}", "greedy", EAGER) for i in range(50)]
    other = hosted("other", "quiet", PLAIN)
    held_by(host, *eager, other)
    seed(eager)
    at_ms = AT_MS + LONG_MS
    call = delivery(eager[0], 1, at_ms, 5.0)
    call.targets[:] = [Target(one.id, 1, "r", 0, 1, ((0, 0, 1),)) for one in eager]
    call.targets.append(Target("other", 1, "r", 0, 2, ((1, 0, 1),)))
    call.records.extend(delivery(other, 2, AT_MS + 50, 900.0).records)
    before = host._applying.worked
    assert await host.deliver(call) == []
    await opened(other)
    assert host._applying.worked - before < 30 * SLICE_ROWS
    await until(partial(all_at_end, eager, at_ms - 1), 60.0)
    alone, _ = Breaker.create(parse_rule({"metric": "m", "op": "gt", "threshold": 100.0, **EAGER}), AT_MS)
    twin = hosted("twin", "greedy", EAGER)
    twin.breaker = alone
    seed([twin])
    alone.advance(at_ms - 1)
    alone.ingest(Batch(np.array([at_ms]), np.array([5.0]), np.array([True])), at_ms)
    assert eager[0].breaker is not None
    assert eager[0].breaker.record() == alone.record()
    await host.stop()


async def test_who_rests_keeps_no_samples(host: BreakerHost) -> None:
    """What comes meanwhile is read from the log: one mark for each router."""
    one = hosted("eager", "greedy", EAGER)
    held_by(host, one)
    seed([one])
    assert await host.deliver(delivery(one, 1, AT_MS + LONG_MS, 5.0)) == []
    assert one.resting
    for offset in range(2, 50):
        assert await host.deliver(delivery(one, offset, AT_MS + LONG_MS, 5.0)) == []
    assert [(item.offset, item.body is None) for item in one.inbox] == [(1, False), (49, True)]
    await host.stop()


async def test_who_rests_is_stored_as_well(host: BreakerHost) -> None:
    """It may rest for long; a restart goes on from there."""
    one = hosted("eager", "greedy", EAGER)
    held_by(host, one)
    seed([one])
    assert await host.deliver(delivery(one, 1, AT_MS + LONG_MS, 5.0)) == []
    assert one.resting
    host._tasks.slices.close()
    stored: list[int] = []
    put = host._commits._put

    def kept(held: HostedBreaker, commit: Commit) -> asyncio.Future[Any]:
        stored.append(msgspec.msgpack.decode(commit.record, type=Record).last_eval_ms)
        return put(held, commit)

    with patch.object(host._commits, "_put", kept):
        await host.checkpoint()
    assert one.breaker is not None
    assert stored == [one.breaker.schedule.last_eval]
    assert stored[0] > AT_MS + 1_000
    await host.stop()


async def test_what_costs_more_than_a_call_may_is_read_later(
    host: BreakerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is answered; they are to read the log."""
    monkeypatch.setattr("breaker_actors.breaker.deliveries.CALL_ROWS", SLICE_ROWS)
    plain = [hosted(f"plain {i}", "greedy", PLAIN) for i in range(1_000)]
    held_by(host, *plain)
    asked: list[str] = []
    monkeypatch.setattr(host._reads, "ask", lambda one, *_: asked.append(one.id))
    call = delivery(plain[0], 1, AT_MS + 50, 5.0)
    call.targets[:] = [Target(one.id, 1, "r", 0, 1, ((0, 0, 1),)) for one in plain]
    assert await host.deliver(call) == []
    applied = [one.id for one in plain if one.applied_offsets["r"] == 1]
    await until(lambda: has(asked, 1_000 - len(applied)))
    assert SLICE_ROWS // ENTRY_ROWS - 10 < len(applied) < SLICE_ROWS // ENTRY_ROWS + 10
    assert {*applied, *asked} == {one.id for one in plain}
    await host.stop()


async def has(asked: Sequence[object], count: int) -> bool:
    return len(asked) == count


async def test_all_records_of_a_breaker_in_a_call_are_no_one_piece(
    host: BreakerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What costs more than a slice is read from the log later, whether its evaluations or its settings do."""
    monkeypatch.setattr("breaker_actors.core.moves.RANKED", 1)
    one = hosted("ranks", "greedy", {**EAGER, "eval_interval_ms": 60_000, "kind_params": {"delta_of": "p95"}})
    held_by(host, one)
    assert one.breaker is not None
    for at_ms in range(AT_MS + 1, AT_MS + 91):
        one.breaker.ingest(Batch.of([(at_ms, 1.0, True)]), at_ms)
    assert STEP_EFFORT > one.breaker.effort > 90
    call = delivery(one, 1, AT_MS + 200, 5.0)
    for offset in range(2, 101):
        call.records.extend(delivery(one, offset, AT_MS + 200, 5.0).records)
    call.targets[:] = [Target(one.id, 1, "r", 0, 100, tuple((i, 0, 1) for i in range(100)))]
    assert await host.deliver(call) == []
    assert one.applied_offsets["r"] == SLICE_ROWS // ENTRY_ROWS // 92 + 1
    assert one.resting
    await host.stop()


@pytest.mark.parametrize("each", [1, 9])
@pytest.mark.parametrize("count", [None, 2])
async def test_late_samples_cost_what_is_moved_for_them(host: BreakerHost, each: int, count: int | None) -> None:
    """Deep in a wide window: many at a time rewrite what came late before, and a call is ended by a tenth of its
    records; one at a time is an entry like others."""
    one = hosted("late", "greedy", {"kind": "count", "window_ms": 86_400_000})
    held_by(host, one)
    assert one.breaker is not None
    now_ms, wide, late = AT_MS + 1_000_000, 320_000, 19_000
    ingest = partial(some, AT_MS, count=count)
    one.breaker.ingest(ingest([500_000] * wide), now_ms)
    one.breaker.ingest(ingest([1_000] * late), now_ms)
    payload = encode_samples(
        ["m"], [each], np.full(each, AT_MS + 900), np.ones(each), np.ones(each, np.bool_), count=counts(each, count)
    )
    records = [DeliveredEntry(offset, now_ms, SAMPLES, payload) for offset in range(1, 101)]
    spans = tuple((i, 0, each) for i in range(100))
    assert await host.deliver(Delivery(records, [Target(one.id, 1, "r", 0, 100, spans)])) == []
    assert one.breaker.samples_held == wide + late + each * one.applied_offsets["r"]
    if each == 1:
        assert one.applied_offsets["r"] == 100
    else:
        assert one.applied_offsets["r"] < 15
        assert one.resting
    await host.stop()


def some(begun_ms: int, offsets_ms: Sequence[int], count: int | None) -> Batch:
    n = len(offsets_ms)
    return Batch(begun_ms + np.array(offsets_ms), np.ones(n), np.ones(n, np.bool_), count=counts(n, count))


def counts(n: int, count: int | None) -> np.ndarray[Any, Any] | None:
    return None if count is None else np.full(n, count)


async def test_records_of_wide_windows_are_stored_with_rests(host: BreakerHost) -> None:
    """Each tells a value that is ranked: others have the machine as long as that took, before the next one."""
    wide, at, loop = [hosted(f"wide {i}", "greedy", PLAIN) for i in range(3)], list[float](), asyncio.get_running_loop()
    held_by(host, *wide)
    put = host._commits._put
    for one in wide:
        one.dirty = True

    def kept(held: HostedBreaker, commit: Commit) -> asyncio.Future[Any]:
        at.append(loop.time())
        return put(held, commit)

    rows = 10 * SLICE_ROWS
    with (
        patch.object(host._commits, "_put", kept),
        patch("breaker_actors.breaker.commits.reading_rows", lambda _: rows),
    ):
        await host.checkpoint()
    assert [one.dirty for one in wide] == [False] * 3
    assert min(after - before for before, after in pairwise(at)) >= rows * 5e-8
    await host.stop()


async def test_records_of_many_small_windows_wait_for_no_turn(
    host: BreakerHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn is a round of all organisations with long work; what they cost together others see between."""
    small, turns = [hosted(f"small {i}", "org", PLAIN) for i in range(600)], list[str]()
    held_by(host, *small)
    for one in small:
        one.dirty = True
    turn = Slices.turn

    async def counted(slices: Slices, org_id: str, project_id: str) -> None:
        turns.append(org_id)
        await turn(slices, org_id, project_id)

    monkeypatch.setattr(Slices, "turn", counted)
    await host.checkpoint()
    assert [one.dirty for one in small] == [False] * 600
    assert turns == []
    await host.stop()


async def test_who_ranks_a_wide_window_does_so_in_its_turn(host: BreakerHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breaker_actors.core.moves.RANKED", 1)
    one = hosted("ranks", "greedy", {**EAGER, "kind_params": {"delta_of": "p95"}})
    held_by(host, one)
    assert one.breaker is not None
    one.breaker.ingest(Batch.of([(AT_MS + n, 1.0, True) for n in range(1, 201)]), AT_MS + 200)
    assert await host.deliver(delivery(one, 1, AT_MS + 200, 5.0)) == []
    assert (one.resting, one.applied_offsets["r"]) == (True, 0)
    await host.stop()


async def test_heavy_work_is_followed_by_a_rest() -> None:
    """As long as it took by its rows, whoever is next; others have the loop meanwhile."""
    slices, at = Slices(), list[float]()
    loop, one = asyncio.get_running_loop(), hosted("one", "org", PLAIN)

    def step(rows: int) -> int:
        at.append(loop.time())
        return rows

    def again() -> int:
        slices.put(one, partial(step, 100))
        return step(10 * SLICE_ROWS)

    slices.put(one, again)
    slices.put(one, partial(step, 100))
    await until(partial(has, at, 3))
    assert at[1] - at[0] >= 10 * SLICE_ROWS * 5e-8


async def test_who_has_more_to_do_than_there_is_time_for_rests_longer_than_it_works() -> None:
    """It puts itself again, on and on."""
    slices, one, loop = Slices(), hosted("one", "org", PLAIN), asyncio.get_running_loop()
    one.resting = True
    begun, ended, worked_s, time = list[float](), list[float](), [0.0], loop.time

    def step() -> int:
        begun.append(loop.time())
        slices.put(one, step)
        worked_s[0] += 0.002
        ended.append(loop.time())
        return SLICE_ROWS

    with patch.object(loop, "time", lambda: time() + worked_s[0]):
        slices.put(one, step)
        await until(partial(reached, begun, 20))
        slices.close()
    assert min(after - before for before, after in zip(ended, begun[1:], strict=False)) >= 0.0039


async def reached(found: Sequence[object], count: int) -> bool:
    return len(found) >= count


async def test_a_task_that_waits_for_a_turn_ends_with_all() -> None:
    slices = Slices()
    waiting = asyncio.create_task(slices.turn("org", "p"))
    await asyncio.sleep(0)
    slices.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_records_are_not_kept_for_who_waits_long(host: BreakerHost) -> None:
    """Only while a commit is tried for the first time, and so many KiBs of them: what comes later is read from the
    log."""
    one = hosted("other", "quiet", PLAIN)
    held_by(host, one)
    answers: list[Any] = [asyncio.get_running_loop().create_future() for _ in range(3)]
    waiting = iter(answers)
    with patch.object(host._commits, "_put", lambda *_: next(waiting)):
        assert await host.deliver(delivery(one, 1, AT_MS + 50, 900.0)) == []
        assert await host.deliver(delivery(one, 2, AT_MS + 60, 900.0)) == []
        assert [item.offset for item in one.inbox if item.body is not None] == [2]
        answers[0].set_result(Paced(10))
        while one.inbox[0].body is not None:
            await asyncio.sleep(0)
        assert await host.deliver(delivery(one, 3, AT_MS + 70, 900.0)) == []
        assert [(item.offset, item.body) for item in one.inbox] == [(3, None)]
    await host.stop()
    one.inbox.clear()
    one.inbox_rows, one.keeps = 0, INBOX_ROWS_MAX
    for offset in range(1, 100):
        body = decode_samples(delivery(one, offset, AT_MS, 1.0).records[0].payload)
        one.push(Item("r", offset - 1, offset, AT_MS, SAMPLES, body, 0, 1, 1 << 20))
    assert len([item for item in one.inbox if item.body is not None]) <= INBOX_ROWS_MAX >> 10


async def test_all_that_are_restored_keep_no_more_than_a_process_may(host: BreakerHost) -> None:
    """A project that has used up its transitions is restored for as long as it likes to move."""
    breakers, kept, peak, ended = 100, 1_000, 0, asyncio.Event()

    async def takes_long(_: Any) -> None:
        await ended.wait()

    with (
        patch.object(host._restores, "_restore", takes_long),
        patch("breaker_actors.breaker.background.KEPT_ROWS_MAX", kept),
    ):
        await host.assign([assigned(f"b{i}", f"org {i % 3}", PLAIN) for i in range(breakers)])
        for offset in range(1, 30):
            (record,) = delivery(hosted("b0", "org 0", PLAIN), offset, AT_MS + offset, 1.0).records
            targets = [Target(f"b{i}", 1, "r", offset - 1, offset, ((0, 0, 1),)) for i in range(breakers)]
            assert await host.deliver(Delivery([record], targets)) == []
            peak = max(peak, sum(item.body is not None for one in host._hosted.values() for item in one.inbox))
        assert peak == kept
        for one in host._hosted.values():
            one.clear()
            one.keeps = kept // breakers
        for i in range(breakers):
            records = [
                record
                for at in range(30, 90)
                for record in delivery(hosted("b0", "org 0", PLAIN), at, AT_MS + at, 1.0).records
            ]
            spans = tuple((at, 0, 1) for at in range(60))
            assert await host.deliver(Delivery(records, [Target(f"b{i}", 1, "r", 29, 89, spans)])) == []
        assert [len(one.inbox) for one in host._hosted.values()] == [1] * breakers, "a marker each"
        ended.set()
        while host._restores.under_way:
            await asyncio.sleep(0)
    await host.stop()


async def test_others_are_served_between_slices() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task, work = asyncio.create_task(other()), Slices().work([hosted("one", "org", PLAIN)])
    for _ in range(10 * SLICE_ROWS // 10_000):
        await work.worked(10_000)
    assert turns >= 10
    task.cancel()


async def test_organisations_take_turns_and_one_slice_goes_in_a_round() -> None:
    """However many of one wait, another's step is the next but one; slices of tasks are as long as those of steps."""
    slices, done = Slices(), list[str]()
    greedy, quiet = hosted("greedy", "greedy", PLAIN), hosted("quiet", "quiet", PLAIN)

    def step(name: str) -> int:
        done.append(name)
        return SLICE_ROWS

    for i in range(100):
        slices.put(greedy, partial(step, f"greedy {i}"))
    task = asyncio.create_task(slices.turn("quiet", "p"))
    await asyncio.sleep(0)
    assert done == ["greedy 0"]
    await task
    assert len(done) <= 3
    slices.put(quiet, partial(step, "quiet"))
    while "quiet" not in done:
        await asyncio.sleep(0)
    assert len(done) <= 6
    gone = asyncio.create_task(slices.turn("quiet", "p"))
    await asyncio.sleep(0)
    gone.cancel()
    while len(done) < 101:
        await asyncio.sleep(0)
    slices.put(greedy, partial(step, "never"))
    slices.close()
    await asyncio.sleep(0)
    assert "never" not in done


async def test_steps_that_had_little_to_do_end_a_slice_as_well() -> None:
    slices, done = Slices(), list[int]()
    few = SLICE_ROWS // STEP_ROWS

    def step() -> int:
        done.append(0)
        return 0

    for _ in range(2 * few):
        slices.put(hosted("one", "org", PLAIN), step)
    await asyncio.sleep(0)
    assert len(done) == few
    slices.close()


@pytest.mark.parametrize("count", [None, 2])
async def test_what_leaves_together_is_counted(host: BreakerHost, count: int | None) -> None:
    """Breakers whose samples leave at one instant are gone through in slices, too."""
    one = hosted("wide", "greedy", {**PLAIN, "kind": "avg"})
    held_by(host, one)
    assert one.breaker is not None
    wide = 400_000
    one.breaker.ingest(some(AT_MS, [0] * wide, count), AT_MS + 1)
    one.breaker.ingest(some(AT_MS, [LONG_MS // 2] * wide, count), AT_MS + LONG_MS // 2)
    one.breaker.take_moved()
    one.watermark = Watermark(AT_MS + LONG_MS + 1, {"r": WatermarkAnswer("given")})
    begun = host._applying.worked
    host._applying.apply_watermark(one)
    assert one.breaker.samples_held == wide
    assert host._applying.worked - begun > wide // MOVED_ROWS


def test_a_step_of_a_breaker_is_bounded() -> None:
    """In evaluations; leaps over ticks that only move a baseline count as well."""
    assert STEP_EFFORT * ENTRY_ROWS < SLICE_ROWS
