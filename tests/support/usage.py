"""What the processes of a service use: CPU by stage, memory of one of them. Linux only, like all of /proc."""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from pathlib import Path

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
_MEMORY = re.compile(r"^(Rss|Pss|Private_Clean|Private_Dirty): +(\d+) kB$", re.MULTILINE)


def stage_of(line: str) -> str:
    """The stage that a process belongs to, by its command line."""
    return next((name for prefix, name in STAGES if prefix in line.split(" -")[0]), "Ray")


def cpu_s(live: LiveService) -> dict[str, float]:
    """CPU seconds used so far, by stage."""
    used: dict[str, float] = defaultdict(float)
    for pid, line in tree_of(live.process.pid).items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        used[stage_of(line)] += (int(fields[11]) + int(fields[12])) / TICKS
    return used


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
