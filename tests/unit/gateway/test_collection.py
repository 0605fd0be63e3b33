"""What all processes have counted, over a whole service in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.wire.exposition import Scrape, exposition
from breaker_actors.errors import Unavailable
from breaker_actors.gateway import status
from breaker_actors.gateway.gateway import ActorGateway
from breaker_actors.messages import Counted
from breaker_actors.telemetry.catalog import TABLE
from tests.support.cluster import service


def summed(processes: list[Counted], name: str) -> float:
    return sum(n for counted in processes for key, n in counted.values.items() if key[0] == name)


async def test_every_process_is_asked(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker("a")
        await s.send(row.router_ids[0], [500.0])
        await s.in_state(row.id, "open")
        found, silent = await s.gateway.counted()
        names = [counted.actor for counted in found]
        # nobody listens for notifications here
        assert (names[:2], silent) == (["journal-0", "directory"], 1)
        assert {"router-0", "breaker-0"} < set(names)
        assert names.count("api") == 1
        assert summed(found, "breakers_samples_applied_total") == 1
        assert summed(found, "breakers_events_total") == 1
        text = exposition(Scrape([], 1, found, silent)).decode()
        families = list(text_string_to_metric_families(text))
        series = {(x.name, x.labels.get("actor")): x.value for family in families for x in family.samples}
        assert series["breakers_log_append_seconds_count", "router-0"] >= 1
        assert series["breakers_processes", None] == len(found)
        counters = {m.name for m in TABLE.values() if m.type == "counter" and m.parts != ("notifier",)}
        assert counters <= {name for name, _ in series}


async def test_who_does_not_answer_is_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "ANSWER_S", 0.1)
    async with service(tmp_path) as s:
        await s.breaker("a")
        before, silent = await s.gateway.counted()
        await s.net.kill("breaker-0")
        found, more = await s.gateway.counted()
        assert {c.actor for c in before} - {c.actor for c in found} == {"breaker-0"}
        assert more == silent + 1


async def test_without_the_directory_a_replica_tells_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(tmp_path) as s:
        await s.breaker("a")
        there = s.net.call

        async def call(actor: str, method: str, *args: object) -> object:
            if actor == "directory":
                raise Unavailable("directory does not answer")
            return await there(actor, method, *args)

        monkeypatch.setattr(s.net, "call", call)
        found, _ = await s.gateway.counted()
        assert [c.actor for c in found if c.actor.startswith("api")] == ["api"]


async def test_replicas_find_each_other(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        other = ActorGateway(s.store, s.net, s.clock, s.cluster.settings, named=lambda: "api-1")
        mine, _ = await s.gateway.counted()
        theirs, _ = await other.counted()
        assert [c.actor for c in mine if c.actor.startswith("api")] == ["api"]
        assert [c.actor for c in theirs if c.actor.startswith("api")] == ["api", "api-1"]
