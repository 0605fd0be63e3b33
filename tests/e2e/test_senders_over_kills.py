"""Real senders, all at once, while what they send to is killed under them: its actors, its replicas, then all of it by
kill -9, and the senders too. What each counted is in the log, and in its breakers, once.

They send over a way that loses each third answer; before all is killed it loses every one, so each sender comes again,
after the restart, with something that is in the log already.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from datadog.dogstatsd.base import DogStatsd

from tests.support import real_senders as senders
from tests.support.live import LiveService, wait_for
from tests.support.real_senders import Calls, Exporter, Rows
from tests.support.statsd_process import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
EVERY_MS = 500
BACK_S = 120.0
"""Senders come again after pauses that double, up to half a minute and more."""
PROMETHEUS = ("requests_total", "http_client_request_duration_seconds_count")
OTEL = ("requests", "http.client.request.duration")
STATSD = ("hits", "spans")


def nothing() -> None:
    pass


@dataclass
class Sender:
    """A sender to a router of its own, whose breakers (id by metric) count what they hear. `add`: it counts so many
    calls more, good and bad, and `calls` with it."""

    name: str
    data_dir: Path
    router_id: str
    breakers: Mapping[str, str]
    add: Callable[[int, int], object]
    calls: Calls
    kill: Callable[[], object] = nothing
    start: Callable[[], object] = nothing
    back: Callable[[], object] = nothing
    """A look, when the service is back."""
    end: Callable[[], object] = nothing
    """A look, at the end."""
    sdk: senders.Sdk | None = None
    """Of a sender of deltas: it can give up what it counted."""

    def exports(self, metric: str) -> tuple[Rows, Rows]:
        """What was taken, and what was given up."""
        assert self.sdk is not None
        return self.sdk.exports(metric)

    def left(self, metric: str) -> Calls:
        if self.sdk is None:
            return self.logged(metric)
        taken, given_up = self.exports(metric)
        return senders.calls_of(taken + given_up)

    def logged(self, metric: str) -> Calls:
        return senders.logged(self.data_dir, self.router_id, metric)

    def in_all(self) -> int:
        return self.logged(next(iter(self.breakers))).total()

    def settle(self) -> None:
        """Waits for all it counted to have left it, and no more."""
        for metric in self.breakers:
            with contextlib.suppress(AssertionError):
                wait_for(lambda m=metric: self.left(m) == self.calls, BACK_S, 0.5)  # type: ignore[misc]
            assert self.left(metric) == self.calls, f"{self.name}: {metric}"


class Stage:
    """The service, the way to it, and what ends with the test."""

    def __init__(
        self, live: LiveService, folder: Path, stack: contextlib.ExitStack, request: pytest.FixtureRequest
    ) -> None:
        self.live, self.folder, self.stack, self.request = live, folder, stack, request
        self.lossy = stack.enter_context(contextlib.closing(senders.Lossy(live)))

    def sender(self, name: str, metrics: Sequence[str], add: Callable[[int, int], object], calls: Calls) -> Sender:
        """A sender whose program is not there yet."""
        rule = {"kind": "count", "threshold": 1e9, "window_ms": 3_600_000}
        first, *others = [self.live.breaker(name=f"{name}-{metric}", metric=metric, **rule) for metric in metrics]
        path = f"{self.live.project_path}/routers/{first['router_id']}"
        self.live.user.patch(path, json={"name": name}).raise_for_status()
        ids = [one["breaker"]["id"] for one in others]
        self.live.user.post(f"{path}/breakers", json={"breaker_ids": ids}).raise_for_status()
        breakers = dict(zip(metrics, (first["breaker"]["id"], *ids), strict=True))
        return Sender(name, self.live.data_dir, first["router_id"], breakers, add, calls)

    def place(self, name: str) -> Path:
        (folder := self.folder / name).mkdir()
        return folder

    def exporter(self, name: str) -> tuple[Exporter, Sender]:
        exporter = self.stack.enter_context(contextlib.closing(Exporter(name)))
        return exporter, self.sender(name, PROMETHEUS, exporter.add, exporter.calls)

    def sdk(self, name: str, sdk: senders.Sdk) -> Sender:
        self.stack.enter_context(contextlib.closing(sdk))
        sender = self.sender(name, OTEL, sdk.add, sdk.calls)
        sender.kill, sender.start = sdk.kill, sdk.start
        return sender

    def variables(self, **more: str) -> dict[str, str]:
        endpoint = f"{self.lossy.base_url}{self.live.project_path}/otlp/v1/metrics"
        return senders.otel(self.live, endpoint=endpoint, every_ms=EVERY_MS, **more)


def prometheus(stage: Stage, name: str) -> Sender:
    exporter, sender = stage.exporter(name)
    program = senders.Prometheus(stage.live, exporter, stage.place(name), stage.lossy.base_url, EVERY_MS)
    stage.stack.enter_context(contextlib.closing(program))
    senders.scraped(stage.live, sender.router_id)

    def back() -> None:
        rows = senders.scraped(stage.live, sender.router_id)
        assert rows == program.scraped("scrapes")[: len(rows)]

    sender.kill, sender.start, sender.back = program.kill, program.start, back
    sender.end = lambda: rises(senders.scraped(stage.live, sender.router_id))
    return sender


def rises(rows: list[tuple[int, float]]) -> None:
    """No scrape is there twice."""
    numbers = [number for _, number in rows]
    assert numbers == sorted(set(numbers))


def vmagent(stage: Stage, name: str) -> Sender:
    exporter, sender = stage.exporter(name)
    program = senders.vmagent(stage.live, exporter, stage.place(name), stage.lossy.base_url, EVERY_MS)
    stage.stack.enter_context(contextlib.closing(program))
    senders.scraped(stage.live, sender.router_id)
    sender.kill, sender.start = program.kill, program.start
    sender.end = lambda: rises(senders.scraped(stage.live, sender.router_id))
    return sender


def cumulative(stage: Stage, name: str) -> Sender:
    variables = stage.variables(TIMEOUT="60", TEMPORALITY_PREFERENCE="cumulative")
    return stage.sdk(name, senders.python_sdk(stage.place(name), name, variables))


def delta(stage: Stage, name: str, timeout_s: int = 60) -> Sender:
    variables = stage.variables(TIMEOUT=str(timeout_s), TEMPORALITY_PREFERENCE="delta")
    sdk = senders.python_sdk(stage.place(name), name, variables)
    sender = stage.sdk(name, sdk)
    sender.sdk = sdk
    return sender


def hasty(stage: Stage, name: str) -> Sender:
    """It gives up what was not taken within two seconds."""
    return delta(stage, name, 2)


def node(stage: Stage, name: str) -> Sender:
    folder, package = stage.request.getfixturevalue("node"), "@opentelemetry/exporter-metrics-otlp-http"
    return stage.sdk(name, senders.node_sdk(folder, name, package, stage.variables()))


def statsd(stage: Stage, name: str) -> Sender:
    token = senders.token(stage.live, name)
    receiver = Receiver(stage.lossy.base_url, stage.live.project_id, token, stage.place(name), EVERY_MS)
    stage.stack.callback(receiver.close)
    client = DogStatsd(socket_path=str(receiver.socket), socket_timeout=20, disable_telemetry=True)
    stage.stack.callback(client.stop)
    calls: Calls = Calls()
    hits, spans = STATSD

    def add(good: int, bad: int) -> None:
        for n, code in ((good, 200), (bad, 503)):
            tags = [f"router_id:{name}", f"code:{code}"]
            client.increment(hits, n, tags=tags)
            for i in range(n):
                client.timing(spans, calls.total() % 7 + i, tags=tags)
            calls[code == 200] += n
        client.flush()

    def end() -> None:
        client.stop()
        assert client.packets_dropped_writer == client.packets_dropped_queue == 0
        status = receiver.stop()
        assert (status["points_dropped"], status["points_rejected"], status["malformed"]) == ({}, 0, {})
        assert status["requests_waiting"] == 0
        assert len(receiver.told("unsent", "sent_again")) >= 2

    sender = stage.sender(name, STATSD, add, calls)
    sender.end = end
    return sender


MAKERS = {
    "prometheus": prometheus,
    "vmagent": vmagent,
    "python-cumulative": cumulative,
    "python-delta": delta,
    "python-hasty": hasty,
    "node": node,
    "statsd": statsd,
}
DELTAS = ["python-delta", "python-hasty"]
NEEDED = {"prometheus": "prometheus", "vmagent": "vmagent", "node": "npm"}


@contextlib.contextmanager
def traffic(lossy: senders.Lossy, running: Collection[Sender]) -> Iterator[None]:
    """Calls, good and bad, while the block runs, and answers that are lost."""
    lossy.every = 3
    ended = threading.Event()

    def call() -> None:
        while not ended.wait(0.1):
            for sender in running:
                sender.add(2, 1)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        lossy.every = 0


def go_on(running: Collection[Sender]) -> None:
    """Waits for more of each in the log."""
    before = {sender.name: sender.in_all() for sender in running}

    def waited_for() -> list[str]:
        return [sender.name for sender in running if sender.in_all() <= before[sender.name]]

    with contextlib.suppress(AssertionError):
        wait_for(lambda: not waited_for(), BACK_S, 0.5)
    assert waited_for() == []


def all_answers_are_lost(lossy: senders.Lossy, running: Collection[Sender]) -> None:
    """Waits for each sender to have lost one that it will ask for again."""
    lossy.every, before = 1, lossy.lost.copy()
    wait_for(lambda: len(lossy.lost - before) == len(running), BACK_S, 0.1)


def kills(stage: Stage, running: Mapping[str, Sender]) -> None:
    """Of the service, while it is sent to."""
    live, everybody = stage.live, running.values()
    with traffic(stage.lossy, everybody):
        go_on(everybody)
        for actor in ("RouterActor", "ServeReplica"):
            assert live.kill(actor)
            go_on(everybody)
        assert not any(running["python-delta"].exports(metric)[1] for metric in OTEL)
        all_answers_are_lost(stage.lossy, everybody)
        live.crash()
        stage.lossy.every = 3
        for sender in (one for name, one in running.items() if name == "vmagent"):
            sender.kill()  # its agent dies with it
            sender.start()
        live.start_again()
        go_on(everybody)
    for sender in everybody:
        sender.settle()
        sender.back()


@pytest.fixture(scope="module")
def killed(
    live: LiveService, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Sender]]:
    """The senders that there are, after all of it."""
    with contextlib.ExitStack() as stack:
        stage = Stage(live, tmp_path_factory.mktemp("killed"), stack, request)
        found = [name for name in MAKERS if shutil.which(NEEDED.get(name, "sh"))]
        running = {name: MAKERS[name](stage, f"killed-{name}") for name in found}
        kills(stage, running)
        for sender in running.values():
            sender.kill()
            sender.start()
        with traffic(stage.lossy, running.values()):
            go_on(running.values())
        for sender in running.values():
            sender.settle()
        yield running


@pytest.fixture
def sender(killed: dict[str, Sender], request: pytest.FixtureRequest) -> Sender:
    if request.param not in killed:
        pytest.skip(f"there is no {NEEDED[request.param]}")
    return killed[request.param]


def heard(live: LiveService, sender: Sender, metric: str) -> None:
    """Its breaker has what is in the log."""
    wanted, breaker = sender.logged(metric).total(), sender.breakers[metric]
    with contextlib.suppress(AssertionError):
        wait_for(lambda: live.state(breaker)["sample_count"] >= wanted, 20, 0.1)
    assert live.state(breaker)["sample_count"] == wanted


@pytest.mark.parametrize("sender", [name for name in MAKERS if name not in DELTAS], indirect=True)
def test_what_it_counted_counts_once(live: LiveService, sender: Sender) -> None:
    for metric in sender.breakers:
        assert sender.logged(metric) == sender.calls
        heard(live, sender, metric)
        print(f"{metric}: {dict(sender.calls)}")
    sender.end()


@pytest.mark.parametrize("sender", DELTAS, indirect=True)
def test_what_of_it_was_taken_counts_once(live: LiveService, sender: Sender) -> None:
    """By its own word. What it gave up may be there: it was not told so."""
    for metric in sender.breakers:
        taken, given_up = sender.exports(metric)
        logged = senders.rows(live.data_dir, sender.router_id, metric)
        assert taken <= logged <= taken + given_up
        heard(live, sender, metric)
        print(
            f"{metric}: {dict(sender.calls)}, taken {dict(senders.calls_of(taken))},"
            f" given up {dict(senders.calls_of(given_up))}, in the log {dict(sender.logged(metric))}"
        )


@pytest.mark.parametrize("sender", ["python-hasty"], indirect=True)
def test_some_was_given_up(sender: Sender) -> None:
    assert any(sender.exports(metric)[1] for metric in sender.breakers)
