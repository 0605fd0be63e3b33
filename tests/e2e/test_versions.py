"""Data of every earlier version, as its service left it, goes on with this one: tests/data/versions has a data
directory and a database of each schema (`python -m tests.support.golden_data`)."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.cli.verify import Report, verified
from breaker_actors.errors import SchemaMismatch
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.store.migrations import HEAD, KNOWN, upgrade
from tests.support.golden_data import SECRET_KEY
from tests.support.live import serving
from tests.support.postgres import Postgres, own_server

VERSIONS = Path(__file__).parents[1] / "data" / "versions"
SCHEMAS = sorted(path.name.split(".")[0] for path in VERSIONS.glob("*.tar.xz"))


def test_there_is_data_of_this_version() -> None:
    """A new schema brings its own: see tests/support/golden_data.py."""
    assert SCHEMAS[-1] == HEAD
    assert [schema for schema in KNOWN if schema >= SCHEMAS[0]] == SCHEMAS
    assert sorted(path.stem for path in VERSIONS.glob("*.dump")) == SCHEMAS


def unpack(schema: str, folder: Path) -> Path:
    with tarfile.open(VERSIONS / f"{schema}.tar.xz") as file:
        file.extractall(folder, filter="data")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


def looked_at(settings: Settings) -> Report:
    """After the upgrade that a start makes. Another schema than this program's is not looked at."""

    async def look() -> Report:
        store = make_store(settings)
        await store.open()
        await store.close()
        return await verified(settings)

    return asyncio.run(look())


def is_as_it_was(report: Report) -> None:
    assert report.faults == []
    assert report.logs >= 4
    assert report.breakers >= 2
    assert report.moves >= 6


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_data_directory_is_whole_after_the_upgrade(schema: str, tmp_path: Path) -> None:
    settings = Settings(data_dir=unpack(schema, tmp_path / "data"))
    if schema != HEAD:
        with pytest.raises(SchemaMismatch):
            asyncio.run(verified(settings))
    is_as_it_was(looked_at(settings))


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_server() as found:
        yield found


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_database_is_whole_after_the_upgrade(schema: str, tmp_path: Path, server: Postgres) -> None:
    with server.database(empty=True) as url:
        server.run("pg_restore", "--no-owner", f"--dbname={url}", str(VERSIONS / f"{schema}.dump"))
        settings = Settings(data_dir=tmp_path, database_url=url, secret_key=SECRET_KEY)  # type: ignore[arg-type]
        if schema != HEAD:
            assert upgrade(url)
        is_as_it_was(looked_at(settings))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("schema", SCHEMAS[:1])
def test_a_service_goes_on_with_it(schema: str, tmp_path: Path) -> None:
    """Logs are chained from here on; states, settings and history are there."""
    data = unpack(schema, tmp_path / "data")
    with serving(data) as service:
        listed = service.user.get(f"{service.project_path}/breakers").json()["breakers"]
        golden = next(each for each in listed if each["name"] == "golden 0")
        before = service.events(golden["id"])
        assert [event["transition_seq"] for event in before] == list(range(1, len(before) + 1))
        assert service.state(golden["id"])["state"] == "closed"
        path = f"{service.project_path}/breakers/{golden['id']}"
        assert service.user.patch(path, json={"window_ms": 30_000, "cooldown_ms": 60_000}).status_code == 200
        service.trip({"breaker": golden, "router_id": golden["router_ids"][0]})
        events = service.events(golden["id"])
        assert events[: len(before)] == before
        assert len(events) == len(before) + 1
    report = asyncio.run(verified(Settings(data_dir=data)))
    assert report.faults == []
