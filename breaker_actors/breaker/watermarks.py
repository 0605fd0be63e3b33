"""Watermarks as a BreakerActor uses them: requested of the routers' owners, applied once what was sent before has come.

A router's owner says that nothing stamped at or before t will come any more, and up to which offset it has sent what
concerns a breaker. When the breaker has applied all of that, its timers up to t may fire.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from breaker_actors.breaker.hosted import EFFECTS_MAX, Effects, HostedBreaker, Watermark, catch_up_marker
from breaker_actors.breaker.subscriptions import Subscriptions
from breaker_actors.breaker.wakeups import Timers
from breaker_actors.clock import Clock
from breaker_actors.core.moves import Effort
from breaker_actors.errors import BreakersError
from breaker_actors.messages import NOT_SUBSCRIBED, WatermarkAnswer
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import Net, RouterPeer

OVERDUE_MS = 1_000
ROUND_S = 0.05
"""Watermarks are asked for at most so often: those of many breakers ride in one call."""

Answers = Mapping[tuple[str, str], WatermarkAnswer]
"""Watermarks that were given, by router and breaker."""


class Watermarks:
    """Of the breakers of one process. It alone sets `HostedBreaker.watermark` and `HostedBreaker.looked_ms`."""

    def __init__(
        self, net: Net, subscriptions: Subscriptions, owner_timeout_ms: int, clock: Clock, meters: Meters
    ) -> None:
        self._net = net
        self._subscriptions = subscriptions
        self.timers = Timers(clock)
        self._owner_timeout_s = owner_timeout_ms / 1000
        self._clock = clock
        self._meters = meters

    async def request(self, breakers: Sequence[HostedBreaker], upto_ms: int) -> Answers:
        """Asks the owners of their routers, each once; an owner that does not answer in time is left out."""
        pairs: dict[str, list[tuple[HostedBreaker, str]]] = {}
        for hosted in breakers:
            for router in hosted.routers.values():
                pairs.setdefault(router.owner, []).append((hosted, router.router_id))
        answers: dict[tuple[str, str], WatermarkAnswer] = {}
        for got in await asyncio.gather(*(self._request_at(owner, wanted, upto_ms) for owner, wanted in pairs.items())):
            answers.update(got)
        return answers

    async def _request_at(self, owner: str, wanted: list[tuple[HostedBreaker, str]], upto_ms: int) -> Answers:
        """Returns what was given. Where a breaker is not subscribed, or nobody answers, it is to subscribe anew."""
        pairs = [(router_id, hosted.id) for hosted, router_id in wanted]
        answers = [NOT_SUBSCRIBED] * len(pairs)
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(self._owner_timeout_s):
                answers = await RouterPeer(self._net, owner).advance_watermark(upto_ms, pairs)
        for (hosted, router_id), answer in zip(wanted, answers, strict=True):
            if answer.status == "not_subscribed":
                self._subscriptions.mark_missing(hosted, router_id)
        return {pair: answer for pair, answer in zip(pairs, answers, strict=True) if answer.status == "given"}

    def accept(self, hosted: HostedBreaker, answers: Answers, upto_ms: int) -> bool:
        """Sets a breaker's watermark. False: no router's owner gave one, and silence may only mean that nothing can
        arrive (semantics.md section 2)."""
        given = {router_id: answers.get((router_id, hosted.id)) for router_id in hosted.routers}
        answered = {router_id: answer for router_id, answer in given.items() if answer is not None}
        if given and not answered:
            self._meters.count("breakers_unpromised_total")
            return False
        if len(answered) < len(given):
            self._meters.count("breakers_passed_over_total", len(given) - len(answered))
        hosted.watermark = Watermark(upto_ms, answered)
        return True

    def sort(self, due: Sequence[HostedBreaker], now_ms: int) -> tuple[list[HostedBreaker], list[HostedBreaker]]:
        """Of those that are due: for whom a new watermark is to be asked, and who is to read a log first. What the last
        one of the others counts on may still be on its way: they are looked at again."""
        free: list[HostedBreaker] = []
        overdue: list[HostedBreaker] = []
        for hosted in due:
            if hosted.watermark is not None and 0 <= now_ms - hosted.watermark.upto_ms < OVERDUE_MS:
                self.timers.later(hosted)
            else:
                (overdue if self._read_overdue(hosted, now_ms) else free).append(hosted)
        return free, overdue

    def _read_overdue(self, hosted: HostedBreaker, now_ms: int) -> bool:
        """Marks logs to be read whose entries did not come in OVERDUE_MS: a call that ran twice, or a predecessor of
        ours that still answers, may have taken them. False: nothing is overdue."""
        if hosted.watermark is None or now_ms - hosted.watermark.upto_ms < OVERDUE_MS:
            return False
        for router_id, answer in hosted.watermark.answers.items():
            if hosted.wants(router_id, answer.sent_offset):
                hosted.push(catch_up_marker(router_id, answer.sent_offset))
        return True

    def apply(self, hosted: HostedBreaker, effort: Effort) -> Effects | None:
        """Fires timers up to the watermark once everything sent before it has been applied; None: not yet. What lies
        between that and the end of the log concerns others: applied offsets move over it, so that it may be trimmed.
        The watermark stays where more is to be fired than goes in one commit, or for that effort."""
        if hosted.watermark is None or hosted.breaker is None:
            return None
        watermark = hosted.watermark
        upto_ms, answers = watermark.upto_ms, watermark.answers
        if any(hosted.applied_offsets.get(router_id, 0) < answer.sent_offset for router_id, answer in answers.items()):
            return None
        hosted.watermark = None
        hosted.looked_ms = upto_ms
        for router_id, answer in answers.items():
            hosted.skip_to(router_id, answer.end_offset)
        if (due := hosted.breaker.next_wake()) is not None and due <= upto_ms:
            self._meters.observe("breakers_timer_lag_seconds", max(0, self._clock.now_ms() - due) / 1000)
        hosted.dirty = True
        effects = hosted.breaker.advance(upto_ms, EFFECTS_MAX, effort)
        if hosted.breaker.now_ms <= upto_ms:
            hosted.watermark = watermark
        return effects
