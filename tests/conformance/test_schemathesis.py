"""The app against its own description, by a program that makes up requests: valid, invalid, and chains of them.

All checks; "what was made is there" not where its 404s say nothing: routers and links name breakers besides, and delete
is given a project of its own. "What was deleted is gone" is asked neither of a mute, which is kept when it has ended,
nor of an override, which reads null. The whole set of breakers is replaced in another project, too: what hooks name as
watched by shadows stays. Streams are left out, for they don't end. CONFIG lists which valid requests may be refused for
what is stored: a condition that doesn't hold, a masked value, a notification that can't be sent, a cursor of other
events, a breaker that is no shadow, a mute that has begun or ended, a mapping's name that another one has; and for
which of two times of a span comes first. `strict` refuses what the description allows: fields that no request has. Who
deletes a project may send any body (docs/wire-contract.md): none of those is invalid.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.served import served

CONFIG = """
continue-on-failure = true
[parameters]
"path.project_id" = "{project_id}"
"query.strict" = "false"
[generation]
allow-x00 = false
max-examples = {examples}
[checks.negative_data_rejection]
expected-statuses = ["4xx", "5xx"]
[[operations]]
include-operation-id = ["create_router", "link_breakers", "unlink_breaker", "delete_project"]
[operations.checks.ensure_resource_availability]
enabled = false
[[operations]]
include-operation-id = ["update_project", "rotate_secret"]
[operations.parameters]
"path.project_id" = "{changed_id}"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 422]
[[operations]]
include-operation-id = "delete_project"
[operations.parameters]
"path.project_id" = "{deleted_id}"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 422]
[operations.checks.negative_data_rejection]
enabled = false
[[operations]]
include-operation-id = "replace_breakers"
[operations.parameters]
"path.project_id" = "{changed_id}"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 409, 412, 422]
[[operations]]
include-operation-id = ["test_channel", "update_channel", "create_channel", "create_project"]
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 422]
[[operations]]
include-operation-id = "update_breaker"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 412, 422]
[[operations]]
include-operation-id = "ingest"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 422]
[[operations]]
include-operation-id = "list_events"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 400]
[[operations]]
include-operation-id = "compare_shadow"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404, 422]
[[operations]]
include-operation-id = ["set_override", "end_override"]
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 412]
[[operations]]
include-operation-id = ["get_mute", "get_override"]
[operations.checks.use_after_free]
enabled = false
[[operations]]
include-operation-id = "update_mute"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 422]
[[operations]]
include-operation-id = ["create_mapping", "update_mapping", "replace_mappings"]
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 422]
[[operations]]
include-operation-id = ["plan_rules", "apply_rules", "adopt_rules"]
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 409, 412, 422]
[[operations]]
include-operation-id = ["update_breaker_metadata", "update_router_metadata"]
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 422]
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_app_is_as_described(tmp_path: Path) -> None:
    examples = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "80"))
    seed = os.environ.get("SCHEMATHESIS_SEED", "7")
    with served(tmp_path / "data") as app:
        config = tmp_path / "schemathesis.toml"
        config.write_text(CONFIG.format(**vars(app), examples=examples))
        options = ["--config-file", str(config), "run", f"{app.url}/openapi.json", "--seed", seed, "--no-color"]
        options += ["--header", f"Authorization: Bearer {app.keys['admin']}", "--request-timeout", "10"]
        options += ["--exclude-operation-id", "stream_states"]
        command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", *options]
        environ = {
            **os.environ,
            "SCHEMATHESIS_HOOKS": "tests.conformance.schemathesis_hooks",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        environ |= {"CONFORMANCE_WORKSPACE_ID": app.workspace_id, "CONFORMANCE_ROUTER_ID": app.router_id}
        environ |= {"CONFORMANCE_SHADOW_OF": app.breaker_id}
        done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=1750, cwd=tmp_path)
    (tmp_path / "output.txt").write_text(done.stdout + done.stderr)
    failures = done.stdout.partition(" FAILURES ")[2].partition(" WARNINGS ")[0] or done.stdout[-3_000:]
    assert done.returncode == 0, f"{failures[:6_000]}\nall of it: {tmp_path / 'output.txt'}"
