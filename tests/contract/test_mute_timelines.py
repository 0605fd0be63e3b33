"""Every scenario of tests/timelines_mutes runs on both databases: moves are committed as the Journal does, the real
Notifier looks, takes, sends and settles in virtual time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from breaker_actors.core.model import StateWord
from breaker_actors.notify.limits import Pace
from breaker_actors.settings import Settings
from breaker_actors.store.rows import ChannelDraft, MuteDraft, MuteRow
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World, event
from tests.support.fake_gateway import FakeClock
from tests.support.mute_timelines import FOLDER, MuteTimeline, all_timelines, mute_words
from tests.support.notifying import ScriptedSender, VirtualNotifier

TIMELINES = all_timelines()
CONFIGS = {"webhook": {"url": "http://hook.example/x"}, "pagerduty": {"routing_key": "r" * 32}}
ALERTS = ("trip", "recover")


class Play:
    """One scenario on one store. `seen` is what callers see of a breaker, `machine` what hides behind it."""

    def __init__(self, world: World, timeline: MuteTimeline) -> None:
        self.world, self.store, self.timeline = world, world.store, timeline
        self.outbox = OutboxWorld(world)
        self.clock = FakeClock(timeline.begin_ms)
        self.sender = ScriptedSender(self.clock)
        settings = Settings(mute_warning_ms=timeline.warning_ms)
        self.notifier = VirtualNotifier(self.store, self.clock, self.sender, settings)
        self.notifier.pace = Pace(poll_ms=timeline.poll_ms, sweep_ms=max(5_000, timeline.poll_ms))
        self.ids: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.machine: dict[str, StateWord] = {}
        self.channels: dict[str, str] = {}
        self.mutes: dict[str, MuteRow] = {}

    async def run(self) -> None:
        for name, metadata in (self.timeline.breakers or {"checkout": {}}).items():
            row = await self.outbox.breaker(name)
            await self.world.edit(row.id, metadata=metadata)
            self.ids[name] = row.id
            self.names[row.id] = name
            self.machine[name] = "closed"
        for name, words in (self.timeline.channels or {"hook": ()}).items():
            kind: Any = words[0] if words and words[0] in CONFIGS else "webhook"
            events: Any = tuple(word for word in words if word in ALERTS) or ALERTS
            draft = ChannelDraft(channel=kind, config=CONFIGS[kind], events=events, name=name)
            self.channels[(await self.store.create_channel(self.world.project_id, draft, 1)).id] = name
        for when, word, words in self.timeline.steps:
            self.notifier.at(when, lambda w=word, rest=words, at=when: self.step(at, w, rest))
        await self.notifier.run_until(self.timeline.until_ms)
        await self.notifier.kill()

    async def step(self, at_ms: int, word: str, words: tuple[str, ...]) -> None:
        await getattr(self, f"_{word}")(at_ms, *words)
        assert self.notifier.host is not None
        await self.notifier.host.nudge()

    # moves

    async def _move(self, name: str | None, *moves: StateWord, at_ms: int, hidden: bool = False, **more: Any) -> None:
        name = name or next(iter(self.ids))
        id_, outbox = self.ids[name], self.outbox
        drafts = []
        for curr in moves:
            outbox.seqs[id_] += 1
            prev = self.machine[name] if hidden else outbox.states[id_]
            draft = event(outbox.seqs[id_], prev, curr, at_ms)
            fields = {"hidden_by": "observe"} if hidden else more
            drafts.append(msgspec.structs.replace(draft, name=name, **fields))
            if hidden:
                self.machine[name] = curr
            else:
                outbox.states[id_] = curr
        state = outbox.states[id_]
        commit = self.world.commit(id_, outbox.epochs[id_], *drafts, state=state, allow_rate=float(state == "closed"))
        assert await self.world.write(commit) == ["ok"]

    async def _trip(self, at_ms: int, name: str | None = None) -> None:
        await self._move(name, "open", at_ms=at_ms)

    async def _half_open(self, at_ms: int, name: str | None = None) -> None:
        await self._move(name, "half_open", at_ms=at_ms)

    async def _recover(self, at_ms: int, name: str | None = None) -> None:
        is_open = self.outbox.states[self.ids[name or next(iter(self.ids))]] == "open"
        await self._move(name, *(("half_open",) if is_open else ()), "closed", at_ms=at_ms)  # type: ignore[arg-type]

    async def _hidden(self, at_ms: int, word: str, name: str | None = None) -> None:
        moves: tuple[StateWord, ...] = ("open",) if word == "trip" else ("half_open", "closed")
        await self._move(name, *moves, at_ms=at_ms, hidden=True)

    async def _enforce(self, at_ms: int, name: str | None = None) -> None:
        state = self.machine[name or next(iter(self.ids))]
        await self._move(name, state, at_ms=at_ms, reason="mode_enforce", by="robin")

    async def _force_open(self, at_ms: int, name: str | None = None) -> None:
        await self._move(name, "open", at_ms=at_ms, reason="forced_open", by="robin", comment="migration")

    async def _override_ends(self, at_ms: int, name: str | None = None) -> None:
        state = self.machine[name or next(iter(self.ids))]
        await self._move(name, state, at_ms=at_ms, reason="override_ended", by="robin")

    async def _rename(self, at_ms: int, name: str, new: str) -> None:
        await self.world.edit(self.ids[name], now_ms=at_ms, name=new)

    async def _delete(self, at_ms: int, name: str | None = None) -> None:
        await self.store.delete_breaker(self.world.project_id, self.ids[name or next(iter(self.ids))], at_ms)

    # mutes and channels

    async def _mute(self, at_ms: int, name: str, *words: str) -> None:
        found = {"starts_ms": 0, "ends_ms": None, "comment": "", "by": "sam"} | mute_words(words)
        by = found.pop("by")
        draft = MuteDraft(**found, all="matchers" not in found)
        self.mutes[name] = await self.store.create_mute(self.world.project_id, draft, at_ms, by="k1", by_name=by)

    async def _edit(self, at_ms: int, name: str, *words: str) -> None:
        fields = mute_words(words)
        await self.store.update_mute(
            self.world.project_id, self.mutes[name].id, lambda row: msgspec.structs.replace(row, **fields), at_ms
        )

    async def _unmute(self, at_ms: int, name: str) -> None:
        await self.store.end_mute(self.world.project_id, self.mutes[name].id, at_ms)

    async def _channel(self, at_ms: int, name: str, word: str) -> None:
        id_ = next(id_ for id_, known in self.channels.items() if known == name)
        await self.store.update_channel(
            self.world.project_id, id_, lambda row: msgspec.structs.replace(row, enabled=word == "on"), at_ms
        )

    # what came of it

    def sent(self) -> list[str]:
        lines = []
        for at, to, message, _ in self.sender.asked:
            words = [str(at), "sent", message.kind, *self._where(message.breaker_id, to.channel_id)]
            if (by := message.muted_by) is not None:
                words += ["muted_by", by.by]
                words += [] if by.open_since_ms is None else ["since", str(by.open_since_ms)]
                words += ["holding", str(by.holding)] if by.holding else []
            lines.append(" ".join(words))
        return lines

    async def left(self) -> list[str]:
        names = {row.id: name for name, row in self.mutes.items()}
        lines = []
        for channel_id in self.channels:
            for row in await self.outbox.rows(channel_id):
                if row.state != "sent":
                    behind = [] if row.mute_id is None else [names[row.mute_id]]
                    lines.append(" ".join([row.kind, row.state, *behind, *self._where(row.breaker_id, channel_id)]))
        return lines

    def _where(self, breaker_id: str, channel_id: str) -> list[str]:
        breaker, channel = self.names.get(breaker_id), self.channels[channel_id]
        words = [] if breaker in (None, next(iter(self.ids))) else ["of", str(breaker)]
        return words + ([] if channel == next(iter(self.channels.values())) else ["on", channel])


@pytest.mark.parametrize("timeline", TIMELINES, ids=lambda timeline: timeline.name)
async def test_people_hear_what_it_says(world: World, timeline: MuteTimeline) -> None:
    play = Play(world, timeline)
    await play.run()
    assert sorted(play.sent()) == sorted(timeline.sent)
    assert sorted(await play.left()) == sorted(timeline.left)


def test_each_says_what_it_is_about() -> None:
    assert len(TIMELINES) >= 12
    for path in FOLDER.glob("*.txt"):
        assert path.read_text().startswith("# "), path.name
