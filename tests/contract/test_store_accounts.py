"""Store: organisations, workspaces, keys, projects, and that no secret lies in the database in clear."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import text

from breaker_actors.errors import Invalid, NotFound, Unavailable
from breaker_actors.store.base import Store
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from tests.contract.backends import Backend
from tests.contract.store_world import World


async def test_org_and_workspace(store: Store) -> None:
    """An empty store has no organisation; workspaces belong to one."""
    assert not await store.has_org()
    org_id = await store.create_org("acme", 5)
    assert await store.has_org()
    workspace = await store.create_workspace(org_id, "Main", "main", 6)
    assert await store.get_workspace(workspace.id) == workspace
    assert await store.get_workspace("nothing") is None
    with pytest.raises(NotFound):
        await store.create_workspace("nothing", "a", "a", 1)


async def test_the_operator_is_who_was_made_first(store: Store) -> None:
    """Whatever the clock said: one that was ahead then makes nobody else the operator."""
    assert await store.operator_org() == ""
    first = await store.create_org("ours", 86_400_000)
    assert await store.operator_org() == first
    tenant = await store.create_org("tenant", 5)
    assert [row.id for row in await store.list_orgs()] == [tenant, first]
    assert await store.operator_org() == first
    await store.create_org("another", 4)
    assert await store.operator_org() == first


async def test_the_operator_of_an_older_database_stays(store: Any) -> None:
    """There it is who comes first by time, until the next organisation is made, and from then on."""
    first = await store.create_org("ours", 5)
    await store._db.write(lambda c: c.execute(text("DELETE FROM counters WHERE name LIKE 'operator %'")))
    await store.create_org("tenant", 4)
    assert await store.operator_org() == first


async def test_keys_are_found_by_their_text_only(world: World) -> None:
    """Five kinds of keys; each is found by itself and by nothing else."""
    for kind, prefix, project in (
        ("user", "eb_user_", None),
        ("admin", "eb_admin_", None),
        ("project", "eb_pk_", world.project_id),
        ("reader", "eb_read_", world.project_id),
        ("ingest", "eb_ingest_", world.project_id),
    ):
        row, key = await world.store.create_key(world.org_id, kind, "ci", 7, project)  # type: ignore[arg-type]
        assert key.startswith(prefix)
        assert len(key) - len(prefix) >= 43
        assert row.key_prefix == key[: max(12, len(prefix) + 4)]
        assert await world.store.find_key(key) == row
        assert await world.store.find_key(key[:-1]) is None
        assert key not in repr(row)
    with pytest.raises(NotFound):
        await world.store.create_key(world.org_id, "project", "ci", 7, "nothing")


async def test_project_life(world: World) -> None:
    """Projects start unsigned with a secret of 64 hex digits; fields change one by one."""
    project = await world.store.create_project(world.org_id, world.workspace_id, None, 9)
    assert re.fullmatch(r"[0-9a-f]{64}", project.ingest_secret)
    assert (project.enable_signed_ingest, project.name, project.slack_webhook_url) == (False, None, None)
    fields = {"enable_signed_ingest": True, "slack_webhook_url": "https://hooks.example/T0"}
    changed = await world.store.update_project(project.id, fields, 10)
    assert (changed.enable_signed_ingest, changed.slack_webhook_url) == (True, "https://hooks.example/T0")
    assert changed.ingest_secret == project.ingest_secret
    assert await world.store.get_project(project.id) == changed
    cleared = await world.store.update_project(project.id, {"slack_webhook_url": None}, 11)
    assert cleared.slack_webhook_url is None
    rotated = await world.store.rotate_secret(project.id, 12)
    assert rotated.ingest_secret != project.ingest_secret
    assert project.ingest_secret not in repr(rotated) + repr(project)


async def test_projects_are_listed_by_org_and_workspace(world: World) -> None:
    """In order of creation; another organisation's projects do not show."""
    other = await world.store.create_workspace(world.org_id, "other", "other", 2)
    second = await world.store.create_project(world.org_id, other.id, "second", 1)
    stranger = await world.store.create_org("stranger", 1)
    listed = await world.store.list_projects(world.org_id)
    assert [project.id for project in listed] == [world.project_id, second.id]
    assert await world.store.list_projects(world.org_id, other.id) == [second]
    assert await world.store.list_projects(stranger) == []
    with pytest.raises(NotFound):
        await world.store.create_project(stranger, other.id, None, 1)


async def test_unknown_projects_and_fields_are_refused(world: World) -> None:
    """Nothing is made up for an id that is not there."""
    assert await world.store.get_project("nothing") is None
    for change in (world.store.update_project("nothing", {"name": "x"}, 1), world.store.rotate_secret("nothing", 1)):
        with pytest.raises(NotFound):
            await change
    with pytest.raises(Invalid):
        await world.store.update_project(world.project_id, {"shard": 3}, 1)


async def test_secrets_are_not_in_the_database_in_clear(world: World, backend: Backend) -> None:
    """Neither keys, nor ingest secrets (as hex or bytes), nor webhook addresses can be read from the stored bytes."""
    project = await world.store.rotate_secret(world.project_id, 1)
    await world.store.update_project(project.id, {"slack_webhook_url": "https://hooks.example/SECRET"}, 1)
    _, key = await world.store.create_key(world.org_id, "user", "ci", 1)
    await world.store.close()
    stored = backend.stored_bytes()
    assert project.id.encode() in stored
    secret = project.ingest_secret
    for clear in (secret.encode(), bytes.fromhex(secret), b"hooks.example/SECRET", key.encode(), key[12:].encode()):
        assert clear not in stored


async def test_another_key_is_refused_at_once(world: World, backend: Backend) -> None:
    """A database next to a foreign key file is not opened, whatever is asked of it."""
    (backend.folder / "secret.key").write_bytes(bytes(32))
    other = backend.store()
    with pytest.raises(Invalid, match="sealing key is not the one"):
        await other.open()
    with pytest.raises(Unavailable, match="closed"):
        await other.ping()


async def test_a_store_of_before_check_values_gets_one(world: World, backend: Backend, make_store: Any) -> None:
    """From a key that opens its secrets only; so does an empty store of whatever key comes first."""
    await world.store._db.write(lambda c: c.execute(text("DELETE FROM seals")))  # type: ignore[attr-defined]
    stranger = SqlStore(backend.url, SecretBox(bytes(32)))
    with pytest.raises(Invalid, match="sealing key is not the one"):
        await stranger.open()
    beside = await make_store()
    assert await beside.get_project(world.project_id) == await world.store.get_project(world.project_id)
    with pytest.raises(Invalid, match="sealing key is not the one"):
        await stranger.open()


async def test_a_closed_store_refuses(make_store: Callable[[], Awaitable[Store]]) -> None:
    """Closing twice is harmless; a call after it is Unavailable."""
    store = await make_store()
    await store.ping()
    await store.close()
    await store.close()
    with pytest.raises(Unavailable):
        await store.ping()
