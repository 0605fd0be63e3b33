"""Builders of the store's contract tests: a project with breakers, and short names for what most tests do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from breaker_actors.core.log_entries import BREAKER, VIEW, BreakerSet, RouterView, decode_breaker, decode_view
from breaker_actors.core.model import Rule, StateWord
from breaker_actors.messages import ChangeRow, Commit, EventDraft
from breaker_actors.store.base import Store
from breaker_actors.store.rows import BreakerDraft, BreakerRow, JournalHead, RouterDraft, RouterRow

RULE = Rule(metric="latency", kind="avg", op="gt", threshold=500.0)


def draft(name: str | None = None, **fields: Any) -> BreakerDraft:
    return BreakerDraft(rule=fields.pop("rule", RULE), name=name, **fields)


def event(seq: int, prev: StateWord = "closed", curr: StateWord = "open", ts_ms: int = 0) -> EventDraft:
    return EventDraft(
        name="a",
        prev=prev,
        curr=curr,
        ts_ms=ts_ms or 1000 * seq,
        transition_seq=seq,
        reason="threshold_exceeded",
        allow_rate=0.0,
        value=512.5,
        rule={"kind": "avg", "tags": {}},
        agg={"avg": 512.5, "count": 3},
    )


def decoded(change: ChangeRow) -> list[BreakerSet | RouterView]:
    """The entries of a change row as values."""
    decoders = {BREAKER: decode_breaker, VIEW: decode_view}
    return [decoders[kind](payload) for kind, payload in change.entries]


@dataclass
class World:
    """One project on a store, its Directory epoch and its Journal."""

    store: Store
    org_id: str
    workspace_id: str
    project_id: str
    directory: int
    journal: JournalHead

    @classmethod
    async def make(cls, store: Store) -> World:
        org_id = await store.create_org("acme", 1)
        workspace = await store.create_workspace(org_id, "main", "main", 1)
        project = await store.create_project(org_id, workspace.id, "shop", 1)
        directory, journal = await store.open_directory(), await store.open_journal(project.shard)
        return cls(store, org_id, workspace.id, project.id, directory, journal)

    async def neighbour(self, name: str) -> World:
        """A project of another organisation, under the same Directory. Its Journal may fence this one's: open it again
        before the next write."""
        org_id = await self.store.create_org(name, 1)
        workspace = await self.store.create_workspace(org_id, "main", "main", 1)
        project = await self.store.create_project(org_id, workspace.id, "shop", 1)
        journal = await self.store.open_journal(project.shard)
        return World(self.store, org_id, workspace.id, project.id, self.directory, journal)

    async def take_journal(self) -> None:
        """Opens the Journal again: a neighbour may have it."""
        self.journal = await self.store.open_journal(self.journal.shard)

    async def breaker(self, name: str | None = None, now_ms: int = 0, **fields: Any) -> BreakerRow:
        """Made at 0 unless told otherwise: its epochs go on from its creation time."""
        row, _ = await self.store.create_breaker(self.project_id, draft(name, **fields), now_ms)
        return row

    async def router(self, *breaker_ids: str, now_ms: int = 20, **fields: Any) -> RouterRow:
        router, _ = await self.store.create_router(
            self.project_id, RouterDraft(breaker_ids=breaker_ids, **fields), now_ms
        )
        return router

    async def edit(self, breaker_id: str, now_ms: int = 30, **fields: Any) -> tuple[BreakerRow, list[ChangeRow]]:
        row, ids = await self.store.update_breaker(
            self.project_id, breaker_id, lambda row: msgspec.structs.replace(row, **fields), now_ms
        )
        return row, await self.changes(ids)

    async def changes(self, ids: list[int]) -> list[ChangeRow]:
        found = {change.id: change for change in await self.store.pending_changes(100_000)}
        return [found[id_] for id_ in ids]

    async def settle(self, offset: int = 1) -> None:
        """All pending changes lie in their logs, each from `offset` on."""
        pending = await self.store.pending_changes(100_000)
        await self.store.settle_changes(self.directory, {change.id: offset for change in pending})

    async def own(self, *breaker_ids: str, owner: str = "b-0") -> int:
        """Places breakers; the epoch of the last one."""
        epochs = await self.store.claim(self.directory, "breaker", {id_: owner for id_ in breaker_ids})
        return epochs[breaker_ids[-1]]

    def commit(self, breaker_id: str, epoch: int, *events: EventDraft, seq: int = 0, **fields: Any) -> Commit:
        last = events[-1] if events else None
        values: dict[str, Any] = {
            "breaker_id": breaker_id,
            "project_id": self.project_id,
            "epoch": epoch,
            "events": events,
            "state": last.curr if last else "closed",
            "allow_rate": last.allow_rate if last else 1.0,
            "transition_seq": last.transition_seq if last else seq,
            "record": b"record",
            "applied_offsets": {"r": 1},
        }
        return Commit(**values | fields)

    async def write(self, *commits: Commit) -> list[str]:
        """Commits through the journal and moves its head on."""
        self.journal, results = await self.store.commit(self.journal, commits)
        return list(results)
