"""Planted secrets are looked for in all that comes out of a service: answers, events, streams, metrics, logs, and what
lies on its disk."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from aiosmtpd.smtp import AuthResult, LoginPassword

from tests.support.live import LiveService, wait_for
from tests.support.receivers import MailReceiver, Reply, Request, WebReceiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SLACK, LEGACY, ROUTING, SIGNING, HEADER, QUERY, LOGIN, PASSWORD, HEALTH, SEALING = (
    "T0PLANTED/B0PLANTED/slackplanted9137",
    "T1PLANTED/B1PLANTED/legacyplanted551",
    "plantedroutingkey000000000000777",
    "planted-signing-secret-4821",
    "planted-header-token-9923",
    "plantedqueryvalue6641",
    "planted-login-1187",
    "planted:password/3359",
    "planted-health-token-2075",
    "5eed" * 16,
)
PLANTED = (SLACK, LEGACY, ROUTING, SIGNING, HEADER, QUERY, LOGIN, PASSWORD, HEALTH, SEALING)
ARRIVING = {SLACK, LEGACY, ROUTING, SIGNING, HEADER, QUERY, LOGIN, PASSWORD}
"""What a receiver is sent, or can hold against what it is sent."""
OURS = ("credentials.json", "secret.key")
"""Files that hold secrets on purpose, readable by their owner only."""
ENOUGH_S = 60.0


def forms(secret: str) -> set[bytes]:
    """How a secret may look when it slips out."""
    raw = secret.encode()
    return {
        raw,
        quote(secret, safe="").encode(),
        base64.b64encode(raw).rstrip(b"="),
        secret.replace("/", "\\/").encode(),
    }


def found_in(what: bytes, secrets: set[str]) -> set[str]:
    return {secret for secret in secrets if any(form in what for form in forms(secret))}


class Worst(WebReceiver):
    """Answers with all it was sent; at each address it refuses for now, then for good, and so on."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: Counter[str] = Counter()

    def answer(self, request: Request) -> Reply:
        self.tries[request.target] += 1
        return Reply(500 if self.tries[request.target] % 2 else 400, how="echo")


class Strict(MailReceiver):
    """Takes no login; `offered`: what it was offered."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.offered: set[str] = set()

    def _authenticate(self, *asked: Any) -> AuthResult:
        login = asked[-1]
        assert isinstance(login, LoginPassword)
        self.offered |= {login.login.decode(), login.password.decode()}
        return super()._authenticate(*asked)


def arrived(web: Worst, mail: Strict) -> set[str]:
    """The planted secrets that were used as they are meant to be."""
    sent = "\n".join(f"{got.target} {got.headers} {got.body.decode()}" for got in web.requests)
    signed = [got for got in web.requests if "x-eb-signature" in got.headers]
    found = {secret for secret in PLANTED if secret in sent} | (mail.offered & set(PLANTED))
    return found | ({SIGNING} if signed and all(got.is_signed_with(SIGNING) for got in signed) else set())


class Outputs:
    """What came out, by where; `keys`: API keys and ingest secrets, each shown once where it is made."""

    def __init__(self, live: LiveService) -> None:
        self.live = live
        self.keys = {live.credentials[name] for name in ("admin_key", "user_key", "project_key")}
        self.seen: list[tuple[str, bytes]] = []

    def call(self, method: str, path: str, key: str = "user_key", **more: Any) -> httpx.Response:
        with self.live.client(self.live.credentials.get(key, key)) as client:
            answer = client.request(method, path, **more)
        self.seen.append((f"{method} {path} {answer.status_code}", str(answer.headers).encode() + answer.content))
        return answer

    def made(self, method: str, path: str, field: str, **more: Any) -> str:
        """A call whose answer shows a secret, this once."""
        answer = self.call(method, path, **more)
        assert answer.status_code in (200, 201), answer.text
        self.seen.pop()
        self.keys.add(answer.json()[field])
        return str(answer.json()[field])

    def check(self) -> None:
        secrets = {*PLANTED, *self.keys}
        leaks = {where: found for where, text in self.seen if (found := found_in(text, secrets))}
        assert not leaks

    def check_disk(self) -> None:
        secrets = {*PLANTED, *self.keys}
        logs = list((self.live.data_dir / "logs").resolve().rglob("*"))
        assert any("RouterActor" in path.name or path.name.startswith("worker-") for path in logs), "no logs were found"
        files = [p for p in (*self.live.data_dir.rglob("*"), *logs) if p.is_file() and not p.is_symlink()]
        paths = [path for path in files if path.name not in OURS]
        leaks = {str(path): found for path in paths if (found := found_in(path.read_bytes(), secrets))}
        assert not leaks


async def test_no_secret_comes_out_of_anything(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        web = await stack.enter_async_context(Worst())
        mail = await stack.enter_async_context(Strict(login=("somebody", "else")))
        live = await asyncio.to_thread(serving, tmp_path / "data", mail.port)
        try:
            outputs = Outputs(live)
            await asyncio.to_thread(provoke, outputs, web)
            assert arrived(web, mail) == ARRIVING
            await asyncio.to_thread(look_at_everything, outputs)
            await asyncio.to_thread(outputs.check_disk)
        finally:
            await asyncio.to_thread(live.stop)
    outputs.seen.append(("what the process printed", "".join(live.output).encode()))
    told = b"".join(text for _, text in outputs.seen)
    assert b"answered 400" in told
    assert b"answered 500" in told
    outputs.check()


def serving(data_dir: Path, mail_port: int) -> LiveService:
    environ = {
        "ALLOW_PRIVATE_DESTINATIONS": "true",
        "SECRET_KEY": SEALING,
        "HEALTH_TOKEN": HEALTH,
        "SMTP_HOST": "127.0.0.1",
        "SMTP_PORT": str(mail_port),
        "SMTP_TLS": "none",
        "SMTP_USERNAME": LOGIN,
        "SMTP_PASSWORD": PASSWORD,
    }
    return LiveService(data_dir, **{f"BREAKERS_{name}": value for name, value in environ.items()})


def provoke(outputs: Outputs, web: Worst) -> None:
    """Channels of each kind, with receivers that refuse or are not there, and callers that get things wrong."""
    live, path = outputs.live, outputs.live.project_path
    hook = {"url": web.url(f"/?token={QUERY}"), "secret": SIGNING, "headers": {"X-Token": HEADER}}
    configs: list[tuple[str, dict[str, Any]]] = [
        ("webhook", hook),
        ("webhook", {**hook, "url": f"http://{LOGIN}:{QUERY}@127.0.0.1:9/{QUERY}"}),
        ("slack", {"webhook_url": web.url(f"/services/{SLACK}")}),
        ("pagerduty", {"routing_key": ROUTING, "events_url": web.url("/v2/enqueue")}),
        ("alertmanager", {"url": web.url(f"/{QUERY}"), "username": "somebody", "password": SIGNING}),
        ("email", {"to": "somebody@example.com"}),
        ("apprise", {"url": web.url(f"/{QUERY}").replace("http", "gotify", 1)}),
    ]
    channels = []
    for n, (kind, config) in enumerate(configs):
        body = {"name": f"{kind} {n}", "channel": kind, "config": config, "events": ["trip", "recover"]}
        answer = outputs.call("POST", f"{path}/notification-channels", json=body)
        if answer.status_code == 201:
            channels.append(answer.json()["channel"]["id"])
            outputs.call("POST", f"{path}/notification-channels/{channels[-1]}/test")
    assert len(channels) >= 4
    outputs.call("PATCH", path, json={"slack_webhook_url": web.url(f"/services/{LEGACY}")})
    bad = {"name": "bad", "channel": "webhook", "config": {"url": f"ftp://x/{QUERY}", "secret": [SIGNING]}}
    assert outputs.call("POST", f"{path}/notification-channels", json=bad).status_code == 422
    bad["config"] = {"url": "", "secret": [SIGNING]}
    refused = outputs.call("POST", f"{path}/notification-channels", json=bad).json()["channel"]["id"]
    assert outputs.call("POST", f"{path}/notification-channels/{refused}/test").status_code == 422
    secret = outputs.made("POST", f"{path}/ingest_secret/rotate", "ingest_secret")
    outputs.made("POST", f"{path}/keys", "key", json={"name": "another"})
    outputs.made("POST", f"{path}/keys", "key", json={"name": "sender", "kind": "ingest"})
    signed = {"X-EB-Timestamp": str(int(time.time() * 1000)), "X-EB-Signature": f"v1={secret}"}
    outputs.call("POST", f"{path}/ingest", json={"samples": []}, headers=signed)
    outputs.call("GET", path, key=f"eb_wrong_{HEADER}")
    outputs.call("GET", f"/api/readyz?token={HEALTH}", key="none")
    made = live.breaker(name="leaky", cooldown_ms=300_000)
    live.trip(made)
    # the last one is the project's own slack address
    logs = [f"{path}/notification-channels/{id_}/deliveries" for id_ in (*channels, refused, live.project_id)]
    for each in logs:
        (trip,) = ended(outputs, each)
        assert outputs.call("POST", f"{each}/{trip['id']}/redrive").status_code == 202
    attempts = [trip["attempts"] for each in logs for trip in ended(outputs, each)]
    assert attempts.count(2) == len(web.tries) == 6, "some address was not tried again"


def ended(outputs: Outputs, log: str) -> list[dict[str, Any]]:
    """The deliveries of a channel, once none of them could be sent and its log says why."""

    def rows() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = outputs.call("GET", log).json()["deliveries"]
        return found if all(row["state"] == "dead" and row["last_error"] for row in found) else []

    answer: list[dict[str, Any]] = wait_for(rows, ENOUGH_S, every_s=0.2)
    return answer


def look_at_everything(outputs: Outputs) -> None:
    live, path = outputs.live, outputs.live.project_path
    for read in (
        *(
            f"{path}{end}"
            for end in ("", "/breakers", "/routers", "/events", "/audit", "/notification-channels", "/keys")
        ),
        "/openapi.json",
        "/v1/admin/status",
        "/v1/projects",
    ):
        assert outputs.call("GET", read, key="admin_key").status_code == 200, read
    with live.stream() as stream:
        outputs.seen.append(("stream", repr(stream.messages).encode()))
    for group in json.loads((live.data_dir / "prometheus.json").read_text()):
        scraped = httpx.get(f"http://{group['targets'][0]}/metrics", timeout=20, trust_env=False)
        outputs.seen.append((f"metrics of {group['labels']['job']}", scraped.content))
