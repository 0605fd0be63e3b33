"""What a window is filled with again from the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from breaker_actors.catchup import CatchUp
from breaker_actors.core.machine import Breaker
from breaker_actors.core.records import (
    BREAKER,
    SAMPLES,
    VIEW,
    BreakerSet,
    RouterView,
    encode_entry,
    encode_samples,
)
from breaker_actors.core.rules import parse_rule
from breaker_actors.held import Held, Item
from breaker_actors.messages import BreakerAssignment, RouterRef
from breaker_actors.stores.samplelog import Append
from breaker_actors.stores.sqlitelog import SqliteLog

SLOT = "slot-0"
RULE = {"kind": "avg", "op": "gt", "threshold": 100, "window_ms": 4_000, "eval_interval_ms": 500}


def samples(metric: str, *values: float) -> bytes:
    n = len(values)
    return encode_samples([metric], [n], np.full(n, 9_999), np.array(values, float), np.full(n, True))
