"""Looks after mutes for the Notifier: when held deliveries are to be looked at, and what is told of it.

What was decided is in the store; what is remembered here only saves looks. Held deliveries are looked at when a mute
was changed, when new ones came (some of which nobody has decided about), when the activity of a mute ends, and every
minute, as names and metadata change, too.
Organisations take turns, and a look that is under way is never begun anew (`rota.py`): whoever has many held
deliveries, or changes mutes all the time, keeps nobody else's. Alerts of others wait for as long as a turn looks, and
go out in the rest after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import structlog

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, Fenced
from breaker_actors.notify.rota import Rota
from breaker_actors.settings import Settings
from breaker_actors.store.base import OutboxStore
from breaker_actors.store.rows import HeldLook
from breaker_actors.telemetry.meters import Meters

LOOK_EVERY_MS, MATCH_EVERY_MS = 60_000, 3_600_000
PAGES_MAX, LOOKING_S = 4, 0.05
"""Looks in one turn, and for how long another one is begun in it. Then comes a rest for as long as the turn took."""
REST_MAX_MS = 5_000
"""A rest is no longer than that, whatever the clock says."""
PROJECTS_MAX = 10
"""Projects that have their turn in one look."""
WARNINGS_MAX = 200
"""Warnings of one transaction, or those of one mute."""
FAILED_REST_MS = 1_000
"""After something failed here; others are sent to meanwhile."""

log = structlog.get_logger()


class MuteKeeper:
    """One for each Notifier."""

    def __init__(self, store: OutboxStore, clock: Clock, settings: Settings, meters: Meters) -> None:
        self._store = store
        self._clock = clock
        self._warning_ms = settings.mute_warning_ms
        self._unmatched_ms = settings.mute_unmatched_ms
        self._meters = meters
        self._changes = -1
        self._newest = 0
        self._look_ms = 0
        self._match_ms = 0
        self._rested_ms = 0
        self._rota = Rota()
        self._after: int | None = None  # of a look at new ones under way: up to where it came
        self._looks = 0  # how many it took so far
        self._matched: int | None = None
        self._failed_ms = 0
        # by project whose look is under way, then by mute: what waits on each channel behind it
        self._behind: dict[str, dict[str, Counter[str]]] = {}
        self._begun: dict[str, int] = {}
        self._warnings: dict[str, tuple[int, Counter[str]]] = {}

    def due_ms(self, now: int) -> int:
        """When it is to be asked again at the latest."""
        is_more = self._rota or self._after is not None or self._matched is not None or self._warnings
        return max(self._failed_ms, max(now, self._rested_ms) if is_more else self._look_ms)

    async def work(self, epoch: int, now: int) -> Collection[str]:
        """Does a bounded part of what is due, if it has not just failed; the channels that have something to send
        since. Raises Fenced."""
        self._failed_ms = min(self._failed_ms, now + FAILED_REST_MS)
        channels = set[str]()
        if now >= self._failed_ms:
            try:
                await self._work(epoch, now, channels)
            except Fenced:
                raise
            except BreakersError as error:
                self._failed_ms = now + FAILED_REST_MS
                log.warning("mutes_not_looked_after", error=str(error))
        return channels

    async def _work(self, epoch: int, now: int, channels: set[str]) -> None:
        self._look_ms = min(self._look_ms, now + LOOK_EVERY_MS)  # a clock that was set back must not put it off
        self._match_ms = min(self._match_ms, now + MATCH_EVERY_MS)
        self._rested_ms = min(self._rested_ms, now + REST_MAX_MS)
        begun = self._clock.monotonic()
        changes, newest = await self._store.held_news()
        whole = changes != self._changes or now >= self._look_ms
        if whole or newest > self._newest:
            projects = await self._store.held_projects() if whole else ()
            if whole:
                await self._tend(epoch, now)
            self._rota.add(projects)
            if not whole and self._after is None:
                self._after, self._looks = self._newest, 0
            self._changes, self._newest = changes, newest
        if now < self._rested_ms:
            return
        if self._warnings:
            channels.update(await self._warn(epoch))
        for number in range(PAGES_MAX):
            if self._after is not None and (number % 2 == 0 or not self._rota):
                looked = await self._store.look_at_held(epoch, now, self._after, None, self._warning_ms)
                self._after, self._looks = looked.last, self._looks + 1
                if self._looks == 2 and looked.last is not None:
                    # There is more than a look's worth: whose new ones are many shall wait for the others.
                    self._rota.add(await self._store.held_projects())
                if near := {project_id for project_id, _, _ in looked.behind}:
                    self._rota.add(one for one in await self._store.held_projects() if one[1] in near)
            elif self._rota:
                turns = self._rota.next(PROJECTS_MAX)
                looked = await self._store.look_at_held(epoch, now, 0, turns, self._warning_ms)
                self._rota.note(looked.turns)
                self._count(turns, looked, now)
            else:
                break
            channels.update(self._looked(looked, now))
            if self._clock.monotonic() - begun >= LOOKING_S:
                break
        await self._match(epoch, now)
        self._rested_ms = self._clock.now_ms() + round(1000 * (self._clock.monotonic() - begun))

    async def set_gauge(self) -> None:
        self._meters.gauge("breakers_notifications_held", await self._store.held_count())

    async def _tend(self, epoch: int, now: int) -> None:
        tended = await self._store.tend_mutes(epoch, now, self._warning_ms)
        self._look_ms = now + LOOK_EVERY_MS
        if tended.next_ms is not None:
            self._look_ms = min(self._look_ms, max(now + 1, tended.next_ms))
        self._meters.gauge("breakers_mutes_active", tended.running)
        age_ms = 0 if tended.oldest_ms is None else max(0, now - tended.oldest_ms)
        self._meters.gauge("breakers_mutes_age_seconds", age_ms / 1000)
        for mute_id in tended.ended:
            log.info("mute_ended", mute_id=mute_id, reason="expired")

    def _count(self, turns: Mapping[str, int], looked: HeldLook, now: int) -> None:
        """Adds what waits behind mutes that end soon: from the begin of each project's look to its end, whereupon they
        are warned of. What was not soon when that look began was counted in part; the next look counts it."""
        for project_id in looked.turns:
            if turns[project_id] == 0:
                self._behind.pop(project_id, None)
                self._begun[project_id] = now
        for (project_id, mute_id, channel_id), n in looked.behind.items():
            self._behind.setdefault(project_id, {}).setdefault(mute_id, Counter())[channel_id] += n
        for project_id, last in looked.turns.items():
            if last is None:
                begun = self._begun.pop(project_id)
                self._warnings |= {one: (begun, n) for one, n in self._behind.pop(project_id, {}).items()}

    async def _warn(self, epoch: int) -> Sequence[str]:
        behind: dict[str, Counter[str]] = {}
        as_of = next(iter(self._warnings.values()))[0]
        for mute_id, (begun, channels) in self._warnings.items():
            if begun != as_of or (behind and sum(map(len, behind.values())) + len(channels) > WARNINGS_MAX):
                break
            behind[mute_id] = channels
        warned = await self._store.warn_of_ends(epoch, as_of, self._warning_ms, behind)
        for mute_id in behind:
            del self._warnings[mute_id]
        if warned:
            log.info("mute_ending", channels=len(warned))
        return warned

    def _looked(self, looked: HeldLook, now: int) -> Sequence[str]:
        if looked.next_ms is not None:
            self._look_ms = min(self._look_ms, max(now + 1, looked.next_ms))
        for state, count in looked.states.items():
            if state == "pending":
                self._meters.count("breakers_notifications_released_total", count)
            else:
                self._meters.count("breakers_notifications_unsent_total", count, state=state)
            log.info("held_notifications", state=state, count=count)
        return looked.released

    async def _match(self, epoch: int, now: int) -> None:
        if self._matched is None and now >= self._match_ms:
            self._matched, self._match_ms = 0, now + MATCH_EVERY_MS
        if self._matched is None:
            return
        self._matched, ended = await self._store.end_unmatched(epoch, now, self._unmatched_ms, self._matched)
        for mute_id in ended:
            log.warning("mute_ended", mute_id=mute_id, reason="matched_nothing")
