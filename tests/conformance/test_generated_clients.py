"""Clients that public generators make of the OpenAPI document: without a warning, and they work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.served import Served, served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CALLS = Path(__file__).parents[1] / "data" / "generated"
PYTHON_GENERATOR = "openapi-python-client==0.29.1"
NODE_PACKAGES = ["openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3", "@types/node@24.10.1"]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served") / "data") as found:
        yield found


@pytest.fixture
def document(app: Served, tmp_path: Path) -> Path:
    path = tmp_path / "openapi.json"
    path.write_bytes(httpx.get(f"{app.url}/openapi.json", timeout=20, trust_env=False).raise_for_status().content)
    return path


def run(command: list[str], folder: Path, **environ: str) -> str:
    """What it says, on both outputs."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environ}, stdout=-1, stderr=-2, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@pytest.mark.skipif(shutil.which("uv") is None, reason="there is no uv to get the generator with")
def test_a_python_client(app: Served, document: Path, tmp_path: Path) -> None:
    command = ["uv", "tool", "run", "--quiet", "--from", PYTHON_GENERATOR, "openapi-python-client", "generate"]
    (tmp_path / "config.yaml").write_text(
        "content_type_overrides: {application/x-protobuf: application/octet-stream}\n"
    )
    command += ["--config", "config.yaml", "--path", str(document), "--output-path", "client"]
    # it has no types for a body of columns, says so, and makes the one of JSON
    said = run(command, tmp_path)
    assert re.findall(r"^(?:Generating|WARNING|Unsupported|ERROR).*", said, re.MULTILINE) == [
        "Generating client",
        "WARNING parsing POST /v1/projects/{project_id}/ingest within ingest.",
        "Unsupported content type application/vnd.apache.arrow.stream",
    ]
    arguments = [app.url, app.keys["user"], app.project_id]
    told = run([sys.executable, str(CALLS / "calls.py"), *arguments], tmp_path, PYTHONPATH=str(tmp_path / "client"))
    assert told == "done\n"


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm to get the generator with")
def test_typescript_types(app: Served, document: Path, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "calls", "private": true, "type": "module"}')
    run(["npm", "install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts", *NODE_PACKAGES], tmp_path)
    generated = run(["node_modules/.bin/openapi-typescript", str(document), "-o", "api.d.ts"], tmp_path)
    assert "warn" not in generated.lower()
    shutil.copy(CALLS / "calls.ts", tmp_path)
    strict = ["--strict", "--noUncheckedIndexedAccess", "--target", "es2022", "--module", "nodenext"]
    run(["node_modules/.bin/tsc", *strict, "--types", "node", "calls.ts"], tmp_path)
    assert run(["node", "calls.js", app.url, app.keys["user"], app.project_id], tmp_path) == "done\n"
