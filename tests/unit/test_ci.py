"""`.ci/run` answers what its parts answered: run here with a `uv` that does nothing but fail where it is told to."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / ".ci" / "run"


def ci(folder: Path, fails_at: str) -> int:
    """What the script answers when each step whose words hold `fails_at` fails."""
    for program in ("chromium", "prometheus", "prometheus-alertmanager", "redis-server", "victoria-metrics"):
        (folder / program).symlink_to("/bin/true")
    (folder / "uv").write_text(f'#!/bin/sh\ncase "$*" in *"{fails_at}"*) exit 3;; esac\n')
    (folder / "uv").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run([RUN], env={**os.environ, "PATH": path}, capture_output=True, check=False).returncode


def test_it_passes_when_everything_passed(tmp_path: Path) -> None:
    assert ci(tmp_path, "nothing at all") == 0


def test_it_names_files_that_are_there() -> None:
    """A name that leads nowhere would leave its tests to another part."""
    text = RUN.read_text()
    named = re.findall(r"tests/[\w/.]+", text.split("computing=(")[1].split(")")[0])
    assert len(named) > 10
    assert [name for name in named if not (RUN.parents[1] / name).exists()] == []


@pytest.mark.parametrize(
    "step", ["ruff check", "mypy", "lint-imports", "bandit", "run pytest", "slow tests/parity", "slow --ignore"]
)
def test_it_fails_with_any_step(tmp_path: Path, step: str) -> None:
    assert ci(tmp_path, step) != 0
