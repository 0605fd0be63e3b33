"""The registry of a part, what is declared for it, and that code and dashboard use nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from api.routes import BLUEPRINTS
from api.stream.subscriber import Ending
from breaker_actors.core.model import StateWord
from breaker_actors.messages import CommitResult, FeedEntry
from breaker_actors.store.rows import ChannelKind
from breaker_actors.telemetry.catalog import (
    BUCKET,
    CHANNELS,
    OTHER,
    ROUTES,
    SAMPLE_FAULTS,
    SUM,
    TABLE,
    exported,
    reference_table,
)
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import ActorKind
from tests.bench import meters as bench

ROOT = Path(__file__).parents[3]
RECORDING = {
    "count": "counter",
    "total": "counter",
    "gauge": "gauge",
    "observe": "histogram",
    "histogram": "histogram",
    "timed": "histogram",
}


def test_counters_begin_at_zero_and_only_those_of_the_part() -> None:
    meters = Meters("journal", "journal-0")
    assert meters.value("breakers_feed_entries_total", kind="keys") == 0
    assert {TABLE[name].parts for name, *_ in meters.counters if "journal" not in TABLE[name].parts} == set()
    assert ("breakers_feed_entries_total", "keys") in dict(meters.totals())
    assert ("breakers_fenced_total",) not in meters.counters


def test_counts_add_up_by_label() -> None:
    meters = Meters("breaker", "b")
    meters.count("breakers_transitions_total", kind="trip")
    meters.count("breakers_transitions_total", 2, kind="trip")
    meters.count("breakers_transitions_total", kind="recover")
    assert meters.value("breakers_transitions_total", kind="trip") == 3
    assert meters.value("breakers_transitions_total", kind="recover") == 1
    assert meters.value("breakers_transitions_total", kind="retrip") == 0


def test_a_value_that_was_not_declared_becomes_other() -> None:
    """However many there are, they make one series."""
    meters = Meters("breaker", "b")
    before = len(meters.counters)
    for i in range(100):
        meters.count("breakers_transitions_total", kind=f"breaker-{i}")
        meters.gauge("breakers_held", i, state=f"odd-{i}")
    assert meters.value("breakers_transitions_total", kind=OTHER) == 100
    assert len(meters.counters) == before + 1
    assert meters.gauges == {("breakers_held", OTHER): 99}


@pytest.mark.parametrize(
    "record",
    [
        lambda m: m.count("breakers_transitions_total"),
        lambda m: m.count("breakers_transitions_total", state="nowhere"),
        lambda m: m.count("breakers_events_total"),
        lambda m: m.gauge("breakers_stream_clients", 1),
        lambda m: m.observe("breakers_journal_commit_seconds", 1),
        lambda m: m.total("breakers_events_total", 1),
    ],
)
def test_wrong_labels_and_metrics_of_other_parts_are_errors(record: Any) -> None:
    with pytest.raises(ValueError, match="not for breaker"):
        record(Meters("breaker", "b"))


def test_a_histogram_is_exported_as_rising_buckets_and_a_sum() -> None:
    meters = Meters("breaker", "b")
    for value, n in ((0.0, 1), (0.001, 1), (0.3, 5), (99.0, 2)):
        meters.observe("breakers_evaluation_lag_seconds", value, n)
    totals = dict(meters.totals())
    name = "breakers_evaluation_lag_seconds"
    counts = [n for (metric, *_), n in totals.items() if metric == name + BUCKET]
    assert counts == sorted(counts)
    assert totals[name + BUCKET, "0.001"] == 2
    assert totals[name + BUCKET, "0.25"] == 2
    assert totals[name + BUCKET, "0.5"] == 7
    assert totals[name + BUCKET, "10.0"] == 7
    assert totals[name + BUCKET, "+Inf"] == 9 == meters.value(name)
    assert totals[(name + SUM,)] == pytest.approx(0.001 + 1.5 + 198)


def test_a_block_is_timed_unless_it_raises() -> None:
    meters = Meters("router", "r")
    with meters.timed("breakers_log_append_seconds"):
        pass
    with pytest.raises(OSError, match="disk"), meters.timed("breakers_log_append_seconds"):
        raise OSError("disk")
    assert meters.value("breakers_log_append_seconds") == 1


def test_watches_run_at_a_refresh_only() -> None:
    meters, looks = Meters("api", "api"), []

    def look() -> None:
        looks.append(1)
        meters.gauge("breakers_stream_clients", len(looks))
        meters.total("breakers_lane_calls_total", 7 * len(looks), lane="ingest")

    meters.watch(look)
    assert meters.value("breakers_stream_clients") == 0
    meters.refresh()
    meters.refresh()
    assert meters.value("breakers_stream_clients") == 2
    assert meters.value("breakers_lane_calls_total", lane="ingest") == 14


# what is declared


def test_names_follow_the_conventions_of_prometheus() -> None:
    for meter in TABLE.values():
        assert re.fullmatch(r"breakers_[a-z]+(_[a-z]+)*", meter.name), meter.name
        if meter.unit in ("seconds", "bytes"):
            assert meter.unit in meter.name.split("_"), meter.name
        assert list(meter.buckets) == sorted(set(meter.buckets))
        assert meter.help[0].islower(), meter.name
        assert not meter.help.endswith("."), meter.name
        assert not {"le", "actor", OTHER} & {*meter.labels, *(v for values in meter.labels.values() for v in values)}


def test_no_metric_can_make_many_series() -> None:
    for meter in TABLE.values():
        assert len(list(meter.series())) * max(1, len(meter.buckets) + 2) <= 2_000, meter.name


def test_exported_names_lead_back_to_their_metric() -> None:
    assert exported("breakers_held") == (TABLE["breakers_held"], ("state",))
    for suffix, labels in ((BUCKET, ("route", "status", "le")), (SUM, ("route", "status"))):
        assert exported("breakers_http_request_seconds" + suffix) == (TABLE["breakers_http_request_seconds"], labels)


def test_labels_name_what_the_code_names() -> None:
    from api.wire.samples import __file__ as samples

    assert {*ROUTES} == {blueprint.name for blueprint in BLUEPRINTS} | {"none"}
    code = Path(samples).read_text()
    assert {*re.findall(r'"(invalid_\w+|ts_ms_\w+|unknown_field)"', code)} == {*SAMPLE_FAULTS}
    assert {*CHANNELS} == {*get_args(ChannelKind)}
    for name, label, words in (
        ("breakers_streams_closed_total", "reason", get_args(Ending)),
        ("breakers_journal_commits_total", "result", (*get_args(CommitResult), "late", "put_off")),
        ("breakers_feed_entries_total", "kind", get_args(get_type_hints(FeedEntry)["kind"])),
        ("breakers_held", "state", (*get_args(StateWord), "starting")),
        ("breakers_actors_up", "kind", get_args(ActorKind)),
    ):
        assert {*TABLE[name].labels[label]} == {*words}, name


def test_the_reference_table_has_a_line_for_each_metric() -> None:
    lines = reference_table().splitlines()
    assert len(lines) == len(TABLE) + 2
    assert all(line.count(" | ") == 4 for line in lines[2:])


def test_what_counting_costs_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--smoke"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if "counting" in line]) == 4


# who uses it


@cache
def calls() -> list[tuple[Path, ast.Call, str]]:
    """Every call in our code that records into a registry."""
    return list(find_calls())


def find_calls() -> Iterator[tuple[Path, ast.Call, str]]:
    for package in ("breaker_actors", "api"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
                    continue
                first = node.args[0]
                if node.func.attr in RECORDING and isinstance(first, ast.Constant) and isinstance(first.value, str):
                    if first.value.startswith("breakers_"):
                        yield path, node, first.value


def test_every_call_names_a_declared_metric_with_its_labels_in_order() -> None:
    """Checked here, so that it can't go wrong where it runs."""
    for path, node, name in calls():
        assert name in TABLE, f"{path}:{node.lineno} {name}"
        assert isinstance(node.func, ast.Attribute)
        assert TABLE[name].type == RECORDING[node.func.attr], f"{path}:{node.lineno} {name}"
        labels = [keyword.arg for keyword in node.keywords]
        assert labels == list(TABLE[name].labels), f"{path}:{node.lineno} {name}"


def test_every_declared_metric_is_counted_somewhere() -> None:
    assert {name for _, _, name in calls()} == set(TABLE)
