"""Data of one version of the service, for tests of all later ones.

`python -m tests.support.golden_data FOLDER` runs the service of this checkout and leaves `<schema>.tar.xz` (a data
directory) and `<schema>.dump` (pg_dump of a database) in the folder. To be run once for each schema, before the next.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
import time
from pathlib import Path

from breaker_actors.store.migrations import HEAD
from tests.support.live import LiveService, serving
from tests.support.postgres import own_server

SECRET_KEY = "5e" * 32
KEPT = ("breakers.sqlite", "breakers.sqlite-wal", "credentials.json", "secret.key", "log")
OUTAGES = 2


def live(service: LiveService) -> None:
    """What users do: breakers of several kinds, outages, a channel, a mute, a mapping, overrides, an observing breaker,
    changes, links, a session of the console, and something deleted."""
    quick = {"window_ms": 1_000, "cooldown_ms": 100, "recovery_allow_rate_ramp_steps": 1}
    made = [service.breaker(metric="latency", name=f"golden {n}", threshold=100 + n, **quick) for n in range(3)]
    assert service.client().post("/console/sign-in", data={"key": service.credentials["admin_key"]}).status_code == 303
    failing = {"kind": "consecutive_failures", "op": "gte", "threshold": 3, "name": "failing"}
    service.breaker(metric="errors", **failing)
    path = service.project_path
    hook = {"channel": "webhook", "config": {"url": "https://hook.example/"}, "name": "hook", "events": ["trip"]}
    assert service.user.post(f"{path}/notification-channels", json=hook).status_code == 201
    router = service.user.post(f"{path}/routers", json={"name": "shared", "mode": "canary"}).json()
    ids = [each["breaker"]["id"] for each in made]
    linked = service.user.post(f"{path}/routers/{router['id']}/breakers", json={"breaker_ids": ids[1:2]})
    assert linked.status_code == 200, linked.text
    for _ in range(OUTAGES):
        for bad in (True, False):
            while (service.state(ids[0])["state"] == "closed") is bad:
                service.send(made[0]["router_id"], [900.0 if bad else 1.0] * 5)
    ends_ms = round(time.time() * 1000) + 3_600_000
    mute = {"matchers": [{"field": "name", "op": "=", "value": "golden 1"}], "ends_ms": ends_ms, "comment": "golden"}
    assert service.user.post(f"{path}/mutes", json=mute).status_code == 201
    named = [{"field": "name", "op": "=", "value": "requests"}]
    mapping = {"name": "golden", "matchers": named, "to": {"router": router["id"], "ok": {"label": "good"}}}
    assert service.user.post(f"{path}/mappings", json=mapping).status_code == 201
    while service.state(ids[1])["state"] == "closed":  # it is open for a moment only
        service.send(made[1]["router_id"], [900.0] * 5)
    override = f"{path}/breakers/{ids[0]}/override"
    for body in ({"kind": "throttle", "allow_rate": 0.5, "for_ms": 1_000}, {"kind": "force_open"}):
        assert service.user.put(override, json=body | {"reason": "golden"}).status_code == 200
    assert service.user.patch(f"{path}/breakers/{ids[1]}", json={"mode": "observe"}).status_code == 200
    service.send(made[1]["router_id"], [1.0] * 5)
    assert service.user.patch(f"{path}/breakers/{ids[0]}", json={"threshold": 200}).status_code == 200
    assert service.user.delete(f"{path}/breakers/{ids[2]}").status_code == 204


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        with serving(data) as service:
            live(service)
        with tarfile.open(folder / f"{HEAD}.tar.xz", "w:xz") as file:
            for name in filter(lambda name: (data / name).exists(), KEPT):
                file.add(data / name, name)
        with own_server() as server, server.database(empty=True) as url:
            with serving(Path(place) / "cluster", BREAKERS_DATABASE_URL=url, BREAKERS_SECRET_KEY=SECRET_KEY) as service:
                live(service)
            options = ("--format=custom", "--no-owner", "--compress=9", f"--dbname={url}")
            (folder / f"{HEAD}.dump").write_bytes(server.run("pg_dump", *options).stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
