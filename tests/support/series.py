"""The real series that tests read: those of NAB in `tests/data/nab`, and the one that the demo plays."""

from __future__ import annotations

from pathlib import Path

from api.demo.series import DATA, NAME

NAB = Path(__file__).parents[1] / "data" / "nab"
WINDOWS = NAB / "anomaly_windows_ms.json"
LATENCY = DATA / NAME
SERIES = [LATENCY, *sorted(NAB.glob("*.csv"))]
