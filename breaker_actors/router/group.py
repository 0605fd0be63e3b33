"""From a group of items to records for the log: repetitions recognised, parts of one router merged, offsets given out.

Nothing here touches the log; `router.appends` writes what was staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from breaker_actors.core.counters import Counters, Taken, decode_points
from breaker_actors.core.log_entries import (
    GAP,
    SAMPLES,
    VIEW,
    Gap,
    RouterView,
    SampleColumns,
    Splitter,
    decode_samples,
    encode_entry,
    merge_samples,
)
from breaker_actors.messages import AppendResult, ChangeRow, Part, Refusal, RouterAssignment
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import Append, RouterHead

REUSABLE = 2
"""Of a part with more keys than so many the last one says that another body had its caller's key; all others say that
it is a repetition."""


class OwnedRouter:
    """One owned router: where its log stands and how it splits.

    Who sets what: `appends` the end of the log, the routing table, the last gap and the counters; `watermark` the two
    watermarks; `duplicates` the keys; `takeover` makes it, with what its predecessor in this process knew."""

    __slots__ = (
        "counters",
        "damage",
        "durable_watermark_ms",
        "epoch",
        "gap_ms",
        "generation",
        "id",
        "keys",
        "last_ms",
        "offset",
        "org_id",
        "project_id",
        "since_ms",
        "slot",
        "splitter",
        "view_offset",
        "watermark_ms",
    )

    def __init__(
        self, assignment: RouterAssignment, head: RouterHead, view: RouterView, series_max: int = 10_000
    ) -> None:
        self.id = assignment.router_id
        self.project_id = assignment.project_id
        self.org_id = assignment.org_id
        self.epoch = assignment.epoch
        self.slot = assignment.log_slot
        self.generation = head.generation
        self.offset = head.offset
        self.last_ms = head.last_received_ms
        self.watermark_ms = 0  # nothing will be stamped at or before this
        self.durable_watermark_ms = 0  # up to here the watermark survives this process
        self.since_ms = 0  # until when an earlier owner could take samples
        self.gap_ms = 0  # the stamp of the last gap written here
        self.damage = head.damage or shortfall(
            head.offset, assignment.reached_offset
        )  # why nothing may be appended, "" when it may
        self.keys = dict(head.keys)
        self.counters = Counters(head.counters, head.last_received_ms, series_max)
        self.set_view(head.view_offset, view)

    def set_view(self, offset: int, view: RouterView) -> None:
        self.view_offset = offset
        self.splitter = Splitter(view)

    def stamp(self, now_ms: int) -> int:
        """received_ms of the next record (semantics.md section 2); later than the watermark."""
        return max(now_ms, self.last_ms, self.watermark_ms + 1 if self.watermark_ms else 0)

    def ahead_ms(self, now_ms: int) -> int:
        """By how much the next stamp is ahead of the clock: a sample of now is that old already when it counts."""
        return self.stamp(now_ms) - now_ms


def shortfall(offset: int, read: int) -> str:
    """What is wrong with a log that ends at an offset and was read up to another; "" when nothing is. What breakers
    have read already must not be written a second time, under the same offsets."""
    return "" if offset >= read else f"it ends at record {offset}, and breakers have read up to record {read}"


class Change(msgspec.Struct, frozen=True):
    """A change of configuration on its way into a router's log, under the key by which a repetition is known."""

    row: ChangeRow
    key: bytes


class Parts(msgspec.Struct, frozen=True):
    """The parts of one call that go to one router, and their places in it: one record, so they are taken together."""

    router_id: str
    parts: Sequence[Part]
    places: Sequence[int]
    rows: int
    weight: int
    """What they count, in rows: what they have, and who takes it."""


class Staged(msgspec.Struct):
    """One record on its way into the log, and the items it answers."""

    router: OwnedRouter
    append: Append
    answers: list[int]
    columns: SampleColumns | None = None
    counted: Taken | None = None
    """Of cumulative series, what the record says."""
    beyond: dict[int, int] = {}
    """Points of an item for which there was no room."""


class Group:
    """Stages the samples and changes of one group. `outcomes[i]`: of the items that need no record of their own.

    `refusal`: why new samples for a slot and project are refused, if they are. `owed`: the gap that has to
    lie before anything else of a router, if there is one. `ahead_max_ms`: a router whose next stamp is further ahead of
    the clock takes no samples: they would be late before they count."""

    def __init__(
        self,
        routers: Mapping[str, OwnedRouter],
        refusal: Callable[[str, str], Refusal | None],
        now_ms: int,
        owed: Callable[[str], Gap | None],
        asides: Asides | None = None,
        ahead_max_ms: int = 1 << 62,
    ) -> None:
        self._routers = routers
        self._ahead_max_ms = ahead_max_ms
        self._owed = owed
        self._asides = asides or Asides()
        self._refusal = refusal
        self._now_ms = now_ms
        self.outcomes: dict[int, AppendResult] = {}
        self._open: dict[str, tuple[list[Part], list[int]]] = {}
        self._seen: dict[tuple[str, bytes], int] = {}
        self._ends: dict[str, tuple[int, int]] = {}
        """Offset and stamp of the last record staged of a router."""
        self._counted: dict[str, Taken] = {}
        self._staged: list[Staged] = []
        self._answers: dict[int, list[int]] = {}
        """By item: all that are answered as it is."""
        self.duplicate_parts = self.duplicate_samples = 0

    def add(self, index: int, item: Part | Change) -> None:
        """Items of one router keep their order; parts that follow each other become one record."""
        router_id = item.router_id if isinstance(item, Part) else item.row.router_id
        router = self._routers.get(router_id)
        if router is None:
            self.outcomes[index] = AppendResult("not_owner")
            return
        if router.damage:
            self.outcomes[index] = AppendResult("damaged")
            return
        if isinstance(item, Part) and not router.view_offset:
            self.outcomes[index] = AppendResult("not_configured")
            return
        keys = item.keys if isinstance(item, Part) else (item.key,)
        its_own, reusable = (keys[:-1], keys[-1:]) if len(keys) > REUSABLE else (keys, ())
        if (known := self._known(router, its_own)) is not None:
            if isinstance(item, Part):
                self.duplicate_parts += 1
                self.duplicate_samples += item.count
            self._repeat(index, *known)
            return
        if isinstance(item, Part) and self._known(router, reusable) is not None:
            self.outcomes[index] = AppendResult("reused")
            return
        if isinstance(item, Part) and self._next_ms(router) - self._now_ms > self._ahead_max_ms:
            self.outcomes[index] = AppendResult("clock_behind")
            return
        if isinstance(item, Part) and (refusal := self._refusal(router.slot, router.project_id)) is not None:
            self.outcomes[index] = AppendResult(refusal)
            return
        self._settle(router)
        self._seen.update({(router_id, key): index for key in keys})
        if isinstance(item, Part):
            parts, answers = self._open.setdefault(router_id, ([], []))
            parts.append(item)
            answers.append(index)
            self._answers[index] = answers
        else:
            self._close_parts(router_id)
            self._stage_change(router, item, index)

    def settle(self, router_ids: Iterable[str]) -> None:
        """Stages the gaps of these routers, records that answer nobody."""
        for router_id in router_ids:
            if (router := self._routers.get(router_id)) is not None:
                self._settle(router)

    def _settle(self, router: OwnedRouter) -> None:
        """Stages the gap that is owed to a router, as its first record here, stamped with the gap's end."""
        gap = self._owed(router.id)
        if gap is not None and router.id not in self._ends and not router.damage:
            self._stage(router, GAP, encode_entry(gap), (), [], gap.to_ms)

    def _next_ms(self, router: OwnedRouter) -> int:
        """Stamp of what would be staged next, behind a gap that is owed."""
        gap = None if router.id in self._ends else self._owed(router.id)
        last_ms = gap.to_ms if gap is not None else self._ends.get(router.id, (0, 0))[1]
        return max(last_ms, router.stamp(self._now_ms))

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
            self.outcomes[index] = AppendResult("duplicate", at)
            return
        answers = self._answers.get(at)
        if answers is None:
            self.outcomes[index] = AppendResult("failed")  # its first could not be read
        else:
            answers.append(index)

    def _close_parts(self, router_id: str) -> None:
        if router_id not in self._open:
            return
        parts, answers = self._open.pop(router_id)
        router, keys = self._routers[router_id], tuple(key for p in parts for key in p.keys)

        counted = self._counted.get(router_id)

        def merged() -> tuple[bytes, SampleColumns, Taken | None, dict[int, int]]:
            payloads, taken, beyond = self._payloads(router, parts, answers, counted)
            payload = merge_samples(payloads)
            return payload, decode_samples(payload), taken, beyond

        readable = self._asides.attempt(merged, "log", router_id, parts[0].payload, 0, router.project_id)
        if readable is None:  # nothing of it comes into the log
            for index in answers:
                self.outcomes[index] = AppendResult("failed")
                self._answers.pop(index, None)
            return
        payload, columns, taken, beyond = readable
        record = self._stage(router, SAMPLES, payload, keys, answers)
        record.columns, record.counted, record.beyond = columns, taken, beyond
        if taken is not None:
            self._counted[router_id] = taken
            record.append = replace(record.append, counters=tuple(taken.stored()))

    def _payloads(
        self, router: OwnedRouter, parts: Sequence[Part], answers: Sequence[int], before: Taken | None
    ) -> tuple[list[bytes], Taken | None, dict[int, int]]:
        """The samples of parts, in their order, with what the points of cumulative series come to. `before`: what this
        group knows of the router's series already."""
        if not any(part.counters for part in parts):
            return [part.payload for part in parts], None, {}
        payloads: list[bytes] = []
        beyond: dict[int, int] = {}
        taken = router.counters.begin(before)
        for part, index in zip(parts, answers, strict=True):
            payloads.append(part.payload)
            if part.counters:
                some, full = router.counters.take(taken, decode_points(part.counters), self._now_ms)
                payloads.append(some)
                beyond |= {index: full} if full else {}
        return payloads, taken, beyond

    def _stage_change(self, router: OwnedRouter, change: Change, index: int) -> None:
        """All records of one change; its key and its answer sit on the first."""
        for i, (kind, payload) in enumerate(change.row.entries):
            answers = [] if i else [index]
            record = self._stage(router, kind, payload, () if i else (change.key,), answers, change=change.row.id)
            if not i:
                self._answers[index] = record.answers

    def _stage(
        self,
        router: OwnedRouter,
        kind: int,
        payload: bytes,
        keys: tuple[bytes, ...],
        answers: list[int],
        now_ms: int | None = None,
        change: int = 0,
    ) -> Staged:
        last, last_ms = self._ends.get(router.id, (router.offset, 0))
        offset, stamp = last + 1, max(last_ms, router.stamp(self._now_ms if now_ms is None else now_ms))
        self._ends[router.id] = offset, stamp
        append = Append(
            router_id=router.id,
            epoch=router.epoch,
            offset=offset,
            received_ms=stamp,
            kind=kind,
            view_offset=router.view_offset,
            payload=payload,
            keys=keys,
            generation=router.generation,
            change=change,
        )
        self._staged.append(Staged(router, append, answers))
        return self._staged[-1]
