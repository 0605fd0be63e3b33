"""First start makes an organisation and its file; later starts keep both."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from api.credentials import Credentials, ensure, read, write
from breaker_actors.errors import Invalid
from breaker_actors.stores.secrets import SecretBox
from breaker_actors.stores.sql import SqlStore

NOW_MS = 1_700_000_000_000
URL = "http://127.0.0.1:7117"
SAMPLE = Credentials(
    base_url=URL, admin_key="a", user_key="u", workspace_id="w", project_id="p", project_key="k", ingest_secret="s"
)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    store = SqlStore(f"sqlite:///{tmp_path / 'test.sqlite'}", SecretBox.from_file(tmp_path / "key"))
    await store.open()
    yield store
    await store.close()


class Warnings(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


async def test_first_start_makes_working_keys(store: SqlStore, tmp_path: Path) -> None:
    """Everything the file names exists in the store and belongs together."""
    path = tmp_path / "credentials.json"
    await ensure(store, path, URL, NOW_MS, Warnings())
    made = read(path)
    assert made is not None
    admin, user, project_key = [await store.find_key(k) for k in (made.admin_key, made.user_key, made.project_key)]
    project = await store.get_project(made.project_id)
    assert admin is not None
    assert user is not None
    assert project_key is not None
    assert project is not None
    assert (admin.kind, user.kind, project_key.kind) == ("admin", "user", "project")
    assert admin.org_id == user.org_id == project_key.org_id == project.org_id
    assert project_key.project_id == project.id
    assert project.workspace_id == made.workspace_id
    assert project.ingest_secret == made.ingest_secret
    assert (made.base_url, len(made.ingest_secret)) == (URL, 64)


async def test_the_file_is_for_its_owner_only(store: SqlStore, tmp_path: Path) -> None:
    """Mode 600, and no draft of it is left beside."""
    path = tmp_path / "credentials.json"
    await ensure(store, path, URL, NOW_MS, Warnings())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.glob("credentials.json*")] == ["credentials.json"]


async def test_second_start_rewrites_only_the_address(store: SqlStore, tmp_path: Path) -> None:
    """Keys, ids and secret stay; base_url follows the service."""
    path = tmp_path / "credentials.json"
    await ensure(store, path, URL, NOW_MS, Warnings())
    first = read(path)
    await ensure(store, path, "http://127.0.0.1:9999", NOW_MS + 1, Warnings())
    assert first is not None
    assert read(path) == msgspec.structs.replace(first, base_url="http://127.0.0.1:9999")


async def test_a_lost_file_is_not_replaced_silently(store: SqlStore, tmp_path: Path) -> None:
    """No second organisation: one line says how to make new keys."""
    path = tmp_path / "credentials.json"
    await ensure(store, path, URL, NOW_MS, Warnings())
    path.unlink()
    warnings = Warnings()
    await ensure(store, path, URL, NOW_MS, warnings)
    assert not path.exists()
    assert len(warnings) == 1
    assert "breakers keys" in warnings[0]


async def test_a_file_of_other_data_is_refused(store: SqlStore, tmp_path: Path) -> None:
    """An empty store beside an old file: its keys would not work, and overwriting would lose them."""
    path = tmp_path / "credentials.json"
    write(path, SAMPLE)
    with pytest.raises(Invalid, match="move it away"):
        await ensure(store, path, URL, NOW_MS, Warnings())
    assert read(path) == SAMPLE


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    path.write_text("{}")
    with pytest.raises(Invalid, match=r"credentials\.json can't be read"):
        read(path)


def test_secrets_stay_out_of_logs() -> None:
    assert "admin_key" not in repr(SAMPLE)
