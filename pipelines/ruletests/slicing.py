"""Cuts a slice out of what a breaker of a service got, and finds how the breaker stood when it begins.

The log is replayed from its beginning up to the slice. Where it does not go back to the breaker's creation, the breaker
is taken to stand as its last event before the log said: in closed or open no more is to be known, but for a baseline of
kind delta. Over history alone it is created with the first sample, as in backtests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl
from msgspec.structs import replace

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.model import BY_HAND, Control, Record, Rule
from breaker_actors.store.rows import EventRow
from pipelines.replay.run import samples_of
from pipelines.replay.vectorized.engine import FastReplay, Walk
from pipelines.sources.files import Born, ControlSet, InForce
from pipelines.sources.service_log import Item, Recorded


@dataclass(slots=True)
class Slice:
    """What a breaker got from `start_ms` on. `begin`: how it stood then; None: there is nothing of it. `rule`: in force
    then. `samples`: in order of arrival, those before the start only lie in its window. `happenings`: what happened
    beside samples, each with the row of the sample that it comes before."""

    start_ms: int
    begin: Record | None
    rule: Rule
    samples: pl.DataFrame
    happenings: list[tuple[int, Gap | ControlSet | InForce]]


def cut(log: Recorded, events: Sequence[EventRow], from_ms: int, to_ms: int) -> Slice:
    """The slice of a breaker's log from `from_ms` to `to_ms`, both in it. `events`: all of the breaker's that may be
    from before the log, newest first."""
    cutting = _Cutting(log, events, from_ms, to_ms)
    for item in log.items():
        cutting.take(item)
    return cutting.done()


@dataclass(slots=True)
class _Cutting:
    """One pass over a log: the engine follows it up to the slice, from there on everything is kept."""

    log: Recorded
    events: Sequence[EventRow]
    from_ms: int
    to_ms: int
    rule: Rule | None = None
    longest_ms: int = 0
    begin: Record | None = None
    happenings: list[tuple[int, Gap | ControlSet | InForce]] = field(default_factory=list)
    _held: list[pl.DataFrame] = field(default_factory=list)
    _kept: list[pl.DataFrame] = field(default_factory=list)
    _rows: int = 0
    _control: Control | None = None
    _walk: Walk = field(init=False)
    _engine: FastReplay = field(init=False)

    def __post_init__(self) -> None:
        self._walk = Walk(self.log.row.rule, lambda effects: None, follows_log=True)
        self._engine = FastReplay([self._walk], window_samples_max=self.log.window_samples_max)

    def take(self, item: Item) -> None:
        """The next thing of the log."""
        if isinstance(item, pl.DataFrame):
            self._take_samples(item)
        elif isinstance(item, InForce) and self.rule is None:
            self.rule, self.longest_ms = item.rule, item.longest_ms
            self._engine.configure(item.rule, item.at_ms, item.longest_ms)
        elif self.begin is None and _time_of(item) < self.from_ms:
            self._follow(item)
        elif isinstance(item, Born) and self.begin is None:
            self.from_ms, self.begin = item.at_ms, _born(item)
        elif _time_of(item) <= self.to_ms and not isinstance(item, Born):
            self._settle()
            self.happenings.append((self._rows, item))

    def _take_samples(self, frame: pl.DataFrame) -> None:
        before = frame.filter(pl.col("received_ms") < self.from_ms) if self.begin is None else frame.clear()
        if len(before):
            self._ensure_begun(int(before["received_ms"][0]))
            self._engine.feed(samples_of(before))
            self._hold(before)
        inside = frame[len(before) :].filter(pl.col("received_ms") <= self.to_ms)
        if len(inside):
            self._ensure_begun(int(inside["received_ms"][0]))
            self._settle()
            self._kept.append(inside)
            self._rows += len(inside)

    def _hold(self, frame: pl.DataFrame) -> None:
        """Keeps what may lie in a window when the slice begins."""
        low_ms = self.from_ms - self.longest_ms
        self._held = [one for one in [*self._held, frame] if one["received_ms"][-1] > low_ms]

    def _follow(self, item: Born | ControlSet | Gap | InForce) -> None:
        """What a log says before the slice, as backtests take it."""
        if isinstance(item, Born):
            if self._walk.walker is None:
                self._engine.create(item.at_ms, item.after_seq, item.control)
        elif isinstance(item, InForce):
            self.rule = item.rule
            self._engine.configure(item.rule, item.at_ms, item.longest_ms)
        else:
            self._ensure_begun(_time_of(item))
            if isinstance(item, Gap):
                self._engine.gap(item.from_ms, item.to_ms)
            else:
                self._engine.control(item.control, item.at_ms)

    def _ensure_begun(self, at_ms: int) -> None:
        """Where the log does not tell of the creation, the breaker stands as its events tell."""
        if self._walk.walker is None and self.log.part == "history":
            self._engine.create(at_ms)
        elif self._walk.walker is None:
            row = self.log.row
            before = [event for event in self.events if event.ts_ms < at_ms]
            self._engine.resume(stood(row.created_ms, before, at_ms), samples_of(pl.DataFrame(schema=_TIMES)))

    def _settle(self) -> None:
        """The slice begins: notes how the breaker stands."""
        if self.begin is not None:
            return
        self._ensure_begun(self.from_ms)
        self._engine.finish()
        assert self._walk.walker is not None
        self._walk.walker.advance(self.from_ms - 1)
        self.begin = self._walk.walker.breaker.record()
        self.from_ms = max(self.from_ms, self.begin.now_ms)

    def done(self) -> Slice:
        """All that was found, records numbered anew."""
        self._settle()
        assert self.rule is not None
        low_ms = self.from_ms - self.longest_ms
        held = [one.filter(pl.col("received_ms") > low_ms) for one in self._held]
        ahead = sum(map(len, held))
        parts = [*held, *self._kept]
        joined = pl.concat(parts) if parts else pl.DataFrame(schema=_TIMES)
        samples = joined.with_columns(record=pl.col("record").rle_id().cast(pl.Int64))
        happenings = [(ahead + row, item) for row, item in self.happenings]
        return Slice(self.from_ms, self.begin, self.rule, samples, happenings)


_TIMES = {
    "ts_ms": pl.Int64, "value": pl.Float64, "ok": pl.Boolean, "received_ms": pl.Int64, "count": pl.Int64,
    "record": pl.Int64,
}  # fmt: skip


def _time_of(item: Born | ControlSet | Gap | InForce) -> int:
    return item.from_ms if isinstance(item, Gap) else item.at_ms


def _born(item: Born) -> Record:
    at, control = item.at_ms, item.control or Control()
    return Record(
        created_ms=at, now_ms=at, grid_ms=at, state_since_ms=at, transition_seq=item.after_seq, mode=control.mode,
        override=control.override,
    )  # fmt: skip


def stood(created_ms: int, events: Sequence[EventRow], at_ms: int) -> Record:
    """How a breaker stands at a time by its events before it, newest first."""
    moves = [event for event in events if event.reason not in BY_HAND]
    record = Record(
        created_ms=created_ms,
        now_ms=at_ms,
        grid_ms=moves[0].ts_ms if moves else created_ms,
        state_since_ms=moves[0].ts_ms if moves else created_ms,
        transition_seq=events[0].transition_seq if events else 0,
    )
    if not moves:
        return record
    state, failed = moves[0].curr, 0
    for move in moves:
        if move.prev == "closed" or move.curr == "closed":
            break
        failed += move.prev == "half_open" and move.curr == "open"
    floor_ms = next((move.ts_ms for move in moves if move.curr == "half_open"), 0)
    cause = moves[0].reason if state == "open" else None
    step = 1 if state == "half_open" else 0
    return replace(
        record,
        state=state,
        step=step,
        failed_recoveries=failed,
        evidence_floor_ms=floor_ms,
        open_cause=cause,
    )
