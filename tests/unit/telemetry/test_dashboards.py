"""The dashboards and alert rules in `dashboards/`: they ask for what `/metrics` says, and promtool takes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from breaker_actors.telemetry.catalog import TABLE
from tests.support.exposed import exposed_labels

ROOT = Path(__file__).parents[3]
BOARDS = {
    "grafana.json": ["Ingest", "Breakers", "Lag", "Journal", "Streams", "Notifications", "Logs and operation"],
    "breakers.json": ["Now", "Over time"],
}
RULES = ROOT / "dashboards" / "breakers.rules.yaml"
PAGE = ROOT / "docs" / "operations" / "observability.md"
OF_PROMETHEUS = {"job", "instance"}
SAID = exposed_labels()


def board(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "dashboards" / name).read_text())
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> dict[str, list[str]]:
    """What is asked for, by file."""
    found = {
        name: [target["expr"] for panel in board(name)["panels"] for target in panel.get("targets", [])]
        for name in BOARDS
    }
    return found | {RULES.name: [rule["expr"] for rule in rules()]}


ASKED = [(name, expression) for name, found in expressions().items() for expression in found]


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool")
    return subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("name", "expression"), ASKED)
def test_what_is_asked_for_is_there(name: str, expression: str) -> None:
    names = set(re.findall(r"\bbreakers_\w+", expression))
    assert names
    assert names <= SAID.keys()
    for selected_name, selected in re.findall(r"\b(breakers_\w+){([^}]*)}", expression):
        assert {*re.findall(r"(\w+)\s*[=!]", selected)} <= SAID[selected_name] | OF_PROMETHEUS
    labels = set().union(*(SAID[found] for found in names)) | OF_PROMETHEUS
    for by in re.findall(r"(?:\bby|\bon|\bgroup_left) \(([^)]*)\)", expression):
        assert {label.strip() for label in by.split(",")} <= labels


@pytest.mark.parametrize(("name", "expression"), ASKED)
def test_rates_are_of_counters_and_quantiles_of_buckets(name: str, expression: str) -> None:
    for found in re.findall(r"(?:rate|increase)\((breakers_\w+)", expression):
        assert found.endswith(("_total", "_bucket", "_sum", "_count"))
    for found in re.findall(r"histogram_quantile\([^r]*rate\((breakers_\w+)", expression):
        assert found.endswith("_bucket")


def test_the_board_of_the_service_shows_every_metric() -> None:
    names = re.findall(r"\bbreakers_\w+", " ".join(expressions()["grafana.json"]))
    assert {re.sub(r"(?<=seconds|commits)_(bucket|sum|count)$", "", name) for name in names} == set(TABLE)


def test_the_board_of_breakers_shows_every_series_of_theirs() -> None:
    names = set(re.findall(r"\bbreakers_breaker_\w+", " ".join(expressions()["breakers.json"])))
    unshown = {"breakers_breaker_last_evaluation_timestamp_seconds"}
    assert names == {name for name in SAID if name.startswith("breakers_breaker_")} - unshown


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_can_be_imported(name: str) -> None:
    found = board(name)
    assert found["schemaVersion"] >= 39
    assert found["id"] is None
    assert [v["name"] for v in found["templating"]["list"] if v["type"] == "datasource"] == ["datasource"]
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    assert [panel["title"] for panel in found["panels"] if panel["type"] == "row"] == BOARDS[name]
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    variables = {v["name"] for v in found["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$(\w+)", " ".join(expressions()[name]))) <= variables
    assert len({board(other)["uid"] for other in BOARDS}) == len(BOARDS)


def test_prometheus_can_read_what_the_boards_ask_for(tmp_path: Path) -> None:
    asked = [x for name in BOARDS for x in expressions()[name]]
    plain = [x.replace("$__rate_interval", "5m").replace("$project", ".*").replace("$breaker", ".*") for x in asked]
    group = {"name": "asked", "rules": [{"record": f"asked:{i}", "expr": x} for i, x in enumerate(plain)]}
    path = tmp_path / "asked.yaml"
    path.write_text(yaml.safe_dump({"groups": [group]}))
    done = promtool("check", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


# alerts


def test_alerts_fire_and_do_not() -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    done = promtool("test", "rules", str(ROOT / "tests" / "data" / "rules.test.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_and_said_what_to_do_about() -> None:
    page = PAGE.read_text()
    tested = (ROOT / "tests" / "data" / "rules.test.yaml").read_text()
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert f"`{rule['alert']}`" in page, rule["alert"]
        assert re.search(rf"\b{rule['alert']}\b", tested), rule["alert"]
