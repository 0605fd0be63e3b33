"""The routers that one RouterActor owns, with everything that begins and ends with owning one.

The owner of a router knows its duplicate keys, its subscribers, the gap owed to it and what its log takes; when it
loses the router it forgets all of that at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from breaker_actors.core.counters import STATE_BYTES, Room, metrics_of_points
from breaker_actors.core.log_entries import metrics_of
from breaker_actors.errors import Invalid, LogDamaged
from breaker_actors.messages import NOT_SUBSCRIBED, Part, SubscribeRequest, Subscribers, WatermarkAnswer
from breaker_actors.router.duplicates import DuplicateKeys
from breaker_actors.router.fanout import FanOut
from breaker_actors.router.group import OwnedRouter, Parts, shortfall
from breaker_actors.router.outage import Outages
from breaker_actors.router.retention import LogRetention
from breaker_actors.settings import Settings
from breaker_actors.telemetry.meters import Meters
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.transport.peers import Net
from breaker_actors.transport.turns import NestedTurns
from breaker_actors.wal.base import SampleLog

TAKERS_A_ROW = 10
"""Breakers to which a record is handed on while a small part is taken, some 10 to 20 us."""
LINKS_LOOKED_AT = 100
"""Of a router with less, all breakers count as takers: to see which are costs as much."""
_ALONE = (0,)
LOG_SHARE = 8
"""Last points of cumulative series may take one such part of a log's bound."""


class OwnedRouters:
    """By id; `adopt`, `lose` and `forget` alone change which there are."""

    def __init__(self, log: SampleLog, net: Net, settings: Settings, meters: Meters, asides: Asides) -> None:
        self._routers: dict[str, OwnedRouter] = {}
        self._log = log
        self._meters = meters
        self._asides = asides
        self.series_max = settings.counter_series_max
        # Their states lie in the log beside the records, and nothing trims them; organisations together may have twice
        # what one alone may.
        most = settings.log_bytes_max // LOG_SHARE // STATE_BYTES // 2
        self.series = Room(min(settings.counter_series_all_max, most))
        self.keys = DuplicateKeys(settings.duplicate_keys_max, settings.duplicate_window_ms)
        self.fanout = FanOut(net, settings.lane_samples_max)
        self.outages = Outages(settings.heartbeat_interval_ms)
        share = settings.log_bytes_max * settings.log_project_percent_max // 100
        self.retention = LogRetention(log, settings.log_retention_ms, settings.log_bytes_max, share)

    @property
    def by_id(self) -> Mapping[str, OwnedRouter]:
        """To be read alone."""
        return self._routers

    def whose(self, router_id: str) -> tuple[str, str]:
        """Whose turn it is for a router's samples, its organisation's and its project's; a router that is not owned
        here stands for itself."""
        router = self._routers.get(router_id)
        return (router_id, "") if router is None else (router.org_id, router.project_id)

    def taken(self, parts: Sequence[Part], weight_max: int) -> list[Parts]:
        """What of a call is taken, by router: all of it where those who take it weigh no more than that, else
        organisations and projects have turns. Rows alone put nothing off: who made the call has bounded them."""
        if len(parts) == 1:
            (part,) = parts
            rows = part.weight()
            return [Parts(part.router_id, parts, _ALONE, rows, rows + self._takers(part.router_id, parts))]
        by_router: dict[str, list[int]] = {}
        for place, part in enumerate(parts):
            by_router.setdefault(part.router_id, []).append(place)
        found, heard = list[Parts](), 0
        for router_id, places in by_router.items():
            some = [parts[place] for place in places]
            takers, rows = self._takers(router_id, some), 0
            for part in some:
                rows += part.weight()
            found.append(Parts(router_id, some, places, rows, rows + takers))
            heard += takers
        if heard <= weight_max:
            return found
        turns = NestedTurns[Parts](attrgetter("weight"))
        for item in found:
            turns.append(*self.whose(item.router_id), item)
        return turns.take(weight_max)

    def _takers(self, router_id: str, parts: Sequence[Part]) -> int:
        """What those count, in rows, who take the one record that parts become."""
        router = self._routers.get(router_id)
        links = 0 if router is None else len(router.splitter.view.links)
        if router is None or links < LINKS_LOOKED_AT:
            return links // TAKERS_A_ROW
        metrics = {metric for part in parts for metric in metrics_of(part.payload)}
        metrics.update(*(metrics_of_points(part.counters) for part in parts))
        return router.splitter.takers(metrics) // TAKERS_A_ROW

    def adopt(self, router: OwnedRouter, log_bytes: int, now_ms: int) -> None:
        """Takes in a router that was acquired; one acquired anew keeps its subscribers."""
        old = self._routers.get(router.id)
        self._routers[router.id] = router
        if old is not None:
            old.counters.leave()
        router.counters.enter(self.series, router.org_id, router.project_id)
        if old is not None:
            self.fanout.resume(router)
        if router.counters.unread:
            words = (
                f"{router.counters.unread} states of cumulative series can't be read; their next points count nothing"
            )
            self._asides.note("log", router.id, Invalid(words), b"", router.offset, router.project_id)
        self.keys.adopt(router, now_ms)
        self.retention.adopt(router.slot, router.id, router.project_id, log_bytes)

    def forget_keys(self, now_ms: int) -> None:
        """Drops duplicate keys whose time is over, and those beyond the bound, which are counted."""
        if early := self.keys.forget(now_ms):
            self._meters.count("breakers_duplicate_keys_dropped_total", early)

    async def drop_keys(self) -> None:
        """Logs drop the keys that were forgotten early, too. Those of a failed call, and of routers that are not owned
        here, stay until their time is over, or later ones of the same router go. Raises Unavailable when the log does
        not answer."""
        by_slot: dict[str, dict[str, int]] = {}
        for router_id, offset in self.keys.take_early().items():
            if (router := self._routers.get(router_id)) is not None:
                by_slot.setdefault(router.slot, {})[router_id] = offset
        for slot, upto in by_slot.items():
            await self._log.drop_keys(slot, upto)

    def note_damage(self, router_id: str, words: str, offset: int) -> None:
        """From here on nothing is taken into this router's log, and the gap that was owed to it is not written."""
        router = self._routers.get(router_id)
        if router is not None:
            router.damage = router.damage or words
            self._asides.note("log", router_id, LogDamaged(words), b"", offset, router.project_id)
            self.outages.owed.settled(router_id)

    def lose(self, router_id: str) -> None:
        """The log says that another owner has taken over."""
        self._meters.count("breakers_log_refusals_total")
        self.forget(router_id)

    def forget(self, router_id: str) -> None:
        """A router is not owned here any more, and nothing is owed to it."""
        router = self._routers.pop(router_id, None)
        if router is not None:
            router.counters.leave()
        self.fanout.forget(router_id)
        self.outages.owed.settled(router_id)

    def is_short(self, requests: Sequence[SubscribeRequest]) -> bool:
        """Whether one of these breakers has read further than its router's log goes, where that is news."""
        pairs = ((self._routers.get(request.router_id), request.applied) for request in requests)
        return any(
            router is not None and not router.damage and shortfall(router.offset, read) for router, read in pairs
        )

    def subscribe(self, owner: str, request: SubscribeRequest) -> int | None:
        """Subscribes a breaker; returns the offset after which deliveries start, None when the router is not owned."""
        router = self._routers.get(request.router_id)
        if router is None:
            return None
        if (words := shortfall(router.offset, request.applied)) and not router.damage:
            self.note_damage(router.id, words, router.offset)
        self.fanout.subscribe(router, request.breaker_id, request.epoch, owner)
        return router.offset

    def watermark(self, router_id: str, breaker_id: str) -> WatermarkAnswer:
        """Returns up to where a breaker has been sent what concerns it, or NOT_SUBSCRIBED."""
        router = self._routers.get(router_id)
        sent = self.fanout.sent(router_id, breaker_id)
        return NOT_SUBSCRIBED if router is None or sent is None else WatermarkAnswer("given", sent, router.offset)

    def check_subscriptions(self, owner: str, expected: Mapping[str, Subscribers]) -> tuple[list[str], list[str]]:
        """Returns which of these routers are not owned here, and which have other subscribers of that owner."""
        not_owned = [i for i in expected if i not in self._routers]
        actual = {i: self.fanout.subscribers(i, owner) for i in expected if i in self._routers}
        return not_owned, [i for i, subscribers in actual.items() if subscribers != expected[i]]

    def slots(self, router_ids: Sequence[str] | None = None) -> list[str]:
        """The log slots of these routers, of all when None; sorted."""
        routers = map(self._routers.get, self._routers if router_ids is None else router_ids)
        return sorted({router.slot for router in routers if router is not None})

    def look(self) -> None:
        """Tells how things stand (see Meters.watch)."""
        meters, retention = self._meters, self.retention
        meters.gauge("breakers_routers_held", len(self._routers))
        meters.gauge("breakers_duplicate_keys", len(self.keys))
        meters.gauge("breakers_cumulative_series", sum(len(router.counters) for router in self._routers.values()))
        meters.gauge("breakers_log_size_bytes", retention.size_bytes)
        meters.gauge("breakers_log_shares_full", len(retention.limits()))
        meters.gauge("breakers_logs_damaged", sum(1 for router in self._routers.values() if router.damage))
        meters.total("breakers_log_trimmed_total", retention.by_retention, reason="retention")
        meters.total("breakers_log_trimmed_total", retention.by_size, reason="size")
        self.fanout.look(meters)
