"""A disk without room: samples are refused, readiness says so, states are answered, and all goes on by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from breaker_actors.gateway import gateway
from tests.support.cluster import Service, service, until
from tests.support.full_disk import full_disk

ROOM_BYTES = 1 << 18
"""Only the log's file is larger."""
BACK_WITHIN_S = 5.0


async def is_ready(s: Service) -> bool:
    return not await s.refusal()


@pytest.mark.parametrize("traffic", [True, False])
async def test_readiness_follows_what_the_log_takes(
    tmp_path: Path, traffic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not anybody sends samples meanwhile: owners note every second that they could take some. Who sends
    some does not wait for what is known to fail."""
    monkeypatch.setattr(gateway, "INGEST_S", 3_600.0)
    with capture_logs() as lines:
        await _fill(tmp_path, traffic)
    told = [one for one in lines if one["event"] in ("log_unwritable", "log_writable")]
    assert [one["event"] for one in told] == ["log_unwritable", "log_writable"]
    assert told[0]["error"].startswith("the sample log does not answer")


async def _fill(tmp_path: Path, traffic: bool) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker()
        router_id = row.router_ids[0]
        while max(path.stat().st_size for path in (tmp_path / "log").iterdir()) <= ROOM_BYTES:
            assert (await s.send(router_id, [1.0] * 1_000)).status == "ok"
        assert await is_ready(s)
        with full_disk(ROOM_BYTES):
            if traffic:
                outcome = await s.send(router_id, [1.0] * 1_000)
                assert outcome.status == "failed"
            said = await until(s.refusal, BACK_WITHIN_S)
            assert said.startswith("samples can't be stored: the sample log does not answer")
            assert [a.router.fault for a in (await s.gateway.status()).actors if a.router is not None] == [
                said.partition(": ")[2]
            ]
            assert (await s.state(row.id)).view.state == "closed"
        await until(lambda: is_ready(s), BACK_WITHIN_S)
        assert (await s.send(router_id, [1.0] * 1_000)).status == "ok"


async def test_who_owns_nothing_is_not_to_blame(tmp_path: Path) -> None:
    """A fault that no later write could take back goes with the last router."""
    async with service(tmp_path) as s:
        row = await s.breaker()
        router_id, owner = row.router_ids[0], s.net.actors["router-0"]
        while max(path.stat().st_size for path in (tmp_path / "log").iterdir()) <= ROOM_BYTES:
            assert (await s.send(router_id, [1.0] * 1_000)).status == "ok"
        with full_disk(ROOM_BYTES):
            await until(owner.ping, BACK_WITHIN_S)
            await owner.release([router_id])
            assert await owner.ping() == ""
