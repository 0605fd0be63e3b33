"""Secrets are kept behind their masks only while they go where they went before: another scheme, host or port, or
another domain of mails, asks for them again."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from breaker_actors.notify.channels.pagerduty import EVENTS_URL
from tests.support.web_world import World, error_of
from tests.unit.api.app.test_accounts import CHANNELS, HOOK, body_of

KEY, AUTH, SECRET = "0123456789abcdef0123456789ABCDEF", "Bearer 0123456789-abcdef", "a-shared-secret-of-ours"
EU = "https://events.eu.pagerduty.example/v2/enqueue"
HEADERS = {"Authorization": AUTH, "X-Team": "shop-and-checkout"}
HOOKS = "https://hook.example/in/1"


class Kind(NamedTuple):
    """A channel that is there. `same`: changes of its address that go to the same place; `other`: changes that don't,
    and the fields that must be given again then."""

    kind: str
    config: dict[str, Any]
    same: list[dict[str, Any]]
    other: list[dict[str, Any]]
    again: list[str]


KINDS = [
    Kind(
        "webhook",
        {"url": HOOKS, "secret": SECRET, "headers": HEADERS, "note": "n"},
        [{"url": url} for url in ("https://hook.example/other?x=1", "HTTPS://Hook.Example:443/in/1", HOOKS)],
        [
            {"url": url}
            for url in (
                "https://evil.example/in/1", "http://hook.example/in/1", "https://hook.example:8443/in/1",
                "https://hook.example.evil.example/in/1", "https://hook.example@evil.example/in/1", "not an address",
            )
        ]
        + [{"url": None}],
        ["config.secret", "config.headers.Authorization", "config.headers.X-Team"],
    ),
    Kind(
        "pagerduty",
        {"routing_key": KEY, "severity": "error"},
        [{"events_url": None}, {"events_url": EVENTS_URL}, {"events_url": "https://events.pagerduty.com/v3"}],
        [{"events_url": EU}, {"events_url": "http://events.pagerduty.com/v2/enqueue"}],
        ["config.routing_key"],
    ),
    Kind("pagerduty", {"routing_key": KEY, "events_url": EU}, [], [{"events_url": None}], ["config.routing_key"]),
    Kind(
        "alertmanager",
        {"url": HOOKS, "username": "u", "password": KEY, "labels": {"severity": "page"}},
        [{"url": "https://hook.example/other"}, {"labels": {"a": "b"}}],
        [{"url": "https://evil.example/in/1"}, {"url": None}],
        ["config.password"],
    ),
    Kind(
        "email",
        {"to": ["a@x.example", "b@y.example"], "api_key": KEY},
        [{"to": "b@Y.example"}, {"to": ["c@x.example"]}],
        [{"to": "a@evil.example"}, {"to": ["a@x.example", "a@evil.example"]}, {"to": None}],
        ["config.api_key"],
    ),
    Kind(
        "apprise",
        {"url": "gotifys://hook.example/in/1", "api_key": KEY},
        [],
        [{"url": "gotifys://hook.example/in/2"}, {"url": "gotifys://evil.example/in/1"}, {"url": None}],
        ["config.api_key"],
    ),
    Kind(
        "slack",
        {"webhook_url": HOOK, "token": KEY},
        [{"webhook_url": HOOK + "2"}],
        [{"webhook_url": "https://evil.example/services/T0/B0/abcdefghij"}],
        ["config.token"],
    ),
]  # fmt: skip
NAMES = [f"{kind.kind}-{i}" for i, kind in enumerate(KINDS)]


def without_null(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value is not None}


async def _made(world: World, kind: Kind) -> dict[str, Any]:
    body = {"channel": kind.kind, "config": kind.config}
    made: dict[str, Any] = (await body_of(await world.call("POST", CHANNELS, json=body), 201))["channel"]
    return made


async def _stored(world: World, channel_id: str) -> dict[str, Any]:
    row = await world.store.get_channel(world.project.id, channel_id)
    assert row is not None
    return row.config


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
async def test_another_destination_asks_for_the_secrets_again(world: World, kind: Kind) -> None:
    """The error names each of them, nothing is stored; given again they are taken."""
    made = await _made(world, kind)
    path = f"{CHANNELS}/{made['id']}"
    for change in kind.other:
        response = await world.call("PATCH", path, json={"config": made["config"] | change})
        error = await error_of(response, 422, "validation_failed")
        assert list(error["details"]) == kind.again, change
        assert kind.again[0] in error["message"]
        assert "must be given again" in error["message"]
        assert await _stored(world, made["id"]) == kind.config
        response = await world.call("PATCH", path, json={"config": change})
        error = await error_of(response, 422, "validation_failed")
        assert list(error["details"]) == kind.again, "what is left out is not kept unseen, either"
    whole = kind.config | kind.other[0]
    await body_of(await world.call("PATCH", path, json={"config": whole}))
    assert await _stored(world, made["id"]) == without_null(whole)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
async def test_the_same_destination_keeps_them(world: World, kind: Kind) -> None:
    """Also under another path, and of course the address as it was, masked or whole."""
    made = await _made(world, kind)
    for change in [{}, *kind.same]:
        response = await world.call("PATCH", f"{CHANNELS}/{made['id']}", json={"config": made["config"] | change})
        assert (await body_of(response))["channel"]["id"] == made["id"], change
        assert await _stored(world, made["id"]) == without_null(kind.config | change)
        await body_of(await world.call("PATCH", f"{CHANNELS}/{made['id']}", json={"config": kind.config}))


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
async def test_what_is_left_out_of_a_change_stays(world: World, kind: Kind) -> None:
    """A change of one key is no word about the others; null removes one, and an object is replaced whole."""
    path = f"{CHANNELS}/{(made := await _made(world, kind))['id']}"
    for change in [{}, {"note": "m"}, {"note": None}, *kind.same, {"headers": {"A": "b"}}]:
        await body_of(await world.call("PATCH", path, json={"config": kind.config}))
        before = await _stored(world, made["id"])
        await body_of(await world.call("PATCH", path, json={"config": change}))
        assert await _stored(world, made["id"]) == without_null(before | change), change


async def test_secrets_can_be_removed_with_the_destination_they_went_to(world: World) -> None:
    path = f"{CHANNELS}/{(made := await _made(world, KINDS[0]))['id']}"
    change = {"url": "https://other.example/", "secret": None, "headers": None}
    await body_of(await world.call("PATCH", path, json={"config": change}))
    assert await _stored(world, made["id"]) == {"url": "https://other.example/", "note": "n"}
    await body_of(await world.call("PATCH", path, json={"config": None}))
    assert await _stored(world, made["id"]) == {}


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
async def test_a_new_channel_takes_no_masks(world: World, kind: Kind) -> None:
    """Not those of another channel either: there is nothing stored that they could stand for."""
    made = await _made(world, kind)
    response = await world.call("POST", CHANNELS, json={"channel": kind.kind, "config": made["config"]})
    error = await error_of(response, 422, "validation_failed")
    (place,) = error["details"]
    assert place.startswith("config.")
    assert place in error["message"]
    assert len((await body_of(await world.call("GET", CHANNELS)))["channels"]) == 1


@pytest.mark.parametrize(
    "address",
    [
        "https://evil.example/****ghij",
        "http://hooks.slack.example/****ghij",
        "https://hooks.slack.example:8443/****ghij",
    ],
)
async def test_a_masked_slack_address_of_another_place(world: World, address: str) -> None:
    """The address is the secret: a channel's and a project's are whole, or exactly the mask."""
    await body_of(await world.call("PATCH", world.path, json={"slack_webhook_url": HOOK}))
    made = await _made(world, Kind("slack", {"webhook_url": HOOK}, [], [], []))
    for path, body, place in (
        (world.path, {"slack_webhook_url": address}, "slack_webhook_url"),
        (f"{CHANNELS}/{made['id']}", {"config": {"webhook_url": address}}, "config.webhook_url"),
    ):
        error = await error_of(await world.call("PATCH", path, json=body), 422, "validation_failed")
        assert list(error["details"]) == [place]
        assert place in error["message"]
    assert await _stored(world, made["id"]) == {"webhook_url": HOOK}
