"""Ours beside what people would otherwise use, each in the same run: samples per second of processor time.

python -m tests.bench peers [--json FILE] [--smoke] [--seconds 10] [--rows 5000000]

Over the wire, 1,000 series: `breakers serve` (signed gzip JSON and Arrow streams; each sample is in the synced log and
in its breaker's window, or on its way there, when the answer is sent), VictoriaMetrics (its JSON lines) and Prometheus
(remote-write 1.0): stores, which evaluate nothing. Everything that the server's processes use counts, the sender does
not. In one process: the mean of the last minute by ours (the live core in batches of 500, a backtest, which also
runs the state machine), polars and duckdb at each row, and bytewax, which folds whole minutes, the least it can do.

VictoriaMetrics and Prometheus are Debian's `victoria-metrics` and `prometheus`; bytewax comes with
`uv run --with bytewax python -m tests.bench peers`. Who is missing is left out, and named. What each took in is held
against what was sent, and all means against each other.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from gzip import compress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from api.launch.processes import free_port
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch
from pipelines.backtest import backtest
from tests.bench import ingest
from tests.bench.core import rule_of
from tests.bench.history import write_samples
from tests.support.figures import options_of, show
from tests.support.fleet import Fleet
from tests.support.live import serving, wait_for
from tests.support.remote_write import V1_HEADERS, Sent, request1, snapped
from tests.support.usage import TICKS

ROUTERS, METRICS = 50, 20
PER_REQUEST, BODIES = 1_000, 1_500
WINDOW_MS, START_MS, BATCH = 60_000, 1_700_000_000_040, 500
BYTEWAX_PART = 20
"""It takes a part of the rows: each is a Python object."""


@dataclass(frozen=True)
class Store:
    """A peer that takes samples. `took`: the counters of its /metrics whose sum is what it has taken."""

    program: str
    options: tuple[str, ...]
    path: str
    headers: dict[str, str]
    took: str
    body: Callable[[int], bytes]


def lines_of(turn: int) -> bytes:
    """A request of VictoriaMetrics: a line for each of 50 series, 20 values in each, times that go on."""
    return compress(b"\n".join(_line(turn, n) for n in range(PER_REQUEST // 20)), 1)


def _line(turn: int, n: int) -> bytes:
    series = {"__name__": f"m{n % METRICS}", "router_id": f"router-{(turn * 7 + n) % ROUTERS}"}
    at = START_MS + turn * 20_000
    times = list(range(at, at + 20_000, 1_000))
    values = [round(100 + (turn * 31 + n * 17 + i * 7) % 2000 / 10, 3) for i in range(20)]
    return json.dumps({"metric": series, "values": values, "timestamps": times}, separators=(",", ":")).encode()


def written(turn: int) -> bytes:
    """A remote-write request, a sample of each series, as Prometheus sends them."""
    at = START_MS + turn * 1_000
    series = [
        Sent(
            labels={"__name__": f"m{n % METRICS}", "router_id": f"router-{n // METRICS}"},
            value=100 + (turn * 31 + n) % 2000 / 10,
            ts_ms=at,
        )
        for n in range(PER_REQUEST)
    ]
    return snapped(request1(series).SerializeToString())


STORES = {
    "VictoriaMetrics, JSON lines": Store(
        "victoria-metrics",
        ("-httpListenAddr={address}", "-storageDataPath={folder}", "-retentionPeriod=100y"),
        "/api/v1/import",
        {"Content-Encoding": "gzip"},
        r"^vm_rows_inserted_total\{[^}]*\} (\S+)$",
        lines_of,
    ),
    "Prometheus, remote-write": Store(
        "prometheus",
        (
            "--web.listen-address={address}",
            "--storage.tsdb.path={folder}",
            "--config.file={config}",
            "--web.enable-remote-write-receiver",
        ),
        "/api/v1/write",
        V1_HEADERS,
        r"^prometheus_tsdb_head_samples_appended_total(?:\{[^}]*\})? (\S+)$",
        written,
    ),
}


# -- over the wire


def cpu_of(pid: int) -> float:
    """Seconds that one process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextlib.contextmanager
def running(store: Store, folder: Path) -> Iterator[tuple[int, str]]:
    """Its process and where it listens, as soon as it does."""
    address = f"127.0.0.1:{free_port()}"
    config = folder / "prometheus.yml"
    config.write_text("global: {scrape_interval: 1h}\n")
    options = [option.format(address=address, folder=folder / "data", config=config) for option in store.options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([store.program, *options], stdout=log, stderr=log)
        try:
            wait_for(lambda: _answers(address), 60, 0.1)
            yield process.pid, address
        finally:
            process.terminate()
            process.wait()


def _answers(address: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        metrics_of(address)
        return True
    return False


def metrics_of(address: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def taken(store: Store, address: str) -> int:
    return int(sum(map(float, re.findall(store.took, metrics_of(address), re.MULTILINE))))


def of_store(store: Store, seconds: float, requests: int) -> float:
    """Its processor time for a sample, in microseconds; at most so many requests."""
    bodies = [store.body(turn) for turn in range(requests)]
    with tempfile.TemporaryDirectory() as folder, running(store, Path(folder)) as (pid, address):
        before, at_first = cpu_of(pid), taken(store, address)
        count = sent_in_turn(address, store, bodies, seconds)
        used = cpu_of(pid) - before
        wait_for(lambda: taken(store, address) - at_first == count * PER_REQUEST, 30, 0.2)
    return used / (count * PER_REQUEST) * 1e6


def sent_in_turn(address: str, store: Store, bodies: list[bytes], seconds: float) -> int:
    """Requests in the order of their times over one connection, each once; answers how many."""
    connection = http.client.HTTPConnection(address, timeout=60)
    end, count = time.monotonic() + seconds, 0
    for body in bodies:
        connection.request("POST", store.path, body, store.headers)
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status in (200, 204), (answer.status, said[:300])
        count += 1
        if time.monotonic() > end:
            break
    connection.close()
    return count


def of_ours(seconds: float, smoke: bool) -> dict[str, float]:
    """The same of `breakers serve`, whose outcome tests/bench/ingest.py holds against its log."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data", BREAKERS_BREAKER_ACTORS="4") as live:
        fleet = Fleet(live, *((2, 4) if smoke else (ROUTERS, METRICS)))
        figures = ingest.measure(fleet, PER_REQUEST, seconds, 2_000 if smoke else 100_000)
    ours = {"JSON": figures["cpu_us_per_sample"], "Arrow": figures["arrow: cpu_us_per_sample"]}
    return {f"ours, {name}, signed": spent for name, spent in ours.items()}


# -- in one process


def window_core(path: Path, rows: int) -> tuple[int, float, dict[int, float]]:
    """The live core: a decision for each batch. The mean at the end of the last one."""
    frame = pl.read_parquet(path, n_rows=rows)
    at, value = frame["ts_ms"].to_numpy(), frame["value"].to_numpy()
    began, ok = time.process_time(), np.ones(BATCH, np.bool_)
    breaker, _ = Breaker.create(rule_of("avg", threshold=1e9), int(at[0]))
    for start in range(0, rows, BATCH):
        part = slice(start, start + BATCH)
        breaker.ingest(Batch(at[part], value[part], ok[: len(at[part])]), int(at[part][-1]))
    used = time.process_time() - began
    now = int(at[-1])
    found = breaker.view(now).value
    assert found is not None
    return rows, used, {now: found}


def window_backtest(path: Path, rows: int) -> tuple[int, float, dict[int, float]]:
    """A decision at each sample, and the state machine. The means at which it tripped."""
    rule = {"name": "peer", "metric": "latency", "kind": "avg", "op": "gt", "threshold": 140, "window_ms": WINDOW_MS}
    began = time.process_time()
    run = backtest(rule, pl.scan_parquet(path).head(rows))
    used = time.process_time() - began
    trips = run.transitions.filter(pl.col("curr") == "open")
    return rows, used, dict(trips.select("ts_ms", "avg").rows())


def window_polars(path: Path, rows: int) -> tuple[int, float, dict[int, float]]:
    began = time.process_time()
    frame = pl.read_parquet(path, n_rows=rows).with_columns(at=pl.from_epoch("ts_ms", time_unit="ms"))
    mean = frame.select("ts_ms", mean=pl.col("value").rolling_mean_by("at", window_size=f"{WINDOW_MS}ms"))
    used = time.process_time() - began
    return rows, used, dict(mean.unique("ts_ms", keep="last", maintain_order=True).gather_every(rows // 50).rows())


def window_duckdb(path: Path, rows: int) -> tuple[int, float, dict[int, float]]:
    import duckdb

    began = time.process_time()
    within = f"ORDER BY ts_ms RANGE BETWEEN {WINDOW_MS - 1} PRECEDING AND CURRENT ROW"
    query = f"SELECT ts_ms, avg(value) OVER ({within}) AS mean FROM (SELECT * FROM read_parquet(?) LIMIT {rows})"
    mean = pl.DataFrame(duckdb.execute(query, [str(path)]).fetchnumpy())
    used = time.process_time() - began
    return rows, used, dict(mean.unique("ts_ms", keep="last", maintain_order=True).gather_every(rows // 50).rows())


def window_bytewax(path: Path, rows: int) -> tuple[int, float, dict[int, float]]:
    """Whole minutes, folded; no means at single rows to compare, so their sums are."""
    # Not among our dependencies.
    from bytewax import operators as op  # type: ignore[import-not-found]
    from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
    from bytewax.operators import windowing  # type: ignore[import-not-found]
    from bytewax.testing import TestingSink, TestingSource, run_main  # type: ignore[import-not-found]

    part = rows // BYTEWAX_PART
    frame = pl.read_parquet(path, n_rows=part, columns=["ts_ms", "value"])
    items = [(datetime.fromtimestamp(ts_ms / 1000, UTC), value) for ts_ms, value in frame.iter_rows()]
    began, folded = time.process_time(), list[Any]()
    flow = Dataflow("peer")
    keyed = op.key_on("key", op.input("in", flow, TestingSource(items, batch_size=BATCH)), lambda _: "breaker")
    # Its watermark would go on with the system's clock, too: nothing may be late because this machine is.
    now = datetime.now(UTC)
    clock = windowing.EventClock(lambda item: item[0], timedelta(0), now_getter=lambda: now)
    windower = windowing.TumblingWindower(length=timedelta(milliseconds=WINDOW_MS), align_to=items[0][0])
    sums: Any = windowing.fold_window(
        "fold",
        keyed,
        clock,
        windower,
        lambda: (0.0, 0),
        lambda total, item: (total[0] + item[1], total[1] + 1),
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
    )
    op.output("out", sums.down, TestingSink(folded))
    run_main(flow)
    used = time.process_time() - began
    count = sum(entry[1][1][1] for entry in folded)
    total = math.fsum(entry[1][1][0] for entry in folded)
    assert count == part, (count, part)
    assert math.isclose(total, math.fsum(frame["value"].to_list()))
    return part, used, {}


BACKTEST, BYTEWAX = "our backtest, with the state machine", "bytewax, whole minutes"
WINDOWS = {
    "our live core, batches of 500": window_core,
    BACKTEST: window_backtest,
    "polars rolling_mean_by": window_polars,
    "duckdb avg over range": window_duckdb,
    BYTEWAX: window_bytewax,
}


def in_a_process(name: str, path: Path, rows: int) -> float:
    """Microseconds for a row; the means that it found are those of the rows before."""
    command = [sys.executable, "-m", "tests.bench", "peers", "--case", name, "--file", str(path), "--rows", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, used, means = json.loads(done.stdout.splitlines()[-1])
    check_means(path, {int(ts_ms): mean for ts_ms, mean in means.items()})
    return float(used / count * 1e6)


def check_means(path: Path, means: dict[int, float]) -> None:
    for ts_ms, mean in list(means.items())[:50]:
        within = pl.col("ts_ms").is_between(ts_ms - WINDOW_MS, ts_ms, closed="right")
        values = pl.scan_parquet(path).filter(within).select("value").collect()["value"]
        assert math.isclose(mean, math.fsum(values.to_list()) / len(values), rel_tol=1e-9), (ts_ms, mean)


# -- all of it

EVALUATED = {
    "ours, JSON, signed": ("synced", "11 kinds of windows, exact"),
    "ours, Arrow, signed": ("synced", "11 kinds of windows, exact"),
    "VictoriaMetrics, JSON lines": ("within 5 s", "nothing"),
    "Prometheus, remote-write": ("by the kernel", "nothing"),
}
"""What is durable when the answer comes, and what has been worked out of it."""


def measured(seconds: float, rows: int, smoke: bool) -> dict[str, float]:
    """Microseconds of processor time for a sample."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.parquet"
        write_samples(path, rows)
        figures = {name: in_a_process(name, path, rows) for name in WINDOWS if name != BYTEWAX or has_bytewax()}
    figures |= {
        name: of_store(store, seconds, 20 if smoke else BODIES)
        for name, store in STORES.items()
        if shutil.which(store.program)
    }
    return figures | of_ours(seconds, smoke)


def has_bytewax() -> bool:
    return importlib.util.find_spec("bytewax") is not None


def table(figures: dict[str, float]) -> Iterator[str]:
    """Lines of Markdown: how many samples a second of processor time, and how many times ours that is."""
    yield "| over the wire | samples a CPU second | beside our JSON | durable when answered | worked out |"
    yield "|---|---|---|---|---|"
    for name, (durable, worked_out) in EVALUATED.items():
        yield f"| {name} | {_rate(figures, name, 'ours, JSON, signed')} | {durable} | {worked_out} |"
    yield from (
        "",
        "| the mean of a minute, in one process | rows a CPU second | beside our backtest |",
        "|---|---|---|",
    )
    for name in WINDOWS:
        yield f"| {name} | {_rate(figures, name, BACKTEST)} |"


def _rate(figures: dict[str, float], name: str, ours: str) -> str:
    if name not in figures:
        return "not here | "
    return f"{1e6 / figures[name]:,.0f} | {figures[ours] / figures[name]:.2f} x"


def main(argv: list[str]) -> None:
    parser = options_of("peers")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--case", choices=list(WINDOWS), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.case:
        print(json.dumps(WINDOWS[options.case](options.file, options.rows)))
        return
    if options.smoke:
        options.seconds, options.rows = 2.0, 100_000
    figures = measured(options.seconds, options.rows, options.smoke)
    print("\n".join(table(figures)))
    show(figures, options.json)
