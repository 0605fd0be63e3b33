"""First start makes an organisation and its file; later starts keep both."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from api.launch.bootstrap import (
    NOT_MADE,
    SIGN,
    SURVIVES_POWER,
    Credentials,
    ensure,
    prepare,
    read,
    unsigned_words,
    write,
)
from breaker_actors.clock import SystemClock
from breaker_actors.errors import Invalid
from breaker_actors.ray_runtime.actors import release
from breaker_actors.settings import load_settings
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore

NOW_MS = 1_700_000_000_000
URL = "http://127.0.0.1:7117"
GIVEN, OTHER_KEY = (f"eb_admin_{digit * 64}" for digit in "ab")
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


async def test_the_first_admin_key_may_be_given(store: SqlStore, tmp_path: Path) -> None:
    """Once, on the empty database: neither a revoked one nor another one is made later, which a line says."""
    path, warnings = tmp_path / "credentials.json", Warnings()
    await ensure(store, path, URL, NOW_MS, warnings, GIVEN)
    made, row = read(path), await store.find_key(GIVEN)
    assert made is not None
    assert row is not None
    assert (row.kind, made.admin_key) == ("admin", GIVEN)
    path.unlink()  # another node, another disk: whoever gave the key has it
    await ensure(store, path, URL, NOW_MS, warnings, GIVEN)
    assert warnings == []
    for key in (OTHER_KEY, GIVEN):
        await store.revoke_key(row.org_id, row.id, NOW_MS) if key == GIVEN else None
        await ensure(store, path, URL, NOW_MS, warnings, key)
        assert await store.find_key(key) is None
    assert warnings == [NOT_MADE, NOT_MADE]
    assert not path.exists()


async def test_a_given_key_leaves_a_database_that_has_keys_alone(store: SqlStore, tmp_path: Path) -> None:
    path, warnings = tmp_path / "credentials.json", Warnings()
    await ensure(store, path, URL, NOW_MS, Warnings())
    made = read(path)
    await ensure(store, path, URL, NOW_MS, warnings, GIVEN)
    assert read(path) == made
    assert warnings == [NOT_MADE]


def test_the_given_key_comes_from_a_file_and_goes_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the database and credentials.json; the settings of replicas and actors don't have it."""
    (tmp_path / "key").write_text(f"{GIVEN}\n")
    monkeypatch.setenv("BREAKERS_BOOTSTRAP_ADMIN_KEY_FILE", str(tmp_path / "key"))
    given = load_settings(data_dir=tmp_path / "data")
    warnings = Warnings()
    left, survives = prepare(given, URL, SystemClock(), warnings)
    assert survives == SURVIVES_POWER
    assert warnings == [f"the project takes unsigned samples: who knows its ids can send some ({SIGN})"]
    made = read(tmp_path / "data" / "credentials.json")
    assert made is not None
    assert made.admin_key == GIVEN
    assert left == given.model_copy(update={"bootstrap_admin_key": None})
    assert release(left) == release(given)


@pytest.mark.parametrize("key", ["hush", "eb_user_" + "a" * 64, "eb_admin_" + "a" * 63, "eb_admin_" + "A" * 64])
def test_a_given_key_is_as_long_as_others(key: str, tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path / "data", bootstrap_admin_key=key)
    with pytest.raises(Invalid, match="has to be eb_admin_ and 64 hex digits") as caught:
        prepare(settings, URL, SystemClock(), pytest.fail)
    assert key not in str(caught.value)
    assert not (tmp_path / "data").exists()


async def test_a_file_of_other_data_is_refused(store: SqlStore, tmp_path: Path) -> None:
    """An empty store beside an old file: its keys would not work, and overwriting would lose them."""
    path = tmp_path / "credentials.json"
    write(path, SAMPLE)
    with pytest.raises(Invalid, match="move it away"):
        await ensure(store, path, URL, NOW_MS, Warnings())
    assert read(path) == SAMPLE


async def test_a_file_of_another_database_is_refused(store: SqlStore, tmp_path: Path) -> None:
    """Also where there is data: its keys would not work here. Both files stay as they are."""
    path, other_path = tmp_path / "credentials.json", tmp_path / "other.json"
    await ensure(store, path, URL, NOW_MS, Warnings())
    mine = read(path)
    assert mine is not None
    assert mine.database_id == await store.database_id()
    other = SqlStore(f"sqlite:///{tmp_path / 'other.sqlite'}", SecretBox.from_file(tmp_path / "key"))
    await other.open()
    await ensure(other, other_path, URL, NOW_MS, Warnings())
    for file in (mine, msgspec.structs.replace(mine, database_id="")):
        write(path, file)
        with pytest.raises(Invalid, match="belongs to other data than database") as caught:
            await ensure(other, path, URL, NOW_MS, Warnings())
        assert str(await other.database_id()) in str(caught.value)
        assert read(path) == file
    await ensure(store, path, URL, NOW_MS, Warnings())
    assert read(path) == mine, "a file of before such ids gets its own"
    await other.close()


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    path.write_text("{}")
    with pytest.raises(Invalid, match=r"credentials\.json can't be read"):
        read(path)


@pytest.mark.parametrize("how", ["link", "pipe", "writable"])
def test_a_file_that_others_may_have_put_there_is_not_read(tmp_path: Path, how: str) -> None:
    path, other = tmp_path / "credentials.json", tmp_path / "other"
    write(other, SAMPLE)
    if how == "link":
        path.symlink_to(other)
    elif how == "pipe":
        os.mkfifo(path, 0o600)
    else:
        other.rename(path).chmod(0o666)
    with pytest.raises(Invalid, match=r"credentials\.json"):
        read(path)


def test_secrets_stay_out_of_logs() -> None:
    assert "admin_key" not in repr(SAMPLE)


@pytest.mark.parametrize(
    ("count", "unsigned", "said"),
    [
        (1, 1, "the project takes unsigned samples: who knows its ids can send some"),
        (5, 1, "1 of 5 projects takes unsigned samples: who knows their ids can send some"),
        (5, 2, "2 of 5 projects take unsigned samples: who knows their ids can send some"),
    ],
)
def test_projects_that_take_unsigned_samples_are_counted(count: int, unsigned: int, said: str) -> None:
    assert unsigned_words(count, unsigned) == said
