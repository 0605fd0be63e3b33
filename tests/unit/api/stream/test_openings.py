"""Streams of one organisation are opened at a rate; others don't wait for them."""

from __future__ import annotations

import asyncio

import pytest

from api.stream import openings
from api.stream.openings import Openings


async def opened(gate: Openings, org_id: str, count: int) -> tuple[list[bool], float]:
    """Whether each had to wait, and how long all of them took."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    waited = await asyncio.gather(*(gate.turn(org_id) for _ in range(count)))
    return waited, clock() - begun


async def test_a_burst_is_let_in_at_once_and_the_others_in_order() -> None:
    gate = Openings(per_s=100, at_once=20)
    waited, took_s = await opened(gate, "greedy", 70)
    assert waited == [False] * 20 + [True] * 50
    assert took_s == pytest.approx(0.5, abs=0.05)


async def test_another_organisation_does_not_wait() -> None:
    gate = Openings(per_s=100, at_once=20)
    flood = asyncio.create_task(opened(gate, "greedy", 200))
    await asyncio.sleep(0.1)
    waited, took_s = await opened(gate, "quiet", 20)
    assert (waited, took_s) == ([False] * 20, pytest.approx(0.0, abs=0.05))
    assert not flood.done()
    await flood


async def test_who_went_away_has_opened_nothing() -> None:
    gate = Openings(per_s=100, at_once=1)
    gone = [asyncio.create_task(gate.turn("greedy")) for _ in range(500)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    _, took_s = await opened(gate, "greedy", 2)
    assert took_s < 0.1


async def test_organisations_of_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "ORGS_KNOWN_MAX", 3)
    gate = Openings(per_s=100, at_once=5)
    for number in range(3):
        await gate.turn(f"old {number}")
    await asyncio.sleep(0.1)
    await opened(gate, "new", 5)
    assert list(gate._whole_at) == ["new"]
