"""The house rules that no linter knows."""

from __future__ import annotations

import re
from pathlib import Path

from breaker_actors.meter_table import readme_table
from breaker_actors.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_readme_has_the_settings_as_they_are() -> None:
    assert Settings.table() in README


def test_readme_has_the_metrics_as_they_are() -> None:
    assert readme_table().strip() in README


def test_the_stops_of_a_sample_are_files() -> None:
    stops = re.findall(r"^\| \d+ \| (.*?) \|", README, re.MULTILINE)
    assert len(stops) == 15
    for stop in stops:
        for path in re.findall(r"`([^`]+)`", stop):
            assert (ROOT / path).is_file(), path


def test_every_package_of_ours_has_a_docstring_that_says_its_role() -> None:
    for package in ("breaker_actors", "api", "pipelines"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            assert not text.strip() or text.lstrip().startswith('"""'), path


def test_only_three_files_import_ray_in_breaker_actors() -> None:
    importers = {
        path.name
        for path in (ROOT / "breaker_actors").rglob("*.py")
        if re.search(r"^\s*(import|from) ray\b", path.read_text(), re.MULTILINE)
    }
    assert importers == {"actors.py", "fleet.py", "metrics.py"}
