# %% [markdown]
# # From a folder of Parquet files to a rule
# Has a threshold suggested from the first part of a history, writes the file of rules, and tests it on the rest.
# Needs no service: `uv run python examples/suggest.py`, or cell by cell in an editor that knows `# %%`. Writes
# `history/`, `rules/latency.yaml` and `report.html`.

# %%
import json
from pathlib import Path

import polars as pl

from pipelines.backtest import backtest
from pipelines.suggest.suggestion import suggest

# A notebook has no __file__; it runs somewhere in the checkout.
here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
DATA = next(folder for folder in (here, *here.parents) if (folder / "api").is_dir()) / "api" / "demo" / "data"
SERIES = "ec2_request_latency_system_failure.csv"

failures = json.loads((DATA / "anomaly_windows_ms.json").read_text())[SERIES]

# %% [markdown]
# ## The folder
# One file a day, as an export leaves them; yours has them already.

# %%
Path("history").mkdir(exist_ok=True)
series = pl.read_csv(DATA / SERIES, try_parse_dates=True).rename({"timestamp": "ts_ms"})
for (day,), part in series.group_by(pl.col("ts_ms").dt.date(), maintain_order=True):
    part.write_parquet(f"history/{day}.parquet")
files = sorted(Path("history").glob("*.parquet"))
print(len(files), "files")

# %% [markdown]
# ## The suggestion
# The first twelve days choose, with the failures that were labelled by then.

# %%
found = suggest(files[:12], metric="latency", windows=failures[:2])
print(found.frame.select("breaker", "threshold", "from_threshold", "to_threshold", "caught", "windows", "false_trips"))
print(*found.why, sep="\n")

# %% [markdown]
# ## The file of rules
# Goes into your repository, and from there to the service.

# %%
Path("rules").mkdir(exist_ok=True)
Path("rules/latency.yaml").write_text(found.yaml)
print(found.yaml)

# %% [markdown]
# ## The test
# The rules of the file, over the days that were not seen.

# %%
run = backtest("rules/latency.yaml", files[12:], windows=failures[2:])
print(run.summary.select("breaker", "trips", "windows", "caught", "false_trips"))

# %% [markdown]
# ## For others
# One page that needs no network, with what speaks for the rule.

# %%
found.report("report.html")
