"""Overrides and observe mode on a running service: what an unmodified client does, what outlives a crash."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import tripswitch

from tests.support.live import LiveService, serving, wait_for

pytestmark = pytest.mark.e2e

CALLS = 2_000
SHARE = 0.2


def put(live: LiveService, breaker_id: str, **fields: Any) -> dict[str, Any]:
    """Sets an override; what is shown of it."""
    answer = live.user.put(f"{live.project_path}/breakers/{breaker_id}/override", json={"reason": "drill"} | fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["override"])


def moves(live: LiveService, breaker_id: str) -> list[tuple[str, str, str, str | None]]:
    """A breaker's events, oldest first: before, after, why, and why they were not seen."""
    rows = live.events(breaker_id)
    return [(row["prev"], row["curr"], row["reason"], row.get("hidden_by")) for row in rows]


def test_an_unmodified_client_obeys(live: LiveService) -> None:
    """Forced open no call passes, forced closed all do though the breaker has tripped, and a throttle lets its share
    through: of 2,000 calls within four standard deviations of the binomial distribution."""
    made = live.breaker(name=f"forced {time.time_ns()}", cooldown_ms=600_000)
    name, id_ = made["name"], made["id"]
    client = tripswitch.Client(
        live.project_id, api_key=live.credentials["project_key"], base_url=live.base_url, timeout=20
    )
    try:
        client.connect()

        def seen() -> tuple[str, float | None]:
            status = client.get_state(name)
            return (status.state, status.allow_rate) if status else ("", None)

        def passes() -> bool:
            try:
                return client.execute(lambda: True, breakers=[name])
            except tripswitch.BreakerOpenError:
                return False

        put(live, id_, kind="force_open")
        wait_for(lambda: seen()[0] == "open")
        assert not any(passes() for _ in range(50))
        live.user.delete(f"{live.project_path}/breakers/{id_}/override?reason=over")
        wait_for(lambda: seen()[0] == "closed")
        assert all(passes() for _ in range(50))

        live.trip(made)
        wait_for(lambda: seen()[0] == "open")
        put(live, id_, kind="force_closed")
        wait_for(lambda: seen()[0] == "closed")
        assert all(passes() for _ in range(50))
        assert live.state(id_)["machine_state"] == "open"

        put(live, id_, kind="throttle", allow_rate=SHARE)
        wait_for(lambda: seen() == ("half_open", SHARE))
        passed = sum(passes() for _ in range(CALLS))
        deviation = (CALLS * SHARE * (1 - SHARE)) ** 0.5
        assert abs(passed - CALLS * SHARE) <= 4 * deviation
    finally:
        client.close()


def test_a_breaker_that_observes_trips_unseen(live: LiveService) -> None:
    """Its machine opens, callers see closed, the event says so; enforcing it asks for a word and shows at once."""
    made = live.breaker(name=f"observes {time.time_ns()}", mode="observe", cooldown_ms=600_000)
    live.send(made["router_id"], [900.0] * 5)
    wait_for(lambda: live.state(made["id"])["machine_state"] == "open")
    state = live.state(made["id"])
    assert (state["state"], state["allow_rate"], state["mode"]) == ("closed", 1.0, "observe")
    wait_for(lambda: moves(live, made["id"]))
    assert moves(live, made["id"]) == [("closed", "open", "threshold_exceeded", "observe")]
    path = f"{live.project_path}/breakers/{made['id']}"
    assert live.user.patch(path, json={"mode": "enforce"}).status_code == 409
    assert live.user.patch(path, json={"mode": "enforce", "confirm": True}).status_code == 200
    live.in_state(made["id"], "open")
    assert moves(live, made["id"])[-1] == ("closed", "open", "mode_enforce", None)


@pytest.mark.slow
def test_an_override_outlives_a_crash_and_ends_on_time(tmp_path: Path) -> None:
    """Killed in the middle, the service shows it again, and ends it at its time: nothing comes back behind that."""
    with serving(tmp_path) as service:
        made = service.breaker(name="kept", cooldown_ms=600_000)
        put(service, made["id"], kind="force_open", for_ms=600_000)
        service.in_state(made["id"], "open")
        service.crash()
    with serving(tmp_path) as service:
        assert service.in_state(made["id"], "open")["override"]["reason"] == "drill"
        end = put(service, made["id"], kind="force_open", for_ms=2_000)["until_ms"]
        service.in_state(made["id"], "closed")
        last = service.events(made["id"])[-1]
        assert (last["reason"], last["ts_ms"], last["comment"]) == ("override_expired", end, "drill")
        service.crash()
    with serving(tmp_path) as service:
        assert service.in_state(made["id"], "closed")["override"] is None
        assert [move[2] for move in moves(service, made["id"])] == ["forced_open", "override_expired"]
