"""Destinations that can never be reached are told apart from those that merely don't answer now."""

from __future__ import annotations

from typing import Any

import pytest

from breaker_actors.notify.channels.reach import cut_off, unreachable
from breaker_actors.notify.egress.policy import NAME_REFUSED, REFUSED
from breaker_actors.store.rows import ChannelKind

NEVER = [
    ("http://127.0.0.1/", REFUSED),
    ("http://127.1/", REFUSED),
    ("http://0x7f.1:8080/", REFUSED),
    ("http://2130706433/", REFUSED),
    ("http://10.0.0.7/", REFUSED),
    ("https://[::1]/", REFUSED),
    ("https://[::ffff:10.0.0.1]/", REFUSED),
    ("http://169.254.169.254/latest", REFUSED),
    ("http://hooks.example:25/", REFUSED),
    ("http://localhost:9000/", NAME_REFUSED),
    ("http://a.LOCALHOST./", NAME_REFUSED),
]
MALFORMED = ["ftp://hooks.example/", "http:///path", "http://u:p@hooks.example/", "http://[::1/", "hooks.example", 5]
MAYBE = ["https://hooks.example/x", "http://no-such-name.invalid/", "https://93.184.215.14/", "https://[2606:4700::1]/"]


@pytest.mark.parametrize(("url", "words"), NEVER)
def test_a_forbidden_address_is_told_in_the_words_of_a_test(url: str, words: str) -> None:
    problem = unreachable("webhook", {"url": url}, allow_private=False)
    assert problem is not None
    assert (problem.path, problem.message) == ("config.url", words)
    assert unreachable("webhook", {"url": url}, allow_private=True) is None


@pytest.mark.parametrize("allow_private", [True, False])
@pytest.mark.parametrize("url", MALFORMED)
def test_an_address_that_is_none_never_passes(url: Any, allow_private: bool) -> None:
    problem = unreachable("webhook", {"url": url}, allow_private)
    assert problem is not None
    assert problem.path == "config.url"


@pytest.mark.parametrize("url", MAYBE)
def test_what_may_be_reached_some_day_passes(url: str) -> None:
    assert unreachable("webhook", {"url": url}, allow_private=False) is None


@pytest.mark.parametrize(
    ("kind", "config", "path"),
    [
        ("slack", {"webhook_url": "http://10.1.1.1/"}, "config.webhook_url"),
        ("pagerduty", {"routing_key": "k", "events_url": "http://10.1.1.1/"}, "config.events_url"),
        ("alertmanager", {"url": "http://10.1.1.1:9093"}, "config.url"),
        ("email", {"to": ["nobody"]}, "config.to"),
        ("apprise", {"url": "json://me:pw@10.1.1.1/x"}, "config.url"),
        ("apprise", {"url": "jsons://x.localhost/"}, "config.url"),
        ("apprise", {"url": "json://me:pw@hook.example:25"}, "config.url"),
        ("apprise", {"url": "mailto://me:pw@mail.example"}, "config.url"),
        ("apprise", {"url": "json://hook.example?x=127.0.0.1"}, None),
        ("apprise", {"url": "discord://1/2"}, None),
        ("pagerduty", {"routing_key": "k"}, None),
        ("email", {"to": "a@example.com"}, None),
        ("webhook", {}, None),
        ("email", {}, None),
    ],
)
def test_every_kind_has_its_destination(kind: ChannelKind, config: dict[str, Any], path: str | None) -> None:
    problem = unreachable(kind, config, allow_private=False)
    assert (problem.path if problem else None) == path


def test_channels_of_another_setting_are_cut_off_and_no_others() -> None:
    private, public = {"url": "http://10.0.0.7:9093/"}, {"url": "https://a.example/"}
    enabled = [("p", "a", "webhook", private), ("p", "b", "webhook", public), ("p", "c", "webhook", {})]
    found = [(name, problem.message) for _, name, _, problem in cut_off(enabled, allow_private=False)]
    assert found == [("a", REFUSED)], "what never worked is told elsewhere"
    assert not list(cut_off(enabled, allow_private=True))
