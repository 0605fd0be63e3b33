"""Store: workspaces, keys, secrets that overlap, notification channels, the end of a project, the audit log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from breaker_actors.core.log_entries import BreakerSet, RouterView
from breaker_actors.errors import Invalid, NotFound, WorkspaceHasProjects
from breaker_actors.store.rows import AuditFilter, ChannelDraft, EventQuery
from tests.contract.backends import Backend
from tests.contract.store_world import World, decoded, draft, event

SLACK = ChannelDraft(channel="slack", config={"webhook_url": "https://hooks.slack.example/T0/B0/SECRET"})


async def actions(world: World) -> list[str]:
    return [row.action for row in await world.store.audit(world.project_id, 100)]


async def test_workspaces_are_listed_changed_and_deleted(world: World) -> None:
    """Of one organisation, in order of creation; one with projects stays."""
    second = await world.store.create_workspace(world.org_id, "Second", "second", 5)
    stranger = await world.store.create_org("stranger", 1)
    assert [row.id for row in await world.store.list_workspaces(world.org_id)] == [world.workspace_id, second.id]
    assert await world.store.list_workspaces(stranger) == []
    changed = await world.store.update_workspace(second.id, {"slug": "other"}, 6)
    assert changed == msgspec.structs.replace(second, slug="other")
    assert await world.store.get_workspace(second.id) == changed
    with pytest.raises(WorkspaceHasProjects):
        await world.store.delete_workspace(world.workspace_id, 7)
    await world.store.delete_workspace(second.id, 7)
    assert await world.store.get_workspace(second.id) is None
    for call in (world.store.update_workspace(second.id, {}, 8), world.store.delete_workspace(second.id, 8)):
        with pytest.raises(NotFound):
            await call


async def test_organisations_are_listed(world: World) -> None:
    second = await world.store.create_org("second", 9)
    assert [(row.id, row.name) for row in await world.store.list_orgs()] == [
        (world.org_id, "acme"),
        (second, "second"),
    ]


async def test_a_revoked_key_is_gone(world: World) -> None:
    """Only within its organisation and, if asked so, its project; the version of access goes up."""
    row, key = await world.store.create_key(world.org_id, "project", "ci", 7, world.project_id)
    user, _ = await world.store.create_key(world.org_id, "user", "u", 8)
    stranger = await world.store.create_org("stranger", 1)
    assert await world.store.list_keys(world.org_id) == [row, user]
    assert await world.store.list_keys(world.org_id, world.project_id) == [row]
    assert await world.store.list_keys(stranger) == []
    before = await world.store.access_version()
    for org_id, key_id, project_id in (
        (stranger, row.id, None),
        (world.org_id, user.id, world.project_id),
        (world.org_id, "x", None),
    ):
        with pytest.raises(NotFound):
            await world.store.revoke_key(org_id, key_id, 9, project_id)
    assert await world.store.access_version() == before
    await world.store.revoke_key(world.org_id, row.id, 9, world.project_id)
    assert await world.store.access_version() > before
    assert await world.store.find_key(key) is None
    assert await world.store.list_keys(world.org_id) == [user]


async def test_the_use_of_a_key_is_written_once_a_minute(world: World) -> None:
    row, key = await world.store.create_key(world.org_id, "user", "u", 1)

    async def used(at_ms: int) -> int | None:
        await world.store.touch_keys({row.id: at_ms, "gone": at_ms})
        found = await world.store.find_key(key)
        assert found is not None
        return found.last_used_ms

    assert [await used(at) for at in (1_000, 60_999, 61_000, 30_000)] == [1_000, 1_000, 61_000, 61_000]
    await world.store.touch_keys({})


async def test_the_last_secret_counts_for_the_overlap_only(world: World) -> None:
    old = (await world.store.get_project(world.project_id)).ingest_secret  # type: ignore[union-attr]
    new = await world.store.rotate_secret(world.project_id, 1_000, overlap_ms=500)
    assert new.secrets(1_499) == (new.ingest_secret, old)
    assert new.secrets(1_500) == (new.ingest_secret,)
    at_once = await world.store.rotate_secret(world.project_id, 2_000)
    assert at_once.secrets(2_000) == (at_once.ingest_secret,)
    assert at_once.previous_secret is None
    assert old not in repr(new)


@pytest.mark.parametrize("change", [{"enable_signed_ingest": True}, {"enable_signed_ingest": True, "name": "n"}])
async def test_a_change_of_a_projects_way_in_is_a_change_of_access(world: World, change: dict[str, Any]) -> None:
    before = await world.store.access_version()
    await world.store.update_project(world.project_id, change, 2)
    after = await world.store.access_version()
    assert after > before
    await world.store.update_project(world.project_id, change, 3)
    assert await world.store.access_version() == after


async def test_other_changes_of_a_project_are_none_of_access(world: World) -> None:
    """All replicas forget everybody's access when that changes."""
    before = await world.store.access_version()
    fields = {"name": "n", "slack_webhook_url": "https://example.com/x", "trace_id_url_template": None}
    await world.store.update_project(world.project_id, fields, 2)
    assert await world.store.access_version() == before


async def test_the_keys_that_are_left_of_some(world: World) -> None:
    ids = [(await world.store.create_key(world.org_id, "user", "u", 1))[0].id for _ in range(3)]
    await world.store.revoke_key(world.org_id, ids[1], 2)
    assert await world.store.live_keys([*ids[:2], "nothing"]) == {ids[0]}
    assert await world.store.live_keys([]) == set()


# channels


async def test_the_life_of_a_channel(world: World) -> None:
    store, project = world.store, world.project_id
    row = await store.create_channel(project, SLACK, 5)
    assert (row.name != "", row.enabled, row.events, row.inserted_ms) == (True, True, ("trip", "recover"), 5)
    other = await store.create_channel(project, msgspec.structs.replace(SLACK, name="n", events=("trip",)), 6)
    assert await store.list_channels(project) == [row, other]
    assert await store.get_channel(project, row.id) == row
    changed = await store.update_channel(
        project, row.id, lambda r: msgspec.structs.replace(r, enabled=False, id="x", inserted_ms=1), 7
    )
    assert changed == msgspec.structs.replace(row, enabled=False, updated_ms=7)
    assert await store.update_channel(project, row.id, lambda r: r, 8) == changed
    await store.delete_channel(project, row.id, 9)
    assert await store.list_channels(project) == [other]
    for call in (store.update_channel(project, row.id, lambda r: r, 9), store.delete_channel(project, row.id, 9)):
        with pytest.raises(NotFound):
            await call
    assert "SECRET" not in repr(row)


async def test_channels_of_other_projects_are_not_found(world: World) -> None:
    other = await world.store.create_project(world.org_id, world.workspace_id, "other", 1)
    row = await world.store.create_channel(world.project_id, SLACK, 5)
    assert await world.store.get_channel(other.id, row.id) is None
    with pytest.raises(NotFound):
        await world.store.delete_channel(other.id, row.id, 6)
    with pytest.raises(NotFound):
        await world.store.create_channel("nothing", SLACK, 6)


async def test_a_channel_is_sealed_and_its_audit_masked(world: World, backend: Backend) -> None:
    row = await world.store.create_channel(world.project_id, SLACK, 5)
    await world.store.update_channel(
        world.project_id, row.id, lambda r: msgspec.structs.replace(r, config={"webhook_url": "https://x/SECRET"}), 7
    )
    assert "SECRET" not in str(await world.store.audit(world.project_id, 10))
    await world.store.close()
    assert b"SECRET" not in backend.stored_bytes()


# the end of a project


async def test_a_deleted_project_ends_through_its_logs(world: World) -> None:
    """Gone for reads at once; its breakers end in their routers' logs, and the last settled change takes the rest."""
    store, project = world.store, world.project_id
    row, other = await world.breaker("a"), await world.breaker("b")
    shared = await world.router(row.id, other.id)
    epoch = await world.own(row.id)
    await world.settle()
    await world.write(world.commit(row.id, epoch, event(1)))
    await store.create_channel(project, SLACK, 5)
    _, key = await store.create_key(world.org_id, "project", "ci", 7, project)
    assert await store.live_projects([project, "nothing"]) == {project}
    ids = await store.delete_project(project, 50)
    assert await store.get_project(project) is None
    assert await store.live_projects([project]) == set()
    assert await store.list_projects(world.org_id) == []
    assert (await store.list_breakers(project))[0] == []
    assert await store.list_routers(project) == []
    assert await store.find_key(key) is None
    with pytest.raises(NotFound):
        await store.stream_snapshot(project, 51)
    with pytest.raises(NotFound):
        await world.breaker("c")
    with pytest.raises(NotFound):
        await store.delete_project(project, 51)
    entries: dict[str, list[Any]] = {}
    for change in await world.changes(ids):
        entries.setdefault(change.router_id, []).extend(decoded(change))
    assert entries.keys() == {row.router_ids[0], other.router_ids[0], shared.id}
    ends = [BreakerSet(breaker_id=b.id, version=2, name=b.name, rule=None) for b in (row, other)]
    assert entries[shared.id][:2] == ends
    assert all(isinstance(found[-1], RouterView) and found[-1].links == () for found in entries.values())
    with pytest.raises(WorkspaceHasProjects):
        await store.delete_workspace(world.workspace_id, 52)
    await world.settle(9)
    assert await store.placements("router") == []
    await store.delete_workspace(world.workspace_id, 53)
    assert len(await store.events(EventQuery(project_id=project))) == 1


async def test_an_empty_project_is_gone_at_once(world: World) -> None:
    assert await world.store.delete_project(world.project_id, 50) == []
    await world.store.delete_workspace(world.workspace_id, 51)


# audit


async def test_every_change_is_in_the_audit_log(world: World) -> None:
    """Who, what, when, before and after; nothing for a change that changes nothing."""
    store, project = world.store, world.project_id
    row, _ = await store.create_breaker(project, draft("a"), 10, by="key-1")
    await store.update_breaker(project, row.id, lambda r: msgspec.structs.replace(r, name="b"), 11, by="key-2")
    await store.update_breaker(project, row.id, lambda r: r, 12, by="key-2")
    await store.delete_breaker(project, row.id, 13, by="key-3")
    await store.rotate_secret(project, 14, by="key-4")
    deleted, changed, made = (await store.audit(project, 4))[1:]
    assert [(r.action, r.who, r.at_ms, r.target_id) for r in (made, changed, deleted)] == [
        ("breaker.create", "key-1", 10, row.id),
        ("breaker.update", "key-2", 11, row.id),
        ("breaker.delete", "key-3", 13, row.id),
    ]
    assert made.before is None
    assert changed.before is not None
    assert changed.after is not None
    assert (changed.before["name"], changed.after["name"], deleted.after) == ("a", "b", None)
    assert changed.before["rule"]["threshold"] == 500.0


async def test_the_audit_log_is_read_page_by_page(world: World) -> None:
    for i in range(5):
        await world.store.update_project(world.project_id, {"name": f"n{i}"}, i)
    first = await world.store.audit(world.project_id, 3)
    rest = await world.store.audit(world.project_id, 10, before=first[-1].number)
    assert [r.after["name"] for r in (*first, *rest) if r.after] == ["n4", "n3", "n2", "n1", "n0", "shop"]
    assert await world.store.audit("nothing", 10) == []


async def test_entries_of_an_organisation_and_names_of_keys(world: World) -> None:
    """Chosen by the begin of the action, wildcards are none, and by target; a revoked key keeps its name."""
    store, org = world.store, world.org_id
    gone, _ = await store.create_key(org, "user", "leaver", 1)
    there, _ = await store.create_key(org, "admin", "stays", 2)
    await store.revoke_key(org, gone.id, 3, by=there.id)
    keys = await store.org_audit(org, 10, only=AuditFilter(action="key."))
    assert [(r.action, r.target_id) for r in keys[:3]] == [
        ("key.revoke", gone.id),
        ("key.create", there.id),
        ("key.create", gone.id),
    ]
    assert await store.org_audit(org, 10, keys[0].number, AuditFilter(action="key_")) == []
    assert [r.number for r in await store.org_audit(org, 10, only=AuditFilter(target_id=there.id))] == [keys[1].number]
    assert await store.audit(world.project_id, 10, only=AuditFilter(action="key.revoke")) == []
    assert await store.org_audit("nobody", 10) == []
    assert await store.names_of_keys(org, [gone.id, there.id, "x"]) == {gone.id: "leaver", there.id: "stays"}
    assert await store.names_of_keys("nobody", [gone.id]) == {}


async def test_secrets_never_reach_the_audit_log(world: World, backend: Backend) -> None:
    project = await world.store.rotate_secret(world.project_id, 1)
    template = "https://traces.example/{{value}}"
    await world.store.update_project(
        project.id, {"slack_webhook_url": "https://hooks.example/SECRET", "trace_id_url_template": template}, 2
    )
    row, key = await world.store.create_key(world.org_id, "project", "ci", 3, project.id)
    await world.store.create_breaker(
        project.id, msgspec.structs.replace(draft("a"), actions={"hook": {"token": "SECRET"}}), 4
    )
    told = await world.store.audit(project.id, 10)
    assert template in str(told)
    for secret in (project.ingest_secret, "SECRET", key):
        assert secret not in str(told)
    await world.store.revoke_key(world.org_id, row.id, 5, project.id)
    assert (await actions(world))[:2] == ["key.revoke", "breaker.create"]


async def test_a_project_has_so_many_channels_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breaker_actors.store.config.channels.CHANNELS_MAX", 2)
    rows = [await world.store.create_channel(world.project_id, SLACK, 5) for _ in range(2)]
    with pytest.raises(Invalid, match="at most 2 channels"):
        await world.store.create_channel(world.project_id, SLACK, 6)
    await world.store.delete_channel(world.project_id, rows[0].id, 7)
    await world.store.create_channel(world.project_id, SLACK, 8)
