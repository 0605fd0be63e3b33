"""An API replica without HTTP: the real gateway and the real feed with one stream client, behind calls of a client."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from api.stream.feed import Feed
from api.stream.sse import StateMessage
from breaker_actors.core.model import BreakerMode, Override
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import BreakerExists, Invalid, NotFound, RouterHasBreakers
from breaker_actors.gateway.gateway import ActorGateway
from breaker_actors.messages import AppendResult, FeedPage, Part, StateReading
from breaker_actors.store.base import Store
from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.rows import BreakerDraft, BreakerRow, MuteDraft, RouterDraft, RouterRow, with_mode
from breaker_actors.telemetry.meters import Meters
from tests.sim.net import SimNet, Wire
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import World

DONE_BEFORE = (BreakerExists, NotFound, RouterHasBreakers)
"""What a change that is sent again meets when its first sending was carried out, or when another one made it void."""

_decode = msgspec.json.Decoder(StateMessage).decode


class WatchedGateway(ActorGateway):
    """Everything the journal says is looked at before the feed gets it."""

    def __init__(self, world: World, *args: Any) -> None:
        super().__init__(*args)
        self._world = world

    async def feed(self, shard: int, epoch: int, after: int, wait_s: float) -> FeedPage:
        page = await super().feed(shard, epoch, after, wait_s)
        if page.entries or page.reset:
            self._world.trace("feed", page.epoch, page.position, page.reset, [e.kind for e in page.entries])
        for entry in page.entries:
            if entry.kind == "state":
                self._world.check(self._world.checks.entry, entry)
        return page


class Replica:
    """`picture` is what its stream client has been told: stream name -> (state, allow_rate)."""

    def __init__(self, world: World, process: Process, net: SimNet, store: Store) -> None:
        self._world = world
        self._project = world.project_id
        self._store = store
        self._clock = process.clock
        self._gateway = WatchedGateway(world, store, Wire(net, process), process.clock, world.settings)
        self.meters = Meters("api", "api")
        self._feed = Feed(self._gateway, world.settings, process.clock, self.meters)
        self.picture: dict[str, tuple[str, float | None]] = {}
        self.followed = False

    def start(self) -> None:
        self._gateway.start()
        self._feed.start()

    async def follow(self) -> None:
        """The stream client: a snapshot, then what is pushed."""
        subscriber = self._feed.subscribe(self._project)
        self._take(await self._feed.snapshot(self._project, subscriber))
        self.followed = True
        while True:
            self._take(await subscriber.next())

    def _take(self, chunk: bytes) -> None:
        for line in chunk.split(b"\n"):
            if line.startswith(b"data: "):
                message = _decode(line[6:])
                self.picture[message.breaker] = (message.state, message.allow_rate)

    # calls of clients

    async def ingest(self, router_id: str, key: bytes | None, payload: bytes, count: int) -> AppendResult:
        append_id = uuid4().bytes
        keys = (append_id,) if key is None else (append_id, key)
        return (await self._gateway.ingest(self._project, [Part(router_id, keys, payload, count)]))[0]

    async def states(self, breaker_ids: Sequence[str]) -> list[StateReading]:
        return list((await self._gateway.states(self._project, breaker_ids)).values())

    async def ready(self) -> None:
        await self._gateway.ready()

    async def configure(self, change: str, fields: dict[str, Any]) -> bool:
        """Carries out one change of configuration as the API does; False when there was nothing left to do."""
        try:
            changes = await getattr(self, f"_{change}")(**fields)
        except DONE_BEFORE:
            return False
        await self._gateway.configured(self._project, changes)
        return True

    async def _create(self, breaker_id: str, name: str, rule: dict[str, Any], mode: BreakerMode) -> list[int]:
        control = with_mode(None, mode, "somebody")
        draft = BreakerDraft(rule=parse_rule(rule), id=breaker_id, name=name, control=control)
        return (await self._store.create_breaker(self._project, draft, self._clock.now_ms()))[1]

    async def _edit(self, breaker_id: str, rule: dict[str, Any]) -> list[int]:
        def edit(row: BreakerRow) -> BreakerRow:
            return replace(row, rule=parse_rule(rule, row.rule))

        return (await self._store.update_breaker(self._project, breaker_id, edit, self._clock.now_ms()))[1]

    async def _rename(self, breaker_id: str, name: str) -> list[int]:
        def edit(row: BreakerRow) -> BreakerRow:
            return replace(row, name=name)

        return (await self._store.update_breaker(self._project, breaker_id, edit, self._clock.now_ms()))[1]

    async def _override(self, breaker_id: str, by: str, for_ms: int, fields: dict[str, Any]) -> list[int]:
        """Sets one, or another one instead."""
        now = self._clock.now_ms()

        def edit(row: BreakerRow) -> BreakerRow:
            when = {"since_ms": now, "until_ms": now + for_ms, "version": row.version + 1}
            override = Override(**fields, by=by, **when)
            return replace(row, control=replace(row.controls, override=override, by=None, comment=None))

        return (await self._store.update_breaker(self._project, breaker_id, edit, now, by))[1]

    async def _lift(self, breaker_id: str, by: str, reason: str | None) -> list[int]:
        """Ends the override, whether it is over by itself or not."""

        def edit(row: BreakerRow) -> BreakerRow:
            return replace(row, control=replace(row.controls, override=None, by=by, comment=reason))

        return (await self._store.update_breaker(self._project, breaker_id, edit, self._clock.now_ms(), by))[1]

    async def _watch(self, breaker_id: str, by: str, mode: BreakerMode) -> list[int]:
        """Lets it observe, or enforce."""

        def edit(row: BreakerRow) -> BreakerRow:
            return replace(row, control=with_mode(row.control, mode, by))

        return (await self._store.update_breaker(self._project, breaker_id, edit, self._clock.now_ms(), by))[1]

    async def _delete(self, breaker_id: str) -> list[int]:
        return await self._store.delete_breaker(self._project, breaker_id, self._clock.now_ms())

    async def _create_router(self, name: str, breaker_ids: Sequence[str], mode: Any) -> list[int]:
        draft = RouterDraft(name=name, mode=mode, breaker_ids=tuple(breaker_ids))
        return (await self._store.create_router(self._project, draft, self._clock.now_ms()))[1]

    async def _edit_router(self, router_id: str, fields: dict[str, Any]) -> list[int]:
        def edit(row: RouterRow) -> RouterRow:
            return replace(row, **fields)

        return (await self._store.update_router(self._project, router_id, edit, self._clock.now_ms()))[1]

    async def _delete_router(self, router_id: str) -> list[int]:
        return await self._store.delete_router(self._project, router_id, self._clock.now_ms())

    async def _link(self, router_id: str, breaker_id: str) -> list[int]:
        return (await self._store.link_breakers(self._project, router_id, [breaker_id], self._clock.now_ms()))[1]

    async def _unlink(self, router_id: str, breaker_id: str) -> list[int]:
        return await self._store.unlink_breaker(self._project, router_id, breaker_id, self._clock.now_ms())

    async def _mute(self, matchers: Sequence[Any], ends_ms: int, by: str) -> list[int]:
        """A mute whose end has passed by this replica's clock is refused."""
        now = self._clock.now_ms()
        if ends_ms > now:
            of = tuple(Matcher(field=field, op=op, value=value) for field, op, value in matchers)
            draft = MuteDraft(starts_ms=now, ends_ms=ends_ms, comment="why", matchers=of, all=not of)
            await self._store.create_mute(self._project, draft, now, by, by)
        return []

    async def _remute(self, mute_id: str, ends_ms: int) -> list[int]:
        now = self._clock.now_ms()
        with contextlib.suppress(Invalid):  # it has ended
            if ends_ms > now:
                await self._store.update_mute(self._project, mute_id, lambda row: replace(row, ends_ms=ends_ms), now)
        return []

    async def _unmute(self, mute_id: str) -> list[int]:
        await self._store.end_mute(self._project, mute_id, self._clock.now_ms())
        return []
