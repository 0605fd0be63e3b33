"""The named actors of a service as a whole, seen from a process on the same Ray cluster: start, reach, renew, end them.

Actors that were started from another program or other settings are replaced, one kind after the other. What they knew
is in the store and the logs; who calls them meanwhile tries again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util import list_named_actors

from breaker_actors.clock import Clock, SystemClock
from breaker_actors.errors import Unavailable
from breaker_actors.gateway.door import Door
from breaker_actors.gateway.gateway import ActorGateway
from breaker_actors.persistence import make_store
from breaker_actors.ray_runtime.actors import (
    NAMESPACE,
    SEATED,
    DirectoryActor,
    JournalActor,
    NotifierActor,
    RayNet,
    release,
    start,
)
from breaker_actors.settings import Settings
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import DIRECTORY, NOTIFIER, ActorKind, journal_name, shard_of

ANSWER_S = 5.0
UP_WITHIN_S = 60.0
LOOK_S = 0.05
JOURNAL = "journal-"
FIRST = (JOURNAL, DIRECTORY, NOTIFIER)
"""Prefixes of the names that `launch` starts."""

Tell = Callable[[str], None]


def launch(settings: Settings) -> None:
    """Starts the named actors of the service on the Ray cluster this process is connected to; returns at once. Journals
    of projects from when there were more are the Directory's to start."""
    for shard in range(settings.journals):
        start(JournalActor, journal_name(shard), shard, settings)
    start(DirectoryActor, DIRECTORY, settings)
    start(NotifierActor, NOTIFIER, settings)


def connect(settings: Settings, meters: Meters | None = None, named: Callable[[], str] = lambda: "api") -> ActorGateway:
    """The Gateway of a process inside the cluster; `await gateway.open()` before use. `named`: what it is called among
    the others that count."""
    door = Door(settings.host, settings.port, settings.tls_cert is not None)
    return ActorGateway(make_store(settings), RayNet(settings), SystemClock(), settings, meters, named, door.is_open)


def names(prefix: str = "") -> list[str]:
    """The service's actors on this cluster whose names begin so."""
    found = [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE]
    return sorted(name for name in found if name.startswith(prefix))


def renew(settings: Settings, clock: Clock, tell: Tell) -> None:
    """Starts what is not there; replaces, kind after kind, what is of another release or does not answer."""
    wanted = release(settings)
    for prefix in FIRST:
        old = _others(names(prefix), wanted)
        _end(old, clock)
        launch(settings)
        if prefix == JOURNAL:  # all that ran, also beyond the setting: who has them still may make projects
            for name in old:
                start(JournalActor, name, shard_of(name), settings)
        _until_of(names(prefix), wanted, clock)
        _tell(tell, old)
    for kind, actor in SEATED.items():
        old = _others(names(_prefix(kind)), wanted)
        _end(old, clock)
        for name in old:
            start(actor, name, name, settings)
        _until_of(old, wanted, clock)
        _tell(tell, old)


def end(clock: Clock) -> list[str]:
    """Ends all of them; the Directory first: it would start others again. Answers their names."""
    found = names()
    for prefix in (DIRECTORY, NOTIFIER, *map(_prefix, SEATED), JOURNAL):
        _end([name for name in found if name.startswith(prefix)], clock)
    return found


def _prefix(kind: ActorKind) -> str:
    return f"{kind}-"


def _tell(tell: Tell, renewed: list[str]) -> None:
    if renewed:
        tell(f"replaced {', '.join(renewed)}")


def _release_of(name: str) -> str | None:
    try:
        handle = ray.get_actor(name, namespace=NAMESPACE)
        process: Any = ray.get(handle.process.remote(), timeout=ANSWER_S)
        return str(process.release)
    except (ValueError, AttributeError, RayError, GetTimeoutError):
        return None  # not there (any more), of a program that could not say it, or not answering


def _others(found: Iterable[str], wanted: str) -> list[str]:
    return [name for name in found if _release_of(name) != wanted]


def _end(found: list[str], clock: Clock) -> None:
    """Kills actors for good and waits until their names are free."""
    for name in found:
        try:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
        except ValueError:
            continue
    _until(lambda: not set(found) & set(names()), clock, "actors that were to end are still there")


def _until_of(found: list[str], wanted: str, clock: Clock) -> None:
    _until(lambda: not _others(found, wanted), clock, "actors do not come up")


def _until(check: Callable[[], bool], clock: Clock, otherwise: str) -> None:
    deadline = clock.monotonic() + UP_WITHIN_S
    while not check():
        if clock.monotonic() > deadline:
            raise Unavailable(otherwise)
        threading.Event().wait(LOOK_S)
