"""Deliveries of a channel over HTTP: what was told, what waits and why, sending again, and the test notification."""

from __future__ import annotations

from typing import Any

import pytest
from quart import Response

from api.context.replica import EXTENSION, Replica
from breaker_actors.clock import rfc3339
from breaker_actors.notify.circuit import Circuit
from breaker_actors.notify.limits import FAILURES_MAX, Pace
from breaker_actors.notify.model import Attempt
from breaker_actors.store.rows import ChannelDraft, ChannelKind, ChannelRow, DeliveryResult
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World as StoreWorld
from tests.support.fake_gateway import NOW_MS
from tests.support.notifying import DOWN, SENT, ScriptedSender
from tests.support.web_world import World, error_of
from tests.unit.notify.refusals import BY_SETTINGS, REFUSALS

HOOK = "https://hooks.slack.example/services/T0/B0/verysecret"


async def body_of(response: Response, status: int = 200) -> Any:
    assert response.status_code == status, await response.get_data()
    return await response.get_json()


class Shop(OutboxWorld):
    """The project of a web world, with a channel and a breaker."""

    def __init__(self, web: World, store_world: StoreWorld, channel: ChannelRow) -> None:
        super().__init__(store_world)
        self.web = web
        self.channel_id = channel.id

    @property
    def path(self) -> str:
        return f"notification-channels/{self.channel_id}"

    async def get(self, query: str = "") -> Any:
        return await body_of(await self.web.call("GET", f"{self.path}/deliveries{query}"))


@pytest.fixture
async def shop(world: World) -> Shop:
    project, store = world.project, world.store
    directory, journal = await store.open_directory(), await store.open_journal(project.shard)
    inside = StoreWorld(store, project.org_id, project.workspace_id, project.id, directory, journal)
    channel = await OutboxWorld(inside).channel()
    shop = Shop(world, inside, channel)
    await shop.open()
    return shop


async def test_deliveries_newest_first_page_by_page(shop: Shop) -> None:
    """Of all states or one, each with its event."""
    row = await shop.breaker()
    await shop.moves(row.id, "open", "half_open", "closed", ts_ms=NOW_MS)
    (trip,) = await shop.take(shop.channel_id, now_ms=NOW_MS)
    await shop.settle(trip, "sent", at_ms=NOW_MS + 1_500, status=200)
    (recover,) = await shop.take(shop.channel_id, now_ms=NOW_MS)
    await shop.settle(recover, "retry", at_ms=NOW_MS, status=503, error="answered 503", next_ms=NOW_MS + 4_000)
    everything = await shop.get()
    assert (everything["returned"], everything["next_cursor"], everything["silence"]) == (2, None, None)
    assert everything["items"] == everything["deliveries"]
    waiting, sent = everything["deliveries"]
    assert sent == {
        "id": trip.id,
        "project_id": row.project_id,
        "channel_id": shop.channel_id,
        "breaker_id": row.id,
        "name": "a",
        "event_id": f"{row.id}.1",
        "transition_seq": 1,
        "kind": "trip",
        "state": "sent",
        "attempts": 1,
        "last_status": 200,
        "last_error": None,
        "next_attempt_at": None,
        "created_at": "2026-11-21T06:30:00.000Z",
        "sent_at": "2026-11-21T06:30:01.500Z",
        "ended_at": "2026-11-21T06:30:01.500Z",
        "mute_id": None,
    }
    assert (waiting["kind"], waiting["state"], waiting["attempts"]) == ("recover", "pending", 1)
    assert (waiting["last_status"], waiting["last_error"]) == (503, "answered 503")
    assert (waiting["next_attempt_at"], waiting["sent_at"]) == ("2026-11-21T06:30:04.000Z", None)
    first = await shop.get("?limit=1")
    assert (first["has_more"], first["cursor"]) == (True, first["next_cursor"])
    rest = await shop.get(f"?limit=1&cursor={first['next_cursor']}")
    assert first["deliveries"] + rest["deliveries"] == everything["deliveries"]
    assert [one["id"] for one in (await shop.get("?state=sent"))["items"]] == [trip.id]
    events = {e["id"] for e in (await body_of(await shop.web.call("GET", "events")))["events"]}
    assert {sent["event_id"], waiting["event_id"]} <= events


async def test_the_end_of_a_deleted_breaker_has_no_event(shop: Shop) -> None:
    row = await shop.breaker()
    await shop.moves(row.id, "open")
    await shop.store.delete_breaker(row.project_id, row.id, NOW_MS)
    end = (await shop.get())["deliveries"][0]
    assert (end["kind"], end["event_id"], end["created_at"]) == ("resolve", None, "2026-11-21T06:30:00.000Z")


async def test_a_silent_channel_says_why(shop: Shop) -> None:
    """The last failure, and when its receiver is asked again."""
    row = await shop.breaker()
    (listed,) = (await body_of(await shop.web.call("GET", "notification-channels")))["channels"]
    assert listed["silence"] is None
    await shop.moves(row.id, "open", ts_ms=NOW_MS)
    (trip,) = await shop.take(shop.channel_id)
    version = (await shop.store.waiting_channels())[0].version or ""
    circuit = Circuit(shop.channel_id, version, None, Pace(), NOW_MS - 1_000)
    for _ in range(FAILURES_MAX):
        circuit.note(DOWN, circuit.seq, NOW_MS - 1_000)
    retry = DeliveryResult(delivery_id=trip.id, result="retry", at_ms=NOW_MS, next_ms=NOW_MS + 1)
    await shop.store.settle_deliveries(shop.epoch, [retry], [circuit.row()])
    told = (await shop.get())["silence"]
    assert told == {
        "state": "open",
        "retry_at": "2026-11-21T06:30:01.000Z",
        "last_status": None,
        "last_error": "the connection was refused",
    }
    (listed,) = (await body_of(await shop.web.call("GET", "notification-channels")))["channels"]
    assert listed["silence"] == told | {"pending": 1, "oldest_at": rfc3339(NOW_MS)}
    shop.web.clock.ms += 5_000
    told = (await shop.get())["silence"]
    assert (told["state"], told["retry_at"]) == ("half_open", None)


async def test_redrive(shop: Shop) -> None:
    """The pair goes again; what is not dead is a conflict; what is not there is not found."""
    row = await shop.breaker()
    await shop.outage(row.id)
    await shop.send_all(shop.channel_id, "dead", error="answered 404")
    recover, trip = (await shop.get("?state=dead"))["deliveries"]
    answer = await body_of(await shop.web.call("POST", f"{shop.path}/deliveries/{recover['id']}/redrive"), 202)
    assert [(one["id"], one["state"], one["attempts"]) for one in answer["deliveries"]] == [
        (trip["id"], "pending", 0),
        (recover["id"], "pending", 0),
    ]
    again = await shop.web.call("POST", f"{shop.path}/deliveries/{trip['id']}/redrive")
    error = await error_of(again, 409, "not_redrivable")
    assert error["details"] == {"state": "pending"}
    for id_ in ("00000000-0000-0000-0000-000000000000", "x"):
        await error_of(await shop.web.call("POST", f"{shop.path}/deliveries/{id_}/redrive"), 404, "not_found")
    entry = (await body_of(await shop.web.call("GET", "audit")))["entries"][0]
    assert (entry["action"], entry["before"], entry["after"]) == (
        "delivery.redrive",
        {"state": "dead"},
        {"state": "pending", "deliveries": 2},
    )


async def test_the_projects_own_slack_address_has_deliveries_too(shop: Shop) -> None:
    """Under the project's id. Its address is in none of them."""
    project_id, row = shop.web.project.id, await shop.breaker()
    await body_of(await shop.web.call("PATCH", shop.web.path, json={"slack_webhook_url": HOOK}))
    await shop.moves(row.id, "open")
    response = await shop.web.call("GET", f"notification-channels/{project_id}/deliveries")
    body = await body_of(response)
    assert [(one["channel_id"], one["kind"]) for one in body["deliveries"]] == [(project_id, "trip")]
    assert "verysecret" not in str(body)


async def test_keys_and_strangers(shop: Shop) -> None:
    for method, path in (("GET", "deliveries"), ("POST", f"deliveries/{shop.channel_id}/redrive")):
        full = f"{shop.path}/{path}"
        await error_of(await shop.web.call(method, full, key=None), 401, "unauthorized")
        await error_of(await shop.web.call(method, full, key="project"), 403, "forbidden")
        await error_of(await shop.web.call(method, full, key="stranger"), 404, "not_found")
        other = f"notification-channels/{shop.web.other.id}/{path}"
        await error_of(await shop.web.call(method, other), 404, "not_found")


@pytest.mark.parametrize("query", ["state=lost", "limit=0", "limit=201", "cursor=x"])
async def test_a_bad_page(shop: Shop, query: str) -> None:
    await error_of(await shop.web.call("GET", f"{shop.path}/deliveries?{query}"), 400, "bad_request")


def sending(world: World, attempt: Attempt) -> ScriptedSender:
    """From now on the replica sends with this."""
    parts: Replica = world.app.extensions[EXTENSION]
    sender = ScriptedSender(world.clock, lambda to, message: attempt)
    object.__setattr__(parts, "sender", sender)
    return sender


async def test_a_test_notification_is_sent_at_once(shop: Shop) -> None:
    """Whatever the channel takes, also when it is disabled; nothing of it is in the deliveries."""
    sender = sending(shop.web, SENT)
    await shop.web.call("PATCH", shop.path, json={"enabled": False, "events": ["recover"]})
    answer = await body_of(await shop.web.call("POST", f"{shop.path}/test"))
    assert answer == {"status": "sent", "message": "The test notification was sent."}
    ((_, to, message, _),) = sender.asked
    assert (to.channel_id, to.kind, to.config) == (shop.channel_id, "webhook", {"url": "http://hook.example/x"})
    assert (message.kind, message.project_id, message.project_name) == ("test", shop.web.project.id, "shop")
    assert (await shop.get())["deliveries"] == []


@pytest.mark.parametrize(
    ("attempt", "details"),
    [
        (DOWN, {}),
        (Attempt(result="refused", status=404, error="answered 404 Not Found"), {"status": 404}),
    ],
)
async def test_a_test_notification_that_fails_says_why(shop: Shop, attempt: Attempt, details: dict[str, Any]) -> None:
    sending(shop.web, attempt)
    error = await error_of(await shop.web.call("POST", f"{shop.path}/test"), 422, "send_failed")
    assert str(attempt.error) in error["message"]
    assert error.get("details", {}) == details


async def test_the_real_sender_refuses_a_config_without_an_address(shop: Shop) -> None:
    made = await shop.web.call("POST", "notification-channels", json={"channel": "webhook", "config": {}})
    channel_id = (await body_of(made, 201))["channel"]["id"]
    response = await shop.web.call("POST", f"notification-channels/{channel_id}/test")
    error = await error_of(response, 422, "send_failed")
    assert "config.url is required" in error["message"]


@pytest.mark.parametrize(("kind", "config", "words"), [*REFUSALS, *BY_SETTINGS])
async def test_the_real_sender_says_why_it_sends_nothing(
    world: World, kind: ChannelKind, config: dict[str, Any], words: str
) -> None:
    """Of every bad config, and of every place that the default settings keep notifications from."""
    draft = ChannelDraft(channel=kind, config=config)
    channel = await world.store.create_channel(world.project.id, draft, NOW_MS)
    error = await error_of(await world.call("POST", f"notification-channels/{channel.id}/test"), 422, "send_failed")
    assert error["message"] == f"The test notification could not be sent: {words}"
    assert "details" not in error
