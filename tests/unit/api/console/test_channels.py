"""Channels on the console: set up by kind, tested, disabled; and no address or secret of theirs on any page."""

from __future__ import annotations

from typing import Any

import pytest

from api.context.replica import EXTENSION
from breaker_actors.store.rows import ChannelRow
from tests.support.asgi import Reply
from tests.support.notifying import REFUSED, SENT, ScriptedSender
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor, sign_in

HOOK = "https://hooks.slack.com/services/T0/B0/verysecret"
SECRETS = ("verysecret", "s3cr3t-of-ours", "header-secret", "routing-key-secret")


async def channels_of(world: World) -> list[ChannelRow]:
    return list(await world.store.list_channels(world.project.id))


async def make(ann: Visitor, kind: str = "slack", name: str = "team", **config: str) -> Reply:
    given = config or {"webhook_url": HOOK}
    fields = {f"config.{field}": text for field, text in given.items()}
    return await ann.post(
        "channels/new", **{"kind": kind, "name": name, "event-trip": "on", "event-recover": "on"}, **fields
    )


@pytest.fixture
async def slack(world: World, ann: Visitor) -> ChannelRow:
    await make(ann)
    (row,) = await channels_of(world)
    return row


def sending(world: World, attempt: Any) -> ScriptedSender:
    sender = ScriptedSender(world.clock, lambda to, message: attempt)
    object.__setattr__(world.app.extensions[EXTENSION], "sender", sender)
    return sender


KINDS: dict[str, dict[str, str]] = {
    "slack": {"webhook_url": HOOK},
    "pagerduty": {"routing_key": "routing-key-secret", "severity": "warning"},
    "alertmanager": {
        "url": "https://alerts.example/verysecret",
        "username": "breakers",
        "password": "s3cr3t-of-ours",
        "labels": "severity: critical\r\nteam: payments",
    },
    "email": {"to": "a@example.org, b@example.org"},
    "webhook": {
        "url": "https://hook.example/verysecret",
        "secret": "s3cr3t-of-ours",
        "headers": "X-Team: payments\r\n\r\nAuthorization: Bearer header-secret",
    },
    "apprise": {"url": "gotifys://push.example/verysecret"},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_is_made_and_its_secrets_are_never_shown_again(world: World, ann: Visitor, kind: str) -> None:
    reply = await make(ann, kind, f"of {kind}", **KINDS[kind])
    (row,) = await channels_of(world)
    assert reply.headers["hx-redirect"] == ann.path(f"channels/{row.id}?said=made")
    assert (row.channel, row.name, row.events) == (kind, f"of {kind}", ("trip", "recover"))
    if kind == "webhook":
        assert row.config["headers"] == {"X-Team": "payments", "Authorization": "Bearer header-secret"}
    if kind == "alertmanager":
        assert row.config["labels"] == {"severity": "critical", "team": "payments"}
    page, listed, log = await ann.page(f"channels/{row.id}"), await ann.page("channels"), await ann.page("audit")
    for text in (page, listed, log, reply.body.decode(), await ann.page(f"channels/{row.id}/deliveries")):
        assert not any(secret in text for secret in SECRETS)
    assert f"of {kind}" in listed
    assert "channel.create" in log


@pytest.mark.parametrize(
    ("kind", "config", "place"),
    [
        ("slack", {"webhook_url": "ftp://x"}, "config-webhook-url"),
        ("slack", {"webhook_url": "https://127.0.0.1/verysecret"}, "config-webhook-url"),
        ("pagerduty", {"routing_key": ""}, "config-routing-key"),
        ("alertmanager", {"url": "https://a.example/", "labels": "severity"}, "config-labels"),
        ("alertmanager", {"url": "https://a.example/", "password": "s3cr3t-of-ours"}, "config-username"),
        ("email", {"to": "nobody"}, "config-to"),
        ("apprise", {"url": "mailto://me:verysecret@mail.example"}, "config-url"),
        ("apprise", {"url": "tgram://verysecret/"}, "config-url"),
        ("webhook", {"url": "https://hook.example/", "headers": "X-Team"}, "config-headers"),
        ("webhook", {"url": "https://hook.example/", "headers": "Host: s3cr3t-of-ours"}, "config-headers"),
    ],
)
async def test_what_is_wrong_stands_at_its_field(
    world: World, ann: Visitor, kind: str, config: dict[str, str], place: str
) -> None:
    reply = await make(ann, kind, **config)
    text = reply.body.decode()
    assert reply.status == 422
    wrong = text.split(f'id="at-{place}" hx-swap-oob="true">')[1].partition("</p>")[0]
    assert wrong
    assert 'id="at-name" hx-swap-oob="true"></p>' in text
    assert not any(secret in text for secret in SECRETS)
    assert await channels_of(world) == []


async def test_an_unknown_kind_is_refused(world: World, ann: Visitor) -> None:
    assert (await make(ann, "pigeon<b>")).status == 422
    assert "Slack" in await ann.page("channels/new?kind=pigeon")


async def test_a_form_that_is_sent_twice_makes_one(world: World, ann: Visitor) -> None:
    for _ in range(2):
        await ann.post("channels/new", **{"kind": "slack", "once": "2" * 32, "config.webhook_url": HOOK})
    assert len(await channels_of(world)) == 1


async def test_what_is_left_empty_is_kept_and_the_rest_can_be_undone(
    world: World, ann: Visitor, slack: ChannelRow
) -> None:
    path = f"channels/{slack.id}"
    reply = await ann.post(path, **{"name": "<i>new</i>", "event-observed": "on", "config.webhook_url": ""})
    text = reply.body.decode()
    (row,) = await channels_of(world)
    assert (row.name, row.events, row.config) == ("<i>new</i>", ("observed",), slack.config)
    assert "<i>" not in text
    assert 'name="event-trip" value="on"' in text
    await ann.post(path, **{"name": "team", "event-trip": "on", "event-recover": "on"})
    (row,) = await channels_of(world)
    assert (row.name, row.events) == ("team", ("trip", "recover"))


async def test_a_new_address_is_told_to_be_no_way_back(world: World, ann: Visitor, slack: ChannelRow) -> None:
    fields = {"name": "team", "event-trip": "on", "config.webhook_url": f"{HOOK}2"}
    text = (await ann.post(f"channels/{slack.id}", **fields)).body.decode()
    assert "are gone" in text
    assert "Undo" not in text
    assert (await channels_of(world))[0].config == {"webhook_url": f"{HOOK}2"}


async def test_stored_values_are_removed_where_that_is_asked_for(world: World, ann: Visitor) -> None:
    await make(ann, "webhook", **KINDS["webhook"])
    (row,) = await channels_of(world)
    assert "Remove what is stored" in await ann.page(f"channels/{row.id}")
    await ann.post(f"channels/{row.id}", **{"name": "w", "event-trip": "on", "drop.secret": "on"})
    (changed,) = await channels_of(world)
    assert changed.config == {name: row.config[name] for name in ("url", "headers")}


async def test_mails_are_shown_and_cleared_severities_go(world: World, ann: Visitor) -> None:
    await make(ann, "pagerduty", **KINDS["pagerduty"])
    (row,) = await channels_of(world)
    assert 'value="warning"' in await ann.page(f"channels/{row.id}")
    await ann.post(f"channels/{row.id}", **{"name": "p", "config.severity": "", "config.routing_key": ""})
    (changed,) = await channels_of(world)
    assert changed.config == {"routing_key": "routing-key-secret"}
    await make(ann, "email", **KINDS["email"])
    assert "a@example.org, b@example.org" in await ann.page("channels")
    assert "No mail server is set" in await ann.page("channels")


async def test_disabling_can_be_undone(world: World, ann: Visitor, slack: ChannelRow) -> None:
    text = (await ann.post(f"channels/{slack.id}/enabled", enabled="false")).body.decode()
    assert "nothing is sent on it" in text
    assert 'name="enabled" value="true"' in text
    assert not (await channels_of(world))[0].enabled
    assert "disabled" in await ann.page("channels", part=True)
    await ann.post(f"channels/{slack.id}/enabled", enabled="true")
    assert (await channels_of(world))[0].enabled


async def test_a_test_says_what_its_receiver_said(world: World, ann: Visitor, slack: ChannelRow) -> None:
    sender = sending(world, SENT)
    reply = await ann.post(f"channels/{slack.id}/test")
    assert "team: The test notification was sent." in reply.body.decode()
    assert len(sender.asked) == 1
    sending(world, REFUSED)
    refused = await ann.post(f"channels/{slack.id}/test")
    assert refused.status == 422
    assert "answered 404 Not Found" in refused.body.decode()


async def test_a_deleted_channel_is_gone(world: World, ann: Visitor, slack: ChannelRow) -> None:
    page = await ann.page(f"channels/{slack.id}")
    assert "can't be undone" in page
    reply = await ann.post(f"channels/{slack.id}/delete")
    assert reply.headers["hx-redirect"] == ann.path("channels?said=deleted")
    assert await channels_of(world) == []
    assert (await ann.get(f"channels/{slack.id}")).status == 404
    assert "channel.delete" in await ann.page("audit?action=channel.")


async def test_the_projects_own_slack_address_is_among_them(world: World, ann: Visitor) -> None:
    await world.call("PATCH", world.path, json={"slack_webhook_url": HOOK})
    text = await ann.page("channels")
    assert "slack_webhook_url" in text
    assert "verysecret" not in text
    assert "own Slack address" in await ann.page(f"channels/{world.project.id}/deliveries")


async def test_a_hostile_name_is_escaped_and_many_are_paged(world: World, ann: Visitor) -> None:
    await make(ann, name="<script>alert(1)</script>\n" + "x" * 200)
    for number in range(26):
        await make(ann, name=f"c{number}")
    first, second = await ann.page("channels"), await ann.page("channels?page=2")
    assert "<script>alert" not in first + second
    assert "Page 1 of 2" in first
    assert first.count(">Send a test</button>") == 25
    assert second.count(">Send a test</button>") == 2


async def test_who_may_not_sees_no_channel(world: World, guest: Visitor, ann: Visitor, slack: ChannelRow) -> None:
    stranger, admin = await sign_in(world, "stranger"), await sign_in(world, "admin")
    for path in ("channels", "channels/new", f"channels/{slack.id}", f"channels/{slack.id}/deliveries"):
        assert (await guest.get(path)).status == 403
        assert (await stranger.get(path)).status == 404
        assert (await admin.get(path)).status == 200
    for act in ("", "/enabled", "/test", "/delete"):
        assert (await guest.post(f"channels/{slack.id}{act}")).status == 403
        assert (await stranger.post(f"channels/{slack.id}{act}")).status == 404
    assert await channels_of(world) == [slack]


async def test_what_can_not_send_is_not_shown_as_enabled(world: World, ann: Visitor) -> None:
    """Mails without a mail server are given up one by one: no green word may stand beside that."""
    body = {"channel": "email", "name": "SRE list", "config": {"to": ["sre@example.com"]}}
    await world.call("POST", "notification-channels", json=body)
    (made,) = await channels_of(world)
    for text in (await ann.page("channels"), await ann.page(f"channels/{made.id}")):
        assert "No mail server is set" in text
        assert "can't send</span>" in text
        assert ">enabled</span>" not in text
