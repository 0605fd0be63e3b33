# %% [markdown]
# # From a folder of Parquet files to an applied rule
# Has a threshold suggested, makes a test of it, plans what would change and applies that. Needs a running service,
# whose data directory is `./.breakers` (`uv run breakers serve`), or BREAKERS_URL, BREAKERS_KEY and BREAKERS_PROJECT:
# `uv run python examples/rules.py`, or cell by cell in an editor that knows `# %%`. Writes `samples/` and `rules/`.

# %%
import json
from pathlib import Path

import polars as pl

from api.cli.planning import plan
from pipelines.ruletests.run import test
from pipelines.suggest.suggestion import suggest

# A notebook has no __file__; it runs somewhere in the checkout.
here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
DATA = next(folder for folder in (here, *here.parents) if (folder / "api").is_dir()) / "api" / "demo" / "data"
SERIES = "ec2_request_latency_system_failure.csv"

# %% [markdown]
# ## The folder
# One file a day, as an export leaves them; yours has them already.

# %%
Path("samples").mkdir(exist_ok=True)
series = pl.read_csv(DATA / SERIES, try_parse_dates=True).rename({"timestamp": "ts_ms"})
for (day,), part in series.group_by(pl.col("ts_ms").dt.date(), maintain_order=True):
    part.write_parquet(f"samples/{day}.parquet")

# %% [markdown]
# ## The suggestion
# As a file of rules, which declares the router that senders name, too.

# %%
failures = json.loads((DATA / "anomaly_windows_ms.json").read_text())[SERIES]
found = suggest("samples/*.parquet", metric="latency", windows=failures)
(name,) = found.rules
Path("rules").mkdir(exist_ok=True)
Path("rules/latency.yaml").write_text(f"owner: notebook\n{found.yaml}routers:\n  ec2: {{breakers: [{name}]}}\n")
print(*found.why, sep="\n")

# %% [markdown]
# ## A test of it
# What it does on this history is what it is to do: who changes it later hears of it. `breakers test rules` runs it.

# %%
assert found.run is not None
series.write_parquet("rules/latency.parquet")
moves = [f"{move['ts'].isoformat()} {move['prev']} -> {move['curr']}" for move in found.run.transitions.to_dicts()]
expected = "".join(f"      - {move}\n" for move in moves)
Path("rules/latency.test.yaml").write_text(
    "rules: latency.yaml\ntests:\n  - name: the failures of March\n    samples: {file: latency.parquet}\n"
    f"    expect:\n{expected}"
)
tested = test("rules")
print(tested.tests.select("test", "passed", "samples", "moves"))

# %% [markdown]
# ## The plan, and the apply
# Nothing is changed until the last line, which does what was shown, or nothing.

# %%
planned = plan("rules")
print(planned.changes.select("act", "kind", "name"))
print(planned.fields.select("name", "field", "after"))

# %%
done = planned.apply()
print("applied:", done["count"], "changes")
print(plan("rules").changes.height, "left")
