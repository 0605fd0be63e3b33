"""What an HTTP answer means, and what of its text is passed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from breaker_actors.notify.channels.alertmanager import headers
from breaker_actors.notify.egress.excerpt import excerpt, secrets_of
from breaker_actors.notify.egress.http_outcome import Answer, judge, retry_after_ms
from breaker_actors.notify.model import Attempt, Destination
from tests.unit.notify.messages import NOW

HOOK = Destination(channel_id="c", kind="webhook", config={"url": "https://hook.example/t/Tok3nTok3nTok3n"})
SLACK = Destination(channel_id="c", kind="slack", config={"webhook_url": "https://hooks.slack.com/services/T0/B0/s"})
PAGER = Destination(channel_id="c", kind="pagerduty", config={"routing_key": "a1b2c3d4" * 4})


def _judged(status: int, body: Any = b"", to: Destination = HOOK, retry_after: str | None = None) -> Attempt:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return judge(to, Answer(status=status, retry_after=retry_after, body=raw), NOW)


@pytest.mark.parametrize("to", [HOOK, SLACK, PAGER])
def test_statuses(to: Destination) -> None:
    expected = {
        "sent": [200, 201, 202, 204, 299],
        "refused": [300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 410, 413, 418, 422, 451, 499],
        "retry": [408, 425, 429, 500, 501, 502, 503, 504, 507, 599, 600, 999],
    }
    for result, statuses in expected.items():
        for status in statuses:
            attempt = _judged(status, to=to)
            assert (attempt.result, attempt.status) == (result, status)
            assert (attempt.error is None) == (result == "sent")


def test_a_redirect_says_that_it_is_not_followed() -> None:
    assert _judged(302).error == "answered 302 Found; redirects are not followed"


def test_slack_words() -> None:
    assert _judged(404, b"no_service", SLACK).error == "answered 404 Not Found: no_service"
    assert _judged(403, b"<html>you are on hotel wifi</html>", SLACK).error == "answered 403 Forbidden"
    assert _judged(200, b"ok", SLACK).result == "sent"
    assert _judged(200, {"ok": True}, SLACK).result == "sent"
    refused = _judged(200, {"ok": False, "error": "invalid_blocks"}, SLACK)
    assert (refused.result, refused.error) == ("refused", "not accepted: invalid_blocks")


def test_alertmanager_words() -> None:
    """What its handlers refuse is a JSON text, what its check of the shape refuses an object."""
    far = Destination(
        channel_id="c", kind="alertmanager", config={"url": "https://a.example/", "bearer_token": "t" * 9}
    )
    for body in (
        b'"start time must be before end time"',
        b'{"code": 602, "message": "start time must be before end time"}',
    ):
        attempt = judge(far, Answer(status=400, body=body), 0)
        assert attempt.error == "answered 400 Bad Request: start time must be before end time"
    assert judge(far, Answer(status=400, body=b'"you sent ttttttttt"'), 0).error == "answered 400 Bad Request"


def test_pagerduty_words() -> None:
    body = {"status": "invalid event", "message": "Event object is invalid", "errors": ["'severity' is unknown", 7]}
    assert _judged(400, body, PAGER).error == "answered 400 Bad Request: 'severity' is unknown"
    assert _judged(400, {"message": "Event object is invalid"}, PAGER).error == (
        "answered 400 Bad Request: Event object is invalid"
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": "quota", "message": "Too much"}, ": Too much"),
        ({"error": "quota"}, ": quota"),
        ({"error": {"code": 7}}, ""),
        ([1], ""),
        (b"plain text", ""),
        (b"\xff\xfe", ""),
        (b"[" * 4096, ""),
        ({"error": "a\r\n\tb\x00c"}, ": a b c"),
        ({"error": "x" * 500}, ": " + "x" * 157 + "..."),
        ({"error": "bad path /t/Tok3nTok3nTok3n"}, ""),
    ],
)
def test_webhook_words(body: Any, words: str) -> None:
    assert _judged(400, body).error == "answered 400 Bad Request" + words


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (None, None), ("0", 0), ("7", 7_000), (" 30 ", 30_000), ("86400", 3_600_000), ("999999999999", 3_600_000),
        ("-1", None), ("1.5", None), ("soon", None), ("", None), ("9" * 40, None),
        ("Fri, 21 Nov 2025 11:25:39 GMT", 29_877), ("Fri, 21 Nov 2025 11:25:39 -0000", 29_877),
        ("Fri, 21 Nov 2025 10:00:00 GMT", 0), ("Sat, 22 Nov 2025 11:25:39 GMT", 3_600_000),
        ("Friday, 21-Nov-25 11:25:39 GMT", 29_877), ("Fri, 99 Nov 2025 11:25:39 GMT", None),
    ],
)  # fmt: skip
def test_retry_after(value: str | None, ms: int | None) -> None:
    assert retry_after_ms(value, NOW) == ms


def test_only_a_retry_waits() -> None:
    assert _judged(503, retry_after="9").retry_after_ms == 9_000
    assert _judged(404, retry_after="9").retry_after_ms is None


SECRET = "xoxb-9Qw8Er7Ty6-Zz"


@pytest.mark.parametrize(
    "said",
    [
        f"no such token {SECRET}", f"{SECRET.upper()} is unknown", "no 9Qw8Er7T", "tail r7Ty6-Zz",
        "xoxb%2D9Qw8Er7Ty6-Zz", f"x{SECRET}x", "a\x00" + SECRET,
    ],
)  # fmt: skip
def test_words_with_anything_of_a_secret_in_them_are_dropped(said: str) -> None:
    assert excerpt(said, [SECRET]) == ""


def test_words_without_it_stay() -> None:
    assert excerpt("no such token 9Qw8Er", [SECRET, "", "abc"]) == "no such token 9Qw8Er"
    assert excerpt("abcd", ["abcd"]) == ""


def test_all_text_of_a_config_is_secret_but_hosts_and_short_words_of_a_path() -> None:
    config = {
        "url": "https://h.example/hook/a%2Dbcdefg/?key=value#fragment",
        "headers": {"X": "y"},
        "to": ["p"],
        "n": 7,
        "bad": "http://[",
    }
    assert set(secrets_of(config)) == {"a%2Dbcdefg", "a-bcdefg", "key=value", "value", "fragment", "y", "p", "http://["}


def test_short_tokens_within_longer_text_are_not_told() -> None:
    config = {"url": "https://x/?token=abc123", "headers": {"Authorization": "Bearer zyx987"}}
    for said in ("no such token: abc123", "unknown bearer ZYX987"):
        assert excerpt(said, secrets_of(config)) == ""
    assert excerpt("the bearer is missing", secrets_of(config)) == "the bearer is missing"


def test_basic_credentials_are_not_told_as_they_are_sent() -> None:
    """A receiver that says its request again says them in base64."""
    config = {"url": "https://x/", "username": "operator-1187", "password": "a long password"}
    sent = headers(config)["Authorization"]
    assert excerpt(f"you sent Authorization: {sent}", secrets_of(config)) == ""
    assert excerpt(f"you sent {sent.removeprefix('Basic ')[:12]}", secrets_of(config)) == ""
    assert excerpt("401 no such user", secrets_of(config)) == "401 no such user"
