"""States from the store, where owners do not answer: stale, but told.

Owners are silent when they are gone, and when there is too much to do. So that reading in their place does not make
that worse, a project has one such query at a time, and what a large one found is told again for AGAIN_S.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from breaker_actors.clock import Clock
from breaker_actors.core.model import Control, Record, View
from breaker_actors.core.overlay import hidden_by, in_force, shown_since, shown_under
from breaker_actors.messages import StateReading
from breaker_actors.store.base import EventStore
from breaker_actors.store.rows import StoredState
from breaker_actors.telemetry.set_aside import Asides

FEW = 300
"""Up to so many states are read whenever they are asked for."""
AGAIN_S = 2.0
"""How long what more than FEW states were in the store is told without another look."""
KEPT_MAX = 50_000
"""States kept for that, of all projects together; the project read longest ago goes first."""
SLICE = 200
"""Stored records read at a time: 2 ms."""

_decode_record = msgspec.msgpack.Decoder(Record).decode


class StoredStates:
    """Stored states of one replica. `reads` counts large queries."""

    def __init__(self, store: EventStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, dict[str, StateReading]]] = OrderedDict()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self.reads = 0

    async def read(self, project_id: str, breaker_ids: Sequence[str]) -> dict[str, StateReading]:
        """What the store has of these breakers, marked stale. Of more than FEW it may be AGAIN_S old."""
        if len(breaker_ids) <= FEW:
            return await self._load(project_id, breaker_ids)
        lock, users = self._locks.get(project_id, (asyncio.Lock(), 0))
        self._locks[project_id] = lock, users + 1
        try:
            async with lock:
                return await self._read_many(project_id, breaker_ids)
        finally:
            lock, users = self._locks.pop(project_id)
            if users > 1:
                self._locks[project_id] = lock, users - 1

    async def _read_many(self, project_id: str, breaker_ids: Sequence[str]) -> dict[str, StateReading]:
        now_s = self._clock.monotonic()
        read_s, kept = self._kept.get(project_id, (0.0, {}))
        if now_s - read_s >= AGAIN_S:
            read_s, kept = now_s, {}
        unknown = [i for i in breaker_ids if i not in kept]
        if unknown:
            self.reads += len(unknown) > FEW
            kept |= await self._load(project_id, unknown)
            self._keep(project_id, read_s, kept)
        return {i: kept[i] for i in breaker_ids if i in kept}

    def _keep(self, project_id: str, read_s: float, kept: dict[str, StateReading]) -> None:
        self._kept.pop(project_id, None)
        self._kept[project_id] = read_s, kept
        held = sum(len(states) for _, states in self._kept.values())
        while held > KEPT_MAX and self._kept:
            held -= len(self._kept.popitem(last=False)[1][1])

    async def _load(self, project_id: str, breaker_ids: Sequence[str]) -> dict[str, StateReading]:
        readings: dict[str, StateReading] = {}
        for index, stored in enumerate(await self._store.stored_states(project_id, list(breaker_ids))):
            if index and index % SLICE == 0:
                await asyncio.sleep(0)
            view = stored_view(stored, self._clock.now_ms(), self._store.asides)
            readings[stored.breaker_id] = StateReading(breaker_id=stored.breaker_id, view=view, stale=True)
        return readings


def stored_view(stored: StoredState, now_ms: int, asides: Asides) -> View:
    """What the stored record says, when its owner does not: the figures of the last evaluation. One that can't be read
    is set aside; the state beside it is told all the same."""
    known = stored.record
    record = None
    if known is not None:
        record = asides.attempt(lambda: _decode_record(known), "state", stored.breaker_id, known)
    if record is None:
        record = Record(
            created_ms=stored.created_ms,
            now_ms=stored.created_ms,
            grid_ms=stored.created_ms,
            state_since_ms=stored.created_ms,
            last_eval_ms=stored.created_ms,
            transition_seq=stored.transition_seq,
        )
    hidden = hidden_by(record)
    return _overridden(
        stored,
        now_ms,
        View(
            state=stored.state,
            state_since_ms=shown_since(record),
            allow_rate=stored.allow_rate,
            verdict=record.verdict,
            value=record.value,
            sample_count=record.count,
            passes=record.passes,
            last_eval_ms=record.last_eval_ms,
            next_eval_ms=None,
            transition_seq=stored.transition_seq,
            open_cause=None if hidden else record.open_cause,
            held_back=not hidden and stored.state == "closed" and record.verdict == "breach",
            late_count=record.late_count,
            truncated_count=record.truncated_count,
            machine_state=record.state,
            mode=record.mode,
            override=record.override,
        ),
    )


def _overridden(stored: StoredState, now_ms: int, view: View) -> View:
    """The same under an override in force that the record does not have yet: whoever set it was told that it counts,
    and a gate that asks in that moment must not hear of a closed breaker that was forced open."""
    override = in_force(stored.control or Control(), now_ms)
    known = view.override
    if override is None or (known is not None and known.version >= override.version):
        return view
    seen = shown_under(override)
    return msgspec.structs.replace(
        view,
        state=seen.state,
        allow_rate=seen.allow_rate,
        state_since_ms=view.state_since_ms if seen.state == view.state else override.since_ms,
        open_cause=None,
        held_back=False,
        override=override,
    )
