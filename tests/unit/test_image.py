"""The Containerfile: what it says, and its steps run one by one into an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from breaker_actors.settings import load_settings, variables

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "deploy" / "Containerfile").read_text()
INSTALL_S = 1_200.0


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of the Containerfile, in order."""
    lines = [line for line in CONTAINERFILE.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_is_small_and_its_user_is_nobody_else() -> None:
    last = instructions()[[word for word, _ in instructions()].index("FROM", 2) :]
    of = {word: rest for word, rest in last if word not in ("COPY", "RUN")}
    assert of["FROM"] == "python:${PYTHON}"
    assert of["USER"] == "10001:10001"
    assert of["VOLUME"] == of["WORKDIR"] == "/var/lib/breakers"
    assert of["EXPOSE"] == str(load_settings({}).port)
    assert of["HEALTHCHECK"].endswith('CMD ["python", "/opt/breakers/health.py"]')
    assert of["CMD"] == '["breakers", "serve"]'
    assert [rest for word, rest in last if word == "COPY"] == [
        "--from=build /opt/breakers /opt/breakers",
        "deploy/health.py /opt/breakers/health.py",
    ]
    set_here = dict(pair.split("=", 1) for pair in of["ENV"].split())
    assert {name for name in set_here if name.startswith("BREAKERS_")} <= variables()
    assert [rest for word, rest in instructions() if word == "ARG"] == ["PYTHON=3.11.14-slim-bookworm"]


def test_what_is_copied_is_there_and_passes_the_ignore_file() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {path for word, rest in instructions() if word == "COPY" and "--from" not in rest for path in rest.split()}
    sources = {path for path in copied if not path.startswith(("/", "./"))}
    assert sources == kept
    assert [path for path in sources if not (ROOT / path).exists()] == []
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S + 60)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to user 10001")
def test_the_steps_of_the_image_make_a_program_that_starts(tmp_path: Path) -> None:
    """Each RUN and COPY, with the paths of the image below an empty folder; `apt-get` needs a root of its own."""
    environ = {"PATH": f"{tmp_path}/python/bin:{os.environ['PATH']}", "HOME": str(tmp_path), **caches()}
    run([sys.executable, "-m", "venv", str(tmp_path / "python")], tmp_path, environ)
    (tmp_path / "etc").mkdir()
    for word, rest in instructions():
        inside = re.sub(r"(?<![\w/.])/(opt|src|var)/?", rf"{tmp_path}/\1/", rest)
        if word == "ENV" and "UV_PROJECT_ENVIRONMENT" in rest:
            environ |= dict(pair.split("=", 1) for pair in inside.split()) | {"UV_NO_CACHE": "0"}
        elif word == "COPY" and "--from" not in rest:
            copy(inside.split(), tmp_path)
        elif word == "RUN" and not rest.startswith("apt-get"):
            made = re.sub(r"\b(groupadd|useradd)\b", rf"\1 --prefix {tmp_path}", inside)
            folder = tmp_path / "src"
            folder.mkdir(exist_ok=True)
            (tmp_path / "var" / "lib").mkdir(parents=True, exist_ok=True)
            run(["sh", "-c", made], folder, environ)
    shutil.rmtree(tmp_path / "src")
    programs = {path.name for path in (tmp_path / "opt" / "breakers" / "bin").iterdir()}
    assert programs >= {"breakers", "ray", "python"}
    assert programs & {"pytest", "ruff", "mypy", "bandit", "lint-imports", "duckdb"} == set()
    data = tmp_path / "var" / "lib" / "breakers"
    assert (data.stat().st_uid, data.stat().st_mode & 0o777) == (10001, 0o700)
    user = (tmp_path / "etc" / "passwd").read_text()
    assert re.fullmatch(rf"breakers:.:10001:10001::{data}:/usr/sbin/nologin\n", user), user
    own = {"PATH": f"{tmp_path}/opt/breakers/bin:/usr/bin:/bin", "HOME": str(data), "BREAKERS_DATA_DIR": str(data)}
    assert run(["breakers", "--version"], data, own).strip() == version("breaker-actors")
    checks = "import api.cluster, api.app, breaker_actors, pipelines; print(api.__path__[0])"
    assert run(["python", "-c", checks], data, own).startswith(str(tmp_path / "opt"))


def caches() -> dict[str, str]:
    """Where packages come from here: nothing is loaded twice. `uv` is another program there."""
    names = ("UV_", "PIP_", "SSL_", "REQUESTS_", "HTTP", "http", "NO_PROXY", "no_proxy")
    given = {name: text for name, text in os.environ.items() if name.startswith(names)}
    return {"UV_CACHE_DIR": str(Path.home() / ".cache" / "uv")} | given


def copy(words: list[str], root: Path) -> None:
    *sources, target = words
    place = root / "src" / target if not target.startswith(str(root)) else Path(target)
    for source in sources:
        inside = place / source if target == "./" else place
        inside.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, inside, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, inside)


def run(command: list[str], folder: Path, environ: dict[str, str]) -> str:
    program = shutil.which(command[0], path=environ["PATH"]) or command[0]
    done = subprocess.run(
        [program, *command[1:]], cwd=folder, env=environ, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
