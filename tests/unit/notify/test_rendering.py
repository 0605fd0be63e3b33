"""What each kind of channel shows: the files in `golden` are meant to be read."""

from __future__ import annotations

import json
import re
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.clock import rfc3339
from breaker_actors.notify.channels import alertmanager, pagerduty, slack, webhook
from breaker_actors.notify.channels import email as mail
from breaker_actors.notify.channels.config import parse_address
from breaker_actors.notify.model import Message
from breaker_actors.store.rows import Subject
from tests.support.golden import check_golden
from tests.support.receivers import Request, problems_of
from tests.unit.notify.messages import AGAIN, ALL, BREAKER, HOSTILE, NOW, PROJECT, RECOVER, RESOLVE, TEST, TRIP, changed

GOLDEN = Path(__file__).with_name("golden")
ROUTING = {"routing_key": "0123456789abcdef0123456789ABCDEF"}
FAR = {"url": "https://alerts.example", "labels": {"severity": "critical", "team": "on-call"}}
SUBJECT = Subject(
    breaker="checkout",
    metric="latency",
    kind="error_rate",
    project="Shop",
    router="eu",
    metadata={
        "team": "payments",
        "cost-center": "7",
        "kind": "gateway",
        "runbook_url": "https://wiki.example/checkout",
    },
)
SENDER = mail.sender_of("Breakers <alerts@breakers.example>")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("case", ALL)
def test_slack(case: str) -> None:
    shown = slack.render(ALL[case])
    assert problems_of("slack_message", json.dumps(shown).encode()) == []
    check_golden(GOLDEN / f"slack_{case}.json", _json(shown))


@pytest.mark.parametrize("case", [case for case in ALL if case != "mute_ending"])
def test_pagerduty(case: str) -> None:
    event = pagerduty.render(ALL[case], ROUTING)
    assert problems_of("pagerduty_event", json.dumps(event).encode()) == []
    check_golden(GOLDEN / f"pagerduty_{case}.json", _json(event))


@pytest.mark.parametrize("case", [case for case in ALL if case != "mute_ending"])
def test_alertmanager(case: str) -> None:
    alert = alertmanager.render(changed(ALL[case], subject=SUBJECT), FAR, NOW + 300_000, 60_000)
    assert problems_of("alertmanager_alerts", json.dumps([alert]).encode()) == []
    check_golden(GOLDEN / f"alertmanager_{case}.json", _json(alert))


@pytest.mark.parametrize("case", ALL)
def test_mail(case: str) -> None:
    text = mail.render(ALL[case], SENDER, ["ops@example.com", "dev@example.com"]).as_bytes()
    check_golden(GOLDEN / f"mail_{case}.eml", text.decode("ascii"))


@pytest.mark.parametrize("case", ALL)
def test_webhook(case: str) -> None:
    check_golden(GOLDEN / f"webhook_{case}.json", _json(json.loads(webhook.render(ALL[case]))))


# webhook: the shape that semantics.md section 9 fixes


def test_a_webhook_has_the_documented_keys_and_no_others() -> None:
    keys = ["event", "project_id", "breaker_id", "name", "prev", "curr", "ts_ms", "transition_seq", "rule", "agg"]
    for message in (TRIP, RECOVER, AGAIN, TEST):
        body = json.loads(webhook.render(message))
        assert list(body) == [*keys, "trace_url"]
        assert list(body["rule"]) == ["kind", "metric", "threshold", "window_ms", "tags"]
        assert list(body["agg"]) == ["avg", "count", "error_count", "p95"]
        assert body["event"] == message.kind


def test_a_webhook_hears_of_a_deleted_breaker_as_a_recovery_with_its_reason() -> None:
    body = json.loads(webhook.render(RESOLVE))
    assert (body["event"], body["reason"]) == ("recover", "deleted")


def test_a_webhook_is_signed_over_timestamp_and_body_with_the_secrets_utf8_bytes() -> None:
    body = webhook.render(TRIP)
    sent = webhook.headers({"secret": "schlüssel", "headers": {"X-Team": "a"}}, TRIP, body, NOW)
    assert sent["X-EB-Timestamp"] == str(NOW)
    got = Request("POST", "/", {name.lower(): value for name, value in sent.items()}, body)
    assert got.is_signed_with("schlüssel")
    assert not got.is_signed_with("schlussel")
    assert sent["Idempotency-Key"] == "d-0001"


def test_a_signature_is_the_known_one() -> None:
    """A vector worked out with openssl: printf '1700000000000.{"a":1}' | openssl dgst -sha256 -hmac s3cret."""
    assert webhook.signature("s3cret", 1_700_000_000_000, b'{"a":1}') == (
        "v1=8a6f992378d0d47b6fcdf1cc8d72e46ba5c789b2c9d3a538be31fe07d598ba6d"
    )


@pytest.mark.parametrize("config", [{}, {"secret": None}, {"secret": ""}])
def test_a_webhook_without_a_secret_is_not_signed(config: dict[str, Any]) -> None:
    assert list(webhook.headers(config, TRIP, b"{}", NOW)) == ["Idempotency-Key"]


# pagerduty


def test_a_recovery_and_a_deletion_resolve_the_alert_of_the_trip() -> None:
    keys = {pagerduty.render(m, ROUTING)["dedup_key"] for m in (TRIP, AGAIN, RECOVER, RESOLVE)}
    assert keys == {f"{PROJECT}:{BREAKER}"}
    assert [pagerduty.render(m, ROUTING)["event_action"] for m in (TRIP, AGAIN, RECOVER, RESOLVE, TEST)] == [
        "trigger", "trigger", "resolve", "resolve", "trigger",
    ]  # fmt: skip
    assert pagerduty.render(TEST, ROUTING)["dedup_key"] != f"{PROJECT}:{BREAKER}"


@pytest.mark.parametrize(
    ("wanted", "severity"),
    [("warning", "warning"), ("info", "info"), ("Critical", "critical"), (None, "critical"), (["error"], "critical")],
)
def test_the_severity_is_the_channels_if_there_is_such_a_one(wanted: object, severity: str) -> None:
    assert pagerduty.render(TRIP, ROUTING | {"severity": wanted})["payload"]["severity"] == severity


# alertmanager


def test_all_alerts_of_an_outage_have_the_same_labels_and_start() -> None:
    """Whatever was renamed: an Alertmanager tells alerts apart by their labels."""
    later = {"name": "renamed", "project_name": "other", "rule": TRIP.rule | {"metric": "errors", "kind": "p95"}}
    outage = [TRIP, AGAIN, RECOVER, changed(RESOLVE, outage_ms=252_000)]
    alerts = [
        alertmanager.render(changed(message, subject=SUBJECT, **(later if n else {})), FAR, NOW, 60_000)
        for n, message in enumerate(outage)
    ]
    assert len({json.dumps(alert["labels"]) for alert in alerts}) == 1
    assert {alert["startsAt"] for alert in alerts} == {"2025-11-21T11:25:09.123Z"}
    test = alertmanager.render(TEST, FAR, NOW, 60_000)
    assert (test["labels"]["alertname"], alerts[0]["labels"]["alertname"]) == ("BreakerTest", "BreakerOpen")


def test_what_stands_ends_after_four_renewals_and_what_is_over_is_over() -> None:
    now = NOW + 600_000
    ends = {
        kind: alertmanager.render(message, FAR, now, 60_000)["endsAt"]
        for kind, message in {"trip": TRIP, "again": AGAIN, "recover": RECOVER, "resolve": RESOLVE}.items()
    }
    assert ends == {
        "trip": rfc3339(now + 240_000),
        "again": rfc3339(now + 240_000),
        "recover": rfc3339(RECOVER.ts_ms),
        "resolve": rfc3339(RESOLVE.ts_ms),
    }


@given(st.integers(-(10**9), 10**9), st.integers(0, 10**9), st.sampled_from(["trip", "recover", "resolve", "test"]))
def test_no_alert_ends_before_it_begins(ahead_ms: int, outage_ms: int, kind: Any) -> None:
    """An Alertmanager would refuse it; clocks may differ."""
    message = changed(TRIP, kind=kind, outage_ms=outage_ms)
    alert = alertmanager.render(message, FAR, NOW + ahead_ms, 60_000)
    assert alert["startsAt"] <= alert["endsAt"]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("team", "team"), ("cost-center", "cost_center"), ("a.b/c", "a_b_c"), ("7th", "_7th"), ("__name__", "_name__"),
        ("é", "_"), ("alertname", "meta_alertname"), ("x" * 200, "x" * 128), ("breaker-id", "meta_breaker_id"),
    ],
)  # fmt: skip
def test_keys_of_metadata_become_names_of_labels(key: str, name: str) -> None:
    assert alertmanager.label_name(key) == name
    assert alertmanager.LABEL_NAME.fullmatch(name)


def test_a_channels_own_labels_go_over_those_of_metadata() -> None:
    labels = alertmanager.labels(changed(TRIP, subject=SUBJECT), FAR)
    assert (labels["team"], labels["severity"], labels["meta_kind"], labels["kind"]) == (
        "on-call", "critical", "gateway", "error_rate",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://a.example:9093", "http://a.example:9093/api/v2/alerts"),
        ("http://a.example:9093/", "http://a.example:9093/api/v2/alerts"),
        ("http://a.example:9093/#/alerts", "http://a.example:9093/api/v2/alerts"),
        ("https://a.example/am/?tenant=x", "https://a.example/am/api/v2/alerts?tenant=x"),
        ("https://a.example/am/api/v2/alerts", "https://a.example/am/api/v2/alerts"),
        ("https://a.example/am/api/v2/alerts/", "https://a.example/am/api/v2/alerts"),
    ],
)
def test_alerts_go_to_the_address_of_alerts(url: str, target: str) -> None:
    assert str(alertmanager.endpoint(parse_address(url))).rstrip("#") == target


def test_who_asks() -> None:
    assert alertmanager.headers({}) == {}
    basic = alertmanager.headers({"username": "Aladdin", "password": "open sesame"})
    assert basic == {"Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="}  # the example of RFC 7617
    assert alertmanager.headers({"bearer_token": "mF_9.B5f-4.1JqM"}) == {"Authorization": "Bearer mF_9.B5f-4.1JqM"}


@pytest.mark.parametrize(
    ("config", "message", "url"),
    [
        ({}, TRIP, TRIP.trace_url),
        ({"generator_url": "https://b.example/"}, TRIP, f"https://b.example/console/p/{PROJECT}/b/{BREAKER}"),
        ({"generator_url": "https://b.example"}, TEST, f"https://b.example/console/p/{PROJECT}"),
        ({}, RECOVER, RECOVER.trace_url),
        ({}, AGAIN, None),
    ],
)
def test_where_an_alert_comes_from(config: dict[str, Any], message: Message, url: str | None) -> None:
    assert alertmanager.render(message, FAR | config, NOW, 60_000).get("generatorURL") == url


# mail


def _read(message: Message) -> Any:
    return message_from_bytes(mail.render(message, SENDER, ["ops@example.com"]).as_bytes(), policy=policy.default)


@pytest.mark.parametrize("delivery_id", [":", ".", "a..b", "a:b", ".a", ""])
def test_an_id_with_other_signs_is_no_part_of_a_message_id(delivery_id: str) -> None:
    """`.` and `:` in it have a meaning of their own there (RFC 5322 section 3.6.4)."""
    assert re.fullmatch("<[0-9a-f]{32}@[a-z.]+>", _read(changed(delivery_id=delivery_id))["Message-ID"])


def test_mails_of_one_outage_share_a_thread_and_no_message_id() -> None:
    trip, again, recover = map(_read, (TRIP, AGAIN, RECOVER))
    assert trip["References"] == again["References"] == recover["References"] == recover["In-Reply-To"]
    assert trip["Message-ID"] != recover["Message-ID"]
    next_outage = _read(changed(ts_ms=NOW + 600_000))
    assert next_outage["References"] != trip["References"]


def test_a_mail_whose_outage_has_no_known_beginning_stands_alone() -> None:
    assert _read(RESOLVE)["References"] is None
    assert _read(TEST)["References"] is None


def test_a_retried_mail_is_the_same_to_the_byte() -> None:
    assert mail.render(TRIP, SENDER, ["a@b.c"]).as_bytes() == mail.render(TRIP, SENDER, ["a@b.c"]).as_bytes()


def test_a_mail_is_dated_at_the_event() -> None:
    assert _read(TRIP)["Date"].datetime.isoformat() == "2025-11-21T11:25:09+00:00"


def test_no_name_can_add_a_header() -> None:
    got = _read(HOSTILE)
    assert sorted(got.keys()) == sorted(_read(TRIP).keys())
    assert got["To"].addresses[0].addr_spec == "ops@example.com"
    html = got.get_body(("html",)).get_content()
    assert "<script>" not in html
    assert "&lt;!channel&gt;" in html


@pytest.mark.parametrize("text", ["", "nobody", "@x.example", "a@", "a@b\r\nBcc: c@d", "ä@example.com"])
def test_a_sender_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        mail.sender_of(text)


# anything

TEXT = st.text(st.characters(codec="utf-8"), max_size=400)
FIGURES = st.none() | st.floats(allow_nan=True) | st.integers(-(2**63), 2**63)
MESSAGES = st.builds(
    lambda kind, texts, figures, ts_ms, outage: changed(
        kind=kind,
        name=texts[0],
        project_name=texts[1],
        breaker_id=texts[2],
        prev=texts[3],
        reason=texts[4],
        delivery_id=texts[5],
        trace_url="https://" + texts[6],
        rule={"kind": texts[7], "metric": texts[8], "threshold": figures[0], "window_ms": figures[1], "op": texts[9]}
        | {"kind_params": {"percentile": figures[2], "delta_of": texts[3]}},
        agg={"count": figures[3], "error_count": figures[4]},
        value=None if figures[5] is None else float(figures[5]),
        ts_ms=ts_ms,
        outage_ms=outage,
    ),
    st.sampled_from(["trip", "recover", "resolve", "test"]),
    st.lists(TEXT | st.sampled_from(["delta", "percentile", "error_rate", "", "half_open"]), min_size=10, max_size=10),
    st.lists(FIGURES, min_size=6, max_size=6),
    st.integers(0, 4_102_444_800_000),
    st.none() | st.integers(-1, 10**12),
)


@settings(deadline=None)
@given(MESSAGES)
def test_whatever_the_message_holds_slack_takes_it(message: Message) -> None:
    assert problems_of("slack_message", json.dumps(slack.render(message)).encode()) == []


@settings(deadline=None)
@given(MESSAGES)
def test_whatever_the_message_holds_pagerduty_takes_it(message: Message) -> None:
    event = pagerduty.render(changed(message, rule=TRIP.rule | {"metric": message.name}), ROUTING)
    assert problems_of("pagerduty_event", json.dumps(event).encode()) == []


@settings(deadline=None)
@given(MESSAGES)
def test_whatever_the_message_holds_an_alertmanager_takes_it(message: Message) -> None:
    name = message.name
    subject = Subject(breaker=name, metric=name, kind=name, project=name, router=name, metadata={name: name, "": name})
    alert = alertmanager.render(
        changed(message, subject=subject, breaker_id=BREAKER, project_id=PROJECT), FAR, NOW, 60_000
    )
    assert problems_of("alertmanager_alerts", json.dumps([alert]).encode()) == []


@settings(deadline=None)
@given(MESSAGES)
def test_whatever_the_message_holds_it_is_a_mail(message: Message) -> None:
    raw = mail.render(message, SENDER, ["ops@example.com"]).as_bytes()
    assert raw.isascii()
    assert max(map(len, raw.split(b"\r\n"))) <= 998
    got = message_from_bytes(raw, policy=policy.default)
    assert not got.defects
    assert set(got.keys()) <= {
        "From", "To", "Subject", "Date", "Message-ID", "In-Reply-To", "References", "Auto-Submitted", "MIME-Version",
        "Content-Type",
    }  # fmt: skip
