"""What must hold when everything has come to rest: samples, configuration, replays, pictures."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from breaker_actors.core.log_entries import BREAKER, VIEW, decode_breaker, decode_view
from breaker_actors.core.machine import Breaker
from breaker_actors.messages import StateReading
from breaker_actors.notify.channels.alertmanager import LASTS
from tests.sim.checks import Event, Violation
from tests.sim.replays import CoreModel, Life, Model, NaiveModel, lives_of, told, transitions
from tests.sim.shared_router_checks import check_durations, count, rules_of

if TYPE_CHECKING:
    from tests.sim.world import World

LAG_MS = 2_000
"""A timer has fired, and its event is stored, so long after it was due."""
LOOKS = 4
SHOWN = (
    *("state", "state_since_ms", "transition_seq", "allow_rate", "verdict", "value", "sample_count", "passes"),
    *("last_eval_ms", "open_cause", "machine_state", "mode", "override"),
)


class Final:
    """The checks at the end of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._checks = world.checks
        self._samples_max = world.settings.window_samples_max

    async def check(self) -> None:
        world = self._world
        await self._told()
        await self._alerts()
        self._checks.all_records()
        self._checks.whole_log()
        self._checks.outbox()
        self._samples()
        self._configuration()
        world.trace("events", sum(map(len, self._checks.events.values())))
        lives = self._lives()
        for life in lives:
            self._events(life)
        for breaker_id, rules in rules_of(self._checks.log).items():
            if breaker_id not in self._checks.forgotten:
                for events in self._checks.events_by_life(breaker_id):
                    check_durations(breaker_id, events, rules)
        for _ in range(LOOKS):
            now = {life.breaker_id: life for life in lives if not life.ended and life.whole_until_ms is None}
            different = await self._views(now)
            different = different or self._pictures()
            if not different:
                return
            await asyncio.sleep(0.7)
        raise Violation(different)

    async def _told(self) -> None:
        """A breaker that flaps may have moved just now: each look may find something, none finds the same."""
        was_ahead = self._world.faults.hits["clock_notifier"] > 0
        words = self._world.mutes.at_rest(was_ahead, self._world.now_ms())
        for _ in range(LOOKS):
            if not words:
                return
            await asyncio.sleep(0.7)
            before, words = words, self._world.mutes.at_rest(was_ahead, self._world.now_ms())
            if words == before:
                break
        self._world.judge(words)

    async def _alerts(self) -> None:
        """An Alertmanager knows what stands. What a Notifier that was replaced said too late ends by itself."""
        if self._world.faults.hits["clock_notifier"] > 0:
            return
        wrong = self._world.far.different(self._world.now_ms())
        for _ in range(2 * LASTS * self._world.settings.alert_renewal_ms // 700):
            if not wrong:
                return
            await asyncio.sleep(0.7)
            wrong &= self._world.far.different(self._world.now_ms())
        raise Violation(f"an Alertmanager believes the contrary of breakers {sorted(wrong)}")

    # samples and configuration

    def _samples(self) -> None:
        """Everything answered is in the log (once: that was looked at when it came), under its own router."""
        for request in self._world.samples.requests:
            places = [self._checks.samples.get(value) for value in request.values]
            if len(set(places)) != 1:
                raise Violation(f"a request lies in pieces: {places}")
            if not self._checks.excused.isdisjoint(request.values):
                continue
            if request.answered and places[0] is None:
                raise Violation(f"a request to router {request.router_id} was answered, but it is in no log")
            if places[0] is not None and places[0][0] != request.router_id:
                raise Violation(f"samples for router {request.router_id} lie in the log of {places[0][0]}")

    def _configuration(self) -> None:
        """The newest settings and views in the logs are those of the store."""
        routers = {row.id: row for row in self._world.router_rows()}
        for row in self._world.breaker_rows():
            for router_id in row.router_ids:
                last = self._last(router_id, BREAKER, row.id)
                wanted = (row.version, row.rule, row.name, row.control)
                if last is None or (last.version, last.rule, last.name, last.control) != wanted:
                    raise Violation(f"breaker {row.id}: router {router_id} has not heard of version {row.version}")
        for router in routers.values():
            view = self._last(router.id, VIEW, None)
            if view is None or view.version != router.version:
                raise Violation(f"router {router.id} does not split by version {router.version}")

    def _last(self, router_id: str, kind: int, breaker_id: str | None) -> Any:
        for record in reversed(self._checks.log.get(router_id, [])):
            if record.kind == kind == VIEW:
                return decode_view(record.payload)
            if record.kind == kind and (found := decode_breaker(record.payload)).breaker_id == breaker_id:
                return found
        return None

    # replays

    def _lives(self) -> list[Life]:
        """The lives of breakers that never hung on a router but the one made with them."""
        kinds = (CoreModel, NaiveModel) if self._world.naive else (CoreModel,)
        logs = self._checks.log.values()
        born = {birth: place for place, birth in enumerate(self._checks.births)}  # logs of two routers have no order
        lives = [life for records in logs for life in lives_of(records, self._samples_max, kinds)]
        lives = [life for life in lives if (life.breaker_id, life.router_id) in born]  # others came to life again
        by_id: dict[str, list[Life]] = {}
        for life in sorted(lives, key=lambda life: (life.after_seq, born[life.breaker_id, life.router_id])):
            by_id.setdefault(life.breaker_id, []).append(life)
        for mine in by_id.values():
            for life, following in pairwise(mine):
                life.upto_seq = following.after_seq
        heard = self._heard()
        own = {breaker_id: {life.router_id for life in mine} for breaker_id, mine in by_id.items()}
        return [
            life
            for life in lives
            if not life.left
            and heard[life.breaker_id] <= own[life.breaker_id]
            and life.breaker_id not in self._checks.forgotten
        ]

    def _heard(self) -> dict[str, set[str]]:
        """Breaker -> routers whose logs tell of it."""
        routers: dict[str, set[str]] = {}
        for router_id, records in self._checks.log.items():
            for record in records:
                if record.kind == BREAKER:
                    routers.setdefault(decode_breaker(record.payload).breaker_id, set()).add(router_id)
        return routers

    def _events(self, life: Life) -> None:
        stored = self._checks.events[life.breaker_id][life.after_seq : life.upto_seq]
        if life.whole_until_ms is not None:
            stored = [event for event in stored if event.ts_ms < life.whole_until_ms]
        for model in life.models:
            self._compare(life, model, stored)

    def _compare(self, life: Life, model: Model, stored: list[Event]) -> None:
        """The stored events are the first moves; what is missing may be missing: too young, or of a deleted breaker."""
        due_ms = self._world.now_ms() - LAG_MS
        if life.whole_until_ms is not None:
            due_ms = life.whole_until_ms - 1
        if not life.ended:
            model.advance(max([due_ms, *(event.ts_ms for event in stored)]))
        moves = transitions(model)
        who = f"breaker {life.breaker_id}, {type(model).__name__}"
        for event, move in zip(stored, moves, strict=False):
            if as_told(event) != told(move):
                raise Violation(f"{who}: stored {as_told(event)}, its log says {told(move)}")
        if len(stored) > len(moves):
            raise Violation(f"{who}: stored {as_told(stored[len(moves)])}, its log says nothing of that")
        for move in moves[len(stored) :]:
            if not life.ended and move.ts_ms <= due_ms:
                raise Violation(f"{who}: {told(move)} is not stored, which was due at {due_ms}")

    # what is shown

    async def _views(self, lives: dict[str, Life]) -> str:
        """Live views equal those of the replay at the same instant."""
        if not (ids := self._world.breaker_ids()):
            return ""
        readings: list[StateReading] = await self._world.ask_replica(self._world.client(), "states", ids)
        if missing := set(ids) - {r.breaker_id for r in readings if not r.stale}:
            return f"nobody answers for {sorted(missing)}"
        stored = {state.breaker_id: state for state in self._world.stored_states()}
        # new settings come with the log of a router: a breaker that hangs on none counts by its last ones
        linked = {row.id for row in self._world.breaker_rows() if row.router_ids}
        for reading in readings:
            self._checks.reading(reading)
            override = reading.view.override
            if override is not None and override.until_ms < self._world.now_ms() - LAG_MS:
                return f"breaker {reading.breaker_id} is under an override that was to end at {override.until_ms}"
            held = count(stored[reading.breaker_id], self._checks.log, reading.view.last_eval_ms, self._samples_max)
            if reading.breaker_id in linked and held not in (None, reading.view.sample_count):
                seen = reading.view.sample_count
                return f"breaker {reading.breaker_id} counts {seen} observations, its logs have {held}"
            if (life := lives.get(reading.breaker_id)) is not None:
                core = life.models[0]
                assert isinstance(core, CoreModel)
                core.advance(reading.view.last_eval_ms)
                different = self._view_differs(reading, core.breaker)
                if different:
                    return different
        return ""

    @staticmethod
    def _view_differs(reading: StateReading, breaker: Breaker) -> str:
        expected = breaker.view(reading.view.last_eval_ms)
        for name in SHOWN:
            shown, told_by_log = getattr(reading.view, name), getattr(expected, name)
            if shown != told_by_log:
                return f"breaker {reading.breaker_id} shows {name} {shown}, its log says {told_by_log}"
        return ""

    def _pictures(self) -> str:
        """Every stream client ends with the stored state of each breaker under its name."""
        world = self._world
        for name in world.replicas:
            replica = world.net.actors[name].part
            for stored in world.stored_states():
                shown = replica.picture.get(stored.name)
                expected = (stored.state, stored.allow_rate if stored.state == "half_open" else None)
                if shown != expected:
                    return f"{name} shows {shown} for {stored.name}, the store says {expected}"
        return ""


def as_told(event: Event) -> tuple[Any, ...]:
    return (
        event.transition_seq,
        event.prev,
        event.curr,
        event.ts_ms,
        event.reason,
        event.allow_rate,
        event.value,
        event.agg,
        event.hidden_by,
        event.by,
        event.comment,
    )
