"""Channels that nothing can be sent to, and the words that say why: bad configs, and destinations that may not be
reached unless a setting allows it."""

from __future__ import annotations

from typing import Any

from breaker_actors.notify.channels.config import RECIPIENTS_MAX
from breaker_actors.store.rows import ChannelKind

HOOK = {"url": "https://hook.example.com/x"}
FAR = {"url": "https://alerts.example.com/am"}

ODD = "has characters that are not allowed"
NO_APPRISE = "is not an address as apprise has them, such as ntfys://host/topic"
LABEL = "has a name that is not allowed: letters, digits, _, no digit or __ first"
BAD: list[tuple[ChannelKind, dict[str, Any], str, str]] = [
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
    ("alertmanager", {}, "config.url", "is required"),
    ("alertmanager", {"url": "https://u:p@h/"}, "config.url", "must not hold a user or password"),
    ("alertmanager", FAR | {"username": "a:b"}, "config.username", "has characters that are not allowed"),
    ("alertmanager", FAR | {"username": "a", "password": "b\r\nX: y"}, "config.password", ODD),
    ("alertmanager", FAR | {"password": "b"}, "config.username", "is required with a password"),
    ("alertmanager", FAR | {"bearer_token": "a b"}, "config.bearer_token", ODD),
    (
        "alertmanager",
        FAR | {"username": "a", "bearer_token": "b"},
        "config.bearer_token",
        "can't be beside a username: there is one Authorization header",
    ),
    ("alertmanager", FAR | {"labels": "a=b"}, "config.labels", "must be an object of strings"),
    ("alertmanager", FAR | {"labels": {"a-b": "c"}}, "config.labels", LABEL),
    ("alertmanager", FAR | {"labels": {"__a": "c"}}, "config.labels", LABEL),
    ("alertmanager", FAR | {"labels": {"1a": "c"}}, "config.labels", LABEL),
    ("alertmanager", FAR | {"labels": {"breaker_id": "c"}}, "config.labels.breaker_id", "is set by the service"),
    ("alertmanager", FAR | {"labels": {"a": 7}}, "config.labels.a", "must be a string"),
    ("alertmanager", FAR | {"labels": {"a": "x" * 301}}, "config.labels.a", "must be at most 300 characters"),
    (
        "alertmanager",
        FAR | {"labels": {f"l{i}": "" for i in range(33)}},
        "config.labels",
        "must be at most 32 labels",
    ),
    ("alertmanager", FAR | {"generator_url": "x:"}, "config.generator_url", "must be an http or https address"),
    ("email", {}, "config.to", "is required"),
    ("email", {"to": []}, "config.to", "is required"),
    ("email", {"to": " , "}, "config.to", "is required"),
    ("email", {"to": {"a": 1}}, "config.to", "must be an e-mail address or a list of them"),
    ("email", {"to": ["a@b.example", 7]}, "config.to", "must be an e-mail address or a list of them"),
    ("email", {"to": ["a@b.example", "nobody"]}, "config.to", "item 2 is not an e-mail address"),
    ("email", {"to": ["a@b.example"] * (RECIPIENTS_MAX + 1)}, "config.to", "must be at most 50 addresses"),
    ("apprise", {}, "config.url", "is required"),
    ("apprise", {"url": ["json://h/"]}, "config.url", "must be a string"),
    ("apprise", {"url": "json://h/" + "x" * 3000}, "config.url", "must be at most 2048 characters"),
    ("apprise", {"url": "h/x"}, "config.url", NO_APPRISE),
    ("apprise", {"url": "json://h/ json://i/"}, "config.url", NO_APPRISE),
    ("apprise", {"url": "json://h/\u200b"}, "config.url", NO_APPRISE),
    (
        "apprise",
        {"url": "mailto://me:pw@mail.example"},
        "config.url",
        "names a service whose connections this one can't make in its place, so it is left out",
    ),
    (
        "apprise",
        {"url": "https://discord.com/api/webhooks/1/2"},
        "config.url",
        "names no service that apprise knows; give its address as apprise spells it, not https://",
    ),
    ("apprise", {"url": "json:///x"}, "config.url", "has no host, or no port that can be"),
    ("apprise", {"url": "json://h:99999/x"}, "config.url", "has no host, or no port that can be"),
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
]
"""Kind, config, the place that is wrong, and what is wrong with it."""

NOT_THERE = (
    "its host or port is not one that notifications may go to: public addresses at port 80, 443 or from 1024 on "
    "(a start with BREAKERS_ALLOW_PRIVATE_DESTINATIONS=true lifts it)"
)
FORBIDDEN: list[tuple[ChannelKind, dict[str, Any]]] = [
    ("webhook", {"url": "http://127.0.0.1:9/"}),
    ("webhook", {"url": "http://169.254.169.254/"}),
    ("webhook", {"url": "http://[::ffff:127.0.0.1]/"}),
    ("webhook", {"url": "http://1.1.1.1:25/"}),
    ("slack", {"webhook_url": "http://127.0.0.1:9/"}),
    ("pagerduty", {"routing_key": "k" * 32, "events_url": "http://[::1]/"}),
    ("alertmanager", {"url": "http://10.0.0.7:9093/"}),
    ("apprise", {"url": "json://me:pw@127.0.0.1:9/x"}),
    ("apprise", {"url": "gotify://10.0.0.7:8080/abcdefgh"}),
    ("apprise", {"url": "jsons://169.254.169.254/latest"}),
]

REFUSALS: list[tuple[ChannelKind, dict[str, Any], str]] = [
    (kind, config, f"{path} {words}") for kind, config, path, words in BAD
]
"""Kind, config, and all that is said: nothing but another config mends them."""

BY_SETTINGS: list[tuple[ChannelKind, dict[str, Any], str]] = [
    *((kind, config, NOT_THERE) for kind, config in FORBIDDEN),
    ("email", {"to": "ops@example.com"}, "no mail server is set (a start with BREAKERS_SMTP_HOST mends it)"),
]
"""What default settings keep back, and what is said; a start with others sends it."""
