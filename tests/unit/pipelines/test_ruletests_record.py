"""An incident recorded from a running service is a test that passes, wherever it is cut, and fails when its rule is
moved."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from typer.testing import CliRunner

from api.cli.main import app
from breaker_actors.errors import Invalid
from breaker_actors.store.rows import BreakerRow
from pipelines.backtest import backtest
from pipelines.recorded import recorded
from pipelines.ruletests import recording, run
from pipelines.ruletests.recording import Recording, record
from pipelines.sources import history_store as history
from pipelines.sources.object_store import open_place
from tests.support.cluster import Service, printed, service, until
from tests.unit.pipelines.test_recorded import RULE, crash, feed, linked, steer

CUTS = 3


async def settled(s: Service, row: BreakerRow) -> int:
    """The time of the last event, once all that the log leads to are there."""
    slot = await s.slot(row.router_ids[0])
    last_ms = s.clock.now_ms()

    async def reached() -> bool:
        return (await s.fresh(row.id)).view.last_eval_ms >= last_ms - row.rule.eval_interval_ms

    await until(reached)
    assert slot
    return (await s.events(row.id))[-1].ts_ms


async def recorded_test(s: Service, row: BreakerRow, from_ms: int, to_ms: int | None = None) -> Recording:
    """What the function makes of it; it has run the test itself."""
    end_ms = to_ms if to_ms is not None else (await s.events(row.id))[-1].ts_ms
    return await asyncio.to_thread(record, row.id, from_ms, end_ms, settings=s.cluster.settings)


async def assert_every_cut_passes(s: Service, row: BreakerRow, tmp_path: Path, seed: int = 0) -> Recording:
    """The whole life of a breaker, and slices of it, become tests that pass and expect what happened."""
    chance = random.Random(seed)
    events = await s.events(row.id)
    whole = await recorded_test(s, row, events[0].ts_ms - 60_000)
    assert len(whole.moves) == len(events)
    for number in range(CUTS):
        first, last = sorted(chance.sample(range(len(events)), 2))
        from_ms, to_ms = events[first].ts_ms + chance.choice([0, 1, 5]), events[last].ts_ms + chance.choice([0, 3])
        if to_ms <= from_ms:
            continue
        made = await recorded_test(s, row, from_ms, to_ms)
        path = tmp_path / f"cut{number}.test.yaml"
        made.write(path)
        assert run.test(path).passed
        happened = [one.transition_seq for one in events if from_ms <= one.ts_ms <= to_ms]
        assert made.moves["transition_seq"].to_list() == happened[len(happened) - len(made.moves) :]
        assert len(happened) - len(made.moves) <= 1
    return whole


@pytest.mark.parametrize(
    "rule",
    [
        {"kind": "avg", "threshold": 100},
        {"kind": "p95", "threshold": 100, "min_state_duration_ms": 60},
        {"kind": "consecutive_failures", "op": "gte", "threshold": 4},
        {"kind": "count", "op": "lt", "threshold": 3, "min_count": 0},
    ],
    ids=lambda rule: rule["kind"],
)
async def test_an_incident_becomes_a_test(tmp_path: Path, rule: dict[str, Any]) -> None:
    """It fails when the threshold of its rule is moved, and passes with any number of runs."""
    async with service(tmp_path / "data") as s:
        row = await s.breaker("check out", **RULE, **rule)
        await feed(s, row, 4)
        await crash(s, "breaker", await s.owner(row.id))
        await feed(s, row, 8)
        await settled(s, row)
        whole = await assert_every_cut_passes(s, row, tmp_path)
        path = tmp_path / "incident.test.yaml"
        assert whole.write(path)[0] == path
        assert run.test(path).passed
        never = 0.0 if rule.get("op") == "lt" else 1e6
        moved = re.sub(r"(    threshold: )(\S+)", lambda m: f"{m[1]}{never}", path.read_text())
        path.write_text(moved)
        assert len(run.test(path).failures) == 1


async def test_overrides_and_modes_are_followed(tmp_path: Path) -> None:
    async with service(tmp_path / "data") as s:
        row = await s.breaker("b", **RULE)
        await linked(s, row)
        await feed(s, row, 2)
        await steer(s, row, "force_closed", 60_000)
        await feed(s, row, 4)
        await steer(s, row, "throttle", 200, allow_rate=0.3, then="half_open")
        await feed(s, row, 8)
        await steer(s, row, None, mode="observe")
        for _ in range(20):  # until one of its moves is seen by nobody
            await feed(s, row, 10)
            await settled(s, row)
            if "observe" in {event.hidden_by for event in await s.events(row.id)}:
                break
        whole = await assert_every_cut_passes(s, row, tmp_path)
        assert {"override", "observe", None} == set(whole.moves["hidden_by"])


async def test_rules_are_those_that_were_in_force(tmp_path: Path) -> None:
    async with service(tmp_path / "data") as s:
        row = await s.breaker("b", **RULE)
        await feed(s, row, 3)
        await s.edit(row.id, window_ms=1_000, threshold=90)
        await feed(s, row, 6)
        await s.edit(row.id, kind="consecutive_failures", op="gte", threshold=3)
        await feed(s, row, 9)
        await settled(s, row)
        whole = await assert_every_cut_passes(s, row, tmp_path)
        assert "the breaker's rule was changed 2 times" in whole.remarks[0]
        assert whole.parts[0].slice.rule.threshold == 100


async def test_a_router_that_was_away(tmp_path: Path) -> None:
    async with service(tmp_path / "data") as s:
        row = await s.breaker("b", **RULE, kind="count", op="lt", threshold=3, min_count=0)
        await feed(s, row, 3)
        await s.net.kill("router-0")
        await asyncio.sleep(1.2)  # only a router that was away for a second writes a gap
        s.net.revive("router", "router-0")
        await feed(s, row, 8)
        await settled(s, row)
        await assert_every_cut_passes(s, row, tmp_path)


async def test_a_log_that_does_not_go_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The breaker then stands as its last event before the log says."""
    async with service(tmp_path / "data") as s:
        row = await s.breaker("b", **RULE)
        await feed(s, row, 7)
        slot = await s.slot(row.router_ids[0])
        upto = await s.cluster.log.find(slot, row.router_ids[0], s.clock.now_ms())
        await feed(s, row, 12)
        await settled(s, row)

        def shortened(*args: Any, **named: Any) -> Any:
            log = recorded(*args, **named)
            log._logs = [msgspec.structs.replace(one, since_offset=upto) for one in log._logs]
            return log

        monkeypatch.setattr(recording, "recorded", shortened)
        events = await s.events(row.id)
        made = await recorded_test(s, row, events[9].ts_ms)
        assert "the log does not go back" in made.remarks[0]
        assert made.moves["transition_seq"].to_list()[-1] == events[-1].transition_seq


async def test_the_command(tmp_path: Path) -> None:
    """Two breakers in one file, samples beside it or in it; what can't be done is told."""
    async with service(tmp_path) as s:
        rows = [await s.breaker(name, **RULE) for name in "ab"]
        for row in rows:
            await feed(s, row, 3)
            await settled(s, row)
        events = await s.events(rows[1].id)
        begin = (events[0].ts_ms - 60_000, events[-1].ts_ms)
        out = tmp_path / "both.test.yaml"

        def command(*arguments: str) -> Any:
            return CliRunner().invoke(app, ["record", *arguments, "--data-dir", str(tmp_path)])

        times = ["--from", str(pl.Series(begin[:1]).cast(pl.Datetime("ms"))[0]), "--out", str(out)]
        done = await asyncio.to_thread(command, *times, "--breaker", "a", "--breaker", "b", "--json")
        assert done.exit_code == 0, done.output
        for row in rows:  # which goes on meanwhile
            moves = [(move["ts_ms"], move["curr"]) for move in printed(done)["moves"] if move["breaker"] == row.name]
            assert len(moves) >= 2
            assert moves == [(event.ts_ms, event.curr) for event in await s.events(row.id)][: len(moves)]
        tested = CliRunner().invoke(app, ["test", str(out), "-v"])
        assert tested.exit_code == 0, tested.output
        assert "2 tests: 2 passed" in tested.output
        for arguments, words in (
            ([*times, "--breaker", "c"], "the service has no breaker 'c'; there are a, b"),
            (times, "say which breaker's samples are meant"),
            ([*times, "--to", "2001-01-01", "--breaker", "a"], "nothing lies between them"),
            (["--from", "soon", "--out", str(out), "--breaker", "a"], "'soon' is no instant"),
            ([*times[:3], str(tmp_path / "x.yaml"), "--breaker", "a"], "a file of tests is named"),
        ):
            failed = await asyncio.to_thread(command, *arguments)
            assert failed.exit_code == 2, failed.output
            assert words in failed.output


def test_nothing_to_record(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no data"):
        record(None, "2026-01-01", data_dir=tmp_path / "none")


DAY_MS = 86_400_000
INCIDENT = {"window_ms": 60_000, "cooldown_ms": 60_000, "eval_interval_ms": 1_000, "threshold": 100}


def put_history(s: Service, row: BreakerRow, start_ms: int) -> None:
    """Two hours of a sample each ten seconds, bad ones in the second half hour."""
    at = [start_ms + 10_000 * number for number in range(720)]
    rows = {"ts_ms": at, "received_ms": at, "value": [500.0 if 180 <= n < 360 else 10.0 for n in range(720)]}
    frame = pl.DataFrame(rows).with_columns(
        router_id=pl.lit(row.router_ids[0]), metric=pl.lit("latency"), ok=True, count=1
    )
    frame = frame.with_columns(trace_id=pl.lit(None, pl.String))
    place = open_place(s.cluster.settings.history)
    history.add(place, s.project.id, frame.select(*history.SCHEMA).cast(history.SCHEMA), "run.0")


@pytest.mark.parametrize("live", [False, True], ids=["of history alone", "of a breaker with a log"])
async def test_history_is_recorded_as_backtests_see_it(tmp_path: Path, live: bool) -> None:
    """A breaker that was made months later: the moves are those of a backtest of the service's samples, the test fails
    with another threshold, and no part of it comes of the log."""
    async with service(tmp_path / "data") as s:
        row = await s.breaker("b", **INCIDENT)
        if live:
            await s.send(row.router_ids[0], [1.0, 2.0])
        start_ms = s.clock.now_ms() - 90 * DAY_MS
        put_history(s, row, start_ms)
        log = await asyncio.to_thread(recorded, "b", s.cluster.settings)
        tried = (await asyncio.to_thread(backtest, log.breaker, log)).transitions
        assert tried["curr"].to_list()[0] == "open"
        for from_ms, to_ms in ((start_ms - 1, start_ms + 7_200_000), (start_ms + 2_000_000, start_ms + 3_700_000)):
            made = await recorded_test(s, row, from_ms, to_ms)
            expected = tried.filter(pl.col("ts_ms").is_between(from_ms, to_ms))
            columns = ("ts_ms", "prev", "curr", "transition_seq", "reason", "value", "count")
            assert len(made.moves)
            assert made.moves.select(columns).equals(expected.select(columns))
            assert any("of history, which nobody was told of" in remark for remark in made.remarks)
            path = tmp_path / "history.test.yaml"
            made.write(path)
            assert run.test(path).passed
            path.write_text(path.read_text().replace("threshold: 100", "threshold: 1000"))
            assert len(run.test(path).failures) == 1


async def test_what_is_partly_history_is_refused(tmp_path: Path) -> None:
    async with service(tmp_path / "data") as s:
        row = await s.breaker("b", **INCIDENT)
        await s.send(row.router_ids[0], [1.0, 2.0])
        now_ms = s.clock.now_ms()
        put_history(s, row, now_ms - DAY_MS)
        with pytest.raises(Invalid, match=r"b: its log begins at .*, samples from before that are history"):
            await recorded_test(s, row, now_ms - DAY_MS, now_ms + 1_000)


async def test_what_came_live_is_recorded_without_history(tmp_path: Path) -> None:
    """History from before the log leaves what happened live as it is."""
    async with service(tmp_path / "data") as s:
        row = await s.breaker("b", **RULE)
        await feed(s, row, 4)
        await settled(s, row)
        put_history(s, row, s.clock.now_ms() - DAY_MS)
        whole = await assert_every_cut_passes(s, row, tmp_path)
        assert whole.remarks == []


async def test_a_recording_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    """Any rule would pass it."""
    async with service(tmp_path / "data") as s:
        row = await s.breaker("b", **RULE, min_count=1_000)
        begin_ms = s.clock.now_ms()
        await s.send(row.router_ids[0], [900.0] * 5)
        with pytest.raises(Invalid, match=r"b: 0 evaluations from .* \(min_count 1000\), so any rule would pass"):
            await recorded_test(s, row, begin_ms - 1_000, s.clock.now_ms() + 1_000)


def test_a_breaker_that_is_made_after_the_start_is_refused(tmp_path: Path) -> None:
    """It would judge nothing, and pass."""
    path = tmp_path / "late.test.yaml"
    path.write_text(
        "breakers:\n  b: {metric: m, kind: avg, op: gt, threshold: 1, window_ms: 1000}\n"
        "tests:\n  - name: n\n    breaker: b\n    start: 2026-02-05T11:30:00Z\n"
        "    begin: {created_ms: 1795725094257}\n    samples: {m: 5x100}\n    expect: []\n"
    )
    with pytest.raises(Invalid, match="after the start of the test"):
        run.test(path)
