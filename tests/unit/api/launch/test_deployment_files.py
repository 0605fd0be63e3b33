"""The files of `deploy/`, as far as they can be held against something without an engine that runs them. The image:
`tests/unit/test_image.py`."""

from __future__ import annotations

import configparser
import http.server
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trustme
import yaml

from breaker_actors.settings import load_settings, variables
from breaker_actors.store.secrets import parse_admin_key, parse_key

ROOT = Path(__file__).parents[4]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "operations" / "deployment.md"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
IMAGE = f"breaker-actors:{version('breaker-actors')}"
TOKEN = "t0ken"


def block(language: str, beginning: str) -> str:
    """The block of the page that begins so."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (text,) = (text for text in found if text.startswith(beginning))
    return str(text)


# the health check


def program() -> ModuleType:
    module = ModuleType("health")
    exec(compile((DEPLOY / "health.py").read_text(), "health.py", "exec"), module.__dict__)
    return module


class Probe(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        self.send_response(404 if self.path != "/api/readyz" else self.status if known else 401)
        self.end_headers()
        self.wfile.write(b'{"message":"the store \x1b is away"}')

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def probe(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """What is set in the container of a service that asks for a token; param: whether it speaks TLS."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Probe) as server:
        environ = {"BREAKERS_PORT": str(server.server_port)}
        if getattr(request, "param", False):
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            trustme.CA().issue_cert("breakers.example").configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            environ["BREAKERS_TLS_CERT"] = "/cert.pem"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield environ
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("probe", [False, True], ids=["http", "https"], indirect=True)
def test_the_health_check_asks_with_the_token(probe: dict[str, str], tmp_path: Path) -> None:
    complaint, token = program().complaint, tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    assert complaint(probe | {"BREAKERS_HEALTH_TOKEN": TOKEN}) is None
    assert complaint(probe | {"BREAKERS_HEALTH_TOKEN_FILE": str(token)}) is None
    assert complaint(probe).startswith("401 ")


def test_the_health_check_says_what_is_wrong(probe: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probe, "status", 503)
    environ = {**os.environ, **probe, "BREAKERS_HEALTH_TOKEN": TOKEN}
    asked = [sys.executable, str(DEPLOY / "health.py")]
    done = subprocess.run(asked, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, '503 {"message":"the store \\x1b is away"}\n')
    assert "refused" in program().complaint({"BREAKERS_PORT": "1"})


# Compose


def test_every_service_is_bounded_and_watched() -> None:
    assert SERVICES.keys() == {"breakers", "postgres", "prometheus", "grafana"}
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+(\.\d+)?(-bookworm)?", service["image"]), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert service["restart"] == "unless-stopped", name
        assert service["healthcheck"].keys() == {"test", "interval", "timeout", "start_period", "retries"}, name
        assert not service.keys() & {"privileged", "pid", "ipc", "devices"}, name
    assert {name for name in SERVICES if "cap_add" in SERVICES[name]} == {"postgres"}


def test_ports_are_on_loopback_and_the_database_has_none() -> None:
    ports = {name: service.get("ports", []) for name, service in SERVICES.items()}
    own = load_settings({}).port
    assert ports == {
        "breakers": [f"127.0.0.1:{own}:{own}"],
        "postgres": [],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_volumes_are_declared_and_files_are_there() -> None:
    named = set()
    for service in SERVICES.values():
        for source, _, rest in (volume.partition(":") for volume in service.get("volumes", [])):
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
                assert rest.endswith(":ro")
            else:
                named.add(source)
    assert named == COMPOSE["volumes"].keys()
    assert SERVICES["breakers"]["volumes"][0] == "data:/var/lib/breakers"
    assert SERVICES["breakers"]["build"] == {"context": "..", "dockerfile": "deploy/Containerfile"}
    assert SERVICES["breakers"]["image"] == IMAGE


def test_services_wait_for_those_they_need() -> None:
    waits = {name: {**service.get("depends_on", {})} for name, service in SERVICES.items()}
    assert {name: list(found) for name, found in waits.items()} == {
        "breakers": ["postgres"],
        "postgres": [],
        "prometheus": ["breakers"],
        "grafana": ["prometheus"],
    }
    assert {wait["condition"] for found in waits.values() for wait in found.values()} == {"service_healthy"}


def test_secrets_are_files_and_nothing_else() -> None:
    used = {name for service in SERVICES.values() for name in service.get("secrets", [])}
    assert used == COMPOSE["secrets"].keys()
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            secret = re.search("PASSWORD|KEY|TOKEN|DATABASE_URL", name) is not None
            assert secret == name.endswith("_FILE"), name
            assert not secret or value.removeprefix("/run/secrets/") in service["secrets"], name
    assert SERVICES["breakers"]["environment"].keys() <= variables()
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"deploy/secrets/", "deploy/breakers.env"} <= set(ignored)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the page's command is not installed")
def test_the_secrets_of_the_page_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["sh", "-ec", block("sh", "mkdir -m 700 secrets")], cwd=tmp_path, check=True, timeout=60)
    folder = tmp_path / "secrets"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in folder.iterdir()} == COMPOSE["secrets"].keys()
    for name, path in SERVICES["breakers"]["environment"].items():
        monkeypatch.setenv(name, path.replace("/run/secrets", str(folder)))
    settings = load_settings()
    assert settings.database_url is not None
    password = (folder / "postgres-password").read_text().strip()
    user, database = (SERVICES["postgres"]["environment"][f"POSTGRES_{name}"] for name in ("USER", "DB"))
    assert settings.database_url.get_secret_value() == f"postgresql://{user}:{password}@postgres/{database}"
    assert settings.secret_key is not None
    assert len(parse_key(settings.secret_key.get_secret_value())) == 32
    assert settings.bootstrap_admin_key is not None
    assert parse_admin_key(settings.bootstrap_admin_key.get_secret_value())


def test_prometheus_and_grafana_are_given_what_is_there() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])
    (scrape,) = prometheus["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": [f"breakers:{load_settings({}).port}"]}]
    (token,) = SERVICES["prometheus"]["secrets"]
    assert scrape["authorization"] == {"credentials_file": f"/run/secrets/{token}"}
    assert SERVICES["breakers"]["environment"]["BREAKERS_METRICS_TOKEN_FILE"] == f"/run/secrets/{token}"
    assert prometheus["rule_files"] == [f"{mounts['../dashboards']}/*.rules.yaml"]
    assert list((DEPLOY / "../dashboards").glob("*.rules.yaml"))
    assert "network_mode" not in SERVICES["prometheus"]
    (source,) = yaml.safe_load((DEPLOY / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((DEPLOY / "grafana" / "dashboards.yaml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert provider["options"]["path"] == mounts["../dashboards"]
    assert list((DEPLOY / "../dashboards").glob("*.json"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_takes_its_file(tmp_path: Path) -> None:
    """With the rules and the token where the containers have them."""
    text = (DEPLOY / "prometheus" / "prometheus.yaml").read_text()
    (tmp_path / "token").write_text(TOKEN)
    text = text.replace("/etc/prometheus/rules", str(ROOT / "dashboards"))
    text = text.replace("/run/secrets/metrics-token", str(tmp_path / "token"))
    path = tmp_path / "prometheus.yaml"
    path.write_text(text)
    done = subprocess.run(["promtool", "check", "config", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 rules found" in done.stdout


# Kubernetes


def test_the_pod_monitor_finds_the_head_and_its_token() -> None:
    kubernetes = DEPLOY / "kubernetes"
    (resource,) = yaml.safe_load((kubernetes / "monitoring" / "kustomization.yaml").read_text())["resources"]
    monitor = yaml.safe_load((kubernetes / "monitoring" / resource).read_text())["spec"]
    group = yaml.safe_load((kubernetes / "rayservice.yaml").read_text())["spec"]["rayClusterConfig"]["headGroupSpec"]
    wanted = {k: v for k, v in monitor["selector"]["matchLabels"].items() if not k.startswith("ray.io/")}
    assert wanted.items() <= group["template"]["metadata"]["labels"].items()
    (container,) = group["template"]["spec"]["containers"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    assert endpoint["path"] == "/metrics"
    (token,) = [env for env in container["env"] if env["name"] == "BREAKERS_METRICS_TOKEN"]
    assert {"optional": True, **endpoint["authorization"]["credentials"]} == token["valueFrom"]["secretKeyRef"]


# systemd


def unit() -> configparser.RawConfigParser:
    found = configparser.RawConfigParser(strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string((DEPLOY / "breakers.service").read_text())
    return found


def test_the_unit_starts_what_is_installed() -> None:
    service = unit()["Service"]
    assert service["ExecStart"] == "/opt/breakers/bin/breakers serve"
    assert "UV_PROJECT_ENVIRONMENT=/opt/breakers" in block("sh", "useradd")
    given = dict(pair.split("=", 1) for pair in service["Environment"].split())
    assert {name for name in given if name.startswith("BREAKERS_")} <= variables()
    assert given["BREAKERS_DATA_DIR"] == f"/var/lib/{service['StateDirectory']}"
    names = re.findall(r"(BREAKERS_\w+)=", block("ini", "# /etc/systemd"))
    assert len(names) == 2
    assert set(names) <= variables()
    # a line of LoadCredential is one credential; what follows a blank is part of its path
    loaded = re.findall(r"^LoadCredential=([\w-]+):\S+$", block("ini", "# /etc/systemd"), re.MULTILINE)
    assert loaded == re.findall(r"=%d/([\w-]+)", block("ini", "# /etc/systemd"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_unit_and_finds_it_confined(tmp_path: Path) -> None:
    path = tmp_path / "breakers.service"
    path.write_text((DEPLOY / "breakers.service").read_text().replace("/opt/breakers/bin/breakers", "/bin/true"))
    drop_in = tmp_path / "breakers.service.d" / "postgresql.conf"
    for _ in range(2):  # as it is, then with the page's drop-in
        done = analyze("verify", "--man=no", "--recursive-errors=no", str(path))
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
        drop_in.parent.mkdir(exist_ok=True)
        drop_in.write_text(block("ini", "# /etc/systemd"))
    done = analyze("security", "--offline=yes", "--threshold=20", str(path))
    assert done.returncode == 0, done.stdout


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", "--no-pager", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
