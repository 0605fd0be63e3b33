# /// script
# requires-python = ">=3.11"
# dependencies = ["tripswitch-py>=0.2.3"]
# ///
"""The public SDK, tripswitch-py: makes a breaker, reports slow calls, sees the gate close, removes the breaker.

    uv run examples/sdk.py

In the directory of `breakers serve`, or with BREAKERS_DATA_DIR set. A second run works as the first.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tripswitch
from tripswitch.admin import AdminClient
from tripswitch.admin.types import Breaker, BreakerKind, BreakerOp, CreateBreakerInput

SENT_AT = 500
"""The SDK sends at so many samples, or after 15 seconds without one."""
OPEN_WITHIN_S = 30.0


def credentials() -> dict[str, str]:
    path = Path(os.environ.get("BREAKERS_DATA_DIR", ".breakers"), "credentials.json")
    found: dict[str, str] = json.loads(path.read_text())
    return found


@contextmanager
def a_breaker(cred: dict[str, str]) -> Iterator[Breaker]:
    """Open while the average latency of the last minute is above 250; with a name of its own, since SDKs know breakers
    by name."""
    with AdminClient(api_key=cred["admin_key"], base_url=cred["base_url"]) as admin:
        breaker = admin.create_breaker(
            cred["project_id"],
            CreateBreakerInput(
                name=f"example-{os.urandom(4).hex()}",
                metric="latency",
                kind=BreakerKind.AVG,
                op=BreakerOp.GT,
                threshold=250,
                window_ms=60_000,
                eval_interval_ms=1_000,
                min_state_duration_ms=0,
                cooldown_ms=60_000,
            ),
        )
        try:
            yield breaker
        finally:
            admin.delete_breaker(cred["project_id"], breaker.id)


def main() -> None:
    cred = credentials()
    keys = {"api_key": cred["project_key"], "ingest_secret": cred["ingest_secret"], "base_url": cred["base_url"]}
    with a_breaker(cred) as breaker, tripswitch.Client(cred["project_id"], timeout=20, **keys) as client:
        paid = client.execute(
            lambda: "paid", breakers=[breaker.name], router=breaker.router_id, metrics={"latency": 30}
        )
        print(paid)
        for _ in range(SENT_AT):
            client.report(router_id=breaker.router_id, metric="latency", value=900.0)
        deadline = time.monotonic() + OPEN_WITHIN_S
        while (state := client.get_state(breaker.name)) is None or state.state != "open":
            if time.monotonic() > deadline:
                raise SystemExit(f"{breaker.name} did not open")
            time.sleep(0.1)
        try:
            client.execute(lambda: "paid", breakers=[breaker.name])
        except tripswitch.BreakerOpenError:
            print("the breaker is open: the call was not made")


if __name__ == "__main__":
    main()
