"""Charts and drafts over a real log: what they show is what the command tells and what the breaker did."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from typer.testing import CliRunner, Result

from api.admission.shares import Holders
from api.app import create_app
from api.cli.main import app as command
from api.console import recorded, replays
from api.console.chart import told_of
from api.console.guard import csrf_of
from api.console.recorded import Desk, Wanted
from breaker_actors.errors import Overloaded
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerRow, RouterDraft
from tests.support.asgi import Reply, ask
from tests.support.cluster import Service, printed, service, until
from tests.support.web_world import TIMING, soon

assert replays.POINTS  # imported here: it takes a second where the machine is busy
RULE: dict[str, Any] = {"cooldown_ms": 100, "window_ms": 150, "eval_interval_ms": 20}
DRAFT: dict[str, Any] = RULE | {
    "name": "draft", "metric": "latency", "kind": "max", "op": "gte", "threshold": 520, "min_count": 2,
    "min_state_duration_ms": 30, "window_ms": 300,
}  # fmt: skip


@dataclass
class Desktop:
    """The console of a whole service, and somebody signed in to it."""

    s: Service
    app: Any
    row: BreakerRow

    @property
    def root(self) -> str:
        return f"/console/p/{self.s.project.id}"

    async def get(self, path: str) -> Reply:
        return await ask(self.app, "GET", f"{self.root}/{path}", [("Cookie", "breakers_session=t")], None)

    async def chart(self, query: str = "") -> Any:
        reply = await self.get(f"b/{self.row.id}/chart{query}")
        assert reply.status == 200, reply
        return reply.json

    async def tries(self, path: str = "", **fields: Any) -> Any:
        sent = {"csrf": csrf_of("t"), "half_open_backoff_enabled": "on", **DRAFT, **fields}
        head = [("Cookie", "breakers_session=t"), ("Content-Type", "application/x-www-form-urlencoded")]
        where = path or f"b/{self.row.id}/try"
        reply = await ask(self.app, "POST", f"{self.root}/{where}", head, urlencode(sent).encode())
        assert reply.status == 200, reply
        return reply.json


@asynccontextmanager
async def desktop(path: Path, moves: int = 6) -> AsyncIterator[Desktop]:
    async with service(path) as s:
        row = await s.breaker("b", **RULE)
        await feed(s, row, moves)
        app = create_app(s.gateway, s.cluster.settings, s.clock, TIMING, owns_gateway=False)
        async with app.test_app():
            _, key = await s.store.create_key(s.project.org_id, "user", "ann", s.clock.now_ms())
            found = await s.store.find_key(key)
            assert found is not None
            await s.store.create_session(found.id, "t", s.clock.now_ms(), s.clock.now_ms() + 3_600_000)
            yield Desktop(s, app, row)


async def feed(s: Service, row: BreakerRow, upto: int) -> None:
    """Spells of good and bad samples until the breaker has moved so many times, one bad spell of 15 at least."""
    number = 0

    async def enough() -> bool:
        nonlocal number
        number += 1
        bad = number // 15 % 2 == 1
        await s.send(row.router_ids[0], [500.0 + number if bad else 1.0 / number] * (1 + number % 3), ok=not bad)
        return number >= 30 and len(await s.events(row.id)) >= upto

    await until(enough, 30)


async def backtest(path: Path, *arguments: str) -> Any:
    def run() -> Result:
        return CliRunner().invoke(
            command, ["backtest", "--from-service", "b", *arguments, "--json", "--data-dir", str(path)]
        )

    done = await asyncio.to_thread(run)
    assert done.exit_code == 0, done.output
    return printed(done)


def begins(told: Any, strip: int) -> list[int]:
    """When the bands of a strip begin, but the first."""
    return [band[1] for band in told["chart"]["strips"][strip]["bands"][1:]]


def before_end(run: Any) -> list[Any]:
    """The transitions that a band follows."""
    return [move for move in run["transitions"] if move["ts_ms"] < run["summary"]["to_ms"]]


async def looked(
    work: Callable[[Any], Any], desk: Desktop, oldest_s: float = 0.0, holders: Holders = (("key", "k"),)
) -> Any:
    """What the replica's desk makes of the breaker's samples."""
    found: Desk = desk.app.extensions[recorded.EXTENSION]
    wanted = Wanted(desk.s.project.id, desk.row.id)
    return await found.work(wanted, None, oldest_s, lambda kept, late: work(kept), holders)


async def test_a_chart_says_when_the_newest_sample_came(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        told = await desk.chart()
        assert 0 <= told["to"] - told["newest_ms"] < 60_000
        assert not any("No sample has come" in note for note in told["notes"])
        notes = await looked(lambda kept: told_of(kept, kept.last_ms + 1), desk)
        assert notes[0].startswith("No sample has come since")


async def test_a_draft_does_what_the_command_tells_of_the_same_rule(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        first = (await desk.s.events(desk.row.id))[0]
        windows = [[first.ts_ms - 200, first.ts_ms + 200], [first.ts_ms - 90_000, first.ts_ms - 80_000]]
        (tmp_path / "windows.json").write_text(json.dumps(windows))
        (tmp_path / "rule.json").write_text(json.dumps(DRAFT))
        told = await desk.tries(windows=json.dumps(windows), grace_ms=10)
        labels = ("--windows", str(tmp_path / "windows.json"), "--grace-ms", "10")
        other = await backtest(tmp_path, "--rule", str(tmp_path / "rule.json"), *labels)
        own = await backtest(tmp_path, *labels)
        assert told["chart"]["strips"][0]["name"] == "now"
        rows = told["html"].split("<tr>")
        for run, column in ((own, 0), (other, 1)):
            rule = run["summary"]["rules"][0]
            assert rule["trips"] > 0
            rule["windows"] = sum(window["has_samples"] for window in rule["windows"])
            for label, name in (("Trips", "trips"), ("Incidents", "incidents"), ("Caught", "caught"),
                                ("Labelled windows", "windows"), ("False trips", "false_trips")):  # fmt: skip
                line = next(row for row in rows if f'<th scope="row">{label}</th>' in row)
                shown = [cell.split("<")[0] for cell in line.split('">')[2:]]
                assert shown[column] == str(rule[name]), (label, line)
        strip = told["chart"]["strips"][1]["bands"]
        assert begins(told, 1) == [move["ts_ms"] for move in before_end(other)]
        assert [band[0] for band in strip[1:]] == [move["curr"] for move in before_end(other)]
        times = {int(part.split('"')[0]) for part in told["html"].split('data-ms="')[1:]}
        assert times == {move["ts_ms"] for run in (own, other) for move in run["transitions"]}
        assert "Looked at" in told["told"]
        assert "threshold: 520" in told["html"]


async def test_every_figure_is_that_of_the_command(tmp_path: Path) -> None:
    async with desktop(tmp_path, 10) as desk:
        await desk.chart()

        def both(kept: Any) -> Any:
            from api.console.replays import courses, told_move
            from breaker_actors.core.rules import parse_rule
            from pipelines.candidates import Candidate

            done = courses(kept, [kept.breaker, Candidate("draft", parse_rule(DRAFT))], lambda: False)
            return [[told_move(move) for move in course.moves] for course in done]

        (tmp_path / "rule.json").write_text(json.dumps(DRAFT))
        runs = [await backtest(tmp_path), await backtest(tmp_path, "--rule", str(tmp_path / "rule.json"))]
        for moves, run in zip(await looked(both, desk), runs, strict=True):
            assert len(moves) >= 4
            assert [(m["ts_ms"], m["prev"], m["curr"], m["seq"], m["allow_rate"], m["value"]) for m in moves] == [
                (m["ts_ms"], m["prev"], m["curr"], m["transition_seq"], m["allow_rate"], m["value"])
                for m in run["transitions"]
            ]


async def test_the_chart_shows_values_and_the_states_that_were_stored(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        events = await desk.s.events(desk.row.id)
        chart = await desk.chart("?span=hour")
        assert chart["refused"] == ""
        assert (chart["threshold"], chart["op"], chart["metric"]) == (100.0, "gt", "latency")
        assert [band[0] for band in chart["bands"]] == ["closed", *(event.curr for event in events)]
        assert [band[1] for band in chart["bands"][1:]] == [event.ts_ms for event in events]
        assert chart["open_ms"] == sum(end - begin for state, begin, end in chart["bands"] if state == "open")
        assert len(chart["at"]) == len(chart["value"]) <= 1_200
        assert chart["at"] == sorted(chart["at"])
        values = [value for value in chart["value"] if value is not None]
        assert (chart["least"], chart["most"]) == (min(values), max(values))
        assert chart["most"] > 100
        week = await desk.chart("?span=week")
        assert (week["least"], week["most"]) == (chart["least"], chart["most"])
        trip = next(event for event in events if event.curr == "open")
        part = await desk.chart(f"?from={trip.ts_ms - 600}&to={trip.ts_ms + 600}")
        assert (part["from"], part["to"]) == (trip.ts_ms - 600, trip.ts_ms + 600)
        assert all(part["from"] <= at <= part["to"] for at in part["at"])
        for query in ("?span=century", "?from=x&to=9", "?from=9&to=1", "?from=99999999999999999999&to=1"):
            assert (await desk.chart(query))["refused"] == ""


async def test_a_breaker_without_samples_says_so(tmp_path: Path) -> None:
    async with desktop(tmp_path, 1) as desk:
        desk.row = await desk.s.breaker("idle", metric="other")
        chart = await desk.chart()
        assert chart["refused"] == "idle: no sample of it is recorded"
        assert [band[0] for band in chart["bands"]] == ["closed"]


async def test_what_was_read_is_read_once_and_only_while_it_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desktop(tmp_path, 2) as desk:
        reads = 0
        read = Desk._read

        def counted(self: Desk, *given: Any) -> Any:
            nonlocal reads
            reads += 1
            return read(self, *given)

        monkeypatch.setattr(Desk, "_read", counted)
        for threshold in (520, 530, 540):
            await desk.tries(threshold=threshold)
        assert reads == 1
        now = desk.app.extensions["breakers"].clock.monotonic()
        found: Desk = desk.app.extensions[recorded.EXTENSION]
        monkeypatch.setattr(found, "_monotonic", lambda: now + 10)
        await desk.chart()
        assert reads == 2
        monkeypatch.setattr(found, "_monotonic", lambda: now + 10 + recorded.KEPT_S + 1)
        found._forget()
        assert not found._entries


async def test_one_at_a_time_and_not_too_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desktop(tmp_path, 2) as desk:
        await desk.chart()
        running, most = 0, 0

        def work(kept: Any) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            running -= 1
            return int(kept.samples)

        keys = [(("key", str(n // 3)), ("organisation", str(n // 9))) for n in range(36)]
        done = await asyncio.gather(*(looked(work, desk, 60, key) for key in keys), return_exceptions=True)
        assert most == 1
        refused = [one for one in done if isinstance(one, Overloaded)]
        assert "charts" in refused[0].message
        served = [n for n, one in enumerate(done) if isinstance(one, int)]
        assert len(served) == recorded.WAITING_MAX
        of_keys, of_organisations = Counter(n // 3 for n in served), Counter(n // 9 for n in served)
        assert max(of_keys.values()) == 2
        assert set(of_organisations.values()) == {4}


async def test_a_rule_that_is_evaluated_all_the_time_takes_nobodys_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every evaluation of a delta is run, of any kind in half_open: thousands for each second of the samples."""
    async with desktop(tmp_path, 4) as desk:
        await desk.chart()
        found: Desk = desk.app.extensions[recorded.EXTENSION]
        ran, now = 0, 0.0

        def clock() -> float:
            nonlocal ran, now
            ran, now = ran + 1, now + 1.0
            return now

        draft = {"kind": "delta", "kind_params.delta_of": "avg", "kind_params.alpha": "0.001", "eval_interval_ms": "1"}
        draft |= {"threshold": "1e9", "window_ms": "10000"}
        monkeypatch.setattr(found, "_monotonic", clock)
        monkeypatch.setattr(recorded, "WORK_S", 1.5)
        monkeypatch.setattr(replays, "EVALUATIONS", 8)
        told = await desk.tries(**draft)
        assert "evaluated too often for a screen" in told["told"]
        assert ran < 30
        monkeypatch.undo()
        assert "evaluated" not in (await desk.tries(**draft))["told"]


async def test_of_too_many_samples_the_newest_stay(tmp_path: Path) -> None:
    async with desktop(tmp_path, 6) as desk:
        await desk.chart()
        whole = await looked(lambda kept: kept, desk)
        made = desk.app.extensions[recorded.EXTENSION]._source(Wanted(desk.s.project.id, desk.row.id), None, 0)

        def fewer() -> Any:
            from api.console.replays import keep

            return keep(made, lambda: False, whole.samples - 20)

        few = await asyncio.to_thread(fewer)
        assert (few.samples, few.left_out, few.last_ms) == (whole.samples - 20, 20, whole.last_ms)
        assert few.first_ms > whole.first_ms
        assert not any("trace_id" in frame.columns for frame in few.batches())


async def test_where_reading_takes_too_long_the_newest_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desktop(tmp_path, 6) as desk:
        await desk.chart()
        found: Desk = desk.app.extensions[recorded.EXTENSION]
        found._entries.clear()
        asked, enough, later = 0, 1 << 30, recorded.READ_S + 1

        def slow() -> float:
            nonlocal asked
            asked += 1
            return 0.0 if asked < enough else recorded.READ_S + 1 if asked < enough + 6 else later

        monkeypatch.setattr(found, "_monotonic", slow)
        whole = await looked(lambda kept: kept, desk)
        found._entries.clear()
        asked, enough = 0, asked // 2
        kept = await looked(lambda kept: kept, desk)
        assert 0 < kept.samples
        assert kept.last_ms == whole.last_ms
        assert kept.first_ms > whole.first_ms
        assert "only the newest" in kept.remarks[0]
        found._entries.clear()
        asked, later = 0, recorded.READ_MOST_S + 1
        with pytest.raises(Overloaded, match="too large"):
            await looked(lambda kept: kept, desk)


async def test_a_read_ends_when_who_asked_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for the thread."""
    (tmp_path / "log").mkdir()
    found, reads = Desk(Settings(data_dir=tmp_path), time.monotonic), 0

    class Endless:
        watch: Callable[[int], None]

        def items(self) -> Iterator[Any]:
            for at in count(1):
                time.sleep(0.001)
                self.watch(at)
            yield

    def source(*_: Any) -> Endless:
        nonlocal reads
        reads += 1
        return Endless()

    monkeypatch.setattr(found, "_source", source)
    monkeypatch.setattr(recorded, "WAIT_S", 0.05)
    with pytest.raises(Overloaded):
        await found.work(Wanted("p", "b"), None, 0.0, lambda kept, late: kept, (("key", "k"),))
    await soon(lambda: not found._working, 2)
    assert reads == 1


def test_who_comes_behind_another_one_is_served() -> None:
    assert 2 * (recorded.READ_MOST_S + recorded.WORK_S) < recorded.WAIT_S


async def test_a_new_rule_is_tried_on_what_a_router_gets(tmp_path: Path) -> None:
    async with desktop(tmp_path, 4) as desk:
        router = desk.row.router_ids[0]
        told = await desk.tries("new/try", router=router)
        (strip,) = told["chart"]["strips"]
        assert {"closed", "open"} <= {band[0] for band in strip["bands"]}
        own = await backtest(tmp_path, *await rule_file(tmp_path))
        assert begins(told, 0) == [move["ts_ms"] for move in before_end(own)]
        assert "No router" in (await desk.tries("new/try"))["told"]
        empty, _ = await desk.s.store.create_router(desk.s.project.id, RouterDraft(name="e"), desk.s.clock.now_ms())
        assert "no sample" in (await desk.tries("new/try", router=empty.id))["told"]
        assert "no sample" in (await desk.tries("new/try", router=router, metric="<b>"))["told"]


async def rule_file(path: Path) -> tuple[str, str]:
    (path / "rule.json").write_text(json.dumps(DRAFT))
    return "--rule", str(path / "rule.json")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"threshold": "much"}, "must be a finite number"),
        ({"window_ms": "1.5"}, "must be an integer"),
        ({"metric": "another"}, "of &#39;latency&#39;"),
        ({"windows": '"/etc/passwd"'}, "expected a list"),
        ({"windows": "[[1]]"}, "expected [start, end]"),
        ({"windows": "[" * 5_000}, "not JSON"),
        ({"windows": json.dumps([[1, 2]] * 501)}, "more than 500"),
        ({"grace_ms": "-1"}, "from 0 to"),
        ({"actions": "{"}, "is not JSON"),
    ],
)
async def test_what_can_not_be_tried_is_said(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    async with desktop(tmp_path, 1) as desk:
        told = await desk.tries(**fields)
        assert told["chart"] is None
        assert words.replace("&#39;", "'") in told["told"] + told["html"]


async def test_moves_are_paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.console.tried.ROWS", 3)
    async with desktop(tmp_path, 6) as desk:
        first, second = await desk.tries(), await desk.tries(page=2)
        assert first["html"].count('data-label="Move"') == second["html"].count('data-label="Move"') == 3
        assert "Page 2 of" in second["html"]
        assert (await desk.tries(page="99999"))["html"].count('data-label="Move"') <= 3
