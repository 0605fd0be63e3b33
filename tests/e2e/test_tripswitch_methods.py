"""Every public method of the unmodified tripswitch-py clients, its parsed result checked field by field.

Left as they are: the channel create and update answers, which interface.md shapes as an envelope and the client reads
as a bare object (it then raises).
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest
import tripswitch
from tripswitch.admin import AdminClient
from tripswitch.admin.types import (
    BatchGetBreakerStatesInput,
    BreakerKind,
    BreakerOp,
    CreateBreakerInput,
    CreateNotificationChannelInput,
    CreateProjectInput,
    CreateProjectKeyInput,
    CreateRouterInput,
    CreateWorkspaceInput,
    HalfOpenPolicy,
    LinkBreakerInput,
    ListEventsParams,
    NotificationChannelType,
    NotificationEventType,
    RouterMode,
    SyncBreakersInput,
    UpdateBreakerInput,
    UpdateNotificationChannelInput,
    UpdateProjectInput,
    UpdateRouterInput,
    UpdateWorkspaceInput,
)
from tripswitch.errors import ConflictError, NotFoundError, ValidationError

from tests.support.live import LiveService, wait_for

pytestmark = pytest.mark.e2e


class Recorder:
    """Hands every call on and notes which methods were called."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.called.add(name)
        return getattr(self._client, name)

    def missing(self) -> set[str]:
        public = {n for n in vars(type(self._client)) if not n.startswith("_")}
        return public - self.called


def breaker_input(name: str, **fields: Any) -> CreateBreakerInput:
    return CreateBreakerInput(
        name=name,
        metric="latency",
        kind=BreakerKind.AVG,
        op=BreakerOp.GT,
        threshold=100,
        window_ms=30_000,
        eval_interval_ms=200,
        min_state_duration_ms=0,
        cooldown_ms=60_000,
        **fields,
    )


def test_every_method_of_the_admin_client(live: LiveService) -> None:
    with AdminClient(api_key=live.credentials["admin_key"], base_url=live.base_url) as client:
        admin: Any = Recorder(client)
        project_id = projects_and_workspaces(admin)
        breaker_id, router_id = breakers(admin, project_id)
        routers(admin, project_id, breaker_id)
        channels(admin, project_id)
        events(admin, live, project_id, breaker_id, router_id)
        keys(admin, project_id)
        sync(admin, project_id)
        admin.delete_breaker(project_id, admin.list_breakers(project_id)[0].id)
        assert len(admin.list_breakers(project_id)) == 1
        admin.delete_project(project_id, confirm_name="second name")
        with pytest.raises(NotFoundError):
            admin.get_project(project_id)
        admin.close()
        assert admin.missing() == set()


def projects_and_workspaces(admin: Any) -> str:
    slug = f"slug-{time.time_ns()}"
    made = admin.create_workspace(CreateWorkspaceInput(name="space", slug=slug))
    assert (made.name, made.slug) == ("space", slug)
    assert made.org_id
    assert isinstance(made.inserted_at, datetime)
    assert admin.get_workspace(made.id) == made
    changed = admin.update_workspace(made.id, UpdateWorkspaceInput(name="other space"))
    assert (changed.name, changed.slug) == ("other space", slug)
    assert changed in admin.list_workspaces().workspaces

    project = admin.create_project(CreateProjectInput(name="first name", workspace_id=made.id))
    assert (project.name, project.workspace_id, project.enable_signed_ingest) == ("first name", made.id, False)
    assert (project.slack_webhook_url or "", project.trace_id_url_template or "") == ("", "")
    with pytest.raises(ConflictError):
        admin.delete_workspace(made.id, confirm_name="other space")
    template = "https://traces.example/{{value}}"
    asked = UpdateProjectInput(name="second name", trace_id_url_template=template, enable_signed_ingest=False)
    changed_project = admin.update_project(project.id, asked)
    assert (changed_project.name, changed_project.trace_id_url_template) == ("second name", template)
    assert admin.get_project(project.id) == changed_project
    listed = admin.list_projects(workspace_id=made.id)
    assert (listed.projects, listed.count) == ((changed_project,), 1)
    assert len(admin.rotate_ingest_secret(project.id).ingest_secret) == 64
    empty = admin.create_workspace(CreateWorkspaceInput(name="empty", slug=f"empty-{time.time_ns()}"))
    admin.delete_workspace(empty.id, confirm_name="empty")
    with pytest.raises(NotFoundError):
        admin.get_workspace(empty.id)
    return str(project.id)


def breakers(admin: Any, project_id: str) -> tuple[str, str]:
    made = admin.create_breaker(
        project_id,
        breaker_input("a", metadata={"team": "x"}, half_open_indeterminate_policy=HalfOpenPolicy.PESSIMISTIC),
    )
    assert (made.name, made.metric, made.kind, made.op) == ("a", "latency", BreakerKind.AVG, BreakerOp.GT)
    assert (made.threshold, made.window_ms, made.eval_interval_ms, made.min_count) == (100, 30_000, 200, 1)
    assert (made.min_state_duration_ms, made.cooldown_ms) == (0, 60_000)
    assert (made.half_open_backoff_enabled, made.half_open_backoff_cap_ms) == (True, 300_000)
    assert made.half_open_indeterminate_policy is HalfOpenPolicy.PESSIMISTIC
    assert (made.recovery_allow_rate_ramp_steps, made.recovery_window_ms) == (5, 1_000)
    assert made.half_open_confirmation_ms == 1_200
    assert (dict(made.kind_params), dict(made.actions), dict(made.metadata)) == ({}, {}, {"team": "x"})
    assert admin.get_breaker(project_id, made.id) == made
    changed = admin.update_breaker(project_id, made.id, UpdateBreakerInput(threshold=200.5))
    assert (changed.threshold, changed.router_id) == (200.5, made.router_id)
    assert admin.list_breakers(project_id) == [changed]
    admin.update_breaker_metadata(project_id, made.id, {"tier": "1"})
    assert dict(admin.get_breaker(project_id, made.id).metadata) == {"team": "x", "tier": "1"}
    state = admin.get_breaker_state(project_id, made.id)
    assert (state.breaker_id, state.state, state.allow_rate) == (made.id, "closed", 1.0)
    assert isinstance(state.updated_at, datetime)
    batch = admin.batch_get_breaker_states(project_id, BatchGetBreakerStatesInput(router_id=made.router_id))
    assert [(s.breaker_id, s.state, s.allow_rate) for s in batch] == [(made.id, "closed", 1.0)]
    return str(made.id), str(made.router_id)


def routers(admin: Any, project_id: str, breaker_id: str) -> None:
    asked = CreateRouterInput(name="shared", mode=RouterMode.CANARY, metadata={"canary:a": "50"})
    made = admin.create_router(project_id, asked)
    assert (made.name, made.mode, made.enabled, made.breaker_count) == ("shared", RouterMode.CANARY, True, 0)
    assert (made.created_by, dict(made.metadata)) == ("user", {"canary:a": "50"})
    assert isinstance(made.inserted_at, datetime)
    admin.link_breaker(project_id, made.id, LinkBreakerInput(breaker_ids=[breaker_id]))
    linked = admin.get_router(project_id, made.id)
    assert (linked.breaker_count, [b.id for b in linked.breakers]) == (1, [breaker_id])
    with pytest.raises(ConflictError):
        admin.delete_router(project_id, made.id)
    changed = admin.update_router(project_id, made.id, UpdateRouterInput(mode=RouterMode.STATIC, enabled=False))
    assert (changed.mode, changed.enabled) == (RouterMode.STATIC, False)
    admin.update_router_metadata(project_id, made.id, {"region": "eu"})
    assert dict(admin.get_router(project_id, made.id).metadata) == {"canary:a": "50", "region": "eu"}
    assert made.id in [r.id for r in admin.list_routers(project_id)]
    admin.unlink_breaker(project_id, made.id, breaker_id)
    admin.delete_router(project_id, made.id)
    with pytest.raises(NotFoundError):
        admin.get_router(project_id, made.id)


def channels(admin: Any, project_id: str) -> None:
    asked = CreateNotificationChannelInput(
        name="on call",
        channel=NotificationChannelType.WEBHOOK,
        config={"url": "https://receiver.example/hook", "secret": "planted-secret"},
        events=[NotificationEventType.TRIP],
    )
    with pytest.raises(Exception):  # noqa: B017, PT011  the envelope of interface.md, see the module's docstring
        admin.create_notification_channel(project_id, asked)
    (made,) = admin.list_notification_channels(project_id)
    assert (made.name, made.channel, made.enabled) == ("on call", NotificationChannelType.WEBHOOK, True)
    assert (made.project_id, made.events) == (project_id, (NotificationEventType.TRIP,))
    assert "planted-secret" not in str(made.config)
    assert isinstance(made.created_at, datetime)
    assert list(admin.iter_notification_channels(project_id)) == [made]
    assert admin.get_notification_channel(project_id, made.id) == made
    with pytest.raises(Exception):  # noqa: B017, PT011
        admin.update_notification_channel(project_id, made.id, UpdateNotificationChannelInput(enabled=False))
    assert not admin.get_notification_channel(project_id, made.id).enabled
    with pytest.raises(ValidationError):
        admin.test_notification_channel(project_id, made.id)
    admin.delete_notification_channel(project_id, made.id)
    assert admin.list_notification_channels(project_id) == []


def events(admin: Any, live: LiveService, project_id: str, breaker_id: str, router_id: str) -> None:
    now = int(time.time() * 1000)
    sample = {"router_id": router_id, "metric": "latency", "ts_ms": now, "value": 900.0}
    assert live.user.post(f"/v1/projects/{project_id}/ingest", json={"samples": [sample]}).status_code == 202
    wait_for(lambda: admin.list_events(project_id))
    (event,) = admin.list_events(project_id, ListEventsParams(breaker_id=breaker_id, limit=1))
    assert (event.project_id, event.breaker_id) == (project_id, breaker_id)
    assert (event.from_state, event.to_state, event.reason) == ("closed", "open", "threshold_exceeded")
    assert event.id
    assert isinstance(event.timestamp, datetime)
    assert list(admin.iter_events(project_id, ListEventsParams(limit=1))) == [event]


def keys(admin: Any, project_id: str) -> None:
    made = admin.create_project_key(project_id, CreateProjectKeyInput(name="runtime"))
    assert made.key.startswith("eb_pk_")
    assert made.key.startswith(made.key_prefix)
    (listed,) = admin.list_project_keys(project_id)
    assert (listed.id, listed.name, listed.key_prefix) == (made.id, "runtime", made.key_prefix)
    assert isinstance(listed.inserted_at, datetime)
    assert listed.last_used_at is None
    admin.delete_project_key(project_id, made.id)
    assert admin.list_project_keys(project_id) == []


def sync(admin: Any, project_id: str) -> None:
    got = admin.sync_breakers(project_id, SyncBreakersInput(breakers=[breaker_input("a"), breaker_input("b")]))
    assert sorted(b.name for b in got) == ["a", "b"]
    assert {b.threshold for b in got} == {100}


def test_every_method_of_the_runtime_client(live: LiveService) -> None:
    name = f"runtime-{time.time_ns()}"
    made = live.breaker(name=name, cooldown_ms=60_000, metadata={"team": "y"})
    raw = tripswitch.Client(
        live.project_id, api_key=live.credentials["project_key"], base_url=live.base_url, timeout=20
    )
    client: Any = Recorder(raw)
    client.connect()
    assert client.execute(lambda: "done", breakers=[name]) == "done"
    assert (client.get_state(name).state, client.get_all_states()[name].name) == ("closed", name)
    for _ in range(500):
        client.report(router_id=made["router_id"], metric="latency", value=500.0)
    wait_for(lambda: client.get_state(name).state == "open")
    status = client.get_status()
    assert status.open_count >= 1
    assert isinstance(status.closed_count, int)
    assert isinstance(status.last_eval_ms, int)
    wait_for(lambda: client.get_breakers_metadata() and client.get_routers_metadata())
    found, etag = client.list_breakers_metadata()
    mine = next(b for b in found if b.name == name)
    assert (mine.id, dict(mine.metadata)) == (made["breaker"]["id"], {"team": "y"})
    assert client.list_breakers_metadata(etag) == (None, etag)
    found, etag = client.list_routers_metadata()
    assert made["router_id"] in [r.id for r in found]
    assert client.list_routers_metadata(etag) == (None, etag)
    stats = client.stats
    assert (stats.dropped_samples, stats.flush_failures, stats.sse_connected) == (0, 0, True)
    assert stats.cached_breakers >= 1
    client.close()
    assert client.missing() == set()
