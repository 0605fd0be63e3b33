"""Snapshots in pieces: what a client that stops reading costs, and that what happens meanwhile reaches it in order."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from api.context.replica import EXTENSION
from api.stream.backlog import Backlog
from api.stream.feed import Feed, Watch
from api.stream.sse import encode_state
from api.stream.state_board import PIECE_BYTES_MAX, PIECE_MAX, Board, BreakerEntry
from api.stream.subscriber import Subscriber
from breaker_actors.core.model import StateWord
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import FeedEntry
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerItem, StoredState, StreamSnapshot
from breaker_actors.telemetry.meters import Meters
from tests.support.fake_gateway import moved
from tests.support.stream_client import Client
from tests.support.web_world import RULE, World, soon, told

BREAKERS = 1_000
P = "project"


def loud(n: int) -> str:
    """A name of 255 characters that takes 1,530 bytes as JSON."""
    return (
        "".join(chr(1 + (n >> 4 * i) % 16) for i in range(4))
        .ljust(255, "\x01")
        .translate(str.maketrans("\n\t\r", "\x11\x12\x13"))
    )


async def put(world: World, names: list[str]) -> dict[str, str]:
    """Breakers of these names; name -> id."""
    items = [BreakerItem(name=name, rule=parse_rule(RULE)) for name in names]
    await world.store.replace_breakers(world.project.id, items, lambda rows, gone: None, world.clock.now_ms())
    rows, _ = await world.store.list_breakers(world.project.id)
    return {row.name: row.id for row in rows}


async def stalled(world: World, count: int) -> list[Client]:
    """Clients that have read the headers and take nothing of the first piece that comes."""
    clients = [Client(world) for _ in range(count)]
    for client in clients:
        client.stall()
    await soon(lambda: all(client.handed for client in clients), 20)
    return clients


async def test_clients_that_read_nothing_cost_one_piece_that_they_share(world: World) -> None:
    names = [loud(n) for n in range(BREAKERS)]
    ids = await put(world, names)
    clients = await stalled(world, 40)
    world.gateway.say(*(moved(world.project.id, ids[name], "open", 0.0, 1) for name in names))
    await asyncio.sleep(0.1)
    handed = [piece for client in clients for piece in client.handed]
    assert max(len(b"".join(client.handed)) for client in clients) <= PIECE_BYTES_MAX
    assert len({id(piece) for piece in handed}) == 1, "no copy for each"
    for client in clients:
        client.go_on()
    await soon(lambda: all(dict(_states(client)) == dict.fromkeys(names, "open") for client in clients[:3]), 20)
    assert max(len(piece) for client in clients for piece in client.handed) <= PIECE_BYTES_MAX
    for client in clients:
        await client.leave()


async def test_a_small_snapshot_is_one_write(world: World) -> None:
    await put(world, [f"b{n:04}" for n in range(PIECE_MAX)])
    client = Client(world)
    await soon(lambda: len(client.told()) == PIECE_MAX)
    assert len([piece for piece in client.handed if b"event" in piece]) == 1
    await client.leave()


async def test_what_moves_while_a_client_reads_its_snapshot_is_told_once(world: World) -> None:
    """In the piece it was given: behind the snapshot; in one still to come: there, and not again."""
    ids = await put(world, [f"b{n:04}" for n in range(3 * PIECE_MAX)])
    first, last = "b0000", f"b{3 * PIECE_MAX - 1}"
    (client,) = await stalled(world, 1)
    moves: list[tuple[StateWord, float]] = [("open", 0.0), ("half_open", 0.2)]
    for seq, (state, rate) in enumerate(moves, 1):
        world.gateway.say(*(moved(world.project.id, ids[name], state, rate, seq, seq) for name in (first, last)))
    feed: Feed = world.app.extensions[EXTENSION].feed
    await soon(lambda: feed._watches[world.project.id].backlog.newest == 4)
    client.go_on()
    await soon(lambda: (first, "half_open", 0.2) in client.told())
    world.gateway.say(moved(world.project.id, ids[last], "closed", 1.0, 3, 3))
    await soon(lambda: (last, "closed", None) in client.told())
    assert [(state, rate) for name, state, rate in client.told() if name == first] == [
        ("closed", None),
        ("open", None),
        ("half_open", 0.2),
    ]
    assert [(s, rate) for name, s, rate in client.told() if name == last] == [("half_open", 0.2), ("closed", None)]
    assert len(client.told()) == 3 * PIECE_MAX + 3
    await client.leave()


def stored(name: str, rate: float) -> StoredState:
    return StoredState(
        breaker_id=f"id-{name}",
        name=name,
        rule=parse_rule(RULE),
        created_ms=0,
        state="half_open",
        allow_rate=rate,
        transition_seq=0,
        record=None,
    )


class Story:
    """A board that moves and is replaced, a backlog, and all that was ever said of each name."""

    def __init__(self, names: list[str]) -> None:
        self.backlog = Backlog(100_000, 100_000, lambda: 0)
        self.rates = dict.fromkeys(names, 0.0)
        self.history: dict[str, list[tuple[str, float | None]]] = defaultdict(list)
        self._step = 0
        self.board = self._load()
        for name in names:
            self.history[name].append(("half_open", 0.0))

    def _load(self) -> Board:
        gone = tuple(name for name in self.history if name not in self.rates)
        states = tuple(stored(name, rate) for name, rate in self.rates.items())
        return Board(StreamSnapshot(position=self._step, states=states, gone=gone))

    def move(self, name: str) -> None:
        self._step += 1
        self.rates[name] = self._step / 1e6
        entry = FeedEntry(self._step, "state", P, f"id-{name}", "half_open", self.rates[name], self._step)
        shown = self.board.apply(entry)
        assert shown is not None
        self._say([shown])

    def replace(self, gone: str, new: str) -> None:
        """A change of configuration."""
        self._step += 1
        del self.rates[gone]
        self.rates[new] = self._step / 1e6
        old, self.board = self.board, self._load()
        self._say(self.board.diff_from(old))

    def _say(self, shown: list[BreakerEntry]) -> None:
        for one in shown:
            self.backlog.add(one.name, one.message)
            self.history[one.name] += [(state, rate) for _, state, rate in told(one.message)]


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_each_name_is_told_from_some_moment_on_without_a_gap(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that read at their own pace, breakers that move, names that come and go; pieces of seven messages."""
    monkeypatch.setattr("api.stream.state_board.PIECE_MAX", 7)
    monkeypatch.setattr("api.stream.subscriber.PIECE_MAX", 7)
    rng = random.Random(seed)
    story = Story([f"n{n:03}" for n in range(100)])
    clients: list[tuple[Subscriber, list[bytes]]] = []
    for step in range(1_500):
        choice = rng.random()
        if choice < 0.4:
            story.move(rng.choice(list(story.rates)))
        elif choice < 0.42:
            story.replace(rng.choice(list(story.rates)), f"n{rng.randrange(100):03}-{step}")
        elif choice < 0.44 and len(clients) < 12:
            subscriber = Subscriber(story.backlog, None, None, Meters("api", "api"))
            clients.append((subscriber, [subscriber.begin(lambda: story.board)]))
        elif clients:
            await read(rng.choice(clients), story)
    assert len(clients) == 12
    for client in clients:
        while behind(client[0], story):
            await read(client, story)
        said: dict[str, list[tuple[str, float | None]]] = defaultdict(list)
        for name, state, rate in told(b"".join(client[1])):
            said[name].append((state, rate))
        for name, states in said.items():
            assert states == story.history[name][-len(states) :], name
        assert set(story.rates) <= set(said)


def behind(subscriber: Subscriber, story: Story) -> bool:
    more = subscriber._reading is not None and subscriber._reading.more
    return more or subscriber.taken < story.backlog.newest


async def read(client: tuple[Subscriber, list[bytes]], story: Story) -> None:
    """What a client is given next; a heartbeat ends its wait when all of the rest was left out."""
    subscriber, given = client
    if behind(subscriber, story):
        subscriber._beat = True
        piece = await asyncio.wait_for(subscriber.next(), 5)
        given.append(b"" if piece.startswith(b":") else piece)


async def test_a_client_is_cut_when_the_backlog_passes_it_while_it_reads_its_snapshot() -> None:
    settings = Settings.model_validate({"subscriber_queue_max": 10, "breakers_per_project_max": 5})
    watch = Watch(settings, Meters("api", "api"), "")
    watch.board = Board(StreamSnapshot(position=0, states=tuple(stored(f"n{n}", 0.5) for n in range(3)), gone=()))
    subscriber = Subscriber(watch.backlog, None, None, Meters("api", "api"))
    watch.subscribers.add(subscriber)
    subscriber.begin(watch.now)
    for n in range(30):
        watch.push([BreakerEntry(f"renamed-{n}", "closed", 1.0, 0)])
    assert subscriber.ended == "slow"
    assert not subscriber.live


def test_a_piece_of_the_backlog_is_bounded_in_bytes_and_one_message_at_least() -> None:
    backlog = Backlog(1_000, 1_000, lambda: 0)
    message = encode_state(loud(1), "open", 0.0)
    for _ in range(100):
        backlog.add("a", message)
    number, pieces = 0, []
    while number < 100:
        pieces.append(backlog.after(number, PIECE_MAX, PIECE_BYTES_MAX))
        number = pieces[-1].last
    assert b"".join(piece.data for piece in pieces) == 100 * message
    assert all(len(piece.data) <= PIECE_BYTES_MAX for piece in pieces)
    assert backlog.after(0, PIECE_MAX, 1).messages == 1


def _states(client: Client) -> list[tuple[str, str]]:
    return [(name, state) for name, state, _ in client.told()]
