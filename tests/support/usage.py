"""What the processes of a service use, CPU and memory, and how many connections they may have. Linux only, like all
of /proc.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.live import LiveService, tree_of

STAGES = (
    ("haproxy", "HAProxy"),
    ("ray::ServeReplica", "API replicas"),
    ("ray::RouterActor", "RouterActors"),
    ("ray::BreakerActor", "BreakerActors"),
    ("ray::JournalActor", "Journal"),
    ("ray::DirectoryActor", "Directory"),
    ("ray::NotifierActor", "Notifier"),
)
TICKS = os.sysconf("SC_CLK_TCK")
_MAXCONN = re.compile(r"^\s*maxconn (\d+)", re.MULTILINE)
_MEMORY = re.compile(r"^(Rss|Pss|Private_Clean|Private_Dirty): +(\d+) kB$", re.MULTILINE)


def stage_of(line: str) -> str:
    """The stage that a process belongs to, by its command line."""
    return next((name for prefix, name in STAGES if prefix in line.split(" -")[0]), "Ray")


class Used(NamedTuple):
    """A process's stage and the CPU time it has used so far, in ticks."""

    stage: str
    ticks: int


def cpu_used(live: LiveService) -> dict[tuple[int, int], Used]:
    """What each process has used, by its id and its time of start: ids are given again."""
    found = {}
    for pid, line in tree_of(live.process.pid).items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        found[pid, int(fields[19])] = Used(stage_of(line), int(fields[11]) + int(fields[12]))
    return found


def cpu_s(before: Mapping[tuple[int, int], Used], after: Mapping[tuple[int, int], Used]) -> dict[str, float]:
    """CPU seconds by stage from one look to a later one. A process that was not there at the first counts from its
    start; one that is gone at the second doesn't count, as what it used in between is not known."""
    found: dict[str, float] = defaultdict(float)
    for process, (stage, ticks) in after.items():
        begun = before[process].ticks if process in before else 0
        found[stage] += (ticks - begun) / TICKS
    return found


def memory_kb(pid: int) -> dict[str, int]:
    """Rss, Pss (what is shared counts in parts) and Private (what is not shared); nothing for a process that has just
    ended."""
    with contextlib.suppress(OSError):
        found = {name: int(kb) for name, kb in _MEMORY.findall(Path(f"/proc/{pid}/smaps_rollup").read_text())}
        if found:
            return {
                "Rss": found["Rss"],
                "Pss": found["Pss"],
                "Private": found["Private_Clean"] + found["Private_Dirty"],
            }
    return {}


def private_kb(live: LiveService) -> dict[str, int]:
    """Memory that belongs to one process alone, by stage."""
    found: dict[str, int] = defaultdict(int)
    for pid, line in tree_of(live.process.pid).items():
        found[stage_of(line)] += memory_kb(pid).get("Private", 0)
    return found


def connections_max(live: LiveService) -> dict[str, float]:
    """What bounds how many stream clients a service can hold: its limits of open files, and HAProxy's maxconn."""
    found = {}
    for pid, line in tree_of(live.process.pid).items():
        if (stage := stage_of(line)) in ("API replicas", "HAProxy"):
            found[f"files_max {stage}"] = float(resource.prlimit(pid, resource.RLIMIT_NOFILE)[0])
        if stage == "HAProxy" and (config := re.search(r" -f (\S+)", line)):
            found["maxconn HAProxy"] = float(_MAXCONN.findall(Path(config[1]).read_text())[0])
    return found
