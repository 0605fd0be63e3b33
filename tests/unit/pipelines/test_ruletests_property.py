"""Over random rules and logs: what the core did, recorded in any slice, is a test that passes; and the engine that
takes a breaker up as of a record goes on as the core does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Effect, Rule, Transition
from pipelines.columns import Samples
from pipelines.replay.reference import arrivals
from pipelines.replay.vectorized.engine import FastReplay, Walk
from pipelines.ruletests import run
from pipelines.ruletests.recording import Recording
from pipelines.ruletests.slicing import cut
from pipelines.ruletests.writing import Part
from pipelines.sources.files import Born, ControlSet, InForce
from tests.support.history import MadeUpLog, log_replayed, made_up, made_up_log

COUNT = 400


@dataclass
class MadeUp:
    """A made-up log as `Recorded` would hand it out, without a service."""

    rule: Rule
    samples: Samples
    log: MadeUpLog
    part: str = "log"

    window_samples_max = 1_000_000

    @property
    def row(self) -> Any:
        return SimpleNamespace(rule=self.rule, created_ms=self.log.created_ms, name="b", id="b")

    def items(self) -> Iterator[Any]:
        yield InForce(self.log.created_ms, self.rule, self.rule.window_ms)
        yield Born(self.log.created_ms, self.log.after_seq, self.log.control)
        row = 0
        for until, other in self.log.others:
            if until > row:
                yield self._frame(row, until)
                row = until
            yield other if isinstance(other, Gap) else ControlSet(other[0], other[1])

    def _frame(self, start: int, stop: int) -> pl.DataFrame:
        samples = self.samples.part(start, stop)
        record = samples.at if self.samples.record is None else self.samples.record[start:stop]
        counts = np.ones(len(samples), np.int64) if samples.count is None else samples.count
        columns = {"ts_ms": samples.ts_ms, "value": samples.value, "ok": samples.ok, "received_ms": samples.at}
        return pl.DataFrame(columns | {"count": counts, "record": record.astype(np.int64)})


@pytest.mark.parametrize("seed", range(25))
def test_any_slice_of_what_happened_is_a_test_that_passes(tmp_path: Path, seed: int) -> None:
    rule, samples = made_up(seed, COUNT, spans=(10, 100, 1000))
    log = made_up_log(seed, samples, controls=4)
    effects, _ = log_replayed(rule, samples, log)
    moves = [one for one in effects if isinstance(one, Transition)]
    chance = random.Random(seed)
    first_ms, last_ms = log.created_ms, log.until_ms
    for from_ms in (first_ms - 1, chance.randint(first_ms, last_ms - 1)):
        to_ms = chance.choice([last_ms, chance.randint(from_ms + 1, last_ms)])
        found = cut(MadeUp(rule, samples, log), (), from_ms, to_ms)  # type: ignore[arg-type]
        assert found.begin is not None
        seq = found.begin.transition_seq
        happened = [one for one in moves if one.transition_seq > seq and found.start_ms <= one.ts_ms <= to_ms]
        last = [*found.samples["received_ms"].tail(1).to_list(), *(one.ts_ms for one in happened), found.start_ms]
        until_ms = min(to_ms, max(last))
        made = Recording([Part("b", "b", found, [one for one in happened if one.ts_ms <= until_ms], until_ms)])
        made.write(tmp_path / "made.test.yaml")
        done = run.test(tmp_path / "made.test.yaml")
        assert done.passed, done.rows.filter(pl.col("problem") != "").to_dicts()


@pytest.mark.parametrize("seed", range(25))
def test_the_engine_takes_a_breaker_up_as_the_core_does(seed: int) -> None:
    """From the record at any row, with the samples before it as what lies in the window."""
    rule, samples = made_up(seed, COUNT)
    chance = random.Random(seed)
    starts = [0, *np.flatnonzero(np.diff(samples.at)) + 1]
    row = int(chance.choice(starts[1:]))
    breaker, _ = Breaker.create(rule, int(samples.at[0]))
    for received_ms, batch in arrivals(samples.part(0, row)):
        breaker.ingest(batch, received_ms)
    breaker.advance(int(samples.at[row]) - 1)
    record, expected = breaker.record(), list[Effect]()
    for received_ms, batch in arrivals(samples.part(row, len(samples))):
        expected += breaker.ingest(batch, received_ms)
    expected += breaker.advance(int(samples.at[-1]))
    got: list[Effect] = []
    walk = Walk(rule, got.extend)
    engine = FastReplay([walk], chunk_rows=chance.choice([7, 100, 1 << 20]))
    engine.resume(record, samples.part(0, row))
    engine.feed(samples.part(row, len(samples)))
    engine.finish()
    assert walk.walker is not None
    assert got == expected
    assert walk.walker.breaker.record() == breaker.record()
