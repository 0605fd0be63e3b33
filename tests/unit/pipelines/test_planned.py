"""What changed rules would have done on what a service has: beside one another in processes the same as one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from breaker_actors.clock import rfc3339
from breaker_actors.settings import Settings
from pipelines import planned
from pipelines.backtest import backtest
from pipelines.planned import Changed, consequences
from pipelines.recorded import recorded
from tests.bench.__main__ import main
from tests.support.cluster import service
from tests.unit.pipelines.test_ruletests_record import DAY_MS, INCIDENT, put_history

HOUR_MS = 3_600_000


async def _lived(directory: Path) -> tuple[str, list[Changed]]:
    """Two breakers that tripped once, and one that got nothing."""
    async with service(directory) as town:
        rows = [await town.breaker(f"b{n}", threshold=100 + n) for n in range(3)]
        for row in rows[:2]:
            await town.send(row.router_ids[0], [10.0] * 5)
            await town.send(row.router_ids[0], [500.0] * 20)
            await town.in_state(row.id, "open")
        return town.project.id, [Changed(row.name, row.id, replace(row.rule, threshold=400.0)) for row in rows]


@pytest.mark.parametrize("apart", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_each_is_told_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: int) -> None:
    monkeypatch.setattr(planned, "APART_SAMPLES", planned.APART_SAMPLES * apart)
    project_id, changed = asyncio.run(_lived(tmp_path))
    heard: list[int] = []
    settings = Settings(data_dir=tmp_path, breaker_actors=2, router_actors=1)
    rows: list[dict[str, Any]] = consequences(
        changed, project_id, settings, HOUR_MS, tmp_path / "plan.html", heard.append
    )
    assert [row["breaker"] for row in rows] == ["b0", "b1", "b2"]
    assert [(row.get("trips_before"), row.get("trips_after"), row.get("samples")) for row in rows[:2]] == [
        (1, 1, 25)
    ] * 2
    assert heard == [1, 2, 3]
    assert {path.name for path in tmp_path.glob("*.html")} == {"plan-1.html", "plan-2.html"}


@pytest.mark.slow
def test_the_bench_of_plans(tmp_path: Path) -> None:
    """In its smoke size: what breakers did, and would have done, is told of both cases."""
    main(["plan", "--smoke", "--json", str(tmp_path / "figures.json")])
    figures = (tmp_path / "figures.json").read_text()
    assert '"own routers: samples": 40000' in figures
    assert '"a shared router: samples": 160000' in figures


def test_one_without_samples_says_so_once(tmp_path: Path) -> None:
    """The plan's line begins with the breaker's name."""
    project_id, changed = asyncio.run(_lived(tmp_path))
    settings = Settings(data_dir=tmp_path, breaker_actors=2, router_actors=1)
    (row,) = consequences([changed[2]], project_id, settings, HOUR_MS)
    assert row == {"breaker": "b2", "told": planned.NOTHING}


async def _with_history(directory: Path) -> tuple[str, list[Changed], int]:
    """Two breakers of one metric and router, with a few samples of now and two hours of 90 days ago."""
    async with service(directory) as town:
        row = await town.breaker("b0", **INCIDENT)
        await town.send(row.router_ids[0], [10.0] * 5)
        start_ms = town.clock.now_ms() - 90 * DAY_MS
        put_history(town, row, start_ms)
        changed = Changed(row.name, row.id, replace(row.rule, threshold=1_000.0))
        return town.project.id, [changed, Changed("new", None, row.rule, row.router_ids[0])], start_ms


@pytest.mark.parametrize("both", [True, False], ids=["several", "one"])
def test_history_is_tried_as_backtests_of_the_service_try_it(tmp_path: Path, both: bool) -> None:
    """So far back as was asked for; the line says since when there are samples."""
    project_id, changed, start_ms = asyncio.run(_with_history(tmp_path))
    settings = Settings(data_dir=tmp_path, breaker_actors=2, router_actors=1)
    log = recorded("b0", settings)
    trips = int(backtest(log.breaker, log).summary["trips"][0])
    assert trips
    page = tmp_path / "plan.html"
    rows = consequences(changed if both else changed[:1], project_id, settings, 400 * DAY_MS, page)
    assert (rows[0]["trips_before"], rows[0]["trips_after"], rows[0]["samples"]) == (trips, 0, 725)
    assert rows[0]["told"].endswith(f"725 samples since {rfc3339(start_ms)}")
    assert [(row["trips_after"], row["samples"]) for row in rows[1:]] == [(trips, 725)] * both
    assert page.exists() is not both
    assert planned.without_page(page, rows) is None
    rows = consequences(changed if both else changed[:1], project_id, settings, DAY_MS)
    assert [row["samples"] for row in rows] == [5] * len(rows)


def test_what_lasts_less_than_a_minute_is_told_in_seconds() -> None:
    assert [planned.lasting(ms) for ms in (0, 5_000, 60_000, 2_460_000)] == ["0 min", "5 s", "1 min", "41 min"]


def test_that_no_page_is_written_is_told(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    told = planned.without_page(page, [{"breaker": "b", "told": planned.NOTHING}])
    assert told == f"{page} is not written: there is nothing to show"
    assert planned.without_page(None, []) is None
