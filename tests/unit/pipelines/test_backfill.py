"""Backfill: counts that add up, rejected rows with their reasons, the events of a backtest, runs that are killed."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest

from breaker_actors.core.log_entries import SampleColumns, Splitter, share_of_trace
from breaker_actors.core.model import Batch, Transition
from breaker_actors.errors import Invalid
from pipelines.backfill import evaluate as evaluating
from pipelines.backfill import manifest as runs
from pipelines.backfill import steps as backfill
from pipelines.backfill.manifest import Manifest, Summary, begin, begun, ended, fate_of, fingerprint
from pipelines.backfill.removal import announce, remove
from pipelines.backfill.steps import InProcess, carry_out, survey
from pipelines.backfill.validation import REJECTS
from pipelines.backtest import backtest
from pipelines.columns import Samples
from pipelines.replay.reference import replay_samples
from pipelines.sources import history_store as history
from pipelines.sources.history_store import SCHEMA, History
from pipelines.sources.object_store import Folder, Place
from tests.support import recorded
from tests.support.recorded import NOW_MS, PROJECT, START_MS, Kept, breaker_id, router_id

ROUTERS = [recorded.router(0, 0, 1), recorded.router(1, 2, 3), recorded.router(2, 3), recorded.router(3)]
BREAKERS = [
    recorded.breaker(0, 0),
    recorded.breaker(1, 0, kind="p95", threshold=200),
    recorded.breaker(2, 1, kind="error_rate", threshold=0.15),
    recorded.breaker(3, 1, 2, kind="max", threshold=400),
]


@pytest.fixture
def place(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "history")


@pytest.fixture
def samples() -> pl.DataFrame:
    return recorded.samples(20_000, 4)


@pytest.fixture
def file(tmp_path: Path, samples: pl.DataFrame) -> Path:
    path = tmp_path / "samples.parquet"
    samples.write_parquet(path)
    return path


def planned(*files: Path, **fields: Any) -> Manifest:
    """A run over these files, read once."""
    plan = recorded.manifest(files, ROUTERS, BREAKERS, **fields)
    asked, _ = survey(plan.request, plan.norms())
    return msgspec.structs.replace(plan, request=asked)


def run(place: Place, plan: Manifest, service: Kept, workers: Any = None) -> Summary:
    begin(place, plan)
    return carry_out(place, plan, workers or InProcess(), service)


def stored(place: Place) -> pl.DataFrame:
    """All of the history store, sorted."""
    batches = list(History(place, history.files(place, PROJECT)).batches())
    return pl.concat(batches).sort("received_ms", "router_id", "value") if batches else pl.DataFrame(schema=SCHEMA)


def moves(service: Kept, number: int) -> list[tuple[Any, ...]]:
    """The events of a breaker, as a backtest would tell them."""
    drafts = [draft for (_, id_, _), draft in sorted(service.events.items()) if id_ == breaker_id(number)]
    return [(d.ts_ms, d.prev, d.curr, d.transition_seq, d.allow_rate, d.reason, d.value) for d in drafts]


TOLD = ("ts_ms", "prev", "curr", "transition_seq", "allow_rate", "reason", "value")


# -- what comes of a run ----------------------------------------------------------------------------------------------


def test_every_sample_is_in_the_store_once(place: Folder, file: Path, samples: pl.DataFrame) -> None:
    service = Kept()
    summary = run(place, planned(file), service)
    assert (summary.rows, summary.history, summary.live, summary.rejected) == (20_000, 20_000, 0, 0)
    assert summary.events == len(service.events) > 20
    assert summary.routers == 4
    found = stored(place)
    assert found.select("router_id", "metric", "ts_ms", "value", "ok").equals(
        samples.sort("ts_ms", "router_id", "value").select("router_id", "metric", "ts_ms", "value", "ok")
    )
    assert (found["received_ms"] == found["ts_ms"]).all()


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("number", range(3))
def test_events_are_those_of_a_backtest(
    place: Folder, file: Path, samples: pl.DataFrame, number: int, counted: bool
) -> None:
    """Of the same rule over the samples of the breaker's router."""
    service, row = Kept(), BREAKERS[number]
    if counted:
        several = pl.when(pl.int_range(len(samples)) % 7 == 0).then(pl.int_range(len(samples)) % 50 + 1)
        samples = samples.with_columns(count=several)
        samples.write_parquet(file)
    run(place, planned(file), service)
    mine = samples.filter(pl.col("router_id") == row.router_ids[0])
    expected = backtest(row.rule, mine).transitions.select(TOLD).rows()
    assert expected
    assert moves(service, number) == expected


def test_a_breaker_on_two_routers_takes_both_in_order(place: Folder, file: Path, samples: pl.DataFrame) -> None:
    """As one stream; its routers are evaluated together."""
    service, row = Kept(), BREAKERS[3]
    plan = planned(file)
    counts = dict.fromkeys((router_id(i) for i in range(4)), 1)
    assert evaluating.groups(plan, counts) == [(router_id(0),), (router_id(1), router_id(2))]
    assert evaluating.groups(plan, {router_id(2): 1}) == [(router_id(2),)]
    run(place, plan, service)
    mine = samples.filter(pl.col("router_id").is_in(row.router_ids))
    expected = backtest(row.rule, mine.drop("router_id")).transitions.select(TOLD).rows()
    assert expected
    assert moves(service, 3) == expected


def test_events_are_those_of_the_core(place: Folder, tmp_path: Path) -> None:
    """With times of arrival, late samples and samples in any order: the core's own replay, sorted by arrival."""
    draw = np.random.default_rng(3)
    given = recorded.samples(5_000, 1, seed=3, spacing_ms=150)
    late = given.with_columns(received_ms=pl.col("ts_ms") + pl.Series(draw.integers(0, 9_000, 5_000))).sample(
        fraction=1.0, shuffle=True, seed=4
    )
    late.write_ndjson(tmp_path / "late.ndjson")
    service = Kept()
    assert run(place, planned(tmp_path / "late.ndjson"), service).rows == 5_000
    ordered = late.sort("received_ms", maintain_order=True)
    columns = (ordered[name].to_numpy() for name in ("received_ms", "ts_ms", "value", "ok"))
    effects, _ = replay_samples(BREAKERS[0].rule, Samples(*columns))
    expected = [tuple(getattr(e, name) for name in TOLD) for e in effects if isinstance(e, Transition)]
    assert expected
    assert moves(service, 0) == expected


def test_routers_share_samples_out_as_when_live(place: Folder, tmp_path: Path) -> None:
    """By the hash of the trace, under the metadata of now; a disabled router gives nobody anything."""
    given = recorded.samples(4_000, 2, seed=7, spacing_ms=150)
    traces = pl.Series("trace_id", [f"t{i % 97}" for i in range(4_000)])
    given = given.with_columns(traces)
    given.write_parquet(tmp_path / "traced.parquet")
    shares = {f"canary:{breaker_id(0)}": "30"}
    routers = [recorded.router(0, 0, 1, mode="canary", metadata=shares), recorded.router(1, 2, enabled=False)]
    breakers = [recorded.breaker(0, 0), recorded.breaker(1, 0), recorded.breaker(2, 1)]
    plan = recorded.manifest([tmp_path / "traced.parquet"], routers, breakers)
    asked, _ = survey(plan.request, plan.norms())
    service = Kept()
    run(place, msgspec.structs.replace(plan, request=asked), service)
    mine = given.filter(pl.col("router_id") == router_id(0))
    share = np.array([share_of_trace(trace) for trace in mine["trace_id"]], np.int64)
    batch = Batch(mine["ts_ms"].to_numpy(), mine["value"].to_numpy(), mine["ok"].to_numpy())
    split = Splitter(plan.routers[0].view).split(SampleColumns(["latency"], [0, len(mine)], batch, share), "r", 1)
    taken = {id_: mine if rows is None else mine[rows] for id_, _, _, rows in split}
    assert 800 < len(taken[breaker_id(0)]) * 2 < 1_600
    for number in (0, 1):
        expected = backtest(breakers[number].rule, taken[breaker_id(number)]).transitions.select(TOLD).rows()
        assert expected
        assert moves(service, number) == expected
    assert moves(service, 2) == []


def test_samples_that_a_window_reaches_are_ingested(place: Folder, tmp_path: Path) -> None:
    """Newer than now minus the longest window of the router's breakers: not in the store, not evaluated, in order."""
    window_ms = 30_000
    rows = [(NOW_MS - window_ms - 1, 1.0), (NOW_MS - window_ms, 2.0), (NOW_MS + 5, 4.0), (NOW_MS - window_ms + 1, 3.0)]
    given = pl.DataFrame(rows, ("ts_ms", "value"), orient="row")
    given.with_columns(router_id=pl.lit(router_id(0)), metric=pl.lit("latency")).write_csv(tmp_path / "new.csv")
    service = Kept()
    summary = run(place, planned(tmp_path / "new.csv"), service)
    assert (summary.history, summary.live, summary.rejected) == (2, 2, 0)
    assert stored(place)["value"].to_list() == [1.0, 2.0]
    assert {key: piece["value"].to_list() for key, piece in service.live.items()} == {"run-1.000000": [3.0, 4.0]}
    assert [piece["count"].to_list() for piece in service.live.values()] == [[1, 1]]


def test_live_samples_that_were_staged_before_there_were_counts(place: Folder, file: Path) -> None:
    """A run that an earlier version began: each of them stands for one."""
    plan = planned(file)
    before = pl.DataFrame({"received_ms": [2, 1], "value": [2.0, 1.0]})
    place.write(f"{plan.folder}/live/{plan.chunk_of(0)}.parquet", history.parquet(before))
    found = runs.live_of(place, plan, runs.Chunk(0, 0, 0))
    assert found is not None
    assert found.select("value", "count").rows() == [(1.0, 1), (2.0, 1)]


def test_without_breakers_all_up_to_now_is_history(place: Folder, tmp_path: Path) -> None:
    given = pl.DataFrame({"ts_ms": [NOW_MS - 1, NOW_MS], "value": [1.0, 2.0]})
    given.with_columns(router_id=pl.lit(router_id(3)), metric=pl.lit("latency")).write_csv(tmp_path / "new.csv")
    summary = run(place, planned(tmp_path / "new.csv"), Kept())
    assert (summary.history, summary.events) == (2, 0)


# -- rejected rows ----------------------------------------------------------------------------------------------------

BAD = [
    ({"router_id": router_id(9)}, "router_id", "invalid_router_id"),
    ({"router_id": ""}, "router_id", "invalid_router_id"),
    ({"metric": ""}, "metric", "invalid_metric"),
    ({"metric": "m" * 129}, "metric", "invalid_metric"),
    ({"ts_ms": "yesterday"}, "ts_ms", "invalid_ts_ms"),
    ({"ts_ms": ""}, "ts_ms", "invalid_ts_ms"),
    ({"ts_ms": "-1"}, "ts_ms", "invalid_ts_ms"),
    ({"ts_ms": "14/11/2023"}, "ts_ms", "invalid_ts_ms"),
    ({"ts_ms": "9" * 30}, "ts_ms", "invalid_ts_ms"),
    ({"ts_ms": str(NOW_MS + 300_001)}, "ts_ms", "ts_ms_in_future"),
    ({"value": "NaN"}, "value", "invalid_value"),
    ({"value": "inf"}, "value", "invalid_value"),
    ({"value": "9" * 400}, "value", "invalid_value"),
    ({"value": "fast"}, "value", "invalid_value"),
    ({"value": ""}, "value", "invalid_value"),
    ({"ok": "perhaps"}, "ok", "invalid_ok"),
    ({"count": "0"}, "count", "invalid_count"),
    ({"count": "10000001"}, "count", "invalid_count"),
    ({"count": "1.5"}, "count", "invalid_count"),
    ({"count": "few"}, "count", "invalid_count"),
    ({"received_ms": "later"}, "received_ms", "invalid_received_ms"),
    ({"received_ms": str(NOW_MS + 300_001)}, "received_ms", "received_ms_in_future"),
    ({"router_id": "?", "value": "NaN"}, "router_id", "invalid_router_id"),
]
GOOD = [
    {},
    {"ts_ms": "2023-11-14T22:13:21Z"},
    {"ts_ms": "2023-11-14 22:13:22"},
    {"ts_ms": "2023-11-14T22:13Z"},
    {"ts_ms": "2023-11-14 23:13:22+01"},
    {"ok": "0"},
    {"ok": ""},
    {"value": "9" * 300},
    {"value": " 1e3 "},
    {"router_id": router_id(0).upper()},
    {"received_ms": str(NOW_MS)},
    {"count": "7"},
    {"count": " 1 "},
]
ROW = {
    "router_id": router_id(0), "metric": "latency", "ts_ms": str(START_MS), "received_ms": "", "value": "1.5",
    "ok": "true", "trace_id": "", "count": "",
}  # fmt: skip


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    lines = [",".join(ROW), *(",".join((ROW | row).values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def rejects_of(place: Place, plan: Manifest, tmp_path: Path) -> pl.DataFrame:
    path = tmp_path / "rejects.csv"
    path.write_bytes(b"".join(runs.rejects(place, plan)))
    return pl.read_csv(path, infer_schema=False)


def test_rejected_rows_say_where_and_why(place: Folder, tmp_path: Path) -> None:
    """None is dropped: each is in the file of rejects with its row, the column, the reason, and as it was; good rows
    around them are taken. Whatever the chunks."""
    mixed = [(row, None, None) for row in GOOD] + BAD
    random.Random(1).shuffle(mixed)
    path = write_rows(tmp_path / "mixed.csv", [row for row, _, _ in mixed])
    expected = [
        (str(path), str(number), column, reason)
        for number, (_, column, reason) in enumerate(mixed, 1)
        if column is not None
    ]
    for chunk_rows in (1, 5, 1_000):
        plan = planned(path, run_id=f"run-{chunk_rows}", chunk_rows=chunk_rows)
        summary = run(place, plan, Kept())
        found = rejects_of(place, plan, tmp_path)
        assert tuple(found.columns) == REJECTS
        assert found.select(REJECTS[:4]).rows() == expected
        assert summary.reasons == dict(Counter(reason for _, _, reason in BAD))
        assert (summary.rows, summary.rejected, summary.history) == (len(mixed), len(BAD), len(GOOD))
    was = {row["row"]: row for row in found.iter_rows(named=True)}
    for number, (row, column, _) in enumerate(mixed, 1):
        if column is not None:
            assert (was[str(number)][column] or "") == row[column]


def test_rows_of_parquet_are_rejected_alike(place: Folder, tmp_path: Path) -> None:
    """Nulls, NaN, infinities and integers beyond 64 bits, in columns of numbers."""
    given = pl.DataFrame(
        {
            "router_id": [router_id(0)] * 5 + [None],
            "metric": "latency",
            "ts_ms": pl.Series([1, 2, 3, 2**64 - 1, None, 6], dtype=pl.UInt64),
            "value": [math.nan, math.inf, 1.0, 1.0, 1.0, 1.0],
        }
    )
    given.write_parquet(tmp_path / "a.parquet")
    plan = planned(tmp_path / "a.parquet")
    assert run(place, plan, Kept()).history == 1
    reasons = rejects_of(place, plan, tmp_path)["reason"].to_list()
    assert reasons == ["invalid_value", "invalid_value", "invalid_ts_ms", "invalid_ts_ms", "invalid_router_id"]


def test_nothing_is_rejected_nothing_is_written_about_it(place: Folder, file: Path, tmp_path: Path) -> None:
    plan = planned(file)
    run(place, plan, Kept())
    assert list(runs.rejects(place, plan)) == []


def test_blanks_are_filled_by_options(place: Folder, tmp_path: Path) -> None:
    """A router and a metric for the rows that name none, whether the columns are there or not; others keep theirs."""
    write_rows(tmp_path / "a.csv", [{"router_id": "", "metric": ""}, {"router_id": router_id(1), "metric": "other"}])
    (tmp_path / "b.csv").write_text(f"at,v\n{START_MS},2.5\n")
    plan = planned(tmp_path / "a.csv", router_id=router_id(2), metric="latency")
    run(place, plan, Kept())
    plan = planned(
        tmp_path / "b.csv", run_id="run-2", router_id=router_id(3), metric="m", columns={"ts_ms": "at", "value": "v"}
    )
    run(place, plan, Kept())
    found = stored(place).sort("router_id").select("router_id", "metric", "value").rows()
    assert found == [(router_id(1), "other", 1.5), (router_id(2), "latency", 1.5), (router_id(3), "m", 2.5)]


# -- input that can't be used -----------------------------------------------------------------------------------------


def refused(*files: Path, **fields: Any) -> str:
    with pytest.raises(Invalid) as caught:
        planned(*files, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_cant_be_used_is_named(tmp_path: Path, samples: pl.DataFrame) -> None:
    """With the column where there is one, before anything is written."""
    few = samples.head(10)

    def written(name: str, frame: pl.DataFrame) -> Path:
        frame.write_parquet(tmp_path / name)
        return tmp_path / name

    whole = written("whole.parquet", samples)
    no_value, no_router = written("a.parquet", few.drop("value")), written("b.parquet", few.drop("router_id"))
    assert refused(no_value).startswith(f"{no_value}: there is no column 'value'")
    assert refused(no_router).startswith(f"{no_router}: there is no column 'router_id'")
    assert "--router" in refused(no_router)
    no_column = refused(written("none.parquet", few.drop("router_id", "metric", "value", "ts_ms")))
    for told in ("no columns 'ts_ms', 'value'", "no column 'router_id'", "--router", "no column 'metric'", "--metric"):
        assert told in no_column
    wrong = written("c.parquet", few.with_columns(value=pl.col("ok")))
    assert refused(wrong) == f"{wrong}: its column 'value' is Boolean, not numbers"
    wrong = written("d.parquet", few.with_columns(ts_ms=pl.col("ok")))
    assert refused(wrong) == f"{wrong}: its column 'ts_ms' is Boolean, not Unix milliseconds or a time"
    wrong = written("e.parquet", few.with_columns(metric=pl.lit(7)))
    assert refused(wrong) == f"{wrong}: its column 'metric' is Int32, not text"
    mixed = written("f.parquet", few.with_columns(ts_ms=pl.col("ts_ms").cast(pl.Datetime("ms"))))
    assert refused(whole, mixed) == f"{mixed}: its column 'ts_ms' is times, in {whole} it is numbers"
    mixed = written("g.parquet", few.drop("ok"))
    assert refused(whole, mixed) == f"{mixed}: its column 'ok' is missing, in {whole} it is flags"
    empty = written("h.parquet", few.clear())
    assert refused(empty) == f"{empty}: there is no sample in it"
    (tmp_path / "i.csv").write_text("")
    assert refused(tmp_path / "i.csv") == f"{tmp_path / 'i.csv'} is empty"
    (tmp_path / "j.csv").write_text("ts_ms,value,router_id,metric\n1,2,3,4\n1,2,3,4,5,6\n")
    assert refused(tmp_path / "j.csv").startswith(f"{tmp_path / 'j.csv'}, row 2 can't be read: ")


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_truncated_parquet_file(tmp_path: Path, file: Path, keep: int) -> None:
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(file.read_bytes()[:keep])
    assert refused(file, cut).startswith(f"{cut} can't be read: ")


def test_a_parquet_file_damaged_in_the_middle(tmp_path: Path, samples: pl.DataFrame) -> None:
    """Is noticed before anything is written, though its head and its end are whole."""
    path = tmp_path / "damaged.parquet"
    samples.write_parquet(path, row_group_size=1_000)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 2_000] = bytes(2_000)
    path.write_bytes(content)
    assert refused(path).startswith(f"{path} can't be read: ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"a\.parquet can't be read: No such file"):
        fingerprint(tmp_path / "a.parquet")


def test_a_file_that_became_shorter(place: Folder, file: Path, samples: pl.DataFrame) -> None:
    """After the run began: an error, not fewer samples."""
    plan = planned(file)
    begin(place, plan)
    samples.head(100).write_parquet(file)
    with pytest.raises(Invalid, match="has changed since the run began"):
        carry_out(place, plan, InProcess(), Kept())


@pytest.mark.parametrize("id_", ["", "../x", "A", "a.b", "a" * 65])
def test_ids_that_are_no_names(id_: str) -> None:
    with pytest.raises(Invalid, match="--run"):
        runs.check_run_id(id_)


# -- runs that are killed, and repeated -------------------------------------------------------------------------------


class Killed(BaseException):
    """As a SIGKILL between two writes."""


class Deadly(Folder):
    """A folder whose process dies after so many writes: before the file is there, or just when it is."""

    def __init__(self, path: Path, writes: int, before: bool) -> None:
        super().__init__(path)
        self._left, self._before = writes, before

    def write(self, name: str, content: bytes) -> None:
        self._left -= 1
        if self._left < 0 and self._before:
            raise Killed
        super().write(name, content)
        if self._left < 0:
            raise Killed


class Dying:
    """Carries steps out in this process on a given place."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def map(self, work: Callable[..., Any], items: Sequence[Any], *, here: bool = False) -> Iterator[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backfill, "open_place", lambda url: self._place)
            yield from map(work, items)


def contents(place: Folder) -> dict[str, bytes]:
    return {name: place.read(name) or b"" for name in place.names("")}


def test_a_run_that_is_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every single write, before and after it: the same files and the same events as without, none twice."""
    monkeypatch.setattr(evaluating, "EVENTS_HELD", 20)
    given = recorded.samples(1_200, 3, seed=5, spacing_ms=300)
    given[17, "value"] = math.nan
    newest = given.tail(5).with_columns(ts_ms=pl.lit(NOW_MS, pl.Int64))
    pl.concat([given, newest]).write_parquet(tmp_path / "s.parquet")
    plan = planned(tmp_path / "s.parquet", chunk_rows=1_000)
    whole, service = Folder(tmp_path / "whole"), Kept()
    expected = run(whole, plan, service)
    assert (expected.rows, expected.history, expected.live, expected.rejected) == (1_205, 1_199, 5, 1)
    assert len([name for name in whole.names("") if name.endswith(".msgpack")]) > 2
    for writes, before in itertools.product(range(len(whole.names(""))), (True, False)):
        path, again = tmp_path / f"{writes}-{before}", Kept()
        dying = Deadly(path, writes, before)
        with pytest.raises(Killed):
            run(dying, plan, again, Dying(dying))
        place = Folder(path)
        known = begun(place, plan.request, plan.run_id)
        assert known == (None if before and not writes else plan)
        assert ended(place, plan) is None or not before
        assert run(place, plan, again) == expected
        assert contents(place) == contents(whole)
        assert again.events == service.events
        assert again.live.keys() == service.live.keys()


def test_a_service_that_is_away(place: Folder, file: Path) -> None:
    """The run goes on where it was, and tells it everything once it is there; what it had been told is not asked for
    again."""
    service, expected = Kept(), Kept()
    run(Folder(Path(place.url) / "other"), planned(file), expected)

    def away() -> None:
        if service.calls == 1:
            raise Killed

    service._before = away
    plan = planned(file)
    with pytest.raises(Killed):
        run(place, plan, service)
    calls = service.calls
    service._before = lambda: None
    run(place, plan, service)
    assert service.events == expected.events
    assert service.calls <= calls + expected.calls


def test_a_run_has_the_inputs_it_began_with(place: Folder, file: Path, tmp_path: Path) -> None:
    """Moved files are the same; others are refused, and so are other options. Without an id it is named by them."""
    plan = planned(file)
    begin(place, plan)
    moved = file.rename(tmp_path / "moved.parquet")
    again = recorded.manifest([moved], ROUTERS, BREAKERS).request
    known = begun(place, again, "run-1")
    assert known is not None
    assert [one.path for one in known.request.inputs] == [str(moved)]
    assert known.request.inputs[0].rows == 20_000
    assert again.run_id() == plan.request.run_id()
    for other in (msgspec.structs.replace(again, metric="m"), msgspec.structs.replace(again, inputs=again.inputs * 2)):
        assert other.run_id() != again.run_id()
        with pytest.raises(Invalid, match="run-1 was begun with other inputs"):
            begun(place, other, "run-1")
    assert begun(place, again, "run-2") is None


def test_a_run_keeps_the_configuration_it_began_with(place: Folder, file: Path) -> None:
    """Rules that are edited between a stop and the going on change nothing: one run has events of one set of rules."""
    plan = planned(file)
    begin(place, plan)
    known = begun(place, plan.request, "run-1")
    assert known is not None
    assert known.breakers == plan.breakers
    assert known.routers == plan.routers
    assert known.now_ms == NOW_MS


def test_a_dry_run_counts_alike_and_writes_nothing(place: Folder, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "mixed.csv", [row for row, *_ in BAD] + GOOD)
    plan = recorded.manifest([path], ROUTERS, BREAKERS)
    asked, counts = survey(plan.request, plan.norms())
    assert not Path(place.url).exists()
    summary = run(place, msgspec.structs.replace(plan, request=asked), Kept())
    assert (counts.rows, counts.history, counts.live) == (summary.rows, summary.history, summary.live)
    assert (counts.reasons, counts.rejected) == (summary.reasons, summary.rejected)
    assert len(counts.routers) == summary.routers


def test_times_in_seconds_come_to_the_same(place: Folder, file: Path, samples: pl.DataFrame, tmp_path: Path) -> None:
    """The history, its span, and a run of another id."""
    seconds = tmp_path / "seconds.parquet"
    samples.with_columns(ts_ms=pl.col("ts_ms") / 1000).write_parquet(seconds)
    summary = run(place, planned(seconds, time_unit="s"), Kept())
    assert (summary.first_ms, summary.last_ms) == (samples["ts_ms"].min(), samples["ts_ms"].max())
    assert stored(place)["ts_ms"].sort().equals(samples["ts_ms"].sort())
    one, other = (recorded.manifest([seconds], ROUTERS, BREAKERS, time_unit=unit).request for unit in ("ms", "s"))
    assert one.run_id() != other.run_id()


def test_folders_on_the_way_to_a_file_are_columns(place: Folder, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "metric=latency" / f"router_id={router_id(0)}"
    folder.mkdir(parents=True)
    pl.DataFrame({"ts_ms": [recorded.START_MS], "value": [1.0]}).write_parquet(folder / "part.parquet")
    run(place, planned(folder / "part.parquet"), Kept())
    assert stored(place).select("router_id", "metric").rows() == [(router_id(0), "latency")]


def test_what_tasks_are_given_survives_pickling(file: Path) -> None:
    plan = planned(file)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert pickle.loads(pickle.dumps(plan.chunks())) == plan.chunks()


def test_progress_ends_at_the_total(place: Folder, file: Path) -> None:
    plan, told = planned(file), []
    begin(place, plan)
    carry_out(place, plan, InProcess(), Kept(), lambda *step: told.append(step))
    last = {words: (done, total) for words, done, total in told}
    assert last["writing history"] == (20_000, 20_000)
    assert all(done == total for done, total in last.values())


@pytest.mark.parametrize("at", ["writing history", "evaluating routers", "storing events", "the end"])
def test_a_run_that_is_removed_while_it_is_loaded_leaves_nothing(place: Folder, file: Path, at: str) -> None:
    """Whoever loads it takes back what the removal has not seen, and says so."""
    plan, service = planned(file, chunk_rows=5_000), Kept()
    begin(place, plan)

    def tell(words: str, done: int, total: int) -> None:
        last = words == "ingesting live samples" and done == total
        if words == at or (at == "the end" and last):
            with suppress(Invalid):  # there is no such run any more
                announce(place, PROJECT, plan.run_id)
                service.forget(plan.run_id)
                remove(place, PROJECT, plan.run_id)

    with pytest.raises(Invalid, match=f"run {plan.run_id} was removed while it was loaded"):
        carry_out(place, plan, InProcess(), service, tell)
    assert service.events == {}
    assert [path for path in Path(place.url).rglob("*") if path.is_file()] == []
    assert run(place, plan, service).events == len(service.events) > 0


def test_a_removal_that_was_stopped_is_gone_on_with_first(place: Folder, file: Path) -> None:
    plan = planned(file)
    run(place, plan, Kept())
    announce(place, PROJECT, plan.run_id)
    with pytest.raises(Invalid, match=f"run {plan.run_id} is being removed; `breakers backfills remove"):
        begin(place, plan)
    assert remove(place, PROJECT, plan.run_id) > 0
    run(place, plan, Kept())


def test_a_run_that_was_begun_anew_meanwhile_is_left_alone(place: Folder, file: Path) -> None:
    plan, anew = planned(file), planned(file, now_ms=recorded.NOW_MS + 1)
    begin(place, plan)
    with pytest.raises(Invalid, match="was removed and begun anew while it was loaded"):
        carry_out(place, plan, InProcess(), Kept(), lambda *_: begin(place, anew))
    assert fate_of(place, anew) == "here"


def test_a_breaker_that_never_rests_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, place: Folder) -> None:
    """There is a bound for the events of a group, and it says what to do."""
    monkeypatch.setattr(evaluating, "EVENTS_MAX", 3)
    with pytest.raises(Invalid, match="move more than 3 times; give them minimum durations"):
        run(place, planned(file), Kept())


def test_events_are_held_a_few_at_a_time(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While they are found and while they are stored; what comes of them is the same, of each breaker in its order."""
    expected, service, place = Kept(), Kept(), Folder(tmp_path / "few")
    whole = run(Folder(tmp_path / "whole"), planned(file), expected)
    monkeypatch.setattr(evaluating, "EVENTS_HELD", 4)
    plan = planned(file)
    assert run(place, plan, service) == whole
    assert service.events == expected.events
    told: list[tuple[str, int]] = []
    for group in evaluating.groups(plan, dict.fromkeys(map(router_id, range(4)), 1)):
        lots = list(backfill.events_of(place, plan, group))
        assert [len(lot) for lot in lots[:-1]] == [4] * (len(lots) - 1)
        told += [(id_, draft.transition_seq) for lot in lots for id_, draft in lot]
    assert len(told) == whole.events > 20
    for id_ in {id_ for id_, _ in told}:
        assert [seq for one, seq in told if one == id_] == list(range(1, len([1 for one, _ in told if one == id_]) + 1))
