"""What a running service uses, by the stages of a sample's way through it."""

from __future__ import annotations

import os
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


def cpu_s(live: LiveService) -> dict[str, float]:
    """CPU seconds used so far, by stage."""
    used: dict[str, float] = defaultdict(float)
    for pid, line in tree_of(live.process.pid).items():
        stage = next((name for prefix, name in STAGES if prefix in line.split(" -")[0]), "Ray")
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        used[stage] += (int(fields[11]) + int(fields[12])) / TICKS
    return used
