"""Exact versions of everything, transitive ones too, as `[tool.uv] constraint-dependencies` of pyproject.toml.

`uv run python -m tests.support.pins` writes them anew, as they resolve now; `--upgrade` takes the latest. Ranges in
`dependencies` say what the project works with; these say what it is tested with. A lock file would name a registry.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
_BLOCK = re.compile(r"^constraint-dependencies = \[\n.*?^\]\n", re.MULTILINE | re.DOTALL)
KEY = "constraint-dependencies"


def pinned() -> list[Requirement]:
    """What pyproject.toml says, in its order."""
    lines = tomllib.loads(PYPROJECT.read_text())["tool"]["uv"][KEY]
    return [Requirement(line) for line in lines]


def installed() -> dict[str, str]:
    """Name and version of what pyproject.toml leads to in this environment, the developers' tools too."""
    project = tomllib.loads(PYPROJECT.read_text())
    asked = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    waiting = [(Requirement(line), "") for line in asked]
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        package = metadata.distribution(name)
        found[name] = package.version
        for chosen in {"", *wanted.extras} - {e for n, e in seen if n == name}:
            seen.add((name, chosen))
            waiting += [(Requirement(line), chosen) for line in package.requires or ()]
    return found


def resolve(upgrade: bool = False) -> list[str]:
    """A line for each package on each platform, sorted by name. Asks the package registry."""
    text = PYPROJECT.read_text()
    if upgrade:
        PYPROJECT.write_text(_BLOCK.sub("", text, count=1))
    try:
        command = ["uv", "export", "--quiet", "--no-hashes", "--no-header", "--no-annotate", "--no-emit-project"]
        command += ["--all-groups", "--all-extras", *(["--upgrade"] if upgrade else [])]
        told = subprocess.run(command, cwd=PYPROJECT.parent, capture_output=True, text=True, check=True).stdout
    finally:
        PYPROJECT.write_text(text)
    return sorted(line.replace('"', "'") for line in told.splitlines() if line)


def write(lines: list[str]) -> None:
    block = "constraint-dependencies = [\n" + "".join(f'    "{line}",\n' for line in lines) + "]\n"
    PYPROJECT.write_text(_BLOCK.sub(lambda _: block, PYPROJECT.read_text(), count=1))


if __name__ == "__main__":
    write(resolve("--upgrade" in sys.argv))
