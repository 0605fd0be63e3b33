"""cluster.yaml and the KubeRay example are valid for who reads them, and every command and option in them exists."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from api.cli.main import app
from api.launch import cluster
from breaker_actors.settings import PREFIX, Settings, variables

ROOT = Path(__file__).parents[4]
LAUNCHER: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text())
KUBERAY: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "rayservice.yaml").read_text())


def launcher_commands() -> list[str]:
    return [line for name, lines in LAUNCHER.items() if name.endswith("_commands") for line in lines]


def calls(program: str) -> list[list[str]]:
    """The words after each call of a program, wherever one stands in a line."""
    found = []
    for line in launcher_commands():
        for part in re.split(r"&&|\|\||[;|]|\$\(|\)", line.replace('"$(', "$(")):
            words = shlex.split(part.replace('"', " "))
            if words and words[0] == program:
                found.append(words[1:])
    return found


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def check(group: Any, words: list[str]) -> None:
    """The subcommand is there and knows the options. `group`: click's, or typer's own copy of it."""
    given = {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
    assert given <= options_of(group.commands[words[0]]), words


def test_the_launcher_takes_the_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(LAUNCHER)
    validate_config(prepared)
    assert prepared["available_node_types"].keys() == {"head", "worker"}


def test_every_command_of_the_launcher_exists() -> None:
    from ray.scripts.scripts import cli as ray

    ours, rays = calls("breakers"), calls("ray")
    assert [words[0] for words in ours] == ["node-env", "deploy", "node-env"]
    assert [words[0] for words in rays] == ["stop", "start", "stop", "start"]
    for words in ours:
        check(typer.main.get_command(app), words)
    for words in rays:
        check(ray, words)


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_kuberay_hands_serve_what_it_takes() -> None:
    from ray.serve.schema import ServeDeploySchema

    spec = KUBERAY["spec"]
    schema = ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
    (application,) = schema.applications
    module, name = application.import_path.split(":")
    assert getattr(importlib.import_module(module), name) is cluster.app
    assert cluster._scale(application.args, 1) == cluster.Scale(2, 12)
    groups = [spec["rayClusterConfig"]["headGroupSpec"], *spec["rayClusterConfig"]["workerGroupSpecs"]]
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        assert "breakers node-env" in container["args"][0]
        assert schema.http_options.port in [port["containerPort"] for port in container["ports"]]


def test_kuberay_grows_as_the_launcher_does() -> None:
    spec = KUBERAY["spec"]["rayClusterConfig"]
    (workers,), nodes = spec["workerGroupSpecs"], LAUNCHER["available_node_types"]
    assert (workers["minReplicas"], workers["maxReplicas"]) == (nodes["worker"]["min_workers"], LAUNCHER["max_workers"])
    assert spec["autoscalerOptions"]["idleTimeoutSeconds"] == LAUNCHER["idle_timeout_minutes"] * 60
    assert spec["enableInTreeAutoscaling"] is True
    (deploy,) = (words for words in calls("breakers") if words[0] == "deploy")
    (application,) = yaml.safe_load(KUBERAY["spec"]["serveConfigV2"])["applications"]
    for name, count in application["args"].items():
        assert deploy[deploy.index(f"--{name.replace('_', '-')}") + 1] == count


def test_kuberay_pods_have_the_settings_and_secrets_they_need() -> None:
    spec = KUBERAY["spec"]["rayClusterConfig"]
    assert spec["rayVersion"] == version("ray")
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["enableServiceLinks"] is False
        assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["image"] == f"registry.example.com/breaker-actors:{version('breaker-actors')}"
        given = {variable["name"]: variable for variable in container["env"]}
        assert {name for name in given if name.startswith(PREFIX)} <= variables()
        secret = {PREFIX + name.upper() for name in Settings.secrets()} | {"RAY_AUTH_TOKEN"}
        assert {name for name in given if "valueFrom" in given[name]} == secret & given.keys()
        assert given.keys() >= {"BREAKERS_DATABASE_URL", "BREAKERS_SECRET_KEY", "RAY_AUTH_TOKEN"}
        assert given["BREAKERS_DATA_DIR"]["value"] == "/var/lib/breakers"


def test_kustomize_names_the_image_of_the_file() -> None:
    folder = ROOT / "deploy" / "kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert [path for path in kustomization["resources"] if not (folder / path).is_file()] == []
    (image,) = kustomization["images"]
    (container,) = KUBERAY["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert f"{image['name']}:{image['newTag']}" == container["image"]
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here: what kustomize makes of it is not looked at")
    made = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=True)
    assert yaml.safe_load(made.stdout) == KUBERAY


@pytest.mark.parametrize(
    ("least", "most", "options"), [(2, 2, {"num_replicas": 2}), (1, 3, {"min_replicas": 1, "max_replicas": 3})]
)
def test_scale(least: int, most: int, options: dict[str, int]) -> None:
    made = cluster.Scale(least, most).options()
    assert options.items() <= made.get("autoscaling_config", made).items()
