"""From a group of items to records for the log: repetitions recognised, parts of one router merged, offsets given out.

Nothing here touches the log; `router.py` writes what was staged and answers the items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from breaker_actors.core.records import (
    GAP,
    SAMPLES,
    VIEW,
    Gap,
    RouterView,
    SampleColumns,
    Splitter,
    decode_samples,
    decode_view,
    encode_entry,
    merge_samples,
)
from breaker_actors.delivery import Subscription
from breaker_actors.messages import Outcome, Part, RouterAssignment
from breaker_actors.stores.base import ChangeRow
from breaker_actors.stores.samplelog import Append, RouterHead


class OwnedRouter:
    """One owned router: where its log stands, how it splits, who listens."""

    __slots__ = (
        "durable_ms",
        "epoch",
        "gap_ms",
        "id",
        "keys",
        "last_ms",
        "offset",
        "promised_ms",
        "since_ms",
        "slot",
        "splitter",
        "subscriptions",
        "turn",
        "view_offset",
    )

    def __init__(self, assignment: RouterAssignment, head: RouterHead) -> None:
        self.id = assignment.router_id
        self.epoch = assignment.epoch
        self.slot = assignment.log_slot
        self.turn = head.turn
        self.offset = head.offset
        self.last_ms = head.last_received_ms
        self.promised_ms = 0  # nothing will be stamped at or before this
        self.durable_ms = 0  # up to here the promise would survive this process
        self.since_ms = 0  # until when an earlier owner could take samples
        self.gap_ms = 0  # the stamp of the last gap written here
        self.keys = dict(head.keys)
        self.subscriptions: dict[str, Subscription] = {}
        self.set_view(head.view_offset, decode_view(head.view) if head.view else RouterView(version=0))

    def set_view(self, offset: int, view: RouterView) -> None:
        self.view_offset = offset
        self.splitter = Splitter(view)

    def listeners(self, owner: str) -> tuple[int, int]:
        """How many breakers of an owner listen, and the sum of their epochs: a predecessor of that process may have
        come back in place of it."""
        epochs = [subscription.epoch for subscription in self.subscriptions.values() if subscription.owner == owner]
        return len(epochs), sum(epochs)

    def stamp(self, now_ms: int) -> int:
        """received_ms of the next record (semantics.md section 2); later than everything promised to be over."""
        return max(now_ms, self.last_ms, self.promised_ms + 1 if self.promised_ms else 0)


class Change(msgspec.Struct, frozen=True):
    """A change of configuration on its way into a router's log, under the key by which a repetition is known."""

    row: ChangeRow
    key: bytes


class Staged(msgspec.Struct):
    """One record on its way into the log, and the items it answers."""

    router: OwnedRouter
    append: Append
    answers: list[int]
    columns: SampleColumns | None = None


class Group:
    """Stages the samples and changes of one group. `results[i]` is set for items that need no record of their own.

    `full`: slots whose log has reached its bound; new samples for them are refused."""

    def __init__(
        self, routers: Mapping[str, OwnedRouter], full: frozenset[str], now_ms: int, results: list[Any]
    ) -> None:
        self._routers = routers
        self._full = full
        self._now_ms = now_ms
        self._results = results
        self._open: dict[str, tuple[list[Part], list[int]]] = {}
        self._seen: dict[tuple[str, bytes], int] = {}
        self._ends: dict[str, int] = {}
        self._staged: list[Staged] = []
        self.duplicate_parts = self.duplicate_samples = 0

    def add(self, index: int, item: Part | Change) -> None:
        """Items of one router keep their order; parts that follow each other become one record."""
        router_id = item.router_id if isinstance(item, Part) else item.row.router_id
        router = self._routers.get(router_id)
        if router is None:
            self._results[index] = Outcome("not_owner")
            return
        keys = item.keys if isinstance(item, Part) else (item.key,)
        if (known := self._known(router, keys)) is not None:
            if isinstance(item, Part):
                self.duplicate_parts += 1
                self.duplicate_samples += item.count
            self._repeat(index, *known)
            return
        if isinstance(item, Part) and router.slot in self._full:
            self._results[index] = Outcome("full")
            return
        self._seen.update({(router_id, key): index for key in keys})
        if isinstance(item, Part):
            parts, answers = self._open.setdefault(router_id, ([], []))
            parts.append(item)
            answers.append(index)
        else:
            self._close_parts(router_id)
            self._stage_change(router, item, index)

    def gap(self, router: OwnedRouter, gap: Gap) -> None:
        """A record that answers nobody."""
        self._stage(router, GAP, encode_entry(gap), (), [])

    def close(self) -> list[Staged]:
        """All records, in order per router; each is split by the view in force where it lies."""
        for router_id in list(self._open):
            self._close_parts(router_id)
        latest: dict[str, int] = {}
        for record in self._staged:
            if record.router.id in latest and record.append.view_offset != latest[record.router.id]:
                record.append = replace(record.append, view_offset=latest[record.router.id])
            if record.append.kind == VIEW:
                latest[record.router.id] = record.append.offset
        return self._staged

    def _known(self, router: OwnedRouter, keys: Sequence[bytes]) -> tuple[str, int] | None:
        """Where a repetition stands already: ("log", offset) or ("group", item index)."""
        for key in keys:
            if key in router.keys:
                return ("log", router.keys[key])
            if (router.id, key) in self._seen:
                return ("group", self._seen[router.id, key])
        return None

    def _repeat(self, index: int, where: str, at: int) -> None:
        """A repetition answers like its first: from the log at once, in the same group together with it."""
        if where == "log":
            self._results[index] = Outcome("duplicate", at)
            return
        for answers in (*(s.answers for s in self._staged), *(a for _, a in self._open.values())):
            if at in answers:
                answers.append(index)
                return

    def _close_parts(self, router_id: str) -> None:
        if router_id not in self._open:
            return
        parts, answers = self._open.pop(router_id)
        payload = merge_samples([p.payload for p in parts])
        keys = tuple(key for p in parts for key in p.keys)
        self._stage(self._routers[router_id], SAMPLES, payload, keys, answers).columns = decode_samples(payload)

    def _stage_change(self, router: OwnedRouter, change: Change, index: int) -> None:
        """All records of one change; its key and its answer sit on the first."""
        for i, (kind, payload) in enumerate(change.row.entries):
            self._stage(router, kind, payload, () if i else (change.key,), [] if i else [index])

    def _stage(
        self, router: OwnedRouter, kind: int, payload: bytes, keys: tuple[bytes, ...], answers: list[int]
    ) -> Staged:
        offset = self._ends[router.id] = self._ends.get(router.id, router.offset) + 1
        stamp = router.stamp(self._now_ms)
        append = Append(router.id, router.epoch, offset, stamp, kind, router.view_offset, payload, keys, router.turn)
        self._staged.append(Staged(router, append, answers))
        return self._staged[-1]
