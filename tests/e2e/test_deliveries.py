"""What a running service says of a notification that it must not send."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.live import LiveService, wait_for

pytestmark = pytest.mark.e2e

REFUSED = "its host or port is not one that notifications may go to"


def test_a_destination_inside_is_refused_and_the_log_of_its_channel_says_so(live: LiveService) -> None:
    channels = f"{live.project_path}/notification-channels"
    body = {"channel": "webhook", "config": {"url": "http://127.0.0.1:9/hook"}}
    made = live.user.post(channels, json=body)
    assert made.status_code == 201, made.text
    channel = f"{channels}/{made.json()['channel']['id']}"
    try:
        tested = live.user.post(f"{channel}/test")
        assert (tested.status_code, tested.json()["error"]) == (422, "send_failed")
        assert REFUSED in tested.json()["message"]
        breaker = live.breaker(name="told-nobody", cooldown_ms=60_000)
        assert live.send(breaker["router_id"], [500.0] * 5).status_code == 202
        live.in_state(breaker["breaker"]["id"], "open")

        def ended() -> list[dict[str, Any]]:
            answer = live.user.get(f"{channel}/deliveries")
            assert answer.status_code == 200, answer.text
            rows = [row for row in answer.json()["deliveries"] if row["breaker_id"] == breaker["breaker"]["id"]]
            return [row for row in rows if row["state"] != "pending"]

        (trip,) = wait_for(ended)
        assert (trip["kind"], trip["state"], trip["attempts"], trip["last_status"]) == ("trip", "dead", 1, None)
        assert trip["last_error"].startswith(REFUSED)
        assert trip["last_error"] in tested.json()["message"]
    finally:
        assert live.user.delete(channel).status_code == 204
    assert live.user.delete(f"{live.project_path}/breakers/{breaker['breaker']['id']}").status_code == 204
