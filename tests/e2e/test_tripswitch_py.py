"""The unmodified public client tripswitch-py, runtime and admin, against the running service."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import tripswitch
from tripswitch.admin import AdminClient
from tripswitch.admin.types import (
    BatchGetBreakerStatesInput,
    Breaker,
    BreakerKind,
    BreakerOp,
    CreateBreakerInput,
    CreateProjectInput,
    CreateRouterInput,
    ListEventsParams,
    RouterMode,
    UpdateBreakerInput,
    UpdateProjectInput,
)
from tripswitch.errors import NotFoundError, UnauthorizedError

from tests.support.live import LiveService, wait_for

pytestmark = pytest.mark.e2e


@pytest.fixture
def admin(live: LiveService) -> Iterator[AdminClient]:
    with AdminClient(api_key=live.credentials["admin_key"], base_url=live.base_url) as client:
        yield client


@pytest.fixture
def breaker(live: LiveService, admin: AdminClient) -> Breaker:
    return admin.create_breaker(
        live.project_id,
        CreateBreakerInput(
            name=f"sdk-{time.time_ns()}",
            metric="latency",
            kind=BreakerKind.AVG,
            op=BreakerOp.GT,
            threshold=100,
            window_ms=30_000,
            eval_interval_ms=200,
            min_state_duration_ms=0,
            cooldown_ms=3_000,
        ),
    )


def test_signed_samples_trip_a_breaker_the_client_is_gated_and_sees_the_recovery(
    live: LiveService, admin: AdminClient, breaker: Breaker
) -> None:
    admin.update_project(live.project_id, UpdateProjectInput(enable_signed_ingest=True))
    changes: list[tuple[str, str]] = []

    def changed(name: str, old: str, new: str) -> None:
        if name == breaker.name:
            changes.append((old, new))

    client = tripswitch.Client(
        live.project_id,
        api_key=live.credentials["project_key"],
        ingest_secret=live.credentials["ingest_secret"],
        base_url=live.base_url,
        on_state_change=changed,
        timeout=20,
    )
    try:
        client.connect()
        assert client.execute(lambda: 42, breakers=[breaker.name]) == 42
        unsigned = live.user.post(f"{live.project_path}/ingest", json={"samples": []})
        assert unsigned.status_code == 401

        def state() -> str:
            status = client.get_state(breaker.name)
            return status.state if status else ""

        def send(value: float) -> None:
            for _ in range(500):  # a full batch makes the client send at once
                client.report(router_id=breaker.router_id, metric="latency", value=value)

        send(500.0)
        wait_for(lambda: state() == "open")
        with pytest.raises(tripswitch.BreakerOpenError):
            client.execute(lambda: 42, breakers=[breaker.name])
        assert client.get_status().open_count >= 1
        wait_for(lambda: state() == "half_open")
        rates: list[float] = []

        def recovered() -> bool:
            send(10.0)
            status = client.get_state(breaker.name)
            if status and status.state == "half_open" and status.allow_rate not in rates:
                rates.append(status.allow_rate)
            return state() == "closed"

        wait_for(recovered, 30, every_s=0.1)
        assert rates == sorted(rates)
        assert {0.2, 1.0} <= set(rates)
        assert client.execute(lambda: 42, breakers=[breaker.name]) == 42
        assert changes == [("closed", "open"), ("open", "half_open"), ("half_open", "closed")]
        stats = client.stats
        assert (stats.flush_failures, stats.dropped_samples, stats.sse_connected) == (0, 0, True)
    finally:
        client.close()
        admin.update_project(live.project_id, UpdateProjectInput(enable_signed_ingest=False))


def test_the_admin_client_reads_what_it_wrote(live: LiveService, admin: AdminClient, breaker: Breaker) -> None:
    project = admin.get_project(live.project_id)
    assert (project.id, project.workspace_id) == (live.project_id, live.credentials["workspace_id"])
    assert live.project_id in [p.id for p in admin.list_projects().projects]
    again = admin.get_breaker(live.project_id, breaker.id)
    assert (again.name, again.kind, again.op, again.threshold) == (breaker.name, BreakerKind.AVG, BreakerOp.GT, 100)
    assert again.router_id == breaker.router_id
    changed = admin.update_breaker(live.project_id, breaker.id, UpdateBreakerInput(threshold=150.5))
    assert changed.threshold == 150.5
    assert breaker.id in [b.id for b in admin.list_breakers(live.project_id)]

    state = admin.get_breaker_state(live.project_id, breaker.id)
    assert (state.breaker_id, state.state, state.allow_rate) == (breaker.id, "closed", 1.0)
    (batch,) = admin.batch_get_breaker_states(live.project_id, BatchGetBreakerStatesInput(breaker_ids=[breaker.id]))
    assert (batch.breaker_id, batch.state) == (breaker.id, "closed")

    router = admin.create_router(live.project_id, CreateRouterInput(name="sdk-router", mode=RouterMode.STATIC))
    assert admin.get_router(live.project_id, router.id).name == "sdk-router"
    assert {router.id, breaker.router_id} <= {r.id for r in admin.list_routers(live.project_id)}

    live.send(breaker.router_id, [500.0] * 3)
    wait_for(lambda: admin.list_events(live.project_id, ListEventsParams(breaker_id=breaker.id)))
    event = admin.list_events(live.project_id, ListEventsParams(breaker_id=breaker.id))[-1]
    assert (event.from_state, event.to_state, event.reason) == ("closed", "open", "threshold_exceeded")
    admin.delete_breaker(live.project_id, breaker.id)
    with pytest.raises(NotFoundError):
        admin.get_breaker(live.project_id, breaker.id)


def test_the_admin_client_makes_projects_and_rotates_secrets(live: LiveService, admin: AdminClient) -> None:
    made = admin.create_project(CreateProjectInput(name="second", workspace_id=live.credentials["workspace_id"]))
    first = admin.rotate_ingest_secret(made.id)
    rotated = admin.rotate_ingest_secret(made.id)
    assert len(rotated.ingest_secret) == 64
    assert rotated.ingest_secret != first.ingest_secret
    renamed = admin.update_project(made.id, UpdateProjectInput(name="renamed"))
    assert (renamed.name, renamed.enable_signed_ingest) == ("renamed", False)


def test_wrong_keys_are_refused(live: LiveService) -> None:
    with AdminClient(api_key="eb_admin_nobody", base_url=live.base_url) as client:
        with pytest.raises(UnauthorizedError):
            client.get_project(live.project_id)
