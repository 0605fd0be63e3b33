"""kill -9 of actor processes while samples flow: state, events and windows are as if nothing had happened."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from breaker_actors.core.log_entries import SAMPLES, decode_samples
from breaker_actors.core.model import Transition
from breaker_actors.persistence import make_log, make_store
from breaker_actors.settings import Settings
from tests.support.cluster import replay_log
from tests.support.live import LiveService, wait_for

pytestmark = pytest.mark.e2e


class Flow:
    """Good and bad spells of samples from a thread, counting what was accepted."""

    def __init__(self, live: LiveService, router_id: str) -> None:
        self._live, self._router_id = live, router_id
        self._stop = threading.Event()
        self.accepted = 0
        self.refused: list[str] = []
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        spell = 0
        while not self._stop.is_set():
            spell += 1
            for _ in range(8):
                answer = self._live.send(self._router_id, [500.0 if spell % 4 == 1 else 10.0] * 5)
                if answer.status_code == 202:
                    self.accepted += answer.json()["accepted"]
                else:
                    self.refused.append(answer.text)
                time.sleep(0.02)

    def __enter__(self) -> Flow:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


async def of_the_log(live: LiveService, made: dict[str, Any], until_ms: int) -> tuple[int, list[Transition]]:
    """Samples in the router's log, and the transitions of a replay of it."""
    settings = Settings(data_dir=live.data_dir)
    store, log = make_store(settings), make_log(settings)
    await store.open()
    router_id = made["router_id"]
    slot = next(p.log_slot for p in await store.placements("router") if p.id == router_id)
    records = await log.read(slot or "", router_id, 0, 1 << 60, 1 << 30)
    count = sum(len(decode_samples(r.payload).batch) for r in records if r.kind == SAMPLES)
    effects = await replay_log(log, slot or "", router_id, made["breaker"]["id"], until_ms)
    await log.close()
    await store.close()
    return count, [e for e in effects if isinstance(e, Transition)]


@pytest.mark.alone
@pytest.mark.parametrize("actor", ["BreakerActor", "RouterActor", "JournalActor", "DirectoryActor", "ServeReplica"])
def test_a_killed_process_is_not_noticed(live: LiveService, actor: str) -> None:
    made = live.breaker(name=f"killed-{actor}")
    breaker_id = made["breaker"]["id"]
    with Flow(live, made["router_id"]) as flow:
        wait_for(lambda: len(live.events(breaker_id)) >= 4, 30)
        assert live.kill(actor)
        time.sleep(0.1)  # let the flow run into it
        before = len(wait_for(lambda: live.events(breaker_id), 30))
        wait_for(lambda: len(live.events(breaker_id)) >= before + 4, 60)
    assert flow.refused == []
    wait_for(lambda: not live.state(breaker_id).get("stale"), 20)
    events = live.events(breaker_id)
    assert [e["transition_seq"] for e in events] == list(range(1, len(events) + 1))
    logged, replayed = asyncio.run(of_the_log(live, made, events[-1]["ts_ms"]))
    assert logged == flow.accepted
    got = [(e["prev"], e["curr"], e["ts_ms"]) for e in events]
    assert got == [(e.prev, e.curr, e.ts_ms) for e in replayed][: len(got)]
