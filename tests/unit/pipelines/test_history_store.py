"""The history store: where samples lie, that they are there whole and once, and that others can read them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import httpx
import pandas
import polars as pl
import pytest
from fsspec import AbstractFileSystem
from polars.testing import assert_frame_equal

from breaker_actors.errors import Invalid
from pipelines.sources import history_store as history
from pipelines.sources.history_store import DAY_MS, SCHEMA, History
from pipelines.sources.object_store import Folder, Place, open_place
from tests.support.live import wait_for
from tests.support.recorded import PROJECT, START_MS, router_id

DAY = "day=2023-11-14"


def frame(*rows: tuple[int, int, float]) -> pl.DataFrame:
    """Samples (router, received_ms after the start, value)."""
    return pl.DataFrame(
        [(router_id(r), "latency", START_MS + at - 1, START_MS + at, value, True, None, 1) for r, at, value in rows],
        SCHEMA,
        orient="row",
    )


@pytest.fixture(params=["folder", "fsspec"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "fsspec":
        pytest.importorskip("fsspec")
        return open_place(f"memory://{tmp_path.name}")
    return open_place(str(tmp_path / "history"))


def test_samples_lie_by_project_router_and_day(place: Place) -> None:
    """In order of arrival, equal times in the order given; the day is that of the arrival."""
    given = frame((1, 30, 3.0), (1, 10, 1.0), (1, 10, 2.0), (2, 5, 9.0), (1, DAY_MS, 4.0))
    history.add(place, PROJECT, given, "run-1.000000")
    assert place.names("samples") == [
        f"samples/project={PROJECT}/router={router_id(1)}/{DAY}/run-1.000000.parquet",
        f"samples/project={PROJECT}/router={router_id(1)}/day=2023-11-15/run-1.000000.parquet",
        f"samples/project={PROJECT}/router={router_id(2)}/{DAY}/run-1.000000.parquet",
    ]
    first = history.frame_of(place, place.names("samples")[0])
    assert first.schema == SCHEMA
    assert first["value"].to_list() == [1.0, 2.0, 3.0]


def test_samples_of_before_there_were_counts(place: Place) -> None:
    """Each stands for one; beside files that have counts, too."""
    folder = history.folder_of(PROJECT, router_id(1), START_MS // DAY_MS)
    place.write(f"{folder}/a.0.parquet", history.parquet(frame((1, 1, 1.0), (1, 3, 3.0)).drop("count")))
    history.add(place, PROJECT, frame((1, 2, 2.0)).with_columns(count=pl.lit(9, pl.Int64)), "b.0")
    read = pl.concat(History(place, history.files(place, PROJECT)).batches())
    assert read.schema == SCHEMA
    assert read.select("value", "count").rows() == [(1.0, 1), (3.0, 1), (2.0, 9)]


def test_written_again_nothing_is_there_twice(place: Place) -> None:
    given = frame((1, 1, 1.0), (2, 2, 2.0))
    for _ in range(3):
        history.add(place, PROJECT, given, "run-1.000000")
    read = pl.concat(History(place, history.files(place, PROJECT)).batches())
    assert_frame_equal(read, given)


def test_files_of_a_span_and_of_a_run(place: Place) -> None:
    """Days outside the span and files of other runs are not even opened; runs whose ids begin alike are told apart."""
    for run in ("a", "a-b", "b"):
        history.add(place, PROJECT, frame((1, 0, 1.0), (1, DAY_MS, 2.0), (2, 0, 3.0)), f"{run}.000000")
    assert len(history.files(place, PROJECT)) == 9
    assert len(history.files(place, PROJECT, [router_id(1)], run="a")) == 2
    assert history.files(place, PROJECT, [router_id(3)]) == []
    days = history.files(place, PROJECT, [router_id(1)], from_ms=START_MS + DAY_MS, run="a")
    assert [name.split("/")[3] for name in days] == ["day=2023-11-15"]
    midnight = START_MS - START_MS % DAY_MS + DAY_MS
    days = history.files(place, PROJECT, [router_id(1)], to_ms=midnight, run="a")
    assert [name.split("/")[3] for name in days] == [DAY]


def test_a_source_is_cut_to_its_span(place: Place) -> None:
    history.add(place, PROJECT, frame((1, 1, 1.0), (1, 2, 2.0), (1, 3, 3.0)), "a.0")
    source = History(place, history.files(place, PROJECT), from_ms=START_MS + 2, to_ms=START_MS + 3)
    assert [batch["value"].to_list() for batch in source.batches()] == [[2.0]]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old content stays, and no file on its way."""
    place = Folder(tmp_path)
    place.write("a/b", b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(Invalid, match="No space left on device"):
        place.write("a/b", b"new")
    assert place.read("a/b") == b"old"
    assert os.listdir(tmp_path / "a") == ["b"]


@pytest.mark.parametrize("name", ["../a", "a/../../b", "a/..", "/a", "a//b", "./a", ""])
def test_no_file_is_written_elsewhere(place: Place, name: str) -> None:
    with pytest.raises(Invalid, match="no name of a file here"):
        place.write(name, b"content")


@pytest.mark.parametrize("id_", ["..", "a/../../b", "/a", "", ".a", "a\n", "a" * 129])
def test_an_id_that_is_a_path_has_no_folder(id_: str) -> None:
    """Whoever prepared a database chose its ids."""
    for ids in ((id_,), ("p", id_)):
        with pytest.raises(Invalid, match="no folder can have that name"):
            history.folder_of(*ids)


def test_leftovers_are_no_files_and_are_swept_by_run(place: Place) -> None:
    """What a killed process left on its way is never listed; a sweep removes that of one run."""
    for name in ("x/.a.000001.parquet.1234", "x/.a-b.000001.parquet.1234", "x/a.000000.parquet"):
        place.write(name, b"half")
    assert place.names("x") == ["x/a.000000.parquet"]
    place.sweep("x", "a.")
    assert place.read("x/.a.000001.parquet.1234") is None
    assert place.read("x/.a-b.000001.parquet.1234") == b"half"
    assert place.read("x/a.000000.parquet") == b"half"


def test_polars_reads_it_with_the_partitions_as_columns(tmp_path: Path) -> None:
    history.add(Folder(tmp_path), PROJECT, frame((1, 1, 1.0), (2, 2, 2.0), (1, DAY_MS, 3.0)), "run-1.000000")
    read = pl.read_parquet(tmp_path / "samples/**/*.parquet", hive_partitioning=True)
    assert read.sort("received_ms")["value"].to_list() == [1.0, 2.0, 3.0]
    assert set(read.columns) == {*SCHEMA, "project", "router", "day"}
    assert (read["router"] == read["router_id"]).all()


def test_pandas_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    history.add(Folder(tmp_path), PROJECT, frame((1, 1, 1.0), (2, 2, 2.0), (1, DAY_MS, 3.0)), "run-1.000000")
    read = pandas.read_parquet(tmp_path / "samples")
    assert sorted(read["value"]) == [1.0, 2.0, 3.0]
    assert set(read.columns) == {*SCHEMA, "project", "router", "day"}


def test_duckdb_reads_it(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    history.add(Folder(tmp_path), PROJECT, frame((1, 1, 1.0), (2, 2, 2.0), (1, DAY_MS, 3.0)), "run-1.000000")
    counted = f"SELECT router, count(*), sum(value) FROM read_parquet('{tmp_path}/samples/**/*.parquet') GROUP BY 1"
    assert sorted(duckdb.sql(counted).fetchall()) == [(router_id(1), 2, 4.0), (router_id(2), 1, 2.0)]


def test_a_url_that_cant_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without fsspec, and with a scheme it does not know."""
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(Invalid, match="needs the package fsspec"):
        open_place("s3://bucket/history")


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "s3"), ("gs", "gcs"), ("abfs", "azure")])
def test_a_cloud_whose_package_is_not_installed(monkeypatch: pytest.MonkeyPatch, scheme: str, extra: str) -> None:
    for name in ("obstore.fsspec", "s3fs", "gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Invalid, match=rf"{scheme}://bucket/history needs breaker-actors\[{extra}\] installed"):
        open_place(f"{scheme}://bucket/history")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_samples_in_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over S3's protocol, to a server that speaks it."""
    if shutil.which("uv") is None:
        pytest.skip("there is no uv to get the server with")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = ["uv", "tool", "run", "--quiet", "--from", "moto[server]==5.2.5", "moto_server", "-H", "127.0.0.1"]
    environ = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "not-told", "AWS_REGION": "us-east-1"}
    for name, value in (environ | {"AWS_ENDPOINT": url, "AWS_ALLOW_HTTP": "true"}).items():
        monkeypatch.setenv(name, value)
    with subprocess.Popen([*command, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            with httpx.Client(base_url=url, timeout=20, trust_env=False) as client:
                wait_for(lambda: answers(client) or server.poll() is not None, 240, 0.2)
                assert client.put("/bucket").status_code == 200
            place = open_place("s3://bucket/history")
            for run in ("run-1.000000", "run-1.000000", "run-2.000000"):
                history.add(place, PROJECT, frame((1, 1, 1.0), (2, 2, 2.0)), run)
            assert len(place.names("samples")) == 4
            assert sum(len(batch) for batch in History(place, history.files(place, PROJECT)).batches()) == 4
            assert place.read("samples/nothing") is None
            place.sweep("samples", "run-1")
            with pytest.raises(Invalid, match="s3://nobucket/history does not work: ") as caught:
                open_place("s3://nobucket/history").names("samples")
            assert "not-told" not in str(caught.value)
        finally:
            server.terminate()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/moto-api/").status_code == 200
    except httpx.TransportError:
        return False


class NoBucket(AbstractFileSystem):  # type: ignore[misc]
    """A file system without the folder that is asked for. `works`: what of it does all the same."""

    protocol = "nobucket"
    cachable = False
    works: frozenset[str] = frozenset()

    def _asked(self, what: str) -> None:
        if what not in self.works:
            raise FileNotFoundError(2, "The specified bucket does not exist", "bucket")

    def find(self, path: str, **_: Any) -> list[str]:
        self._asked("find")
        return ["bucket/history/x/.a.1"]

    def cat_file(self, path: str, **_: Any) -> bytes:
        self._asked("cat_file")
        return b""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._asked("makedirs")

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self._asked("pipe_file")

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        self._asked("mv")

    def rm_file(self, path: str) -> None:
        self._asked("rm_file")


@pytest.fixture
def no_bucket() -> Place:
    fsspec.register_implementation("nobucket", NoBucket, clobber=True)
    return open_place("nobucket://bucket/history")


@pytest.mark.parametrize("works", [(), ("makedirs",), ("makedirs", "pipe_file")])
def test_a_write_to_nowhere_fails(no_bucket: Place, works: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of its steps finds nothing to write to."""
    monkeypatch.setattr(NoBucket, "works", frozenset(works))
    with pytest.raises(Invalid, match=r"nobucket://bucket/history does not work: .*The specified bucket does not"):
        no_bucket.write("x/a", b"content")


def test_what_is_nowhere_is_no_file(no_bucket: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to list and to read; what is gone when it is to be removed is removed."""
    assert no_bucket.names("x") == []
    assert no_bucket.read("x/a") is None
    monkeypatch.setattr(NoBucket, "works", frozenset({"find"}))
    no_bucket.sweep("x", "a.")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    place = Folder(tmp_path)
    place.write("samples/x.parquet", b"PAR1 is not all")
    with pytest.raises(Invalid, match=r"samples/x\.parquet can't be read: "):
        history.frame_of(place, "samples/x.parquet")
