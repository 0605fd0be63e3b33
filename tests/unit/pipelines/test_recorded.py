"""Backtests of what a service received: the events are those the breaker made live, and nothing is missed or counted
twice, whatever happened to its actors meanwhile."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from api.cli.main import app
from breaker_actors.core.log_entries import GAP, share_of_trace
from breaker_actors.core.model import Control, Override, OverrideKind
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerDraft, BreakerRow, EventRow, RouterDraft
from pipelines.backtest import Backtest, backtest
from pipelines.recorded import Recorded, recorded
from pipelines.sources import history_store as history
from pipelines.sources.object_store import open_place
from tests.support.cluster import Service, printed, service, until

STATES = ("closed", "half_open", "open")
RULE: dict[str, Any] = {"cooldown_ms": 100, "window_ms": 150, "eval_interval_ms": 20}


async def feed(s: Service, row: BreakerRow, upto: int) -> None:
    """Spells of good and bad samples, or none to be counted, until the breaker has moved so many times; some late, some
    traced, some that stand for several observations."""
    number = 0

    async def enough() -> bool:
        nonlocal number
        number += 1
        bad = number // 15 % 2 == 1
        if bad and row.rule.kind == "count":
            return False
        late_ms, n = number % 7 * 30, 1 + number % 3
        await s.send(
            row.router_ids[0],
            [500.0 + number if bad else 1.0 / number] * n,
            ok=not bad,
            ts_ms=s.clock.now_ms() - late_ms,
            traces=[f"t{number}-{i}" for i in range(n)] if number % 2 else (),
            counts=[(1, 7, 3_000)[(number // 4 + i) % 3] for i in range(n)] if number % 4 == 0 else None,
        )
        return len(await s.events(row.id)) >= upto

    await until(enough, 30)


async def crash(s: Service, kind: Any, name: str) -> None:
    await s.net.kill(name)
    s.net.revive(kind, name)


def told(run: Backtest) -> list[tuple[Any, ...]]:
    """Transitions as the service stores them, without their traces, which events don't show."""
    return run.transitions.drop("breaker", "trace_id", "ts").rows()


def stored(events: list[EventRow], until_ms: int) -> list[tuple[Any, ...]]:
    agg = ("avg", "count", "error_count", "p95")
    return [
        (
            *(e.ts_ms, e.prev, e.curr, e.transition_seq, e.allow_rate, e.reason, e.value),
            *map(e.agg.get, agg),
            *(e.hidden_by, e.by, e.comment),
        )
        for e in events
        if e.ts_ms <= until_ms
    ]


def replayed(settings: Settings, name: str) -> tuple[Recorded, Backtest]:
    log = recorded(name, settings)
    return log, backtest(log.breaker, log)


async def assert_live_equals_backtest(s: Service, row: BreakerRow, after_seq: int = 0, remarks: int = 0) -> Backtest:
    """Everything up to the last sample, to the last figure. (Stored events don't show their traces.)"""
    log, run = await asyncio.to_thread(replayed, s.cluster.settings, row.id)
    last_ms = run.summary["to_ms"][0]

    async def settled() -> list[EventRow]:
        events = (await s.events(row.id))[after_seq:]
        return events if len(stored(events, last_ms)) >= len(run.transitions) else []

    events = await until(settled)
    assert told(run) == stored(events, last_ms)
    assert len(log.remarks) == remarks
    return run


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
async def test_live_equals_backtest_across_a_killed_actor(tmp_path: Path, rule: dict[str, Any]) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE, **rule)
        await feed(s, row, 4)
        await crash(s, "breaker", await s.owner(row.id))
        await feed(s, row, 10)
        run = await assert_live_equals_backtest(s, row)
        assert len(run.transitions) >= 10
        assert run.source is not None
        frames = await asyncio.to_thread(lambda: pl.concat(list(run.source.batches())))  # type: ignore[union-attr]
        assert set(frames["count"]) == {1, 7, 3_000}
        assert len(frames) == run.summary["samples"][0]


async def test_live_equals_backtest_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    async with service(tmp_path, database_url=postgres_url) as s:
        row = await s.breaker("b", **RULE)
        await feed(s, row, 3)
        await crash(s, "breaker", await s.owner(row.id))
        await feed(s, row, 6)
        await assert_live_equals_backtest(s, row)


async def test_a_breaker_that_was_created_again(tmp_path: Path) -> None:
    """Under the id of a deleted one its transitions are numbered on, in the backtest too."""
    async with service(tmp_path) as s:
        first = await s.breaker("b", **RULE)
        await feed(s, first, 3)
        changes = await s.store.delete_breaker(s.project.id, first.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        before = len(await s.events(first.id))
        draft = BreakerDraft(id=first.id, name="b", rule=first.rule)
        row, changes = await s.store.create_breaker(s.project.id, draft, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await feed(s, row, before + 4)
        run = await assert_live_equals_backtest(s, row, before)
        assert run.transitions["transition_seq"][0] == before + 1


async def test_a_router_that_was_away(tmp_path: Path) -> None:
    """Its gap is no silence in the backtest either."""
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE, kind="count", op="lt", threshold=3, min_count=0)
        await feed(s, row, 3)
        await s.net.kill("router-0")
        await asyncio.sleep(1.2)  # only a router that was away for a second writes a gap
        s.net.revive("router", "router-0")
        await feed(s, row, 8)
        records = await s.cluster.log.read(await s.slot(row.router_ids[0]), row.router_ids[0], 0, 1 << 60, 10_000)
        assert any(record.kind == GAP for record in records)
        await assert_live_equals_backtest(s, row)


async def test_shares_of_a_router_and_two_routers(tmp_path: Path) -> None:
    """A breaker gets what its routers gave it: a share by traces or places in the log, only while it was linked."""
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE)
        metadata = {f"canary:{row.id}": "40"}
        draft = RouterDraft(mode="canary", breaker_ids=(row.id,), metadata=metadata)
        router, changes = await s.store.create_router(s.project.id, draft, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        for i in range(30):
            await s.send(router.id, [1.0] * 10, traces=[f"{i}-{k}" for k in range(10)] if i % 2 else ())
        await s.send(row.router_ids[0], [1.0] * 7)
        changes = await s.store.unlink_breaker(s.project.id, router.id, row.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await s.send(router.id, [1.0] * 10)
        log, run = await asyncio.to_thread(replayed, s.cluster.settings, "b")
        frame = pl.concat(list(log.batches()))
        assert len(frame) == run.summary["samples"][0]
        assert 60 < len(frame) - 7 < 180
        assert frame["received_ms"].is_sorted()


async def steer(s: Service, row: BreakerRow, kind: OverrideKind | None, lasts_ms: int = 0, **fields: Any) -> None:
    """Sets an override, or ends the one in force; `fields`: of the override, or `mode` of the breaker."""
    now_ms, mode = s.clock.now_ms(), fields.pop("mode", "enforce")

    def edited(known: BreakerRow) -> BreakerRow:
        override = None
        if kind is not None:
            times = {"since_ms": now_ms, "until_ms": now_ms + lasts_ms, "version": known.version + 1}
            override = Override(kind=kind, reason="drill", by="sam", **times, **fields)
        by = "robin" if override is None else None
        return msgspec.structs.replace(known, control=Control(mode=mode, override=override, by=by))

    _, changes = await s.store.update_breaker(s.project.id, row.id, edited, now_ms)
    await s.gateway.configured(s.project.id, changes)


async def test_live_equals_backtest_under_overrides_and_observe_mode(tmp_path: Path) -> None:
    """Forced moves and hidden ones are the service's own, across a killed actor and on two routers; trips and times are
    the machine's."""
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE)
        second = await linked(s, row)
        await feed(s, row, 2)
        await steer(s, row, "force_closed", 60_000)
        await s.send(second, [1.0])
        await feed(s, row, 5)
        await crash(s, "breaker", await s.owner(row.id))
        await steer(s, row, "throttle", 200, allow_rate=0.3, then="half_open")
        await feed(s, row, 9)
        await steer(s, row, None, mode="observe")
        await feed(s, row, 13)
        await steer(s, row, "force_open", 60_000, mode="observe")
        await steer(s, row, None)
        await feed(s, row, 16)
        run = await assert_live_equals_backtest(s, row)
        assert {"override", "observe", None} == set(run.transitions["hidden_by"])
        assert {"forced_open", "throttled"} <= set(run.transitions["reason"])
        counted = run.summary.row(0, named=True)
        machine = run.transitions.filter(pl.col("by").is_null())
        assert counted["trips"] == machine["curr"].to_list().count("open")
        seen = run.transitions.filter(pl.col("hidden_by").is_null())
        assert counted["shown_trips"] == seen["curr"].to_list().count("open")
        spans = [sum(counted[f"{shown}{state}_ms"] for state in STATES) for shown in ("", "shown_")]
        assert spans == [counted["to_ms"] - counted["from_ms"]] * 2
        page = (await asyncio.to_thread(run.report, tmp_path / "r.html")).read_text()
        assert "forced_closed, sam: drill" in page
        assert ", hidden by observe" in page
        assert counted["open_ms"] == run.states.filter(state="open")["duration_ms"].sum()


async def test_a_mode_that_was_set_before_the_log_begins(tmp_path: Path) -> None:
    """Where the log does not say how it was set, the breaker's settings do, if they are older."""
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE)
        await steer(s, row, None, mode="observe")
        slot = await s.slot(row.router_ids[0])
        upto = await s.cluster.log.find(slot, row.router_ids[0], s.clock.now_ms())
        await asyncio.sleep(0.01)
        await feed(s, row, 4)
        log, _ = await asyncio.to_thread(replayed, s.cluster.settings, "b")
        log._logs = [msgspec.structs.replace(one, since_offset=upto) for one in log._logs]
        run = await asyncio.to_thread(backtest, log.breaker, log)
        assert set(run.transitions["hidden_by"]) == {"observe"}
        assert "the log does not go back" in log.remarks[0]


async def test_other_rules_over_the_same_samples(tmp_path: Path) -> None:
    """A candidate is held against what the service got, swept as well; one of another metric is refused. What kept the
    breaker from doing the same is told."""
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE)
        await feed(s, row, 4)
        await s.edit(row.id, threshold=1e9)
        await s.send(row.router_ids[0], [1.0])
        log = await asyncio.to_thread(recorded, None, s.cluster.settings)
        assert log.breaker.rule.threshold == 1e9
        fields = {**RULE, "metric": "latency", "kind": "avg", "op": "gt", "threshold": 100, "min_state_duration_ms": 0}
        run = await asyncio.to_thread(backtest, fields, log, sweep={"threshold": [100, 1e9]})
        assert told(run)[:3] == stored(await s.events(row.id), 1 << 60)[:3]
        (remark,) = log.remarks
        words = r"the breaker's rule was changed 1 time; its own is replayed as it was in force: threshold 100 until "
        assert re.fullmatch(words + r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}; threshold 1000000000 since", remark)
        assert run.sweep is not None
        assert sorted(run.sweep["trips"]) == [0, run.summary["trips"][0]]
        with pytest.raises(Invalid, match="no sample has metric 'size'; there are metric: 'latency'"):
            await asyncio.to_thread(backtest, fields | {"metric": "size"}, log)


@pytest.mark.parametrize(
    "edits",
    [
        [{"threshold": 300}, {"threshold": 50, "op": "gte"}],
        [{"window_ms": 1_000}, {"window_ms": 100}],
        [{"kind": "p95"}, {"kind": "stddev", "threshold": 1}, {"kind": "avg", "threshold": 100}],
        [{"recovery_allow_rate_ramp_steps": 1, "eval_interval_ms": 30}, {"min_state_duration_ms": 60, "min_count": 2}],
        [{"kind": "consecutive_failures", "op": "gte", "threshold": 4}, {"kind": "max", "op": "gt", "threshold": 400}],
    ],
    ids=["threshold", "window", "kind", "timing", "streak"],
)
async def test_live_equals_backtest_of_a_breaker_that_was_edited(tmp_path: Path, edits: list[dict[str, Any]]) -> None:
    """It has the rules that were in force, as live, to the last figure; on two routers each change is in both logs."""
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE)
        await linked(s, row)
        await feed(s, row, 3)
        for number, fields in enumerate(edits, 1):
            await s.edit(row.id, **fields)
            await feed(s, row, len(await s.events(row.id)) + 3)
            log, _ = await asyncio.to_thread(replayed, s.cluster.settings, row.id)
            assert f"was changed {number} time" in log.remarks[0]
        await assert_live_equals_backtest(s, row, remarks=1)
        other = await asyncio.to_thread(backtest, log.breaker.with_(threshold=1e9, kind="avg"), log)
        assert len(other.transitions) == 0, "another rule has nothing of the breaker's"


async def test_names_and_links_are_no_change_of_the_rule(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE)
        await linked(s, row)
        _, changes = await s.store.update_breaker(
            s.project.id, row.id, lambda r: replace(r, name="c"), s.clock.now_ms()
        )
        await s.gateway.configured(s.project.id, changes)
        await feed(s, row, 4)
        await assert_live_equals_backtest(s, row)


async def test_history_comes_first(tmp_path: Path) -> None:
    """The history store holds what the log never had; where both have something, the log is believed."""
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE)
        await s.send(row.router_ids[0], [1.0, 2.0])
        now_ms = s.clock.now_ms()
        at = [now_ms - 60_000 + i for i in range(100)] + [now_ms + 10_000]
        rows = {
            "ts_ms": at,
            "received_ms": at,
            "value": [7.0] * 101,
            "metric": ["latency"] * 90 + ["size"] * 10 + ["latency"],
            "count": [1 + i % 3 for i in range(101)],
        }
        frame = pl.DataFrame(rows).with_columns(
            router_id=pl.lit(row.router_ids[0]), ok=True, trace_id=pl.lit(None, pl.String)
        )
        history.add(
            open_place(s.cluster.settings.history),
            s.project.id,
            frame.select(*history.SCHEMA).cast(history.SCHEMA),
            "run.0",
        )
        log, run = await asyncio.to_thread(replayed, s.cluster.settings, "b")
        assert (run.summary["samples"][0], run.summary["from_ms"][0]) == (92, at[0])
        got = pl.concat(list(log.batches()))
        assert got["value"].to_list() == [7.0] * 90 + [1.0, 2.0]
        assert got["count"].to_list() == [1, 2, 3] * 30 + [1, 1]
        assert log.remarks == ["90 samples of history come first; the breaker is created with them"]


async def linked(s: Service, row: BreakerRow, **fields: Any) -> str:
    """A further router of a breaker."""
    draft = RouterDraft(breaker_ids=(row.id,), **fields)
    router, changes = await s.store.create_router(s.project.id, draft, s.clock.now_ms())
    await s.gateway.configured(s.project.id, changes)
    return router.id


async def test_history_is_shared_out_as_routers_do(tmp_path: Path) -> None:
    """By the hash of the trace, or the place where there is none, under the configuration of now; nothing comes from a
    router that is disabled, or is no more the breaker's."""
    async with service(tmp_path) as s:
        row, other = await s.breaker("b", **RULE), await s.breaker("other", **RULE)
        canary = await linked(s, row, mode="canary", metadata={f"canary:{row.id}": "30"})
        off, left = await linked(s, row, enabled=False), await linked(s, row)
        changes = await s.store.unlink_breaker(s.project.id, left, row.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await s.send(row.router_ids[0], [1.0])
        start_ms, count = s.clock.now_ms() - 60_000, 4_000
        value = pl.int_range(count, eager=True).cast(pl.Float64)
        traces = pl.Series([f"t{i}" if i < 2_000 else None for i in range(count)])
        ids = pl.Series([canary, off, left, row.router_ids[0], other.router_ids[0]])
        frame = pl.DataFrame(
            {
                "router_id": ids.gather(pl.int_range(5 * count, eager=True) % 5),
                "metric": "latency",
                "ts_ms": start_ms,
                "received_ms": start_ms + pl.int_range(5 * count, eager=True) // 500,
                "value": value.gather(pl.int_range(5 * count, eager=True) // 5),
                "ok": True,
                "trace_id": traces.gather(pl.int_range(5 * count, eager=True) // 5),
                "count": 1,
            }
        )
        history.add(open_place(s.cluster.settings.history), s.project.id, frame.cast(history.SCHEMA), "run.0")
        log, run = await asyncio.to_thread(replayed, s.cluster.settings, "b")
        got = pl.concat(list(log.batches()))[:-1]
        assert len(got) + 1 == run.summary["samples"][0]
        assert got["received_ms"].is_sorted()
        counts = got.group_by("value").len().sort("value")
        assert counts["value"].equals(value.alias("value"))  # those of its own router, all of them
        shared = counts.filter(pl.col("len") == 2)["value"]
        assert counts["len"].sum() == count + len(shared)
        places = (share_of_trace(f"t{i}") % (1 << 64) / 2**64 for i in range(2_000))
        assert shared.filter(shared < 2_000).to_list() == [i for i, place in enumerate(places) if place < 0.3]
        assert 500 < len(shared.filter(shared >= 2_000)) < 700


async def test_which_breaker(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        with pytest.raises(Invalid, match=r"the service has no breaker$"):
            await asyncio.to_thread(recorded, None, s.cluster.settings)
        for name in "ab":
            await s.breaker(name)
        with pytest.raises(Invalid, match="say which breaker's samples are meant; there are a, b"):
            await asyncio.to_thread(recorded, None, s.cluster.settings)
        with pytest.raises(Invalid, match="the service has no breaker 'c'; there are a, b"):
            await asyncio.to_thread(recorded, "c", s.cluster.settings)
        with pytest.raises(Invalid, match="a: there is no sample in it"):
            replayed(s.cluster.settings, "a")  # on a thread with a loop that runs, as in a notebook


async def test_the_command(tmp_path: Path) -> None:
    """By the breaker's name, beside a service that runs; options for files are refused."""
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE)
        await feed(s, row, 3)

        def run(*arguments: str) -> Any:
            return CliRunner().invoke(app, ["backtest", "--from-service", *arguments, "--data-dir", str(tmp_path)])

        done = await asyncio.to_thread(run, "b", "--json", "--report", str(tmp_path / "r.html"))
        assert done.exit_code == 0, done.output
        moves = printed(done)["transitions"]
        assert [move["curr"] for move in moves[:3]] == [e.curr for e in await s.events(row.id)][:3]
        assert (tmp_path / "r.html").stat().st_size > 10_000
        for arguments, words in (
            (["a"], "the service has no breaker 'a'; there are b"),
            (["a", "b"], "--from-service takes the samples of one breaker"),
            (["b", "--sort"], "--column, --router and --sort are for files"),
        ):
            refused = await asyncio.to_thread(run, *arguments)
            assert (refused.exit_code, refused.stdout) == (2, "")
            assert refused.stderr.startswith(f"breakers: {words}")


def test_no_service(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=f"there is no data in {tmp_path}; `breakers serve` makes it"):
        recorded("b", Settings(data_dir=tmp_path))
    with pytest.raises(Invalid, match=r"there is no data in .*; give data_dir= or set BREAKERS_DATA_DIR$"):
        recorded("b", data_dir=str(tmp_path))
    with pytest.raises(Invalid, match="give data_dir or settings, not both"):
        recorded("b", Settings(data_dir=tmp_path), data_dir=tmp_path)


async def test_where_the_data_is(tmp_path: Path) -> None:
    """A path is enough, with the settings of the environment beside it."""
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE)
        log = await asyncio.to_thread(recorded, "b", data_dir=str(tmp_path))
        assert log.breaker.rule == row.rule
