"""Makes a test of what a breaker of a running service did.

    from pipelines.ruletests.recording import record

    made = record("checkout", "2026-11-18T03:00:00Z", "2026-11-18T04:00:00Z")
    made.moves                              # a polars frame: what happened, which is what the test expects
    made.write("incident.test.yaml")        # and incident.samples.parquet beside it, unless samples are few

The test stands alone: it has the rule as it was in force, how the breaker stood at the beginning, and every sample that
could count. It is run before it is handed out; one that would not pass is refused, with the reason. Of history the
moves are those of a backtest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from breaker_actors.clock import Clock, SystemClock
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings
from pipelines.frames import to_pandas
from pipelines.recorded import recorded
from pipelines.ruletests.happened import Happened, happened
from pipelines.ruletests.outcome import Outcome, judgements
from pipelines.ruletests.run import test
from pipelines.ruletests.slicing import Slice, cut
from pipelines.ruletests.times import instant_ms, written
from pipelines.ruletests.words import lines_of
from pipelines.ruletests.writing import Part, document
from pipelines.sources.atomic_files import replacing

Schema = dict[str, pl.DataType | type[pl.DataType]]
ROWS_SHOWN = 12
OF_HISTORY = "of history, which nobody was told of: the moves are those of `breakers backtest --from-service`"
MOVES: Schema = {
    "breaker": pl.String, "ts_ms": pl.Int64, "ts": pl.Datetime("ms", "UTC"), "prev": pl.String, "curr": pl.String,
    "transition_seq": pl.Int64, "reason": pl.String, "value": pl.Float64, "count": pl.Int64, "hidden_by": pl.String,
}  # fmt: skip


@dataclass(slots=True, repr=False)
class Recording:
    """A test of what happened. `remarks`: what of the log is not known for sure."""

    parts: list[Part]
    remarks: list[str] = field(default_factory=list)

    @property
    def moves(self) -> pl.DataFrame:
        """One row for each move that the test expects."""
        rows = [
            (
                part.name, move.ts_ms, move.ts_ms, move.prev, move.curr, move.transition_seq, move.reason, move.value,
                move.agg.count, move.hidden_by,
            )
            for part in self.parts
            for move in part.moves
        ]  # fmt: skip
        return pl.DataFrame(rows, MOVES, orient="row")

    def to_pandas(self) -> dict[str, Any]:
        """The frame by its name, for pandas."""
        return {"moves": to_pandas(self.moves)}

    def write(self, path: str | Path) -> list[Path]:
        """Writes the test and, beside it, what samples do not stand in it. Raises Invalid."""
        path = Path(path)
        if not path.name.endswith((".test.yaml", ".test.yml")):
            raise Invalid(f"{path}: a file of tests is named *.test.yaml")
        text, files = document(self.parts, path.name.rsplit(".test.", 1)[0])
        for name, frame in files.items():
            with replacing(path.parent / name) as beside:
                frame.write_parquet(beside)
        with replacing(path) as beside:
            beside.write_text(text, encoding="utf-8")
        return [path, *(path.parent / name for name in files)]

    def __repr__(self) -> str:
        return f"Recording({len(self.parts)} {'test' if len(self.parts) == 1 else 'tests'})\n{self.moves}"


def record(
    breaker: str | Sequence[str] | None,
    from_: object,
    to: object = None,
    *,
    settings: Settings | None = None,
    data_dir: str | Path | None = None,
    clock: Clock | None = None,
) -> Recording:
    """What breakers of a service did from one instant to another (None: now), as a test. Raises Invalid.

    `breaker`: by name or id, one or many; None: the only one there is. `settings`, `data_dir`: as `recorded` takes
    them."""
    from_ms = instant_ms(from_)
    to_ms = (clock or SystemClock()).now_ms() if to is None else instant_ms(to)
    if to_ms <= from_ms:
        raise Invalid(f"{written(from_ms)} to {written(to_ms)}: nothing lies between them")
    made = Recording([])
    for name in [breaker] if breaker is None or isinstance(breaker, str) else list(breaker):
        log = recorded(name, settings, data_dir=data_dir)
        found = happened(log, from_ms, to_ms)
        part = _part(found, cut(found.source, found.events, from_ms, to_ms), to_ms)
        made.parts.append(part)
        remarks = [*found.source.remarks, *([OF_HISTORY] if found.source.part == "history" else [])]
        made.remarks += [f"{part.name}: {remark}" for remark in remarks]
    _check(made)
    return made


def _part(of: Happened, found: Slice, to_ms: int) -> Part:
    """A slice with what happened in it. It ends with its last sample, event or other thing."""
    seq, log = found.begin.transition_seq if found.begin is not None else 0, of.source
    moves = [move for move in of.moves if found.start_ms <= move.ts_ms and move.transition_seq > seq]
    if not len(found.samples) and not moves:
        raise Invalid(f"{log.row.name}: nothing is in its log from then on; logs are kept for log_retention_ms")
    last = [*found.samples["received_ms"].tail(1).to_list(), *(move.ts_ms for move in moves)]
    until_ms = min(to_ms, max(found.start_ms, *last))
    return Part(log.row.name, log.row.id, found, moves, until_ms)


def _check(made: Recording) -> None:
    """Runs the test. Raises Invalid where it does not pass, and where it would pass with any rule."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recorded.test.yaml"
        made.write(path)
        done = test(path)
    if done.failures:
        raise Invalid(_refusal(done.failures[0], made))
    for part, outcome in zip(made.parts, done.outcomes, strict=True):
        if not part.moves and not judgements(outcome):
            times = f"{written(part.slice.start_ms)} to {written(part.until_ms)}"
            words = f"0 evaluations from {times}: no window had samples enough for a verdict (min_count"
            raise Invalid(f"{part.name}: {words} {part.slice.rule.min_count}), so any rule would pass the test")


def _refusal(failure: Outcome, made: Recording) -> str:
    rows = lines_of(failure)
    told = rows[:1] + [row for row, one in zip(rows[1:], failure.rows, strict=True) if one.problem][:ROWS_SHOWN]
    reasons = "; ".join(made.remarks) or "its last events may be on their way: try again, or end the slice earlier"
    return f"{failure.breaker.name}: a replay of its log moves otherwise than it did ({reasons})\n" + "\n".join(told)
