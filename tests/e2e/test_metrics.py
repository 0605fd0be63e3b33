"""What Prometheus gets from a running service, and what is in its logs."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import httpx
import pytest

from breaker_actors.telemetry.catalog import TABLE
from tests.support.live import LiveService, wait_for
from tests.support.scraping import Series, scrape, targets

pytestmark = pytest.mark.e2e

WITHIN_S = 40.0
"""Within this every figure is there."""
HANDED_ON_S = 12.0
"""Ray hands on what it was given every ten seconds."""


def test_the_listeners_are_where_the_discovery_file_says(live: LiveService) -> None:
    found = targets(live)
    assert set(found) == {"breakers", "breakers-haproxy"}
    assert "haproxy_process_" in httpx.get(f"http://{found['breakers-haproxy']}/metrics").text


def test_every_counter_is_there_from_the_start(live: LiveService) -> None:
    """Before it counts anything: a first rise is seen as one."""
    live.breaker(name="metrics-start")
    wanted = {meter.name for meter in TABLE.values() if meter.type == "counter"}
    wait_for(lambda: set(scrape(live)) >= wanted, WITHIN_S, 0.5)
    found = scrape(live)
    for name, series in found.items():
        assert set(series) <= set(key[1:] for key in TABLE[name].series()) if name in TABLE else series, name


def flat(found: dict[str, Series]) -> dict[tuple[str, ...], float]:
    return {(name, *labels): value for name, series in found.items() for labels, value in series.items()}


def settled(live: LiveService) -> dict[tuple[str, ...], float]:
    """The figures once they have stood still for longer than a process takes to hand on what it counted."""
    seen, since = flat(scrape(live)), time.monotonic()

    def stand_still() -> dict[tuple[str, ...], float] | None:
        nonlocal seen, since
        later = flat(scrape(live))
        if any(later.get(key) != seen.get(key) for key in EXPECTED):
            since = time.monotonic()
        seen = later
        return seen if time.monotonic() - since > HANDED_ON_S else None

    return wait_for(stand_still, 4 * WITHIN_S, 0.5)


EXPECTED = {
    ("breakers_samples_accepted_total",): 107,
    ("breakers_log_samples_total",): 57,
    ("breakers_samples_applied_total",): 57,
    ("breakers_duplicate_parts_total",): 1,
    ("breakers_duplicate_samples_total",): 50,
    ("breakers_samples_rejected_total", "invalid_router_id"): 3,
    ("breakers_ingest_requests_total", "accepted"): 2,
    ("breakers_ingest_requests_total", "duplicate"): 1,
    ("breakers_ingest_requests_total", "invalid"): 1,
    ("breakers_http_request_seconds_bucket_total", "ingest", "2xx", "+Inf"): 3,
    ("breakers_streams_opened_total",): 1,
    ("breakers_stream_clients",): 1,
}
AT_LEAST = {
    ("breakers_transitions_total", "trip"): 1,
    ("breakers_events_total",): 1,
    ("breakers_evaluation_lag_seconds_bucket_total", "+Inf"): 2,
    ("breakers_log_append_seconds_bucket_total", "+Inf"): 2,
}


def test_the_figures_are_right(live: LiveService) -> None:
    made = live.breaker(name="metrics-figures", cooldown_ms=3_600_000)
    breaker_id, router_id = made["breaker"]["id"], made["router_id"]
    before = settled(live)
    gained: dict[tuple[str, ...], float] = {}
    now: dict[str, Series] = {}

    def as_sent() -> bool:
        nonlocal gained, now
        now = scrape(live)
        gained = {key: value - before.get(key, 0) for key, value in flat(now).items()}
        return all(gained.get(key) == n for key, n in EXPECTED.items()) and all(
            gained.get(key, 0) >= n for key, n in AT_LEAST.items()
        )

    with live.stream():
        now_ms = int(time.time() * 1000)  # what is sent again is the same to the last byte
        for values, key in (([10.0] * 7, "metrics-1"), ([500.0] * 50, "metrics-2"), ([500.0] * 50, "metrics-2")):
            assert live.send(router_id, values, key=key, ts_ms=now_ms).status_code == 202
        live.in_state(breaker_id, "open")
        assert live.send("00000000-0000-0000-0000-000000000000", [1.0] * 3).status_code == 422
        with suppress(AssertionError):
            wait_for(as_sent, WITHIN_S, 0.5)
        assert {key: gained.get(key) for key in EXPECTED} == EXPECTED
        assert all(gained[key] >= n for key, n in AT_LEAST.items()), {key: gained.get(key) for key in AT_LEAST}
    assert gained["breakers_http_request_seconds_sum_total", "ingest", "2xx"] > 0
    assert now["breakers_held"]["open",] >= 1
    assert now["breakers_actors_up"]["router",] >= 1

    def stream_counted() -> bool:
        later = scrape(live)
        ended = later["breakers_streams_closed_total"]["left",] - now["breakers_streams_closed_total"]["left",]
        return ended == 1 and later["breakers_stream_clients"][()] == 0

    wait_for(stream_counted, WITHIN_S, 0.5)
    assert scrape(live)["breakers_samples_accepted_total"] == now["breakers_samples_accepted_total"]


def test_log_lines_are_json_and_hold_no_secret(live: LiveService) -> None:
    files = [path for path in (live.data_dir / "logs").rglob("*") if path.is_file()]
    texts = {path.name: path.read_text(errors="replace") for path in files}
    lines = [line for name, text in texts.items() if name.endswith(".err") for line in text.splitlines()]
    ours = [json.loads(line) for line in lines if line.startswith("{")]
    assert {"ts", "level", "event", "process"} <= set.intersection(*(set(line) for line in ours))
    assert ("directory", "actor_up") in {(line["process"], line["event"]) for line in ours}
    secrets = [live.credentials[name] for name in ("admin_key", "user_key", "project_key", "ingest_secret")]
    for name, text in texts.items():
        assert not any(secret in text for secret in secrets), name
