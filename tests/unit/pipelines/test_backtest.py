"""`backtest`: frames of what breakers did, over files and frames, with filters, sweeps and labelled failures."""

from __future__ import annotations

import json
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from breaker_actors.core.model import Transition
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Invalid
from pipelines import backtest as module
from pipelines.backtest import Backtest, BacktestWarning, backtest, source_of
from pipelines.columns import Samples
from pipelines.replay.reference import replay_samples
from tests.support.series import LATENCY, WINDOWS

START_MS = 1_700_000_000_000
RULE: dict[str, Any] = {
    "name": "slow", "metric": "latency", "kind": "avg", "op": "gt", "threshold": 10, "window_ms": 500,
    "eval_interval_ms": 100, "min_state_duration_ms": 200,
}  # fmt: skip


def recorded(count: int = 4000, seed: int = 0) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    ts_ms = np.cumsum(draw.integers(0, 20, count)) + 1_700_000_000_000
    return pl.DataFrame({"ts_ms": ts_ms, "value": 9 + 3 * np.sin(ts_ms / 3000) + draw.normal(0, 1, count)})


def core_moves(frame: pl.DataFrame, **changes: Any) -> list[tuple[Any, ...]]:
    fields = {name: value for name, value in (RULE | changes).items() if name != "name"}
    at = frame["ts_ms"].to_numpy()
    ok = frame["ok"].to_numpy() if "ok" in frame.columns else np.ones(len(at), np.bool_)
    effects, _ = replay_samples(parse_rule(fields), Samples(at, at, frame["value"].to_numpy(), ok))
    return [
        (e.ts_ms, e.prev, e.curr, e.transition_seq, e.allow_rate, e.reason, e.value, *_agg(e))
        for e in effects
        if isinstance(e, Transition)
    ]


def _agg(move: Transition) -> tuple[float, int, int, float]:
    return move.agg.avg, move.agg.count, move.agg.error_count, move.agg.p95


def moves(run: Backtest) -> list[tuple[Any, ...]]:
    return run.transitions.drop("breaker", "trace_id", "ts", "hidden_by", "by", "comment").rows()


def test_frames() -> None:
    """Transitions are the core's; stays fill the span; the summary adds them up."""
    frame = recorded()
    run = backtest(RULE, frame)
    assert moves(run) == core_moves(frame)
    assert len(run.transitions) > 10
    first, last = frame["ts_ms"][0], frame["ts_ms"][-1]
    assert (run.states["from_ms"][0], run.states["to_ms"][-1]) == (first, last)
    assert run.states["from_ms"][1:].to_list() == run.states["to_ms"][:-1].to_list()
    row = run.summary.row(0, named=True)
    for state in ("closed", "half_open", "open"):
        assert row[f"{state}_ms"] == run.states.filter(state=state)["duration_ms"].sum()
    assert row["trips"] == run.transitions.filter(curr="open").height
    assert (row["samples"], row["late"], row["truncated"], run.sweep) == (4000, 0, 0, None)


def test_pandas_in_and_out() -> None:
    """A pandas frame is taken, times with a zone too, and frames are given back for pandas without further packages."""
    frame = recorded(500)
    known = backtest(RULE, frame)
    times = pd.to_datetime(frame["ts_ms"].to_numpy(), unit="ms", utc=True).tz_convert("Europe/Berlin")
    run = backtest(RULE, pd.DataFrame({"ts_ms": times, "value": frame["value"].to_list(), "trace_id": None}))
    assert run.transitions.equals(known.transitions)
    for name in (None, "ts_ms", "timestamp", "value's time"):
        indexed = pd.DataFrame({"value": frame["value"].to_list()}, index=pd.DatetimeIndex(times, name=name))
        assert backtest(RULE, indexed).transitions.equals(known.transitions.with_columns(trace_id=None))
    back = run.to_pandas()
    assert back["transitions"]["ts_ms"].tolist() == known.transitions["ts_ms"].to_list()
    assert set(back) == {"transitions", "states", "summary"}
    assert str(back["summary"]["trips"].dtype) == "int64"


def test_an_index_of_another_name_can_be_named() -> None:
    frame = pd.DataFrame({"value": [1.0, 2.0]}, index=pd.DatetimeIndex([START_MS * 10**6] * 2, name="at"))
    assert backtest(RULE, frame, columns={"ts_ms": "at"}).summary["samples"].to_list() == [2]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (
            pd.Series([1.0], index=pd.DatetimeIndex([0])),
            r'a pandas Series has no columns; give series.to_frame\("value"\)',
        ),
        (pl.Series([1.0]), "a polars Series has no times; give a frame with ts_ms and value"),
    ],
)
def test_a_series_is_no_frame(samples: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        backtest(RULE, samples)


@pytest.mark.parametrize("factor", [10**3, 10**6])
def test_times_in_another_unit_are_hinted_at(factor: int) -> None:
    frame = recorded(10).with_columns(pl.col("ts_ms") * factor)
    words = "is not Unix milliseconds between 1970 and 9999; if it is in another unit, give time_unit='s', 'us' or 'ns'"
    with pytest.raises(Invalid, match=words):
        backtest(RULE, frame)


def test_what_is_no_time_is_told_the_forms() -> None:
    words = "row 1: ts_ms 'soon' is not a time; times are Unix milliseconds or ISO 8601, as 2026-01-31T12:00:00.5Z or"
    with pytest.raises(Invalid, match=words):
        backtest(RULE, pl.DataFrame({"ts_ms": ["soon"], "value": [1.0]}))
    with pytest.raises(Invalid, match='"soon" is not a time; times are Unix milliseconds or ISO 8601'):
        backtest(RULE, recorded(10), windows=[["soon", 5]])
    for text in ("2026-01-31T12:00:00.5Z", "2026-01-31 12:00"):
        assert backtest(RULE, pl.DataFrame({"ts_ms": [text], "value": [1.0]})).summary["samples"][0] == 1


def test_json() -> None:
    with pytest.warns(BacktestWarning):
        run = backtest(RULE, recorded(), windows=[[1_700_000_000_000, 1_700_000_009_000], [0, 1]])
    told = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    first = told["transitions"][0]
    assert list(first) == [
        "breaker", "ts_ms", "prev", "curr", "transition_seq", "allow_rate", "reason", "value", "trace_id", "hidden_by",
        "by", "comment", "agg",
    ]  # fmt: skip
    assert set(first["agg"]) == {"avg", "count", "error_count", "p95"}
    (rule,) = told["summary"]["rules"]
    assert (rule["breaker"], rule["caught"], rule["caught_all"]) == ("slow", 1, True)
    assert [window["latency_ms"] is None for window in rule["windows"]] == [True, False]
    assert [window["has_samples"] for window in rule["windows"]] == [False, True]


def test_metrics_and_routers() -> None:
    """Samples that name a metric or router reach the breakers of that metric and router only."""
    one, other = recorded(2000, 1), recorded(2000, 2)
    frame = pl.concat([
        one.with_columns(metric=pl.lit("latency"), router_id=pl.lit("r1")),
        other.with_columns(metric=pl.lit("latency"), router_id=pl.lit("r2")),
        other.with_columns(metric=pl.lit("size"), router_id=pl.lit("r1")),
    ]).sort("ts_ms", maintain_order=True)  # fmt: skip
    both = pl.concat([one, other]).sort("ts_ms", maintain_order=True)
    rules = [RULE, RULE | {"name": "r1", "router_id": "r1"}, RULE | {"name": "size", "metric": "size"}]
    with pytest.warns(BacktestWarning, match=r"samples of 2 routers \(.*\) count as one series"):
        run = backtest(rules, frame)
    told = {name: moves(Backtest.of([r], None)) for name, r in zip(("all", "r1", "size"), run.runs, strict=True)}
    assert told == {"all": core_moves(both), "r1": core_moves(one), "size": core_moves(other)}
    assert run.summary["samples"].to_list() == [4000, 2000, 2000]
    with pytest.raises(Invalid, match="no sample has metric 'none'; there are metric: 'latency', 'size'"):
        backtest(RULE | {"metric": "none"}, frame)
    with pytest.raises(Invalid, match="no sample has metric 'latency' and router_id 'r3'"):
        backtest(RULE | {"router_id": "r3"}, frame)


def test_of_which_routers_is_an_argument_too() -> None:
    """As of the command and of suggest: one or several, in any case, each of which has to be there."""
    one, other, third = recorded(1000, 1), recorded(1000, 2), recorded(1000, 3)
    frame = pl.concat(
        [piece.with_columns(service=pl.lit(name)) for piece, name in ((one, "A"), (other, "b"), (third, "c"))]
    ).sort("ts_ms", maintain_order=True)
    named = {"columns": {"router_id": "service"}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = backtest(RULE | {"router_id": "c"}, frame, routers="a", sweep={"threshold": [90, 110]}, **named)
        both = backtest(RULE, frame, routers=["A", "B"], **named)
    assert [one.samples for one in run.runs] == [1000] * 3
    assert both.summary["samples"].to_list() == [2000]
    with pytest.warns(BacktestWarning, match=r"name router_ids in the rule, or give routers=\[\.\.\.\]"):
        backtest(RULE, frame, **named)
    with pytest.raises(Invalid, match="no sample has router_id 'd'; there are router_id: 'A', 'b', 'c'"):
        backtest(RULE, frame, routers=["a", "d"], **named)
    with pytest.raises(Invalid, match=r'routers: the samples have no column router_id; .*\{"router_id": THEIRS\}'):
        backtest(RULE, frame, routers=["a"])


def test_a_breaker_on_several_routers() -> None:
    """It takes the samples of all of them, in whatever case ids are written."""
    one, other, third = recorded(1000, 1), recorded(1000, 2), recorded(1000, 3)
    frame = pl.concat(
        [piece.with_columns(router_id=pl.lit(name)) for piece, name in ((one, "A"), (other, "b"), (third, "c"))]
    ).sort("ts_ms", maintain_order=True)
    both = pl.concat([one, other]).sort("ts_ms", maintain_order=True)
    run = backtest([RULE | {"router_ids": ["a", "B"]}, RULE | {"router_ids": ["b", "a"], "router_id": "b"}], frame)
    assert run.summary["samples"].to_list() == [2000, 2000]
    assert [moves(Backtest.of([r], None)) for r in run.runs] == [core_moves(both)] * 2
    words = "no sample has metric 'latency' and router_id 'd' or 'e'; there are metric: 'latency'; router_id: 'A', 'b'"
    with pytest.raises(Invalid, match=words):
        backtest(RULE | {"router_ids": ["d", "e"]}, frame.with_columns(metric=pl.lit("latency")))


def test_arrival_times_and_traces() -> None:
    """With received_ms that is the order, late samples are counted, and events name the newest trace."""
    draw = np.random.default_rng(3)
    frame = recorded().with_columns(received_ms=pl.col("ts_ms"))
    late = pl.Series(draw.integers(0, 800, 4000)) * pl.Series(draw.random(4000) < 0.2)
    frame = frame.with_columns(ts_ms=pl.col("ts_ms") - late, trace_id=pl.format("t{}", pl.int_range(4000)))
    run = backtest(RULE, frame)
    at, ts_ms = frame["received_ms"].to_numpy(), frame["ts_ms"].to_numpy()
    samples = Samples(at, ts_ms, frame["value"].to_numpy(), np.ones(4000, np.bool_), frame["trace_id"])
    fields = {name: value for name, value in RULE.items() if name != "name"}
    effects, record = replay_samples(parse_rule(fields), samples)
    expected = [(e.ts_ms, e.trace_id) for e in effects if isinstance(e, Transition)]
    assert run.transitions.select("ts_ms", "trace_id").rows() == expected
    assert run.summary["late"][0] == record.late_count > 0


def test_windows_that_overflow() -> None:
    """Samples that leave early are counted."""
    frame, fields = recorded(), {name: value for name, value in RULE.items() if name != "name"} | {"window_ms": 60_000}
    run = backtest(fields, frame, window_samples_max=100)
    at = frame["ts_ms"].to_numpy()
    samples = Samples(at, at, frame["value"].to_numpy(), np.ones(len(at), np.bool_))
    _, record = replay_samples(parse_rule(fields), samples, window_samples_max=100)
    assert run.summary["truncated"][0] == record.truncated_count > 2000


def test_unsorted() -> None:
    frame = recorded(1000)
    mixed = frame.sample(fraction=1, shuffle=True, seed=1)
    with pytest.raises(Invalid, match=r"frame, row \d+: ts_ms \d+ comes after \d+"):
        backtest(RULE, mixed)
    sorted_by_hand = mixed.sort("ts_ms", maintain_order=True)
    assert backtest(RULE, mixed, sort=True).transitions.equals(backtest(RULE, sorted_by_hand).transitions)


def test_memory() -> None:
    """A limit that is too low is refused, at once or when windows turn out to hold too much."""
    with pytest.raises(Invalid, match="100 MB are too few; 241 are needed"):
        backtest(RULE, recorded(10), memory_mb=100)
    at = START_MS + np.arange(200_000)
    frame = pl.DataFrame({"ts_ms": at, "value": at % 7})
    with pytest.raises(Invalid, match=r"the windows hold \d+ samples or more; 963 MB of memory are enough for any"):
        backtest(RULE | {"window_ms": 80_000_000}, frame, memory_mb=245)
    assert len(backtest(RULE | {"window_ms": 80_000_000}, frame, memory_mb=963).states) == 1


def test_transitions_within_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all rules together: more than can be held are refused; a sweep's settings hold none."""
    frame = recorded()
    effects = len(backtest(RULE, frame).runs[0].tally.effects)
    monkeypatch.setattr(module, "BYTES_PER_EFFECT", (100 << 20) // (2 * effects))
    told = backtest([RULE, RULE], frame, memory_mb=300, sweep={"threshold": [9, 10, 11]})
    assert told.summary["transitions"].to_list() == [told.runs[0].tally.transitions] * 2
    with pytest.raises(Invalid, match=f"moves more than {2 * effects} times; give the rules minimum durations"):
        backtest([RULE, RULE, RULE], frame, memory_mb=300)
    assert len(backtest([RULE, RULE, RULE], frame, memory_mb=350).summary) == 3


def test_no_samples() -> None:
    with pytest.raises(Invalid, match="frame: there is no sample in it"):
        backtest(RULE, recorded(0))


def test_progress() -> None:
    told: list[int] = []
    backtest(RULE, recorded(), progress=told.append)
    assert told[-1] == 4000


def test_sweep_equals_single_runs() -> None:
    """A sweep tells the same as one run per setting; the rule itself is run as given."""
    frame = recorded()
    windows = [[1_700_000_000_000 + k * 18_000, 1_700_000_000_000 + k * 18_000 + 9_000] for k in range(3)]
    grid = {"threshold": [9, 10.5, 12], "window_ms": [300, 2000], "op": ["gt", "lte"]}
    run = backtest(RULE, frame, sweep=grid, windows=windows)
    assert run.sweep is not None
    assert len(run.sweep) == 12
    for row in run.sweep.iter_rows(named=True):
        single = backtest(RULE | {name: row[name] for name in grid}, frame, windows=windows)
        shown = single.summary.row(0, named=True)
        assert row == {name: row[name] if name in grid else shown[name] for name in row}
    assert moves(run) == core_moves(frame)
    ranks = [(-row["caught"], row["false_trips"]) for row in run.sweep.iter_rows(named=True)]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("names", [("latency (eu)", "latency (us)"), ("slow", "slow")])
def test_a_sweep_tells_its_rules_apart(names: tuple[str, str]) -> None:
    """By the names they were given, brackets included, and made unique."""
    run = backtest([RULE | {"name": name} for name in names], recorded(500), sweep={"threshold": [9, 10]})
    assert run.sweep is not None
    told = run.sweep.select("breaker", "threshold").sort("breaker", "threshold").rows()
    assert told == [(name, threshold) for name in run.summary["breaker"] for threshold in (9, 10)]


def test_sweep_on_real_latencies() -> None:
    """Which settings of a stddev rule see all three labelled failures of a real service without a false trip."""
    rule = {
        "metric": "latency", "kind": "stddev", "op": "gt", "threshold": 4, "window_ms": 7_200_000, "min_count": 4,
        "eval_interval_ms": 300_000, "min_state_duration_ms": 3_600_000, "cooldown_ms": 7_200_000,
    }  # fmt: skip
    grid = {"threshold": [2, 3, 4, 5, 6], "window_ms": [1_800_000, 3_600_000, 7_200_000]}
    run = backtest(rule, LATENCY, columns={"ts_ms": "timestamp"}, windows=WINDOWS, sweep=grid)
    best = run.best()
    assert best is not None
    assert set(best.select("threshold", "window_ms").rows()) == {
        (3, 7_200_000), (4, 3_600_000), (5, 1_800_000), (6, 1_800_000),
    }  # fmt: skip
    assert best["false_trips"].to_list() == [0] * 4
    assert best["caught"].to_list() == [3] * 4


def test_no_setting_is_good_enough() -> None:
    """Then the best are those that catch most, and of these those with fewest false trips; without labelled failures
    those that trip, and fewest times."""
    windows = [[START_MS, START_MS + 30_000], [START_MS + 35_000, START_MS + 35_001]]
    run = backtest(RULE, recorded(), sweep={"threshold": [10, 1000, 11]}, windows=windows)
    best = run.best()
    assert best is not None
    assert run.sweep is not None
    assert len(best) > 0
    assert set(best["caught"]) == {1} < set(run.sweep["caught"])
    assert set(best["windows"]) == {2}
    plain = backtest(RULE, recorded(), sweep={"threshold": [1000, 10, 2000]})
    assert plain.best()["threshold"].to_list() == [10]  # type: ignore[index]
    assert plain.sweep["threshold"].to_list() == [10, 1000, 2000]  # type: ignore[index]
    silent = backtest(RULE, recorded(), sweep={"threshold": [1000, 2000]})
    assert silent.best()["threshold"].to_list() == [1000, 2000]  # type: ignore[index]


def test_each_rule_has_a_ranking_of_its_own() -> None:
    """Whatever the others catch."""
    quiet = RULE | {"name": "quiet", "threshold": 10_000}
    run = backtest([RULE | {"name": "loud"}, quiet], recorded(), sweep={"cooldown_ms": [100, 60_000]})
    assert run.sweep is not None
    best = run.best()
    assert best is not None
    assert run.sweep["breaker"].to_list() == ["loud"] * 2 + ["quiet"] * 2
    loud = run.sweep.filter(pl.col("breaker") == "loud")
    assert loud["trips"].is_sorted()
    assert loud["trips"][0] > 0
    assert set(best["breaker"]) == {"loud", "quiet"}
    assert best.filter(pl.col("breaker") == "loud")["trips"].unique().to_list() == [loud["trips"][0]]


def test_a_source_of_ones_own() -> None:
    """Whatever has names, rows and batches is a source."""

    class Ours:
        names = ("ours",)

        def rows(self) -> None:
            return None

        def batches(self) -> Any:
            frame = recorded()
            yield from (frame[:1500], frame[1500:])

    ours: Any = Ours()
    assert source_of(ours) is ours
    assert backtest(RULE, ours).transitions.equals(backtest(RULE, recorded()).transitions)


def test_times_are_given_as_datetimes_too() -> None:
    """UTC, to the millisecond, in polars and pandas, also where there is no row."""
    for run in (backtest(RULE, recorded()), backtest(RULE | {"threshold": 1000}, recorded())):
        pairs = (
            ("transitions", "ts_ms", "ts"),
            *((f, f"{n}_ms", n) for f in ("states", "summary") for n in ("from", "to")),
        )
        for frame, number, instant in pairs:
            found = getattr(run, frame)
            assert found[instant].dtype == pl.Datetime("ms", "UTC")
            assert found[instant].dt.epoch("ms").equals(found[number], check_names=False)
            assert str(run.to_pandas()[frame][instant].dtype) == "datetime64[ms, UTC]"
    assert len(run.transitions) == 0


def test_arrow_tables() -> None:
    """A pyarrow Table, or whatever hands out Arrow streams; what is no samples at all is refused by its type."""
    frame = recorded(500)
    table = pa.table({"ts_ms": frame["ts_ms"].to_list(), "value": frame["value"].to_list()})
    assert backtest(RULE, table).transitions.equals(backtest(RULE, frame).transitions)
    words = "samples: int is not a frame, an Arrow table, a path, a list of frames or of paths, or a Source"
    with pytest.raises(Invalid, match=words):
        backtest(RULE, 7)


@pytest.mark.parametrize(
    "given",
    [
        lambda ms: datetime.fromtimestamp(ms / 1000, UTC),
        lambda ms: datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None),
        lambda ms: pd.Timestamp(ms, unit="ms", tz="UTC").tz_convert("Europe/Berlin"),
        lambda ms: np.datetime64(ms, "ms"),
        np.int64,
        lambda ms: datetime.fromtimestamp(ms / 1000, UTC).isoformat(),
    ],
)
def test_windows_in_the_types_of_notebooks(given: Any) -> None:
    times = [START_MS + 1, START_MS + 9001]
    run = backtest(RULE, recorded(), windows=[[given(ms) for ms in times]])
    assert run.windows is not None
    assert [(one.start_ms, one.end_ms) for one in run.windows] == [tuple(times)]


@pytest.mark.parametrize("given", [pd.NaT, np.datetime64("NaT"), None, 1.5, True])
def test_windows_that_are_no_times(given: Any) -> None:
    with pytest.raises(Invalid, match=r"windows, window 1: .* is not a time"):
        backtest(RULE, recorded(), windows=[[given, START_MS]])


def test_windows_that_no_sample_reaches() -> None:
    """They are told, and neither caught nor missed; the grace counts."""
    windows = [[START_MS - 2000, START_MS - 1000], [START_MS, START_MS + 9000], [START_MS * 2, START_MS * 2 + 1]]
    words = "2 of 3 labelled windows lie outside of the samples .* are not judged: those from 2023-11-14 22:13:18"
    with pytest.warns(BacktestWarning, match=words):
        run = backtest(RULE, recorded(), windows=windows, sweep={"threshold": [9, 10]})
    assert run.summary["windows"].to_list() == [1]
    assert len(run.remarks) == 1
    assert set(run.best()["caught"]) == {1}  # type: ignore[index]
    with pytest.warns(BacktestWarning, match="1 of 3 labelled windows"):
        assert backtest(RULE, recorded(), windows=windows, grace_ms=2000).summary["windows"].to_list() == [2]


def test_errors_name_the_arguments_of_python() -> None:
    frame = recorded(10)
    with pytest.raises(Invalid, match=r"rename one with columns=\{\"ts_ms\": THEIRS\}"):
        backtest(RULE, frame.rename({"ts_ms": "when"}))
    with pytest.raises(Invalid, match=r"sort them first, or give sort=True"):
        backtest(RULE, frame[::-1])


def test_in_a_notebook(tmp_path: Path) -> None:
    """Tables with names as text; a page is written from the result alone."""
    run = backtest(RULE | {"name": "<script>x</script>"}, recorded(), sweep={"threshold": [9, 10]})
    shown = run._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;x" in shown
    assert shown.count("<table>") == 3
    assert "2023-11-14 22:13:2" in shown
    assert repr(run).startswith("Backtest(1 rule, ")
    assert run.report(tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(Invalid, match="doesn't know its samples"):
        Backtest.of(run.runs, None).report(tmp_path / "r.html")


def test_names_of_routers_where_a_rule_has_ids() -> None:
    """As `breakers get --json` has them, over samples that name theirs: the difference is told, and what to do."""
    id_ = "019c1444-2d1d-4082-9555-a6b8f61a4427"
    frame = pl.DataFrame({"ts_ms": [START_MS], "value": [1.0], "router_id": ["edge"]})
    with pytest.raises(Invalid, match="samples name their routers, the rule has ids: say the names"):
        backtest(RULE | {"router_ids": [id_]}, frame)
    with pytest.raises(Invalid, match=r"there are router_id: 'edge'$"):
        backtest(RULE | {"router_ids": ["other"]}, frame)
