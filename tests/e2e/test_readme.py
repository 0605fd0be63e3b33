"""The walks of README and the guides, run as they stand there, in a directory whose .breakers is the running service's.

`uv run breakers` is the command of this environment.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live import LiveService

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
GUIDES, OPERATIONS = ROOT / "docs" / "guides", ROOT / "docs" / "operations"
README = ROOT / "README.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def beside(live: LiveService, tmp_path: Path) -> Path:
    """A directory beside the service's data, with the files of the repository that the pages name."""
    (tmp_path / ".breakers").symlink_to(live.data_dir)
    for name in ("api", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def shell(script: str, folder: Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a script of a page; job control as in a terminal."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    text = "set -m\n" + script.replace("uv run breakers", "breakers")
    return subprocess.run(
        ["bash", "-c", text], cwd=folder, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def python(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_readmes_first_trip_and_its_ten_lines_of_python(beside: Path) -> None:
    (trip,), (sdk,) = blocks(README, "bash"), blocks(README, "python")
    done = shell(trip, beside)
    accepted, states = done.stdout.splitlines()
    assert accepted == '{"accepted":5}', done.stdout + done.stderr
    assert [state["state"] for state in json.loads(states)["states"]] == ["open"]
    gate = python(sdk, beside)
    assert gate.stdout == "search is open: the call was not made\n", gate.stderr


def test_the_curl_walk(beside: Path) -> None:
    done = shell("\n".join(blocks(GUIDES / "first-trip.md", "bash")), beside)
    lines = done.stdout.splitlines()
    assert lines[0] == '{"accepted":10}', done.stdout + done.stderr
    assert json.loads(lines[1])["state"] == "open"
    messages = [json.loads(m) for m in re.findall(r"^data: (.*)$", done.stdout, re.MULTILINE)]
    of_checkout = [(m["state"], m["allow_rate"]) for m in messages if m["breaker"] == "checkout"]
    rates = [("half_open", rate) for rate in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert of_checkout == [("closed", None), ("open", None), *rates, ("closed", None)]
    events = json.loads(lines[-1])["events"]
    assert [(e["prev"], e["curr"]) for e in events] == [
        ("half_open", "closed"),
        ("open", "half_open"),
        ("closed", "open"),
    ]
    # what another rule would have done, and what this one did: the guide's way back into the logs
    (spread, recorded) = (b for b in blocks(GUIDES / "backtest.md", "(?:bash)?") if "breakers backtest" in b)
    tried = shell(spread.partition("uv run")[0] + recorded, beside)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "half_open" in tried.stdout


def test_the_sdk_walk(beside: Path) -> None:
    (script,) = blocks(GUIDES / "sdks.md", "python")
    done = python(script, beside)
    assert done.stdout == "the breaker is open: the call was not made\n", done.stderr


def test_the_signed_walk(beside: Path) -> None:
    (script,) = blocks(GUIDES / "signed-ingest.md", "python")
    done = python(script, beside)
    assert done.stdout == "(202, {'accepted': 1})\n401\n", done.stdout + done.stderr


def test_the_columns_walk(beside: Path) -> None:
    """From polars, then from pandas."""
    done = python("\n".join(blocks(GUIDES / "columns.md", "python")), beside)
    assert done.stdout == "2 1 invalid_value\n2\n", done.stdout + done.stderr


def test_the_channel_walk(beside: Path) -> None:
    script, _, _ = blocks(GUIDES / "notifications.md", "bash")
    done = shell(script, beside)
    tested, listed, deleted = done.stdout.splitlines()
    assert json.loads(tested)["code"] == "send_failed", done.stdout + done.stderr
    assert '"secret":"hush"' not in listed
    assert "webhook" in {channel["channel"] for channel in json.loads(listed)["channels"]}
    assert deleted == "204"


def test_the_channel_commands_walk(beside: Path) -> None:
    _, script, _ = blocks(GUIDES / "notifications.md", "bash")
    done = shell("set -e\n" + script, beside)
    made, *listed, changed, tested, removed = done.stdout.splitlines()
    assert f"pager\twebhook\tenabled\ttrip recover\t{made}" in listed, done.stdout + done.stderr
    assert (changed, tested, removed) == (f"changed {made}", "not sent", f"removed {made}")
    assert "hush" not in done.stdout


def test_the_mute_walk(beside: Path) -> None:
    _, _, script = blocks(GUIDES / "notifications.md", "bash")
    done = shell("set -e\n" + script, beside)
    assert done.returncode == 0, done.stderr
    preview, _titles, listed, _, ended, nights = done.stdout.splitlines()
    assert preview == "matches 0 breakers, 0 open now"
    assert "deploy of the shop" in listed
    assert ended.startswith("ended ")
    assert nights.startswith("ended ")


def test_the_override_walk(live: LiveService, beside: Path) -> None:
    """With a breaker of another name: several walks make one that is called search."""
    live.breaker(name="walked")
    over, many, modes = blocks(GUIDES / "overrides.md", "bash")
    done = shell("set -e\n" + "\n".join((over, many, modes)).replace("search", "walked"), beside)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    said = [line for line in lines if "\t" not in line]  # lists may show what others override meanwhile
    assert said[0].startswith("force_open until ")
    assert any(line.startswith("walked\tforce_open\t") and "the index is being moved" in line for line in lines)
    assert said[1].startswith("throttle until ")
    assert said[2].startswith("ended")
    assert "matches 1 breaker, 0 open now" in lines
    assert lines[-2:] == ["walked observes", "walked is enforced"]


def test_the_mapping_walk(beside: Path) -> None:
    (script,) = blocks(GUIDES / "mappings.md", "bash")
    done = shell("set -e\n" + script, beside)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines() if not line.startswith(("position\t", "series\t"))]
    assert lines[1][1:4] == [
        "checkout",
        "enabled",
        "name=http.client.request.duration resource.service.name=checkout",
    ]
    assert [line[1] for line in lines[2:5]] == ["refused", "unmatched", "unmatched"]
    assert lines[2][-1] == "the project has no router payments"
    assert lines[5][0].startswith("changed ")
    assert lines[6][0].startswith("unchanged: ")
    assert lines[7][0].startswith("removed ")


def test_the_statsd_walk(beside: Path) -> None:
    """The client in the middle is a script of its own on the page, and here a part of the shell's."""
    before, after = blocks(GUIDES / "from-statsd.md", "bash")
    (client,) = blocks(GUIDES / "from-statsd.md", "python")
    done = shell(f"{before}python3 - <<'END'\n{client}END\n{after}", beside)
    assert done.returncode == 0, done.stdout + done.stderr
    opened = re.findall(r"^\S+\tpay\tclosed\topen\tthreshold_exceeded\t900\t", done.stdout, re.MULTILINE)
    states = re.findall(r"^status\.state\t(\w+)", done.stdout, re.MULTILINE)
    assert (len(opened), states) == (1, ["closed"]), done.stdout + done.stderr
    status = json.loads(done.stdout.splitlines()[-1])
    assert (status["event"], status["malformed"], status["points_dropped"]) == ("status", {}, {})


def test_the_backfill_walk(beside: Path) -> None:
    (script,) = blocks(GUIDES / "backfill-and-export.md", "sh")
    done = shell(script, beside, 240)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = re.findall(r'^(\{"events".*)$', done.stdout, re.MULTILINE)
    events = json.loads(found)["events"]
    assert ("closed", "open") in {(event["prev"], event["curr"]) for event in events}
    assert {event["name"] for event in events} == {"old-latency"}
    assert list((beside / "exported").rglob("*.parquet"))
    (joined,) = blocks(GUIDES / "backfill-and-export.md", "python")
    met = python(joined, beside)
    assert "breaker_id" in met.stdout, met.stderr
    again, shown = (
        found.group(1)
        for how in (r"`(breakers backtest --sort[^`]*)`", r"`(breakers get NAME[^`]*)`")
        if (found := re.search(how, (GUIDES / "backfill-and-export.md").read_text()))
    )
    tried = shell(f"{shown.replace('NAME', 'old-latency')}\n{again}", beside)
    assert (tried.returncode, tried.stderr) == (0, "")
    assert "closed → open" in tried.stdout


def test_the_backtest_walk(beside: Path) -> None:
    walk, said = blocks(GUIDES / "backtest.md", "(?:bash)?")[:2]
    done = shell(walk, beside)
    assert done.returncode == 0, done.stdout + done.stderr
    beginning = said.strip().removesuffix("...").rstrip("; ")
    assert beginning in " ".join(done.stdout.split()), done.stdout
    assert (beside / "report.html").stat().st_size > 10_000


def test_the_backup_walk(beside: Path) -> None:
    (script,) = blocks(OPERATIONS / "sqlite.md", "bash")
    done = shell(script, beside)
    assert done.returncode == 0, done.stdout + done.stderr
    (backup,) = beside.glob("backup-*")
    assert {path.name for path in backup.iterdir()} == {"breakers.sqlite", "credentials.json", "log", "secret.key"}
    logs = {path.name for path in (beside / ".breakers" / "log").glob("*.sqlite")}
    assert {path.name for path in (backup / "log").iterdir()} == logs
    assert all(path.stat().st_mode & 0o077 == 0 for path in (backup, *backup.rglob("*")))
    looked = shell(f"breakers verify --data-dir {backup.name}", beside)
    assert looked.returncode == 0, looked.stdout + looked.stderr


def test_what_operators_list(beside: Path) -> None:
    for words in ("orgs list", "keys list", "projects list", "aside list", "aside list --json", "db status --json"):
        done = shell(f"breakers {words}", beside)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


def test_the_git_walk(beside: Path, live: LiveService) -> None:
    """A rule is declared, applied, changed with what it would have done, edited by hand, and one is adopted."""
    declare, change, by_hand, adopt = blocks(GUIDES / "rules-as-code.md", "bash")
    done = shell("set -e\n" + declare, beside)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "+ breakers checkout-errors" in done.stdout
    assert done.stdout.endswith("applied: 2 changes\nno changes\n")
    router_id = next(
        one["id"]
        for one in live.user.get(f"{live.project_path}/routers").json()["routers"]
        if one["name"] == "checkout-gateway"
    )
    for ok in (True, True, False):
        assert live.send(router_id, [1.0] * 5, metric="checkout", ok=ok).status_code == 202
    done = shell("set -e\n" + change, beside)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "    threshold: 0.9 -> 0.2" in done.stdout
    assert re.search(r"backtest checkout-errors: tripped 0 -> 1 time, first .*, open .*, 15 samples", done.stdout)
    assert "<html" in (beside / "deploy" / "plan.html").read_text()[:500].lower()
    done = shell("set -e\n" + by_hand, beside)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("changed by hand (threshold) by ") == 3, "drift, plan and apply"
    assert done.stdout.endswith("applied: 1 change\nno changes\n")
    assert "threshold: 0.7" in (beside / "deploy" / "exported.yaml").read_text()
    done = shell("set -e\n" + adopt, beside)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "! breakers by-hand: is there and nobody's" in done.stdout
    assert done.stdout.endswith("adopted breakers.by-hand\nno changes\n")
