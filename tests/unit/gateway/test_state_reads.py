"""Reads of many states: in parts that keep neither end busy for long, and from the store no more than once for all."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from breaker_actors.core.model import Control, Override, OverrideKind
from breaker_actors.core.overlay import shown_under
from breaker_actors.core.rules import parse_rule
from breaker_actors.gateway.gateway import READ_MAX, ActorGateway
from breaker_actors.gateway.stored_states import AGAIN_S, FEW, StoredStates
from breaker_actors.messages import Readings, StateReading
from breaker_actors.settings import Settings
from breaker_actors.store.base import Store
from breaker_actors.store.rows import BreakerDraft, StoredState
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.transport.peers import Net
from tests.contract.store_world import RULE
from tests.support.cluster import FAST_RULE, Service, service
from tests.support.fake_gateway import FakeClock, view

MANY = [f"b{i}" for i in range(3 * READ_MAX + 7)]


def test_readings_cross_processes_as_one_text() -> None:
    readings = Readings(StateReading(breaker_id=name, view=view(value=None)) for name in MANY)
    text = pickle.dumps(readings, 5)
    assert pickle.loads(text) == readings
    assert type(pickle.loads(text)) is Readings
    assert text.count(b"StateReading") == 0


def test_owners_and_replicas_of_two_releases_read_each_other() -> None:
    """The one before knows no project of a reading."""
    known = msgspec.structs.fields(StateReading)
    before = msgspec.defstruct("Before", [(f.name, f.type) for f in known if f.name in ("breaker_id", "view")])
    new = StateReading(breaker_id="a", project_id="p", view=view())
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(new), type=before)
    assert (old.breaker_id, old.view) == (new.breaker_id, new.view)  # type: ignore[attr-defined]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=StateReading) == replace(new, project_id="")


class Owners:
    """A net whose Directory knows every breaker, and whose one owner answers, or not. `projects`: what it says whose a
    breaker is; of others it says nothing, as the release before."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.projects: dict[str, str] = {}
        self.calls: list[tuple[int, float]] = []
        self.away = False

    async def call(self, name: str, method: str, *args: Any) -> Any:
        if method == "locate":
            return dict.fromkeys(args[1], "breaker-0")
        assert method == "states"
        if self.away:
            await asyncio.Event().wait()
        self.calls.append((len(args[0]), args[1]))
        self.clock.seconds += 0.15
        whose = self.projects
        return Readings(StateReading(breaker_id=i, project_id=whose.get(i, ""), view=view()) for i in args[0])


class Stored:
    """A store that has every state, of any project."""

    def __init__(self) -> None:
        self.asides = cast(Asides, None)
        self.asked: list[int] = []
        self.now = self.most = 0

    async def stored_states(self, project_id: str, breaker_ids: Any) -> list[StoredState]:
        self.asked.append(len(breaker_ids))
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return [stored(name) for name in breaker_ids]


def stored(name: str) -> StoredState:
    values = {"state": "closed", "allow_rate": 1.0, "transition_seq": 0, "created_ms": 1, "record": None}
    return StoredState(breaker_id=name, name=name, rule=RULE, **cast(Any, values))


async def test_owners_are_asked_for_a_part_at_a_time() -> None:
    """Together the parts wait for breakers that are being restored as long as one call may."""
    clock = FakeClock()
    net, store = Owners(clock), Stored()
    gateway = ActorGateway(cast(Store, store), cast(Net, net), clock, Settings())
    readings = await gateway.states("p", MANY)
    assert sorted(readings) == sorted(MANY)
    assert [n for n, _ in net.calls] == [READ_MAX] * 3 + [7]
    waits = [round(wait_s, 2) for _, wait_s in net.calls]
    assert waits == [0.4, 0.25, 0.1, 0.0]
    assert store.asked == []


async def test_what_is_another_projects_is_dropped() -> None:
    """Whoever asks with which ids. The store, which knows breakers by project, has the last word: an id that another
    project had is told as stale until its owner knows."""
    net, store = Owners(FakeClock()), Stored()
    net.projects = {"ours": "p", "theirs": "q"}
    gateway = ActorGateway(cast(Store, store), cast(Net, net), net.clock, Settings())
    readings = await gateway.states("p", ["ours", "theirs", "old"])
    assert {name: reading.stale for name, reading in readings.items()} == {"ours": False, "theirs": True, "old": False}
    assert store.asked == [1]


async def test_an_owner_says_whose_a_breaker_is(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker()
        assert (await s.fresh(row.id)).project_id == s.project.id
        other = await s.store.create_project(s.project.org_id, s.project.workspace_id, "other", s.clock.now_ms())
        assert await s.gateway.states(other.id, [row.id]) == {}


async def test_the_store_is_read_once_where_owners_are_silent() -> None:
    """Whoever asks meanwhile, or soon after, is told the same, as stale: overload does not read everything twice."""
    clock = FakeClock()
    net, store = Owners(clock), Stored()
    net.away = True
    gateway = ActorGateway(cast(Store, store), cast(Net, net), clock, Settings(owner_timeout_ms=10))
    found = await asyncio.gather(*(gateway.states("p", MANY) for _ in range(5)))
    assert all(sorted(readings) == sorted(MANY) for readings in found)
    assert all(reading.stale for readings in found for reading in readings.values())
    assert store.asked == [len(MANY)]
    clock.seconds += AGAIN_S
    await gateway.states("p", MANY)
    assert store.asked == [len(MANY)] * 2


async def test_few_states_are_read_whenever_they_are_asked_for() -> None:
    clock, store = FakeClock(), Stored()
    states = StoredStates(cast(Store, store), clock)
    for _ in range(2):
        assert len(await states.read("p", MANY[:FEW])) == FEW
    assert store.asked == [FEW] * 2


async def test_only_what_is_not_known_yet_is_read_and_projects_are_apart() -> None:
    clock, store = FakeClock(), Stored()
    states = StoredStates(cast(Store, store), clock)
    await states.read("p", MANY[:1_000])
    await states.read("p", MANY)
    await states.read("q", MANY)
    assert store.asked == [1_000, len(MANY) - 1_000, len(MANY)]
    assert states._locks == {}


@pytest.mark.parametrize("kind", ["force_open", "force_closed", "throttle"])
async def test_an_override_that_its_owner_has_not_heard_of_is_shown(tmp_path: Path, kind: Any) -> None:
    """It was answered 200, and is in the log; the breaker that was just made is not started yet. It shows as stale."""
    async with service(tmp_path, owner_timeout_ms=20, breaker_actors=1) as s:
        starts, owner = asyncio.Event(), s.net.actors["breaker-0"]
        owner.assign = held_up(owner.assign, starts)
        draft = BreakerDraft(rule=parse_rule(FAST_RULE))
        row, changes = await s.store.create_breaker(s.project.id, draft, s.clock.now_ms())
        assert await s.gateway.configured(s.project.id, changes)
        first = await s.state(row.id)
        assert (first.stale, first.view.state, first.view.override) == (True, "closed", None)
        override = await overridden(s, row.id, kind)
        reading = await s.state(row.id)
        assert (reading.stale, reading.view.override, reading.view.machine_state) == (True, override, "closed")
        assert (reading.view.state, reading.view.allow_rate) == shown_under(override)
        since_ms = row.created_ms if kind == "force_closed" else override.since_ms
        assert (reading.view.state_since_ms, reading.view.transition_seq) == (since_ms, 0)
        starts.set()
        fresh = (await s.fresh(row.id)).view
        assert (fresh.state, fresh.allow_rate, fresh.override) == (*shown_under(override), override)


async def test_an_override_that_is_over_is_not_shown_in_an_owners_place(tmp_path: Path) -> None:
    async with service(tmp_path, owner_timeout_ms=20, breaker_actors=1) as s:
        owner = s.net.actors["breaker-0"]
        owner.assign = held_up(owner.assign, asyncio.Event())
        draft = BreakerDraft(rule=parse_rule(FAST_RULE))
        row, changes = await s.store.create_breaker(s.project.id, draft, s.clock.now_ms())
        assert await s.gateway.configured(s.project.id, changes)
        await overridden(s, row.id, "force_open", for_ms=1)
        reading = await s.state(row.id)  # waits for its owner 20 ms
        assert (reading.stale, reading.view.state, reading.view.override) == (True, "closed", None)


def held_up(real: Any, starts: asyncio.Event) -> Any:
    async def later(*args: Any) -> Any:
        await starts.wait()
        return await real(*args)

    return later


async def overridden(s: Service, breaker_id: str, kind: OverrideKind, for_ms: int = 600_000) -> Override:
    """An override as the API sets one."""
    now_ms = s.clock.now_ms()
    rate = 0.2 if kind == "throttle" else None
    override = Override(
        kind=kind, reason="r", by="u", since_ms=now_ms, until_ms=now_ms + for_ms, version=2, allow_rate=rate
    )
    _, changes = await s.store.update_breaker(
        s.project.id, breaker_id, lambda row: replace(row, control=Control(override=override)), now_ms
    )
    await s.gateway.configured(s.project.id, changes)
    return override
