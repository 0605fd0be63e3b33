"""Builders of the outbox' contract tests: a project with channels and a breaker that moves as a test says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from breaker_actors.core.model import StateWord
from breaker_actors.messages import Commit, EventDraft
from breaker_actors.store.rows import (
    Alert,
    BreakerRow,
    ChannelDraft,
    ChannelRow,
    CircuitRow,
    DeliveryQuery,
    DeliveryResult,
    DeliveryRow,
    Leased,
)
from tests.contract.store_world import World, event

LEASE_MS = 1_000


class OutboxWorld:
    """What a test reaches: the outbox of one project, as a Notifier under `epoch`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = world.store
        self.epoch = 0
        self.epochs: dict[str, int] = {}
        self.seqs: dict[str, int] = {}
        self.states: dict[str, StateWord] = {}

    async def channel(self, *events: Alert, enabled: bool = True, **config: Any) -> ChannelRow:
        draft = ChannelDraft(
            channel="webhook",
            config=config or {"url": "http://hook.example/x"},
            enabled=enabled,
            events=events or ("trip", "recover"),
        )
        return await self.store.create_channel(self.world.project_id, draft, 1)

    async def breaker(self, name: str = "a") -> BreakerRow:
        row = await self.world.breaker(name)
        await self.adopt(row.id)
        return row

    async def adopt(self, breaker_id: str) -> None:
        """Takes over a new breaker, to move it."""
        self.epochs[breaker_id] = await self.world.own(breaker_id)
        self.seqs[breaker_id], self.states[breaker_id] = 0, "closed"

    def commit(self, breaker_id: str, *moves: StateWord, ts_ms: int = 0) -> Commit:
        """The next moves of a breaker, as one commit; the test has to write it."""
        drafts: list[EventDraft] = []
        for curr in moves:
            self.seqs[breaker_id] += 1
            seq = self.seqs[breaker_id]
            drafts.append(event(seq, self.states[breaker_id], curr, ts_ms or 1000 * seq))
            self.states[breaker_id] = curr
        return self.world.commit(breaker_id, self.epochs[breaker_id], *drafts)

    async def moves(self, breaker_id: str, *moves: StateWord, ts_ms: int = 0) -> None:
        assert await self.world.write(self.commit(breaker_id, *moves, ts_ms=ts_ms)) == ["ok"]

    async def outage(self, breaker_id: str) -> None:
        """Opens and closes again."""
        await self.moves(breaker_id, "open", "half_open", "closed")

    async def rows(self, channel_id: str) -> list[DeliveryRow]:
        """Oldest first."""
        query = DeliveryQuery(project_id=self.world.project_id, channel_id=channel_id, limit=1000)
        return (await self.store.deliveries(query))[::-1]

    async def words(self, channel_id: str) -> list[str]:
        """kind and state of each row, oldest first."""
        return [f"{row.kind} {row.state}" for row in await self.rows(channel_id)]

    # the Notifier

    async def open(self) -> None:
        self.epoch = await self.store.open_notifier()

    async def lease(
        self, *channel_ids: str, want: int = 4, now_ms: int = 10_000, held: Sequence[str] = ()
    ) -> list[Leased]:
        wants = dict.fromkeys(channel_ids, want)
        return await self.store.lease_deliveries(self.epoch, wants, held, now_ms, now_ms + LEASE_MS)

    async def take(self, channel_id: str, **more: Any) -> list[DeliveryRow]:
        found = await self.lease(channel_id, **more)
        return list(found[0].rows) if found else []

    async def settle(self, row: DeliveryRow, word: Any, at_ms: int = 10_000, **fields: Any) -> bool:
        tried = DeliveryResult(delivery_id=row.id, result=word, at_ms=at_ms, **fields)
        return row.id in await self.store.settle_deliveries(self.epoch, [tried])

    async def send_all(self, channel_id: str, word: Any = "sent", **fields: Any) -> list[DeliveryRow]:
        """Sends everything that can be, one after the other; in the order it was sent."""
        done: list[DeliveryRow] = []
        while rows := await self.take(channel_id, want=1):
            assert await self.settle(rows[0], word, **fields)
            done += rows
        return done


def circuit_row(channel_id: str, version: str, **fields: Any) -> CircuitRow:
    values: dict[str, Any] = {"record": b"r", "not_before_ms": 7, "last_status": 503, "last_error": "down"}
    return CircuitRow(channel_id=channel_id, version=version, **(values | fields))
