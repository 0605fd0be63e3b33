"""A channel whose destination can never be reached is refused when it is made or changed, in the words of its test."""

from __future__ import annotations

import pytest

from breaker_actors.notify.egress.policy import NAME_REFUSED, REFUSED
from breaker_actors.store.rows import ChannelDraft
from tests.support.fake_gateway import NOW_MS
from tests.support.web_world import World, error_of

CHANNELS = "notification-channels"


@pytest.mark.parametrize(
    ("url", "words"),
    [("http://127.0.0.1:9/", REFUSED), ("http://localhost/", NAME_REFUSED), ("ftp://a/", "must be an http or https")],
)
async def test_it_is_refused_when_made_and_when_changed(world: World, url: str, words: str) -> None:
    body = {"channel": "webhook", "config": {"url": url}}
    error = await error_of(await world.call("POST", CHANNELS, json=body), 422, "validation_failed")
    assert words in error["details"]["config.url"]
    good = {"channel": "webhook", "config": {"url": "https://no-such-name.invalid/"}}
    made = await world.call("POST", CHANNELS, json=good)
    assert made.status_code == 201, "a name that isn't known now may be in a moment"
    path = f"{CHANNELS}/{(await made.get_json())['channel']['id']}"
    error = await error_of(await world.call("PATCH", path, json={"config": {"url": url}}), 422, "validation_failed")
    assert words in error["details"]["config.url"]
    assert (await world.call("PATCH", path, json={"enabled": False})).status_code == 200


async def test_the_list_says_which_channels_another_setting_has_cut_off(world: World) -> None:
    """Those that are told; the commands say it beside their table."""
    for name, url, enabled in (("a", "http://127.0.0.1:9/", True), ("b", "http://10.0.0.7/", False)):
        draft = ChannelDraft(name=name, channel="webhook", config={"url": url}, enabled=enabled)
        await world.store.create_channel(world.project.id, draft, NOW_MS)
    listed = await (await world.call("GET", CHANNELS)).get_json()
    message = f"a can't be sent to: {REFUSED}"
    assert listed["warnings"] == [{"code": "channel_cut_off", "field": "channels[0].config.url", "message": message}]


async def test_the_list_says_which_channels_wait_for_a_mail_server(world: World) -> None:
    for name, enabled in (("mails", True), ("off", False)):
        draft = ChannelDraft(name=name, channel="email", config={"to": "a@b.example"}, enabled=enabled)
        await world.store.create_channel(world.project.id, draft, NOW_MS)
    (warning,) = (await (await world.call("GET", CHANNELS)).get_json())["warnings"]
    assert (warning["code"], warning["field"]) == ("no_mail_server", "channels[0].channel")
    assert warning["message"].startswith("mails: No mail server is set")
    assert "BREAKERS_SMTP_HOST" in warning["message"]
