"""The power goes at any instant under load, or the disk fails now and then: everything that was answered is there. What
the disk holds after a loss of power is put together from what the service's processes wrote and synced
(tests/support/power.py)."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from api.cli.verify import verified
from breaker_actors.core.log_entries import SAMPLES, decode_samples
from breaker_actors.persistence import make_log, make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import EventQuery
from tests.support import power
from tests.support.live import LiveService, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CUTS, LOAD_S, ROUTERS = 100, 12.0, 3
EXTRA = {"metric": "extra", "kind": "avg", "op": "gt", "threshold": 1, "window_ms": 60_000}
AGAIN = 3
"""So many of the cuts are started from, for real."""


class Answered(NamedTuple):
    """What a client was told, and when (CLOCK_MONOTONIC, ns)."""

    at: int
    kind: str
    what: Any


class Load:
    """Samples, settings and looks at events, all at once; `answers` is what it was told."""

    def __init__(self, service: LiveService) -> None:
        self._service = service
        self._over = threading.Event()
        self.answers: list[Answered] = []
        self._made = [service.breaker(metric=f"m{n}", window_ms=1_000, cooldown_ms=100) for n in range(ROUTERS)]

    def _told(self, kind: str, *what: Any) -> None:
        at = time.monotonic_ns()
        self.answers += [Answered(at, kind, each) for each in what]

    def _samples(self, n: int) -> None:
        """Each value is sent once; the mean goes up and down past the threshold of 100."""
        value = float(n)
        while not self._over.is_set():
            values = [value + ROUTERS * i for i in range(5)]
            value += ROUTERS * 5
            swing = 1e-9 if int(time.monotonic() * 2) % 2 else 1.0
            sent = [1.0 + v * swing for v in values]
            if self._service.send(self._made[n]["router_id"], sent, metric=f"m{n}").status_code == 202:
                self._told("sample", *((self._made[n]["router_id"], v) for v in sent))

    def _settings(self) -> None:
        while not self._over.is_set():
            path = f"{self._service.project_path}/breakers"
            answer = self._service.user.post(path, json=EXTRA)
            if answer.status_code != 201:
                continue
            made = answer.json()["breaker"]
            self._told("breaker", (made["id"], 1))
            path = f"{path}/{made['id']}"
            if self._service.user.patch(path, json={"threshold": 5}).status_code == 200:
                self._told("breaker", (made["id"], 2))

    def _events(self) -> None:
        while not self._over.wait(0.1):
            answer = self._service.user.get(f"{self._service.project_path}/events", params={"limit": 200})
            if answer.status_code == 200:
                self._told("event", *((e["breaker_id"], e["transition_seq"]) for e in answer.json()["events"]))

    def run(self, seconds: float) -> None:
        work: list[Callable[[], None]] = [lambda n=n: self._samples(n) for n in range(ROUTERS)]  # type: ignore[misc]
        threads = [threading.Thread(target=each) for each in (*work, self._settings, self._events)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        self._over.set()
        for thread in threads:
            thread.join(60)


async def survivors(folder: Path) -> dict[str, set[Any]]:
    """What a data directory holds, in the words of `Answered`."""
    settings = Settings(data_dir=folder)
    found: dict[str, set[Any]] = {"sample": set(), "breaker": set(), "event": set()}
    log = make_log(settings)
    for path in sorted((folder / "log").glob("*.sqlite")):
        for stock in await log.stock(path.stem):
            for record in await log.read(path.stem, stock.router_id, 0, stock.last_offset, 1 << 30):
                if record.kind == SAMPLES:
                    values = decode_samples(record.payload).batch.value.tolist()
                    found["sample"] |= {(stock.router_id, value) for value in values}
    await log.close()
    store = make_store(settings)
    await store.open()
    try:
        for org in await store.list_orgs():
            for project in await store.list_projects(org.id):
                for breaker in (await store.list_breakers(project.id))[0]:
                    found["breaker"] |= {(breaker.id, version) for version in range(1, breaker.version + 1)}
                events = await store.events(EventQuery(project_id=project.id, limit=1 << 20))
                found["event"] |= {(event.breaker_id, event.transition_seq) for event in events}
    finally:
        await store.close()
    return found


def lost(folder: Path, answers: list[Answered], instant: int) -> list[Answered]:
    """What was answered and is not there."""
    found = asyncio.run(survivors(folder))
    return [told for told in answers if told.at <= instant and told.what not in found[told.kind]]


@contextmanager
def played_back(tmp_path: Path, seed: int, **environ: str) -> Iterator[Iterator[tuple[int, Path, list[Answered]]]]:
    """For each cut, the data directory as the power left it, and what was lost of what had been answered."""
    data, traces = tmp_path / "data", tmp_path / "traces"
    with serving(data, **power.environment(data, traces), **environ) as service:
        begun = time.monotonic_ns()
        load = Load(service)
        load.run(LOAD_S)
        ended = time.monotonic_ns()
    kinds = [told.kind for told in load.answers]
    assert min(kinds.count(kind) for kind in ("sample", "breaker", "event")) >= 10
    rng = random.Random(seed)
    instants = sorted(rng.randrange(begun, ended) for _ in range(CUTS))
    (tmp_path / "cuts").mkdir()
    folders = power.cuts(power.read_traces(traces), data, instants, rng, tmp_path / "cuts")

    def each() -> Iterator[tuple[int, Path, list[Answered]]]:
        for instant, folder in zip(instants, folders, strict=True):
            yield instant, folder, lost(folder, load.answers, instant)
            shutil.rmtree(folder)

    yield each()


def test_everything_that_was_answered_survives_the_loss_of_power(tmp_path: Path) -> None:
    with played_back(tmp_path, 1) as found:
        for number, (_, folder, missing) in enumerate(found):
            assert missing == []
            assert asyncio.run(verified(Settings(data_dir=folder))).faults == []
            if number % (CUTS // AGAIN) == CUTS // AGAIN - 1:
                goes_on(folder)


def goes_on(folder: Path) -> None:
    """A service starts from it, takes samples, and trips."""
    with serving(folder) as service:
        assert service.client().get("/api/readyz").json()["status"] == "ready"
        service.trip(service.breaker(metric="anew"))


def test_without_syncs_the_loss_is_found(tmp_path: Path) -> None:
    """So the method sees what it is for."""
    with played_back(tmp_path, 2, BREAKERS_DURABILITY="process") as found:
        missing = [told for _, _, each in found for told in each]
    assert {told.kind for told in missing} == {"sample", "breaker", "event"}


FAULTS = [(power.Kind.WRITE, errno.ENOSPC), (power.Kind.WRITE, errno.EIO), (power.Kind.SYNC, errno.EIO)]


def test_a_disk_that_fails_now_and_then_loses_nothing(tmp_path: Path) -> None:
    """Writes that come half, and syncs that fail, in a third of the time: what is answered meanwhile is there, no
    transition is made up, and all goes on by itself."""
    disk = power.FaultyDisk(tmp_path / "data", tmp_path)
    with serving(tmp_path / "data", **disk.environ) as service:
        load = Load(service)
        thread = threading.Thread(target=load.run, args=(LOAD_S,))
        thread.start()
        for kind, error in FAULTS * 3:
            time.sleep(0.8)
            with disk.failing(kind, error, 5):
                time.sleep(0.4)
        thread.join()
        service.trip(service.breaker(metric="afterwards"))
        answers = list(load.answers)
    assert min(Counter(told.kind for told in answers)[kind] for kind in ("sample", "breaker", "event")) >= 10
    assert lost(tmp_path / "data", answers, time.monotonic_ns()) == []
    report = asyncio.run(verified(Settings(data_dir=tmp_path / "data")))
    assert report.faults == []
    assert report.moves >= 2
