"""PUT of thousands of breakers: fast, readable at once, and work proportional to what changed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live import LiveService, serving, tree_of, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

COUNT = 5_000
MOST_S, LOOPS_MAX = 15, 70
"""So long, or on a slow machine so many times as long as a fixed piece of Python: some 50 on one that is left alone."""
RULE = {"metric": "m", "kind": "avg", "op": "gt", "threshold": 1.0, "min_state_duration_ms": 0, "cooldown_ms": 60_000}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """Of its own: thousands of breakers are no company for other tests."""
    with serving(tmp_path_factory.mktemp("bulk") / "data") as service:
        yield service


def rss_mb(live: LiveService) -> float:
    from tests.bench.service import memory_mb

    return memory_mb([live.process.pid, *tree_of(live.process.pid)])


def put(live: LiveService, path: str, breakers: list[dict[str, Any]]) -> tuple[dict[str, Any], float]:
    start = time.monotonic()
    answer = live.user.put(f"{path}/breakers", json={"breakers": breakers}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json(), time.monotonic() - start


def loop_s() -> float:
    """Seconds for a fixed piece of Python."""
    start, n = time.perf_counter(), 0
    for i in range(5_000_000):
        n += i & 7
    return time.perf_counter() - start


def states(live: LiveService, path: str, ids: list[str]) -> dict[str, dict[str, Any]]:
    answer = live.user.post(f"{path}/breakers/state:batch", json={"breaker_ids": ids}, timeout=60)
    assert answer.status_code == 200, answer.text
    return {s["breaker_id"]: s for s in answer.json()["states"]}


def test_five_thousand_breakers_in_one_put(live: LiveService) -> None:
    body = {"name": "bulk", "workspace_id": live.credentials["workspace_id"]}
    project = live.user.post("/v1/projects", json=body).json()
    path = f"/v1/projects/{project['project_id']}"
    wanted = [{**RULE, "name": f"b{i}"} for i in range(COUNT)]
    before = rss_mb(live)
    loops = [loop_s()]
    first, took = put(live, path, wanted)
    loops.append(loop_s())
    assert (first["changed"], first["count"]) == (True, COUNT)
    assert took < max(MOST_S, LOOPS_MAX * sum(loops) / 2), (took, loops)
    listed = live.user.get(f"{path}/breakers", timeout=60).json()
    ids = [b["id"] for b in listed["breakers"]]
    assert len(states(live, path, ids)) == COUNT
    assert rss_mb(live) - before < 1_500

    times = []
    for _ in range(3):  # a busy machine makes one slow
        again, took = put(live, path, wanted)
        assert (again["changed"], again["hash"]) == (False, first["hash"])
        times.append(took)
    assert min(times) < 2, times

    sample = {"router_id": listed["breakers"][7]["router_id"], "metric": "m", "value": 5.0}
    sample["ts_ms"] = int(time.time() * 1000)
    assert live.user.post(f"{path}/ingest", json=[sample]).status_code == 202
    wait_for(lambda: states(live, path, [ids[7]])[ids[7]]["state"] == "open", 60)

    wanted[7]["threshold"] = 2.0
    one, _ = put(live, path, wanted)
    assert (one["changed"], one["count"]) == (True, COUNT)
    after = {b["id"]: b for b in live.user.get(f"{path}/breakers", timeout=60).json()["breakers"]}
    assert after[ids[7]]["threshold"] == 2.0
    assert [i for i in ids if after[i] != listed["breakers"][ids.index(i)]] == [ids[7]]
    changes = live.user.get(f"{path}/audit", params={"limit": 200}).json()
    touched = [e for e in changes["items"] if e.get("breaker_id", e.get("target_id")) == ids[7]]
    assert touched
