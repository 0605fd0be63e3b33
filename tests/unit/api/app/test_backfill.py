"""Events of history that was loaded: listed when asked for; and what a backfill hands to the service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from api.cli import backfill_cluster as backfill
from api.cli.backfill_cluster import RunningService
from breaker_actors.core.log_entries import decode_samples
from breaker_actors.errors import Unavailable
from breaker_actors.messages import AppendResult, EventDraft, Part
from breaker_actors.store.rows import EventQuery
from pipelines.sources.history_store import SCHEMA
from tests.contract.store_world import event
from tests.support import recorded
from tests.support.fake_gateway import FakeClock, FakeGateway
from tests.support.recorded import PROJECT, router_id
from tests.support.web_world import World, store_at

NOTHING = "00000000-0000-4000-8000-00000000ffff"


async def load(world: World, breaker_id: str, *times: int, run_id: str = "run-1") -> None:
    events = [(breaker_id, event(seq, ts_ms=ts_ms)) for seq, ts_ms in enumerate(times, 1)]
    await world.store.add_backfill_events(world.project.id, run_id, events, world.clock.now_ms())


async def listed(world: World, query: str) -> list[tuple[str, int]]:
    """(id, ts_ms) of all pages."""
    found: list[tuple[str, int]] = []
    cursor: str | None = ""
    while cursor is not None:
        response = await world.call("GET", f"events?{query}&cursor={cursor}")
        assert response.status_code == 200
        body = await response.get_json()
        found += [(one["id"], one["ts_ms"]) for one in body["events"]]
        cursor = body["next_cursor"]
    return found


async def test_they_are_listed_only_when_asked_for(world: World) -> None:
    """With the run they came by; ids are unlike those of what happened."""
    row = await world.breaker("a")
    await load(world, row.id, 10, 20)
    assert await listed(world, "limit=1") == []
    assert await listed(world, "source=live") == []
    expected = [(f"run-1.{row.id}.{seq}", 10 * seq) for seq in (2, 1)]
    for source in ("backfill", "all"):
        assert await listed(world, f"source={source}&limit=1") == expected
    response = await world.call("GET", "events?source=all")
    assert response.headers["X-Latest-Timestamp"] == "20"
    newest = (await response.get_json())["events"][0]
    assert (newest["source"], newest["run_id"], newest["transition_seq"]) == ("backfill", "run-1", 2)
    assert "X-Latest-Timestamp" not in (await world.call("GET", "events")).headers
    assert await listed(world, f"source=all&breaker_id={NOTHING}") == []
    assert await listed(world, f"source=backfill&after_sequence=1&breaker_id={row.id}") == expected[:1]


@pytest.mark.parametrize("query", ["source=both", "source=all&after_sequence=0", "source=BACKFILL"])
async def test_what_cant_be_asked(world: World, query: str) -> None:
    assert (await world.call("GET", f"events?{query}")).status_code == 400


async def test_a_cursor_belongs_to_its_source(world: World) -> None:
    row = await world.breaker("a")
    await load(world, row.id, 10, 20, 30)
    cursor = (await (await world.call("GET", "events?source=backfill&limit=1")).get_json())["next_cursor"]
    assert (await world.call("GET", f"events?source=live&cursor={cursor}")).status_code == 400
    assert len((await (await world.call("GET", f"events?source=all&cursor={cursor}")).get_json())["events"]) == 2


# -- what a run hands over --------------------------------------------------------------------------------------------


class Picky(FakeGateway):
    """Refuses the first so many parts."""

    refusals = 0

    async def ingest(self, project_id: str, parts: Sequence[Part], org_id: str = "") -> list[AppendResult]:
        answers = await super().ingest(project_id, parts)
        for i in range(len(answers)):
            if self.refusals:
                self.refusals, answers[i] = self.refusals - 1, AppendResult("full")
        return answers


@pytest.fixture
def gateway(tmp_path: Path) -> Picky:
    return Picky(store_at(tmp_path / "store.sqlite"))


def run_of(tmp_path: Path, **fields: Any) -> Any:
    (tmp_path / "s.csv").write_text("x\n")
    routers = [recorded.router(0, 0), recorded.router(1, 0, mode="weighted")]
    return recorded.manifest([tmp_path / "s.csv"], routers, [recorded.breaker(0, 0, 1)], **fields)


def live(count: int) -> pl.DataFrame:
    rows = [(router_id(i % 2), "latency", i, i, float(i), True, f"t{i}", 1 + i % 3) for i in range(count)]
    return pl.DataFrame(rows, SCHEMA, orient="row")


def test_live_samples_are_ingested_as_requests_are(
    tmp_path: Path, gateway: Picky, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part per router and hundred thousand samples; given again they carry the same duplicate keys, and other append
    ids."""
    monkeypatch.setattr(backfill, "ROWS_MAX", 1000)
    run = run_of(tmp_path, with_traces=True)
    with RunningService(gateway, run, FakeClock()) as service:
        for _ in range(2):
            service.ingest("run-1.000000", live(1010))
        service.ingest("run-1.000001", live(2))
    first, again, other = gateway.parts[:4], gateway.parts[4:8], gateway.parts[8:]
    assert [part.count for part in first] == [500, 500, 5, 5]
    assert [part.payload for part in first] == [part.payload for part in again]
    assert [part.keys[1] for part in first] == [part.keys[1] for part in again]
    assert not {part.keys[0] for part in first} & {part.keys[0] for part in again}
    assert len({(part.router_id, part.keys[1]) for part in gateway.parts}) == 6
    assert {len(key) for part in gateway.parts for key in part.keys} == {16}
    shares = {part.router_id: decode_samples(part.payload).share for part in other}
    assert shares[router_id(0)] is None
    assert shares[router_id(1)] is not None
    assert decode_samples(other[0].payload).traces == ["t0"]
    counts = [decode_samples(part.payload).batch.count for part in other]
    assert [None if count is None else count.tolist() for count in counts] == [None, [2]]


def test_what_is_full_is_asked_again(tmp_path: Path, gateway: Picky, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that; and not for ever."""
    monkeypatch.setattr(backfill, "FULL_S", 0.0)
    gateway.refusals = 1
    with RunningService(gateway, run_of(tmp_path), FakeClock()) as service:
        service.ingest("run-1.000000", live(4))
        assert [part.router_id for part in gateway.parts] == [router_id(0), router_id(1), router_id(0)]
        monkeypatch.setattr(backfill, "PATIENCE_S", -1.0)
        gateway.refusals = 1
        with pytest.raises(Unavailable, match="run the same command again"):
            service.ingest("run-1.000001", live(4))


def test_events_go_into_the_store(tmp_path: Path, gateway: Picky) -> None:
    draft = EventDraft.of("b0", recorded.rule(), _moved())
    with RunningService(gateway, run_of(tmp_path), FakeClock()) as service:
        service.store("run-1", [("b", draft)])
        rows = service._runner.run(gateway.store.events(EventQuery(project_id=PROJECT, source="backfill")))
    assert [(row.breaker_id, row.run_id, row.rule["kind"]) for row in rows] == [("b", "run-1", "avg")]


def _moved() -> Any:
    from breaker_actors.core.model import Agg, Transition

    return Transition(
        prev="closed",
        curr="open",
        ts_ms=5,
        transition_seq=1,
        reason="threshold_exceeded",
        allow_rate=0.0,
        value=1.0,
        agg=Agg(),
    )
