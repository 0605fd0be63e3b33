# %% [markdown]
# # What would a rule have done?
# Moves the breakers that run live over a real latency series with three labelled failures. Needs no service:
# `uv run python examples/backtest.py`, or cell by cell in an editor that knows `# %%`. Writes `report.html`.

# %%
import json
from pathlib import Path

from pipelines.backtest import backtest

# A notebook has no __file__; it runs somewhere in the checkout.
here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
DATA = next(folder for folder in (here, *here.parents) if (folder / "api").is_dir()) / "api" / "demo" / "data"
SERIES = "ec2_request_latency_system_failure.csv"
HOUR_MS = 3_600_000

failures = json.loads((DATA / "anomaly_windows_ms.json").read_text())[SERIES]

# %% [markdown]
# ## One rule
# Open while the latency of the last two hours is spread by more than 4.

# %%
rule = {
    "name": "latency spread",
    "metric": "latency",
    "kind": "stddev",
    "op": "gt",
    "threshold": 4,
    "window_ms": 2 * HOUR_MS,
    "min_count": 4,
    "eval_interval_ms": 300_000,
    "min_state_duration_ms": HOUR_MS,
    "cooldown_ms": 2 * HOUR_MS,
}
run = backtest(rule, DATA / SERIES, columns={"ts_ms": "timestamp"}, windows=failures)
print(run.transitions)

# %% [markdown]
# ## Was it worth it?
# How many of the labelled failures it caught, and how many of its trips were false.

# %%
print(run.summary.select("breaker", "trips", "windows", "caught", "false_trips"))

# %% [markdown]
# ## Many rules at once
# Every combination of thresholds and windows; `best()` has those that no other one beats. They catch all three.

# %%
swept = backtest(
    rule,
    DATA / SERIES,
    columns={"ts_ms": "timestamp"},
    windows=failures,
    sweep={"threshold": [2, 3, 4, 5, 6], "window_ms": [HOUR_MS // 2, HOUR_MS, 2 * HOUR_MS]},
)
print(swept.best().select("threshold", "window_ms", "caught", "false_trips"))

# %% [markdown]
# ## For others
# One page that needs no network.

# %%
swept.report("report.html")
