"""Spans in which no samples could be taken: noticed, and owed until their gap records are in the log (semantics.md
section 2).

An outage concerns every router of a RouterActor at once, and there may be tens of thousands. So its end only notes the
spans. A router's gap goes into the log before anything else of that router does, or with the next slice. Until then
no watermark is given for routers in its slot, and the slot is not noted as alive, so that a successor would find the
gap. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from itertools import islice

from breaker_actors.core.log_entries import Gap
from breaker_actors.messages import REACHABILITY_INTERVAL_MS
from breaker_actors.router.group import OwnedRouter

GAP_MIN_MS = 1_000
SLICE, SLICE_LINKS = 500, 20_000
"""Gap records written in one go, and breakers that hear of them: some 20 ms, in which samples of other routers wait."""


class OwedGaps:
    """At most one span for each router that is held; a later one is joined to it: nothing came in between."""

    def __init__(self) -> None:
        self._gaps: dict[str, tuple[str, Gap]] = {}
        self._slots: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._gaps)

    def of(self, router_id: str) -> Gap | None:
        """What is owed to a router."""
        return self._gaps[router_id][1] if router_id in self._gaps else None

    def is_owed(self, slot: str) -> bool:
        """Whether a gap of some router in this slot is still to be written."""
        return slot in self._slots

    def owe(self, router: OwnedRouter, since_ms: int, now_ms: int) -> None:
        """Notes a span that is long enough. What goes on from the router's last gap is, however short."""
        stamp = router.stamp(now_ms)
        if (known := self.of(router.id)) is not None:
            self._gaps[router.id] = (router.slot, Gap(known.from_ms, stamp))
        elif stamp - since_ms >= (1 if since_ms == router.gap_ms else GAP_MIN_MS):
            self._gaps[router.id] = (router.slot, Gap(since_ms, stamp))
            self._slots[router.slot] += 1

    def found(self, router_id: str, last_received_ms: int) -> None:
        """The log was read again: what is stamped at a span's end or later has the gap before it, or is the gap."""
        if (gap := self.of(router_id)) is not None and last_received_ms >= gap.to_ms:
            self.settled(router_id)

    def settled(self, router_id: str) -> None:
        """The gap is in the log, or the router is not held any more."""
        if router_id in self._gaps:
            slot, _ = self._gaps.pop(router_id)
            self._slots -= Counter((slot,))

    def slice(self, routers: Mapping[str, OwnedRouter]) -> list[str]:
        """Routers whose gaps are to be written next, those that have waited longest, one at least."""
        found, room = list[str](), SLICE_LINKS
        for router_id in islice(self._gaps, SLICE):
            if room > 0:
                found.append(router_id)
                room -= len(routers[router_id].splitter.view.links)
        return found


class Outages:
    """When samples could be taken last, and the gaps owed for the time since. All times are ms of the wall clock.

    It alone sets until when this process and its log worked (`up_ms`) and when a caller got through last."""

    def __init__(self, heartbeat_interval_ms: int) -> None:
        self.owed = OwedGaps()
        self._up_ms = 0
        self._reached_ms = 0
        self._alone_ms: int | None = None
        # a missed heartbeat or ping alone is no outage
        self._outage_ms = GAP_MIN_MS + heartbeat_interval_ms
        self._unreached_ms = GAP_MIN_MS + REACHABILITY_INTERVAL_MS

    @property
    def up_ms(self) -> int:
        """Until when samples could be taken here, as far as this process and its log go."""
        return self._up_ms

    def worked(self, now_ms: int) -> None:
        """The log answered at this time. Never goes back."""
        self._up_ms = max(self._up_ms, now_ms)

    def wrote(self, now_ms: int) -> None:
        """A group is in the log. Follows the clock, even back."""
        self._up_ms = now_ms

    def still_up_to(self, up_ms: int) -> None:
        """The log was only read again: that ends no outage."""
        self._up_ms = up_ms

    def is_long(self, since_ms: int, now_ms: int) -> bool:
        """Whether a span is longer than a missed heartbeat explains."""
        return now_ms - since_ms >= self._outage_ms

    def heard(self, now_ms: int) -> None:
        """A caller got through. Time that it waits for its turn here is none in which nobody could bring anything."""
        self._alone_ms = self._alone_since(now_ms)
        self._reached_ms = now_ms

    def away_since(self, now_ms: int) -> int | None:
        """Until when samples could be taken, when that is longer ago than a missed heartbeat or ping explains: this
        process slept, its log was away, or nobody could bring anything. None: they can be taken."""
        slept = self.is_long(self._up_ms, now_ms)
        alone = self._alone_since(now_ms)
        if not slept and alone is None:
            return None
        return min(self._up_ms if slept else now_ms, now_ms if alone is None else alone)

    def _alone_since(self, now_ms: int) -> int | None:
        """Since when no caller got through to here, when that is longer than a missed ping explains and its end was
        not noted yet."""
        if self._alone_ms is None and now_ms - self._reached_ms >= self._unreached_ms:
            return self._reached_ms
        return self._alone_ms

    def note(self, routers: Mapping[str, OwnedRouter], changed: Set[str], reached: bool, now_ms: int) -> None:
        """Owes the gaps of an outage. It ends with the first sign of a caller (`reached`), for all `routers`; a change
        of configuration (`changed`: ids) follows what there was of it."""
        away = self.away_since(now_ms)
        if away is not None:
            for router in [routers[i] for i in (routers if reached else changed & routers.keys())]:
                if router.offset and not router.damage:
                    since = max(away, router.since_ms, router.last_ms, router.durable_watermark_ms)
                    self.owed.owe(router, since, now_ms)
            self._up_ms = now_ms if reached else self._up_ms
        if reached:
            self._alone_ms = None
