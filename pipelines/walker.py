"""A breaker that walks over columns: the core's own machine and timers, with a window that is looked up, not kept.

Only the evaluations that may change something are run; which ones those are is found by `pipelines.outlook`. Nothing
of the rules of semantics.md is repeated here.
"""

from __future__ import annotations

import numpy as np

from breaker_actors.core.aggregate import COMPARE
from breaker_actors.core.evidence import LONG_AGO, Evidence
from breaker_actors.core.exact import P95, clamp, exact_value, inner_kind, nearest, percent_of, rank, summary
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Agg, Batch, Effect, Flags, Float64, Record, Rule
from breaker_actors.core.timers import Trigger
from breaker_actors.core.window import Columns as _Columns  # noqa: F401
