"""What a channel's config must hold, and that a problem names its place and repeats no value."""

from __future__ import annotations

from typing import Any

import pytest

from breaker_actors.notify.checks import RECIPIENTS_MAX, check, recipients

HOOK = {"url": "https://hook.example.com/x"}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("slack", {"webhook_url": "https://hooks.slack.com/services/T0/B0/x"}),
        ("slack", {"webhook_url": "http://chat.internal:8065/hooks/x", "channel": 7}),
        ("pagerduty", {"routing_key": "k" * 32}),
        ("pagerduty", {"routing_key": "k", "severity": 3, "events_url": "https://events.eu.pagerduty.com/v2/enqueue"}),
        ("pagerduty", {"routing_key": "k", "events_url": ""}),
        ("email", {"to": "ops@example.com"}),
        ("email", {"to": "ops@example.com, dev@example.com,"}),
        ("email", {"to": ["o'neil+x@sub.example.com", "root@localhost", "info@bücher.example"]}),
        ("webhook", HOOK),
        ("webhook", HOOK | {"secret": None, "headers": None}),
        ("webhook", HOOK | {"secret": "s", "headers": {"Authorization": "Bearer x y", "X-Empty": ""}}),
    ],
)
def test_good_configs(kind: Any, config: dict[str, Any]) -> None:
    assert check(kind, config) == []


@pytest.mark.parametrize(
    ("kind", "config", "path", "words"),
    [
        ("slack", {}, "config.webhook_url", "is required"),
        ("slack", {"webhook_url": ""}, "config.webhook_url", "is required"),
        ("slack", {"webhook_url": 7}, "config.webhook_url", "must be a string"),
        ("slack", {"webhook_url": "ftp://h/x"}, "config.webhook_url", "must be an http or https address"),
        ("slack", {"webhook_url": "hooks.slack.com/x"}, "config.webhook_url", "must be an http or https address"),
        ("slack", {"webhook_url": "https://"}, "config.webhook_url", "has no host, or no port that can be"),
        ("slack", {"webhook_url": "https://h:0/"}, "config.webhook_url", "has no host, or no port that can be"),
        ("slack", {"webhook_url": "https://h:99999/"}, "config.webhook_url", "has no host, or no port that can be"),
        ("slack", {"webhook_url": "https://h/\x00"}, "config.webhook_url", "is not a valid address"),
        ("slack", {"webhook_url": "https://u:p@h/"}, "config.webhook_url", "must not hold a user or password"),
        ("slack", {"webhook_url": "https://h/" + "x" * 3000}, "config.webhook_url", "must be at most 2048 characters"),
        ("pagerduty", {}, "config.routing_key", "is required"),
        ("pagerduty", {"routing_key": ["k"]}, "config.routing_key", "must be a string"),
        ("pagerduty", {"routing_key": "a b"}, "config.routing_key", "has characters that are not allowed"),
        (
            "pagerduty",
            {"routing_key": "k", "events_url": "x:"},
            "config.events_url",
            "must be an http or https address",
        ),
        ("email", {}, "config.to", "is required"),
        ("email", {"to": []}, "config.to", "is required"),
        ("email", {"to": " , "}, "config.to", "is required"),
        ("email", {"to": {"a": 1}}, "config.to", "must be an e-mail address or a list of them"),
        ("email", {"to": ["a@b.example", 7]}, "config.to", "must be an e-mail address or a list of them"),
        ("email", {"to": ["a@b.example", "nobody"]}, "config.to", "item 2 is not an e-mail address"),
        ("email", {"to": ["a@b.example"] * (RECIPIENTS_MAX + 1)}, "config.to", "must be at most 50 addresses"),
        ("webhook", {}, "config.url", "is required"),
        ("webhook", HOOK | {"secret": 7}, "config.secret", "must be a string"),
        ("webhook", HOOK | {"secret": "s" * 2000}, "config.secret", "must be at most 1024 characters"),
        ("webhook", HOOK | {"headers": "X: y"}, "config.headers", "must be an object of strings"),
        ("webhook", HOOK | {"headers": {"": "y"}}, "config.headers", "has a name that is not allowed"),
        ("webhook", HOOK | {"headers": {"X: a\r\nY": "y"}}, "config.headers", "has a name that is not allowed"),
        ("webhook", HOOK | {"headers": {"X-A": 7}}, "config.headers.X-A", "must be a string"),
        (
            "webhook",
            HOOK | {"headers": {"X-A": "a\r\nHost: b"}},
            "config.headers.X-A",
            "has characters that are not allowed, or too many",
        ),
        (
            "webhook",
            HOOK | {"headers": {f"X-{i}": "" for i in range(33)}},
            "config.headers",
            "must be at most 32 headers",
        ),
    ],
)
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
