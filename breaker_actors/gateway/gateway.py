"""The one typed door through which replicas and tools reach the actors (stop 5 of a sample's life).

Gets Parts from the API; hands them to the owners of their routers, one lane per owner. Owners are cached and asked of
the Directory when one does not answer or refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal, Protocol

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, Overloaded, Unavailable
from breaker_actors.gateway.collection import Collection
from breaker_actors.gateway.journals import Journals
from breaker_actors.gateway.reachability import ReachabilityHeartbeat
from breaker_actors.gateway.status import ClusterStatus, gather
from breaker_actors.gateway.stored_states import StoredStates
from breaker_actors.messages import AppendResult, Counted, FeedPage, Part, Rebalanced, StateReading
from breaker_actors.settings import Settings
from breaker_actors.store.base import ReplicaStore
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.lane import Lane
from breaker_actors.transport.peers import (
    ActorKind,
    BreakerPeer,
    DirectoryPeer,
    JournalPeer,
    Net,
    RouterPeer,
    journal_name,
)
from breaker_actors.transport.turns import NestedShares

CONFIGURED_S = 10.0
CHANGED_RETRY_S = 0.2
INGEST_S = 10.0
AGAIN_S = 0.05
OWNERS_MAX = 200_000
WAIT_SHARE = 0.4
READ_MAX = 500
"""States asked of an owner at a time: about 1 ms to decode."""


class Gateway(Protocol):
    """Configuration is read and written through `store`; what runs is reached through the methods.

    Every method raises errors.Unavailable when the part it needs does not answer within its time.
    """

    store: ReplicaStore

    async def open(self) -> None:
        """Connects the store. Call once, on the loop that uses the gateway."""

    async def close(self) -> None:
        """Ends the lanes and the store."""

    async def ingest(self, project_id: str, parts: Sequence[Part], org_id: str = "") -> list[AppendResult]:
        """Appends each part to the log of its router, one of this project; one outcome per part, in order. "full" = try
        again later (429), "failed" = unavailable (503). `org_id`: with whose other projects it shares its turns; "":
        with none."""

    async def configured(self, project_id: str, change_ids: Sequence[int]) -> bool:
        """Tells the Directory of written changes; returns when they are in the routers' logs and replicas are told (or
        will be), after CONFIGURED_S at the latest. False: they are on their way, but not in all logs yet."""

    async def announce(self, kind: Literal["config", "keys"], project_ids: Sequence[str]) -> None:
        """Tells every replica, by way of each Journal, that something beside states was changed in the store. Returns
        when one of them has heard, also when nobody can be told now: replicas that hear nothing ask the store, and each
        Journal notices changes of access by itself."""

    async def states(self, project_id: str, breaker_ids: Sequence[str]) -> dict[str, StateReading]:
        """Committed states of existing breakers; an owner that does not answer within owner_timeout_ms is replaced by
        the stored record, marked stale. Unknown ids, which are waited for as long, and breakers of other projects are
        left out."""

    def journals(self) -> int:
        """How many Journals there are; may be some seconds old. Their shards are the numbers below."""

    async def feed(self, shard: int, epoch: int, after: int, wait_s: float) -> FeedPage:
        """Long poll of one Journal shard: everything after a position, at once if there is something."""

    async def ready(self) -> None:
        """Returns when store, directory and every journal answer, the routers' logs take writes, and some owner of
        routers answers if there is one."""

    async def notice(self) -> str:
        """What an operator should know though samples are taken, or most are; "" when there is nothing."""

    async def rebalance(self, most: int) -> Rebalanced:
        """One step of evening out the actors' loads; to be repeated while anything is left."""

    async def status(self) -> ClusterStatus:
        """How all parts are doing; who does not answer is shown as away."""

    async def counted(self) -> tuple[list[Counted], int]:
        """What all processes have counted, and how many do not answer."""


class ActorGateway:
    """The Gateway over a Net: actors of a cluster, or hosts in this process."""

    def __init__(
        self,
        store: ReplicaStore,
        net: Net,
        clock: Clock,
        settings: Settings,
        meters: Meters | None = None,
        named: Callable[[], str] = lambda: "api",
        is_open: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.store = store
        self._net = net
        self._clock = clock
        self._settings = settings
        self._directory = DirectoryPeer(net)
        self._heartbeat = ReachabilityHeartbeat(net, is_open)
        self._owners: dict[ActorKind, dict[str, str]] = {"breaker": {}, "router": {}}
        self._lanes: dict[tuple[str, bool], Lane[Part, AppendResult]] = {}
        """By owner, and whether each call carries one part alone."""
        self._carried = NestedShares(2 * settings.lane_samples_max)
        self._stored = StoredStates(store, clock)
        self._journals = Journals(net, store, settings.journals)
        self._collection = Collection(net, meters or Meters("api", "api"), named, self._journals.names)
        if meters is not None:
            meters.watch(lambda: self._look(meters))

    async def open(self) -> None:
        await self.store.open()
        self.start()

    def start(self) -> None:
        """What `open` does besides connecting the store: from here on routers know that they can be reached."""
        self._heartbeat.start()
        self._journals.start()
        if self._settings.metrics_token is not None or self._settings.metrics_open:
            self._collection.start()

    async def ingest(self, project_id: str, parts: Sequence[Part], org_id: str = "") -> list[AppendResult]:
        return list(await asyncio.gather(*map(partial(self._ingest_one, (org_id or project_id, project_id)), parts)))

    async def configured(self, project_id: str, change_ids: Sequence[int]) -> bool:
        with contextlib.suppress(TimeoutError, BreakersError):
            async with asyncio.timeout(CONFIGURED_S):
                if change_ids:
                    # the rows are written: if the Directory is away it applies them when it is back
                    return await self._directory.configured(change_ids)
                await self._changed(project_id)
                return True
        return False

    async def _changed(self, project_id: str) -> None:
        """Nothing is written that tells of it: the Directory must hear it, or start anew, which comes to the same."""
        while True:
            try:
                return await self._directory.changed(project_id)
            except BreakersError:
                await asyncio.sleep(CHANGED_RETRY_S)

    async def announce(self, kind: Literal["config", "keys"], project_ids: Sequence[str]) -> None:
        await self._journals.announce(kind, project_ids)

    async def states(self, project_id: str, breaker_ids: Sequence[str]) -> dict[str, StateReading]:
        readings: dict[str, StateReading] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.owner_timeout_ms / 1000):
                await self._read_owners(list(breaker_ids), readings)
        ours = ("", project_id)  # owners know a breaker by its id, whoever asks
        readings = {i: reading for i, reading in readings.items() if reading.project_id in ours}
        missing = [i for i in breaker_ids if i not in readings]
        return readings | await self._stored.read(project_id, missing) if missing else readings

    def journals(self) -> int:
        return self._journals.count()

    async def feed(self, shard: int, epoch: int, after: int, wait_s: float) -> FeedPage:
        return await JournalPeer(self._net, journal_name(shard)).poll(epoch, after, wait_s)

    async def ready(self) -> None:
        await self.store.ping()
        await self._directory.ready()
        await self._journals.ready()
        if fault := self._heartbeat.fault():
            raise Unavailable("samples can't be stored", {}, fault)

    async def notice(self) -> str:
        return await self._heartbeat.notice()

    async def rebalance(self, most: int) -> Rebalanced:
        return await self._directory.rebalance(most)

    async def status(self) -> ClusterStatus:
        return await gather(self._net, self._clock, self.store, self._journals.names())

    async def counted(self) -> tuple[list[Counted], int]:
        return await self._collection.gather()

    async def close(self) -> None:
        """Ends the lanes and the store."""
        await self._journals.stop()
        await self._collection.stop()
        await self._heartbeat.stop()
        for lane in self._lanes.values():
            await lane.close()
        await self.store.close()

    def _look(self, meters: Meters) -> None:
        """How the lanes stand (see Meters.watch)."""
        meters.gauge("breakers_lane_waiting", sum(lane.weight for lane in self._lanes.values()), lane="ingest")
        meters.total("breakers_lane_calls_total", sum(lane.calls for lane in self._lanes.values()), lane="ingest")

    # ------------------------------------------------------------------ owners

    async def _owner(self, kind: ActorKind, ids: Sequence[str]) -> dict[str, str]:
        """Cached owners; the Directory is asked for those not known."""
        owners = self._owners[kind]
        unknown = [i for i in ids if i not in owners]
        if unknown:
            if len(owners) > OWNERS_MAX:
                owners.clear()
            owners.update(await self._directory.locate(kind, unknown))
        return {i: owners[i] for i in ids if i in owners}

    # ------------------------------------------------------------------ samples

    async def _ingest_one(self, whose: tuple[str, str], part: Part) -> AppendResult:
        """Repeats a part under its append id until its router's owner has answered, at most INGEST_S; not while the
        owner's log is known to take no writes. What is "later" comes again in a call of its own, which is always taken:
        among others it might be behind what is heavy each time."""
        weight, alone = part.weight(), False
        if not self._carried.take(*whose, weight):
            return AppendResult("full")
        try:
            async with asyncio.timeout(INGEST_S):
                while True:
                    outcome = await self._try(whose, part, alone)
                    if outcome.status == "later":
                        alone = True
                        continue
                    if outcome.status not in ("not_owner", "not_configured", "failed"):
                        return outcome
                    if outcome.status != "not_configured":
                        owner = self._owners["router"].pop(part.router_id, "")
                        if outcome.status == "failed" and self._heartbeat.fault_of(owner):
                            return outcome
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            return AppendResult("failed")
        finally:
            self._carried.give_back(*whose, weight)

    async def _try(self, whose: tuple[str, str], part: Part, alone: bool) -> AppendResult:
        try:
            owner = (await self._owner("router", [part.router_id])).get(part.router_id)
            return AppendResult("not_owner") if owner is None else await self._lane(owner, alone).put(part, *whose)
        except Overloaded:
            return AppendResult("full")
        except BreakersError:
            return AppendResult("failed")

    def _lane(self, owner: str, alone: bool) -> Lane[Part, AppendResult]:
        lane = self._lanes.get((owner, alone))
        if lane is None:
            lane = self._lanes[owner, alone] = Lane(
                RouterPeer(self._net, owner).append,
                weigh=Part.weight,
                weight_max=self._settings.lane_samples_max,
            )
            if alone:
                lane.call_weight_max = 1
        return lane

    # ------------------------------------------------------------------ states

    async def _read_owners(self, wanted: list[str], readings: dict[str, StateReading]) -> None:
        """Asks owners until every breaker has answered, or was said to be set aside; the caller sets the limit."""
        aside: set[str] = set()
        while wanted:
            by_owner: dict[str, list[str]] = {}
            with contextlib.suppress(BreakersError):
                for breaker_id, owner in (await self._owner("breaker", wanted)).items():
                    by_owner.setdefault(owner, []).append(breaker_id)
            await asyncio.gather(*(self._read_all(owner, ids, readings, aside) for owner, ids in by_owner.items()))
            wanted = [i for i in wanted if i not in readings and i not in aside]
            if wanted:
                for breaker_id in wanted:
                    self._owners["breaker"].pop(breaker_id, None)
                await asyncio.sleep(AGAIN_S)

    async def _read_all(self, owner: str, ids: list[str], readings: dict[str, StateReading], aside: set[str]) -> None:
        """Asks for READ_MAX at a time, so that neither end is busy with one answer for long. All of them together wait
        for breakers that are being restored as long as one call may."""
        until_s = self._clock.monotonic() + WAIT_SHARE * self._settings.owner_timeout_ms / 1000
        for start in range(0, len(ids), READ_MAX):
            wait_s = max(0.0, until_s - self._clock.monotonic())
            if not await self._read(owner, ids[start : start + READ_MAX], wait_s, readings, aside):
                return

    async def _read(
        self, owner: str, ids: list[str], wait_s: float, readings: dict[str, StateReading], aside: set[str]
    ) -> bool:
        """Whether the owner answered. `wait_s`: shorter than our own patience, so that those that are ready answer in
        time."""
        try:
            found = await BreakerPeer(self._net, owner).states(ids, wait_s)
        except BreakersError:
            return False
        for reading in found:
            if reading.aside:
                aside.add(reading.breaker_id)
            else:
                readings[reading.breaker_id] = reading
        return True
