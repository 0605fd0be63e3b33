"""Thresholds that the form of a breaker suggests, over a real log: those of `breakers suggest`, within bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from api.console import recorded, suggested
from breaker_actors.store.rows import RouterDraft
from pipelines.recorded import of_breaker
from pipelines.suggest.suggestion import suggest
from tests.unit.api.console.test_tried import DRAFT, Desktop, desktop, feed

RULE: dict[str, Any] = {name: value for name, value in DRAFT.items() if name not in ("name", "threshold")}


async def asked(d: Desktop, path: str = "", **fields: Any) -> Any:
    return await d.tries(path or f"b/{d.row.id}/suggest", **fields)


async def python_says(d: Desktop, rule: dict[str, Any], trips: float) -> float | None:
    def run() -> float | None:
        source = of_breaker(d.s.project.id, d.row.id, d.s.cluster.settings)
        frame = pl.concat(batch for batch in source.batches() if len(batch))
        found = suggest(frame, rule=rule, trips_a_week=trips).frame["threshold"].to_list()
        return float(found[0]) if found else None

    return await asyncio.to_thread(run)


async def test_the_form_suggests_what_the_command_does(tmp_path: Path) -> None:
    """For the draft as it is, but for its threshold; and the draft with it trips as seldom as was told."""
    async with desktop(tmp_path) as d:
        for kind, trips in (("max", "0"), ("avg", "0"), ("p95", "1000")):
            found = await asked(d, kind=kind, trips_a_week=trips, threshold="")
            assert found["threshold"] is not None, found
            assert found["threshold"] == await python_says(d, RULE | {"kind": kind}, float(trips))
            assert "the usual level ends at" in found["told"]
            assert "Looked at" in found["told"]
        found = await asked(d, trips_a_week="0")
        tried = await d.tries(threshold=found["threshold"])
        assert [band[0] for band in tried["chart"]["strips"][1]["bands"]] == ["closed"]
        assert tried["chart"]["lines"][1] == ["draft", found["threshold"], [7, 5]]


async def test_a_draft_of_a_router_gets_one_too(tmp_path: Path) -> None:
    async with desktop(tmp_path) as d:
        assert (await asked(d, "new/suggest"))["threshold"] is None
        draft = RouterDraft(breaker_ids=(d.row.id,))
        router, changes = await d.s.store.create_router(d.s.project.id, draft, d.s.clock.now_ms())
        await d.s.gateway.configured(d.s.project.id, changes)
        none = await asked(d, "new/suggest", router=router.id)
        assert (none["threshold"], "there is no sample" in none["told"]) == (None, True)
        found = await asked(d, "new/suggest", router=d.row.router_ids[0])
        assert found["threshold"] is not None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"trips_a_week": "many"}, "Trips a week: a number"),
        ({"trips_a_week": "nan"}, "Trips a week: a number"),
        ({"trips_a_week": "-1"}, "Trips a week: a number"),
        ({"metric": "other"}, "there are none of 'other'"),
        ({"window_ms": "x"}, ""),
        ({"kind": "consecutive_failures"}, "needs labelled failures"),
    ],
)
async def test_where_none_can_be_suggested_it_says_why(tmp_path: Path, fields: dict[str, str], words: str) -> None:
    async with desktop(tmp_path, 2) as d:
        found = await asked(d, **fields)
        assert found["threshold"] is None
        assert found["told"]
        assert words.lower() in found["told"].lower()


async def test_it_looks_at_the_newest_and_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with desktop(tmp_path, 2) as d:
        await feed(d.s, d.row, 3)
        monkeypatch.setattr(suggested, "SAMPLES_MAX", 20)
        assert "Looked at 20 samples" in (await asked(d))["told"]
        monkeypatch.setattr(recorded, "WORK_S", -1.0)
        for kind in ("p95", "avg"):
            assert await asked(d, kind=kind, trips_a_week="0") == {"told": suggested.LATE, "threshold": None}
