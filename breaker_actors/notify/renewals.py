"""Renewals: alerts that stand are sent again to the channels whose receivers forget them (Alertmanagers).

Every `alert_renewal_ms` each such channel hears of all outages that stand and that it was told of, a batch in each
request, and that they end four times as long from now: so a receiver that lost its memory knows them again after one
renewal, and one that we can't reach any more lets them go. What stands is read from the store each time; a Notifier
that has just begun renews at once. A renewal is no delivery: nothing of it is stored but what it teaches about the
channel.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import structlog

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError
from breaker_actors.notify.channel_work import Queue
from breaker_actors.notify.limits import Pace
from breaker_actors.notify.model import LATE, SEALED, UNREADABLE, Attempt, Destination, RenewingSender, message_of
from breaker_actors.settings import Settings
from breaker_actors.store.base import OutboxStore
from breaker_actors.store.rows import UNREADABLE_ALERT, Leased, Waiting
from breaker_actors.telemetry.meters import Meters

log = structlog.get_logger()


class Renewals:
    """One for each Notifier; which channels are due is in their `Queue`s."""

    def __init__(
        self,
        store: OutboxStore,
        sender: RenewingSender,
        clock: Clock,
        settings: Settings,
        pace: Pace,
        chance: random.Random,
        meters: Meters,
    ) -> None:
        self._store = store
        self._sender = sender
        self._clock = clock
        self._every_ms = settings.alert_renewal_ms
        self._timeout_s = (settings.notify_timeout_ms + pace.lease_margin_ms / 2) / 1000
        self._pace = pace
        self._chance = chance
        self._meters = meters
        self.due_ms = 0

    async def survey(self, now: int) -> Sequence[Waiting]:
        """The channels that are due; none before `due_ms`."""
        self.due_ms = min(self.due_ms, now + self._every_ms)  # a clock that was set back must not put it off
        if now < self.due_ms:
            return ()
        found = await self._store.standing_channels()
        self.due_ms = now + self._every_ms
        return found

    def begin(self, queue: Queue, now: int) -> None:
        """A channel is due; where a renewal is under way, or waits after a failure, it goes on."""
        if queue.renew_ms is None:
            queue.renew_ms, queue.renewed, queue.failures = now, 0, 0
        elif queue.renew_ms > now + self._every_ms:  # by a clock that was set back since
            queue.renew_ms = now

    async def renew(self, epoch: int, queue: Queue) -> Attempt | None:
        """Sends the next batch of a channel, and says in its queue when to go on. None: nothing was sent."""
        now = self._clock.now_ms()
        try:
            leased, last = await self._next(epoch, queue)
            if leased is None or not leased.rows:
                queue.renew_ms = None
                return None
            attempt = await self._attempt(leased, now)
        except BreakersError as error:
            log.warning("renewal_not_read", channel_id=queue.of.channel_id, error=str(error))
            self._put_off(queue)
            return None
        except Exception as error:  # a bug: better late than again and again
            log.error("renewal_failed", channel_id=queue.of.channel_id, error=type(error).__name__)
            self._put_off(queue)
            return None
        word = {"sent": "delivered", "refused": "refused"}.get(attempt.result, "retry")
        self._meters.count("breakers_alerts_renewed_total", len(leased.rows), result=word)
        if attempt.result == "retry":
            self._put_off(queue)
            return attempt
        if attempt.result == "refused":
            log.warning("renewal_refused", channel_id=queue.of.channel_id, error=attempt.error)
        queue.failures, queue.rows_first = 0, True
        queue.renew_ms, queue.renewed = (None, 0) if last is None else (self._clock.now_ms(), last)
        return attempt

    async def _next(self, epoch: int, queue: Queue) -> tuple[Leased | None, int | None]:
        """The next batch that holds anything."""
        last: int | None = queue.renewed
        while last is not None:
            leased, last = await self._store.standing_alerts(epoch, queue.of.channel_id, last)
            if leased is None or leased.rows:
                return leased, last
        return None, None

    async def _attempt(self, leased: Leased, now: int) -> Attempt:
        if leased.config is None:
            return Attempt(result="refused", error=SEALED)
        to = Destination(channel_id=leased.channel_id, kind=leased.kind, config=leased.config, org_id=leased.org_id)
        trips = [message_of(row, leased.project_name) for row in leased.rows if row.told != UNREADABLE_ALERT]
        if not trips:
            return Attempt(result="refused", error=UNREADABLE)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._sender.renew(to, trips, now)
        except TimeoutError:
            return LATE

    def _put_off(self, queue: Queue) -> None:
        """The same batch again, after a pause like that of a delivery, once the circuit lets it through."""
        queue.failures += 1
        pause_ms = min(self._every_ms, self._pace.retry_ms(queue.failures, self._chance))
        queue.renew_ms = self._clock.now_ms() + pause_ms
