"""Plans over breakers that share a router: read once for all of them, and each is told what it is when read alone."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from breaker_actors.core.model import Control, Override
from breaker_actors.core.rules import parse_rule
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerRow, RouterDraft
from pipelines import planned
from pipelines.planned import Changed, consequences
from pipelines.replay.vectorized.prefix_columns import distinct
from tests.support.cluster import Service, service

DAY_MS = 86_400_000
RULE: dict[str, Any] = {"cooldown_ms": 100, "window_ms": 150, "eval_interval_ms": 20}
KINDS: tuple[dict[str, Any], ...] = (
    {"kind": "avg", "threshold": 100},
    {"kind": "p95", "threshold": 100, "min_state_duration_ms": 60, "window_ms": 300},
    {"kind": "consecutive_failures", "op": "gte", "threshold": 4},
    {"kind": "count", "op": "lt", "threshold": 3, "min_count": 0},
    {"kind": "error_rate", "threshold": 0.5},
)


async def routed(s: Service, rows: list[BreakerRow], **fields: Any) -> str:
    draft = RouterDraft(breaker_ids=tuple(row.id for row in rows), **fields)
    router, changes = await s.store.create_router(s.project.id, draft, s.clock.now_ms())
    await s.gateway.configured(s.project.id, changes)
    return router.id


async def fed(s: Service, router_id: str, draw: random.Random, batches: int) -> None:
    """Spells of good and bad samples; some late, some of another metric, some counted."""
    for number in range(batches):
        bad, n = number // 6 % 2 == 1, 1 + draw.randrange(3)
        await s.send(
            router_id,
            [500.0 + number if bad else 1.0 / (number + 1)] * n,
            ok=not bad,
            ts_ms=s.clock.now_ms() - draw.choice([0, 0, 0, 40]),
            metric=draw.choice(["latency"] * 4 + ["size"]),
            counts=[draw.choice([1, 7])] * n if draw.random() < 0.2 else None,
        )
        await asyncio.sleep(0.01)


async def steered(s: Service, row: BreakerRow, **control: Any) -> None:
    _, changes = await s.store.update_breaker(
        s.project.id, row.id, lambda r: replace(r, control=Control(**control)), s.clock.now_ms()
    )
    await s.gateway.configured(s.project.id, changes)


def told(
    changed: list[Changed], project_id: str, settings: Settings, span_ms: int, alone: bool, report: Path | None = None
) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        if alone:
            patch.setattr(planned, "gathered", lambda *_: [])
        else:
            patch.setattr(planned, "_consequence", lambda *_: pytest.fail("read alone"))
        return consequences(changed, project_id, settings, span_ms, report)


def planned_of(rows: list[BreakerRow]) -> list[Changed]:
    """Each with another threshold."""
    return [
        Changed(row.name, row.id, parse_rule({"threshold": row.rule.threshold * 1.5, "min_count": 1}, row.rule))
        for row in rows
    ]


async def lived(s: Service, router_id: str, rows: list[BreakerRow], seed: int) -> int:
    """Edits, modes, overrides and a router that dies, between samples. A time that is not after the last record."""
    draw = random.Random(seed)
    await fed(s, router_id, draw, 20)
    await s.edit(rows[0].id, threshold=20)
    await steered(s, rows[1], mode="observe")
    await fed(s, router_id, draw, 14)
    owner = next(place.owner for place in await s.store.placements("router") if place.id == router_id)
    assert owner is not None
    await s.net.kill(owner)
    await asyncio.sleep(0.7)
    s.net.revive("router", owner)
    await fed(s, router_id, draw, 14)
    now_ms = s.clock.now_ms()
    times = {"since_ms": now_ms, "until_ms": now_ms + 60, "version": 9}
    forced = Override(kind="force_open", reason="drill", by="sam", then="half_open", **times)
    await steered(s, rows[2], override=forced)
    await s.edit(rows[0].id, window_ms=400)
    await fed(s, router_id, draw, 20)
    ends_ms = s.clock.now_ms()
    await s.edit(rows[3].id, threshold=7)
    return ends_ms


@pytest.mark.parametrize("born", [True, False], ids=["created on the way", "created before"])
@pytest.mark.parametrize("seed", range(2))
async def test_each_is_told_the_same_as_alone(tmp_path: Path, seed: int, born: bool) -> None:
    """Of breakers with settings of their own, with gaps of own routers, that are to be made; none is read alone."""
    async with service(tmp_path) as s:
        rows = [await s.breaker(f"b{n}", **(RULE | KINDS[n % len(KINDS)])) for n in range(6)]
        router_id = await routed(s, rows)
        await fed(s, router_id, random.Random(seed), 10)
        since_ms = s.clock.now_ms()
        span_ms = await lived(s, router_id, rows, seed) - since_ms
        changed = [*planned_of(rows), Changed("new", None, rows[0].rule, router_id)]
        changed += [Changed("newer", None, rows[4].rule, router_id)]
    asked = changed, s.project.id, s.cluster.settings, DAY_MS if born else span_ms
    together = await asyncio.to_thread(told, *asked, False)
    assert together == await asyncio.to_thread(told, *asked, True)
    assert len({row["trips_after"] for row in together}) > 1
    assert all(row["samples"] > 50 for row in together)


async def test_pages_of_several_are_drawn_in_one_reading(tmp_path: Path) -> None:
    """Each shows what the page of one that is read alone shows, to the letter."""
    async with service(tmp_path / "service") as s:
        rows = [await s.breaker(f"b{n}", **(RULE | KINDS[n])) for n in range(4)]
        router_id = await routed(s, rows)
        await fed(s, router_id, random.Random(3), 10)
        since_ms = s.clock.now_ms()
        span_ms = await lived(s, router_id, rows, 3) - since_ms
        changed = [*planned_of(rows), Changed("new", None, rows[0].rule, router_id)]
    asked = changed, s.project.id, s.cluster.settings, span_ms
    pages = {}
    for alone in (False, True):
        (tmp_path / f"{alone}").mkdir()
        await asyncio.to_thread(told, *asked, alone, tmp_path / f"{alone}" / "plan.html")
        pages[alone] = [path.read_text() for path in sorted((tmp_path / f"{alone}").iterdir())]
    assert len(pages[False]) == len(changed)
    assert pages[False] == pages[True]
    assert [row.name in page for row, page in zip(rows, pages[False], strict=False)] == [True] * len(rows)


async def test_who_got_something_else_is_told_apart(tmp_path: Path) -> None:
    """A share of the samples, another metric, or those of another router: no reading of these does for the others."""
    async with service(tmp_path) as s:
        rows = [await s.breaker(f"b{n}", **RULE) for n in range(4)]
        other = await s.breaker("size", **(RULE | {"metric": "size"}))
        linked = [*rows[:3], other]
        router_id = await routed(s, linked, mode="canary", metadata={f"canary:{rows[0].id}": "40"})
        await fed(s, router_id, random.Random(1), 30)
        await fed(s, rows[3].router_ids[0], random.Random(2), 30)
        changed = planned_of([*rows, other])
        lots = await asyncio.to_thread(
            planned.gathered, s.project.id, [planned.Asked(c.breaker_id, "", c.rule.metric) for c in changed],
            s.cluster.settings, DAY_MS,
        )  # fmt: skip
        assert [one.numbers for one in lots] == [(1, 2)]
        told_of = await asyncio.to_thread(consequences, changed, s.project.id, s.cluster.settings, DAY_MS)
        samples = [row["samples"] for row in told_of]
        assert 0 < samples[0] < samples[1] == samples[2]
        assert [row["breaker"] for row in told_of] == ["b0", "b1", "b2", "b3", "size"]


async def test_one_that_can_not_be_told_leaves_the_others(tmp_path: Path) -> None:
    """What stops the reading of all is told of those whom it concerns."""
    async with service(tmp_path) as s:
        rows = [await s.breaker(f"b{n}", **RULE) for n in range(3)]
        router_id = await routed(s, rows)
        await fed(s, router_id, random.Random(1), 20)
        changed = planned_of(rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planned, "_together", lambda *_: (_ for _ in ()).throw(planned.Invalid("too much")))
            alone = await asyncio.to_thread(consequences, changed, s.project.id, s.cluster.settings, DAY_MS)
        assert alone == await asyncio.to_thread(consequences, changed, s.project.id, s.cluster.settings, DAY_MS)


@pytest.mark.parametrize("values", [[], [3], [1, 1, 1], [0, 0, 2, 5, 5]])
def test_each_value_once(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted(set(values))
