"""What a channel's config must hold, and that a problem names its place and repeats no value."""

from __future__ import annotations

from typing import Any

import pytest

from breaker_actors.notify.channels.config import check, recipients
from tests.unit.notify.refusals import BAD, FAR, HOOK


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("slack", {"webhook_url": "https://hooks.slack.com/services/T0/B0/x"}),
        ("slack", {"webhook_url": "http://chat.internal:8065/hooks/x", "channel": 7}),
        ("pagerduty", {"routing_key": "k" * 32}),
        ("pagerduty", {"routing_key": "k", "severity": 3, "events_url": "https://events.eu.pagerduty.com/v2/enqueue"}),
        ("pagerduty", {"routing_key": "k", "events_url": ""}),
        ("alertmanager", {"url": "http://alerts.example:9093"}),
        ("alertmanager", FAR | {"username": "bücher", "password": "a:b c"}),
        ("alertmanager", FAR | {"username": "", "password": None, "bearer_token": "t0ken"}),
        ("alertmanager", FAR | {"labels": {"severity": "critical", "_x1": ""}, "generator_url": "https://b.example"}),
        ("email", {"to": "ops@example.com"}),
        ("email", {"to": "ops@example.com, dev@example.com,"}),
        ("email", {"to": ["o'neil+x@sub.example.com", "root@localhost", "info@bücher.example"]}),
        ("apprise", {"url": "ntfys://me:p%20w@ntfy.example:8443/topic?priority=high"}),
        ("apprise", {"url": "TGRAM://123456789:abc/1"}),
        ("apprise", {"url": "46elks://me:pw@4612345678"}),
        ("webhook", HOOK),
        ("webhook", HOOK | {"secret": None, "headers": None}),
        ("webhook", HOOK | {"secret": "s", "headers": {"Authorization": "Bearer x y", "X-Empty": ""}}),
    ],
)
def test_good_configs(kind: Any, config: dict[str, Any]) -> None:
    assert check(kind, config) == []


@pytest.mark.parametrize(("kind", "config", "path", "words"), BAD)
def test_bad_configs(kind: Any, config: dict[str, Any], path: str, words: str) -> None:
    assert [(p.path, p.message) for p in check(kind, config)] == [(path, words)]


@pytest.mark.parametrize(
    "name",
    [
        "Host", "content-length", "Transfer-Encoding", "CONNECTION", "X-EB-Signature", "x-eb-timestamp",
        "Idempotency-Key", "Content-Type", "User-Agent", "Proxy-Authorization", "TE", "Upgrade", "Expect",
    ],
)  # fmt: skip
def test_headers_of_ours_and_of_the_connection_stay_as_they_are(name: str) -> None:
    assert [p.message for p in check("webhook", HOOK | {"headers": {name: "x"}})] == ["is set by the service"]


def test_all_problems_are_told_at_once() -> None:
    config = {"url": 1, "secret": 2, "headers": {"Host": "x", "X": 3}}
    paths = ["config.url", "config.secret", "config.headers.Host", "config.headers.X"]
    assert [p.path for p in check("webhook", config)] == paths


@pytest.mark.parametrize(
    "address",
    [
        "a", "@b.example", "a@", "a b@c.example", "a@b c", "a..b@c.example", ".a@c.example", "a@-b.example", "a@b..c",
        "a@[127.0.0.1]", "a@127.0.0.1", "a@b/c", "a@b:25", "a@b\nBcc: c@d", '"a b"@c.example', "Ops <a@b.example>",
        "ä@b.example", "a@b_c.example", "x" * 65 + "@b.example", "a@" + "b" * 64 + ".example", "a@" + "b." * 130 + "c",
        "a@b.example\x00", "a@b@c.example",
    ],
)  # fmt: skip
def test_what_is_no_mail_address(address: str) -> None:
    with pytest.raises(ValueError, match="is not an e-mail address"):
        recipients([address])


def test_recipients_are_ascii_and_named_once() -> None:
    assert recipients([" a@b.example", "a@b.example", "info@bücher.example"]) == [
        "a@b.example",
        "info@xn--bcher-kva.example",
    ]
