"""What a start takes until `ready`, and an idle service after it, beside Ray Serve with an application that does
nothing: wall time, CPU of all processes, share of a core. The two take turns; medians count.

python -m tests.bench start [--json FILE] [--smoke]
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.support import bare_serve
from tests.support.figures import options_of, show
from tests.support.live import tree_of

READY_S = 180.0


@dataclass(frozen=True)
class Sizes:
    rounds: int
    idle_s: float


FULL = Sizes(3, 30.0)
SMOKE = Sizes(1, 2.0)
SETTLE_S = 10.0
"""What still starts when `ready` is said does not count as idleness."""


def commands(folder: Path) -> dict[str, list[str]]:
    program = str(Path(sys.executable).with_name("breakers"))
    return {
        "bare": [sys.executable, str(Path(bare_serve.__file__).resolve())],
        "breakers": [program, "serve", "--port", "0", "--data-dir", str(folder / "data")],
    }


def cpu_s(pid: int) -> float:
    """Of all processes below, and of those they have waited for."""
    ticks = 0
    for one in (pid, *tree_of(pid)):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def start(command: list[str], home: Path, idle_s: float, settle_s: float) -> dict[str, float]:
    """Of a program that says `ready` at last. Ray keeps a token in its user's home: this one has its own."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=home,
        env={**os.environ, "HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        if not any(line.startswith("ready ") for line in process.stdout):
            raise RuntimeError(f"not ready: {' '.join(command)}")
        figures = {"ready_s": time.perf_counter() - begun, "ready_cpu_s": cpu_s(process.pid)}
        time.sleep(settle_s)
        before, since = cpu_s(process.pid), time.perf_counter()
        time.sleep(idle_s)
        figures["idle_cores"] = (cpu_s(process.pid) - before) / (time.perf_counter() - since)
        figures["processes"] = 1.0 + len(tree_of(process.pid))
        return figures
    finally:
        below = tree_of(process.pid)
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            for pid in (process.pid, *below):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def measure(sizes: Sizes, settle_s: float = SETTLE_S) -> dict[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(sizes.rounds):
        with tempfile.TemporaryDirectory(prefix="brk-") as folder:
            for name, command in commands(Path(folder)).items():
                for figure, value in start(command, Path(folder), sizes.idle_s, settle_s).items():
                    found[f"{name}_{figure}"].append(value)
    figures = {name: statistics.median(values) for name, values in found.items()}
    figures["ready_over_bare"] = figures["breakers_ready_s"] / figures["bare_ready_s"]
    figures["idle_beyond_bare_cores"] = figures["breakers_idle_cores"] - figures["bare_idle_cores"]
    return figures


def main(argv: list[str]) -> None:
    options = options_of("start").parse_args(argv)
    show(measure(SMOKE, 0.0) if options.smoke else measure(FULL), options.json)
