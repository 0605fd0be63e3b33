"""Mutes by chance: trips, recoveries, mutes, channels and Notifiers that die, against a naive model that says exactly
which notifications go out. Each seed is one run; a failure names it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
import pytest

from breaker_actors.core.model import StateWord
from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.outbox import held
from breaker_actors.store.rows import ChannelRow, MuteRow
from tests.contract.mute_world import MuteWorld
from tests.contract.store_world import World

Told = tuple[str, int, bool]
"""kind, transition_seq, and whether it says by whom it was muted."""
NEXT: dict[StateWord, tuple[StateWord, ...]] = {"closed": ("open",), "open": ("half_open",)}
NEXT["half_open"] = ("open", "closed", "closed")


@dataclass
class Silence:
    """A mute as the model knows it: sets of names of breakers, teams and channels; None is any."""

    names: set[str] | None
    team: str | None
    channels: set[str] | None
    starts_ms: int
    ends_ms: int

    def mutes(self, name: str, team: str, channel_id: str, at_ms: int) -> bool:
        return (
            self.starts_ms <= at_ms < self.ends_ms
            and (self.names is None or name in self.names)
            and (self.team is None or team == self.team)
            and (self.channels is None or channel_id in self.channels)
        )


@dataclass
class Outage:
    """Of one breaker, as one channel knows it. `told`: a trip was sent, or will be; `held`: the trip that waits."""

    told: bool = False
    held: int | None = None
    over: bool = False


@dataclass
class Line:
    """What one channel hears of one breaker."""

    outage: Outage = field(default_factory=lambda: Outage(over=True))
    queue: list[tuple[Told, Outage]] = field(default_factory=list)
    sent: list[Told] = field(default_factory=list)


class Naive:
    """The rules, in as few words as possible."""

    def __init__(self) -> None:
        self.silences: dict[str, Silence] = {}
        self.lines: dict[tuple[str, str], Line] = {}
        self.teams: dict[str, str] = {}
        self.takes: dict[str, tuple[str, ...]] = {}
        self.on: dict[str, bool] = {}

    def muted(self, name: str, channel_id: str, at_ms: int) -> bool:
        return any(one.mutes(name, self.teams[name], channel_id, at_ms) for one in self.silences.values())

    def move(self, name: str, prev: str, curr: str, seq: int, at_ms: int) -> None:
        for channel_id in self.on:
            line = self.lines.setdefault((channel_id, name), Line())
            taken = self.takes[channel_id] if self.on[channel_id] else ()
            muted = self.muted(name, channel_id, at_ms)
            if curr == "open":
                self.trip(line, "trip" in taken, prev == "closed", muted, seq)
            elif curr == "closed":
                self.close(line, "recover" in taken, "trip" in self.takes[channel_id], muted, seq)

    def trip(self, line: Line, taken: bool, first: bool, muted: bool, seq: int) -> None:
        unheard = line.outage.held is not None and not first
        if first:
            line.outage = Outage(held=line.outage.held if not taken else None)
        if not taken:
            return
        if muted:
            line.outage.held = seq
        else:
            line.outage.held, line.outage.told = None, True
            line.queue.append((("trip", seq, unheard), line.outage))

    def close(self, line: Line, taken: bool, wants_trips: bool, muted: bool, seq: int) -> None:
        line.outage.over = True
        if not taken:
            return
        if line.outage.told or (not wants_trips and not muted):
            line.queue.append((("recover", seq, False), line.outage))
        line.outage.held = None

    def remove(self, name: str, seq: int) -> None:
        """An open breaker is deleted."""
        for (_, of), line in self.lines.items():
            if of == name and not line.outage.over:
                line.outage.held, line.outage.over = None, True
                if line.outage.told:
                    line.queue.append((("resolve", seq, False), line.outage))

    def notify(self, at_ms: int) -> None:
        """The Notifier looks, and sends all that may be."""
        for (channel_id, name), line in self.lines.items():
            outage = line.outage
            if not self.on[channel_id]:
                for (kind, *_), of in line.queue:
                    of.told &= kind != "trip"
                line.queue.clear()
                outage.held = None
            elif outage.over:
                outage.held = None
            elif outage.held is not None and not self.muted(name, channel_id, at_ms):
                line.queue.append((("trip", outage.held, True), outage))
                outage.held, outage.told = None, True
            line.sent += [told for told, _ in line.queue]
            line.queue.clear()


class Play:
    """One run: the same things happen to the store and to the model."""

    def __init__(self, told: MuteWorld, seed: int) -> None:
        self.told, self.store, self.project_id = told, told.store, told.world.project_id
        self.chance, self.naive = random.Random(seed), Naive()
        self.now = 10_000
        self.ids: dict[str, str] = {}
        self.channels: list[ChannelRow] = []
        self.mutes: list[MuteRow] = []
        self.heard: dict[tuple[str, str], list[Told]] = {}
        self.made = 0

    async def begin(self) -> None:
        for events in ((), ("trip",), ("recover",), ()):
            channel = await self.told.channel(*events)
            self.channels.append(channel)
            self.naive.takes[channel.id], self.naive.on[channel.id] = channel.events, True
        for _ in range(3):
            await self.breaker()

    async def breaker(self) -> None:
        self.made += 1
        name = f"b{self.made}"
        row = await self.told.breaker(name)
        self.ids[name], self.naive.teams[name] = row.id, ""

    async def step(self) -> None:
        self.now += self.chance.choice((1, 10, 100))
        acts = [self.move] * 6 + [self.notify] * 3 + [self.mute] * 2
        acts += [self.edit, self.end, self.switch, self.team, self.crash, self.remove]
        await self.chance.choice(acts)()

    async def move(self) -> None:
        name = self.chance.choice(list(self.ids))
        moves: list[StateWord] = []
        for _ in range(self.chance.choice((1, 1, 1, 2, 4))):
            id_ = self.ids[name]
            prev = self.told.states[id_] if not moves else moves[-1]
            curr = self.chance.choice(NEXT[prev])
            self.naive.move(name, prev, curr, self.told.seqs[id_] + len(moves) + 1, self.now)
            moves.append(curr)
        await self.told.moves(self.ids[name], *moves, ts_ms=self.now)

    async def mute(self) -> None:
        names = self.chance.choice((None, set(self.chance.sample(list(self.ids), 1))))
        channel = self.chance.choice((None, None, self.chance.choice(self.channels).id))
        team = self.chance.choice((None, None, "x"))
        starts = self.now + self.chance.choice((0, 0, 30))
        silence = Silence(
            names, team, None if channel is None else {channel}, starts, starts + self.chance.choice((20, 300))
        )
        matchers = [Matcher(field="name", op="=", value=name) for name in names or ()]
        matchers += [] if channel is None else [Matcher(field="channel", op="=", value=channel)]
        matchers += [] if team is None else [Matcher(field="metadata.team", op="=", value=team)]
        row = await self.told.mute(*matchers, now_ms=self.now, starts_ms=starts, ends_ms=silence.ends_ms)
        self.mutes.append(row)
        self.naive.silences[row.id] = silence

    def _live(self) -> list[MuteRow]:
        return [row for row in self.mutes if self.naive.silences[row.id].ends_ms > self.now]

    async def edit(self) -> None:
        if live := self._live():
            row = live[0]
            ends_ms = self.now + self.chance.choice((1, 50, 500))
            await self.store.update_mute(
                self.project_id, row.id, lambda one: msgspec.structs.replace(one, ends_ms=ends_ms), self.now
            )
            self.naive.silences[row.id].ends_ms = ends_ms

    async def end(self) -> None:
        if live := self._live():
            row = self.chance.choice(live)
            await self.told.end(row, self.now)
            self.naive.silences[row.id].ends_ms = 0

    async def switch(self) -> None:
        channel = self.chance.choice(self.channels)
        on = self.naive.on[channel.id] = not self.naive.on[channel.id]
        await self.store.update_channel(
            self.project_id, channel.id, lambda row: msgspec.structs.replace(row, enabled=on), self.now
        )

    async def team(self) -> None:
        name = self.chance.choice(list(self.ids))
        team = self.naive.teams[name] = self.chance.choice(("", "x"))
        await self.told.world.edit(self.ids[name], metadata={"team": team})

    async def remove(self) -> None:
        name = self.chance.choice(list(self.ids))
        id_ = self.ids.pop(name)
        if self.told.states[id_] != "closed":
            self.naive.remove(name, self.told.seqs[id_])
        await self.store.delete_breaker(self.project_id, id_, self.now)
        await self.breaker()

    async def crash(self) -> None:
        """A Notifier dies somewhere in the middle of a look; its successor goes on."""
        await self.store.tend_mutes(self.told.epoch, self.now, 0)
        after: int | None = 0
        for _ in range(self.chance.choice((0, 1, 2))):
            after = (await self.store.look_at_held(self.told.epoch, self.now, after or 0)).last
        await self.told.open()
        await self.notify()

    async def notify(self) -> None:
        self.naive.notify(self.now)
        await self.told.look(self.now)
        for channel in self.channels:
            if not self.naive.on[channel.id]:
                await self.store.cancel_deliveries(self.told.epoch, [channel.id], self.now)
            for row in await self.told.send_all(channel.id):
                told = (row.kind, row.transition_seq, row.told.muted_by is not None)
                self.heard.setdefault((channel.id, row.breaker_id), []).append(told)

    async def compare(self, ids: dict[str, str]) -> None:
        for (channel_id, name), line in self.naive.lines.items():
            assert self.heard.get((channel_id, ids[name]), []) == line.sent, (channel_id, name)


@pytest.mark.parametrize("seed", range(8))
async def test_exactly_what_the_model_says_goes_out(world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "LOOK_MAX", 2)
    monkeypatch.setattr(held, "SHARE_MIN", 2)
    told = MuteWorld(world)
    await told.open()
    play = Play(told, seed)
    await play.begin()
    ids = dict(play.ids)
    for _ in range(100):
        await play.step()
        ids |= play.ids
    play.now += 1_000
    await play.notify()
    await play.compare(ids)
    assert await told.store.held_count() == 0
    states = {row.state for channel in play.channels for row in await told.rows(channel.id)}
    assert states <= {"sent", "suppressed", "cancelled"}
