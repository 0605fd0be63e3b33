"""One sample's whole way through a running service, stop by stop as docs/architecture.md lists them."""

from __future__ import annotations

import pytest

from tests.support.live import LiveService, wait_for

pytestmark = pytest.mark.e2e


def test_from_post_to_trip_to_stream_to_history_to_recovery(live: LiveService) -> None:
    made = live.breaker(name="life-of-a-sample", cooldown_ms=3_000)
    breaker_id, router_id, name = made["breaker"]["id"], made["router_id"], made["breaker"]["name"]
    with live.stream() as stream:
        wait_for(lambda: stream.of(name))
        assert stream.of(name)[0] == ("closed", None)
        assert stream.headers["content-type"].startswith("text/event-stream")
        answer = live.send(router_id, [500.0] * 5)
        assert (answer.status_code, answer.json()) == (202, {"accepted": 5})
        assert live.in_state(breaker_id, "open")["allow_rate"] == 0.0
        wait_for(lambda: ("open", None) in stream.of(name))

        def recovered() -> bool:
            live.send(router_id, [10.0] * 5)
            return stream.of(name)[-1] == ("closed", None)

        wait_for(recovered, every_s=0.05)
        rates = [rate for state, rate in stream.of(name) if state == "half_open"]
        assert rates == [0.2, 0.4, 0.6, 0.8, 1.0]
    events = live.events(breaker_id)
    assert [(e["prev"], e["curr"]) for e in events] == [
        ("closed", "open"),
        ("open", "half_open"),
        ("half_open", "closed"),
    ]
    assert [e["transition_seq"] for e in events] == [1, 2, 3]
    assert events[0]["agg"] == {"avg": 500.0, "count": 5, "error_count": 0, "p95": 500.0}


def test_made_renamed_and_deleted_breakers_show_on_an_open_stream_at_once(live: LiveService) -> None:
    with live.stream() as stream:
        made = live.breaker(name="made-later")
        wait_for(lambda: stream.of("made-later"), 5)
        path = f"{live.project_path}/breakers/{made['breaker']['id']}"
        assert live.user.patch(path, json={"name": "renamed"}).status_code == 200
        wait_for(lambda: stream.of("made-later") == [("closed", None)] * 2, 5)
        wait_for(lambda: stream.of("renamed") == [("closed", None)], 5)
        live.user.delete(path)
        wait_for(lambda: stream.of("renamed") == [("closed", None)] * 2, 5)


def test_two_hundred_breakers_are_made_and_work_at_once(live: LiveService) -> None:
    made = [live.breaker(name=f"many-{i}") for i in range(200)]
    for i, one in enumerate(made):
        assert live.send(one["router_id"], [500.0 if i % 2 else 10.0]).status_code == 202
    for i, one in enumerate(made):
        if i % 2:
            wait_for(lambda one=one: live.events(one["breaker"]["id"]), 30)
        else:
            assert live.events(one["breaker"]["id"]) == []
    for one in made:
        assert live.user.delete(f"{live.project_path}/breakers/{one['breaker']['id']}").status_code == 204
