"""The samples that several breakers got alike out of the same logs, read once for all of them. What concerns one of
them alone says whose it is.

A router without samples, as each breaker has one of its own, may differ: what it tells is its breaker's alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec
import polars as pl

from breaker_actors.core.log_entries import (
    BREAKER,
    GAPS,
    SAMPLES,
    Gap,
    Link,
    LogRecord,
    RouterView,
    Splitter,
    decode_breaker,
    decode_gap,
)
from breaker_actors.messages import RouterRef
from breaker_actors.persistence import make_log
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerRow
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.reader import VIEWS_MAX, LogReader
from pipelines.sources import passed_over as passing
from pipelines.sources.files import ControlSet, GapOf, Happening, InForce
from pipelines.sources.rules_in_force import SettingsRead, rules_in_force
from pipelines.sources.service_log import SCHEMA, ItemOf, OwnLoop, Reading, begin_ms, next_of

NOBODY = "00000000-0000-4000-8000-000000000000"
"""Stands for a breaker that is not made yet."""
RULES_MAX, APART_MAX = 32, 8
"""Breakers of one reading; and of those with columns of their own."""
Given = tuple[tuple[bool, tuple[str, ...]], ...]
"""Of each view in force while the logs' records were written whether it was enabled, and the metrics of which a breaker
got all samples."""


def nobodys(metric: str) -> RouterView:
    """A view that gives all samples of a metric to a breaker that is not made yet."""
    return RouterView(version=1, links=(Link(NOBODY, metric),))


class Member(NamedTuple):
    """A breaker, None for one that is to be made; what is read of which router's log for it; and its number."""

    row: BreakerRow | None
    logs: tuple[RouterRef, ...]
    number: int


class Alike(msgspec.Struct, frozen=True):
    """Breakers that got the same samples of a metric, out of those of the `logs` in `common`. `hears`: those that heard
    of something else, each with the other routers that it heard it of; `apart`: those of them that were created on the
    way, and so have columns of their own. `numbers`: those of all members."""

    metric: str
    logs: tuple[RouterRef, ...]
    common: frozenset[str]
    rows: tuple[BreakerRow, ...]
    hears: dict[str, frozenset[str]]
    apart: frozenset[str]
    numbers: tuple[int, ...]


# -- who is alike -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Told:
    """What some logs tell beside samples: the views in force, of whose settings which router's tell, and which have
    gaps."""

    views: dict[tuple[str, int], RouterView] = field(default_factory=dict)
    routers_of: dict[str, set[str]] = field(default_factory=dict)
    born: set[str] = field(default_factory=set)
    with_gaps: set[str] = field(default_factory=set)

    def given(self, breaker_id: str, metric: str) -> Given | None:
        """What the breaker got; None where it got a share of the samples, which another one with that need not get."""
        if breaker_id == NOBODY:
            return ((True, (metric,)),) * len(self.views)
        found: list[tuple[bool, tuple[str, ...]]] = []
        for view in self.views.values():
            mine = [link for link in view.links if link.breaker_id == breaker_id]
            if any(view.mode == "weighted" or (view.mode == "canary" and link.share is not None) for link in mine):
                return None
            found.append((view.enabled, tuple(link.metric for link in mine)))
        return tuple(found)


async def alike(log: SampleLog, metric: str, members: Sequence[Member]) -> list[Alike]:
    """Those of one metric that share a reading, in bounded lots. Left out is who shares with none, and who heard of
    itself where it does not belong. Decodes no sample."""
    reader, busy = LogReader(log), dict[RouterRef, bool]()
    by_logs: dict[tuple[RouterRef, ...], list[Member]] = {}
    for member in members:
        for ref in member.logs:
            if ref not in busy:
                busy[ref] = await _has_samples(reader, ref)
        common = tuple(ref for ref in member.logs if busy[ref])
        if common:
            by_logs.setdefault(common, []).append(member)
    found: list[Alike] = []
    for common, those in by_logs.items():
        if len(those) > 1 and (orders := _ordered(common, those)) is not None:
            told = await _told(reader, orders, common)
            found += [] if told is None else _lots(metric, orders, common, those, told)
    return found


async def _has_samples(reader: LogReader, ref: RouterRef) -> bool:
    async for record in reader.after(ref, ref.since_offset, ref.until_offset or 0):
        if record.kind == SAMPLES:
            return True
    return False


def _ordered(common: tuple[RouterRef, ...], members: Sequence[Member]) -> tuple[RouterRef, ...] | None:
    """All their logs in an order in which each has its own; None where there is none."""
    before, behind = dict[str, RouterRef](), dict[str, RouterRef]()
    for member in members:
        first, last = member.logs.index(common[0]), member.logs.index(common[-1])
        if member.logs[first : last + 1] != common:
            return None
        before |= {ref.router_id: ref for ref in member.logs[:first]}
        behind |= {ref.router_id: ref for ref in member.logs[last + 1 :]}
    orders = (*before.values(), *common, *behind.values())
    one_each = len({ref.router_id for ref in orders}) == len(orders)
    return orders if one_each and all(set(member.logs) <= set(orders) for member in members) else None


async def _told(reader: LogReader, logs: Sequence[RouterRef], common: Sequence[RouterRef]) -> _Told | None:
    """None where there are more views than readers keep."""
    told = _Told()
    for router in logs:
        async for record in reader.after(router, router.since_offset, router.until_offset or 0):
            if record.kind == BREAKER:
                settings = reader.attempt(partial(decode_breaker, record.payload), record)
                if settings is not None:
                    told.routers_of.setdefault(settings.breaker_id, set()).add(router.router_id)
                    told.born |= {settings.breaker_id} if settings.created else set()
            elif router not in common:
                told.with_gaps |= {router.router_id} if record.kind in GAPS else set()
            elif (key := (record.router_id, record.view_offset)) not in told.views:
                told.views[key] = (await reader.splitter(router, record)).view
                if len(told.views) > VIEWS_MAX:
                    return None
    return told


def _lots(
    metric: str, logs: tuple[RouterRef, ...], common: Sequence[RouterRef], members: Sequence[Member], told: _Told
) -> Iterator[Alike]:
    by_views: dict[tuple[Given, bool], list[Member]] = {}
    for member in members:
        id_ = NOBODY if member.row is None else member.row.id
        given = told.given(id_, metric)
        if given is not None and told.routers_of.get(id_, set()) <= {ref.router_id for ref in member.logs}:
            by_views.setdefault((given, id_ in told.born), []).append(member)
    shared = frozenset(ref.router_id for ref in common)
    for (_, apart), those in by_views.items():
        most = APART_MAX if apart else RULES_MAX
        for lot in (those[at : at + most] for at in range(0, len(those), most)):
            if len(lot) > 1:
                yield _lot(metric, logs, shared, lot, told)


def _lot(
    metric: str, logs: tuple[RouterRef, ...], common: frozenset[str], members: Sequence[Member], told: _Told
) -> Alike:
    """The lot with those of the logs that one of them has."""
    hears = dict[str, frozenset[str]]()
    for member in members:
        others = frozenset(ref.router_id for ref in member.logs) - common
        if (row := member.row) is not None and (
            row.id in told.routers_of or row.control is not None or others & told.with_gaps
        ):
            hears[row.id] = others
    rows = tuple(member.row for member in members if member.row is not None)
    read = common.union(*hears.values())
    kept = tuple(ref for ref in logs if ref.router_id in read)
    numbers = tuple(member.number for member in members)
    return Alike(metric, kept, common, rows, hears, frozenset(told.born & hears.keys()), numbers)


# -- one pass over the logs -------------------------------------------------------------------------------------------


class Together:
    """A source as `Recorded` is one, of several breakers. Those in `hears` hear of what concerns them by their ids."""

    def __init__(self, alike: Alike, settings: Settings) -> None:
        self.names = [row.name for row in alike.rows] or ["a router"]
        self.window_samples_max = settings.window_samples_max
        self.passed_over = passing.passed_over()
        self._alike, self._settings = alike, settings

    def rows(self) -> int | None:
        return None

    def batches(self) -> Iterator[pl.DataFrame]:
        """The samples alone, in arrival order."""
        return (item for item in self.items() if isinstance(item, pl.DataFrame))

    def items(self) -> Iterator[ItemOf]:
        """As `sources.Log` says."""
        yield pl.DataFrame(schema=SCHEMA)
        alike = self._alike
        hearing = [row for row in alike.rows if row.id in alike.hears]
        reading = _ReadingOfSeveral.of(alike)
        with OwnLoop() as loop:
            log = make_log(self._settings)
            entries = reading.entries(log, alike.logs)
            try:
                yield from reading.begun(loop.run(rules_in_force(log, alike.logs, hearing)))
                controls = {row.id: row for row in hearing if row.control is not None}
                while (item := loop.run(next_of(entries))) is not None:
                    yield from _controls(controls, item)
                    yield item
            finally:
                loop.run(entries.aclose())
                loop.run(log.close())
        self.passed_over = passing.passed_over(reading.asides)


def _controls(waiting: dict[str, BreakerRow], item: ItemOf) -> Iterator[ControlSet]:
    """Of those for whom this is the first item the control, as it has been since before the log begins."""
    of = "" if isinstance(item, pl.DataFrame | Gap) else item.of
    for row in [row for row in waiting.values() if of in ("", row.id)]:
        del waiting[row.id]
        if row.control is not None and row.updated_ms < begin_ms(item):
            yield ControlSet(begin_ms(item), row.control, row.id)


@dataclass(slots=True)
class _ReadingOfSeveral(Reading):
    """Reads the samples of one of them, and what concerns the others alone."""

    alike: Alike | None = None
    settings_of: dict[str, SettingsRead] = field(default_factory=dict)

    @classmethod
    def of(cls, alike: Alike) -> _ReadingOfSeveral:
        taking = None if alike.rows else Splitter(nobodys(alike.metric))
        settings_of = {breaker_id: SettingsRead() for breaker_id in alike.hears}
        first = alike.rows[0].id if alike.rows else NOBODY
        return cls(first, alike.metric, taking, alike=alike, settings_of=settings_of)

    def begun(self, rules: Mapping[str, Sequence[InForce]]) -> Iterator[InForce]:
        """The first rule of each, with the longest window of all of its."""
        for breaker_id, course in rules.items():
            self.settings_of[breaker_id].in_force = course[0]
            longest_ms = max(one.rule.window_ms for one in course)
            yield course[0]._replace(longest_ms=longest_ms, of=breaker_id)

    def _takes(self, record: LogRecord, breaker_id: str) -> bool:
        assert self.alike is not None
        is_common = record.router_id in self.alike.common
        if is_common and record.kind != BREAKER:
            return breaker_id == self.breaker_id
        return breaker_id in self.alike.hears and (is_common or record.router_id in self.alike.hears[breaker_id])

    def _other(self, record: LogRecord, breaker_id: str, body: bytes) -> Sequence[Happening]:
        assert self.alike is not None
        if record.kind in GAPS:
            gap = decode_gap(body)
            return [gap if record.router_id in self.alike.common else GapOf(gap, breaker_id)]
        if record.kind != BREAKER:
            return []
        settings = self.settings_of[breaker_id]
        return [item._replace(of=breaker_id) for item in settings.items(decode_breaker(body), record.received_ms)]
