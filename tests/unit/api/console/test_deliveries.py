"""Deliveries on the console: what was sent and what was not, page by page, and sending dead ones again."""

from __future__ import annotations

import re

import pytest

from breaker_actors.notify.circuit import Circuit
from breaker_actors.notify.limits import FAILURES_MAX, Pace
from breaker_actors.store.rows import ChannelRow, DeliveryResult
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World as StoreWorld
from tests.support.fake_gateway import NOW_MS
from tests.support.notifying import DOWN
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor


class Shop(OutboxWorld):
    """The project of a web world, with a channel."""

    def __init__(self, store_world: StoreWorld, channel: ChannelRow) -> None:
        super().__init__(store_world)
        self.channel_id = channel.id

    @property
    def path(self) -> str:
        return f"channels/{self.channel_id}/deliveries"

    async def die(self, count: int, error: str = "answered 404") -> None:
        """Lets so many deliveries fail for good."""
        for _ in range(count):
            (row,) = await self.take(self.channel_id, want=1, now_ms=NOW_MS)
            await self.settle(row, "dead", at_ms=NOW_MS, status=404, error=error)


@pytest.fixture
async def shop(world: World) -> Shop:
    project, store = world.project, world.store
    directory, journal = await store.open_directory(), await store.open_journal(project.shard)
    inside = StoreWorld(store, project.org_id, project.workspace_id, project.id, directory, journal)
    shop = Shop(inside, await OutboxWorld(inside).channel())
    await shop.open()
    return shop


async def test_each_says_what_came_of_it(shop: Shop, ann: Visitor) -> None:
    row = await shop.breaker("<b>a</b>")
    await shop.moves(row.id, "open", "half_open", "closed", ts_ms=NOW_MS)
    (trip,) = await shop.take(shop.channel_id, now_ms=NOW_MS)
    await shop.settle(trip, "sent", at_ms=NOW_MS, status=200)
    (recover,) = await shop.take(shop.channel_id, now_ms=NOW_MS)
    await shop.settle(recover, "retry", at_ms=NOW_MS, status=503, error="<i>503</i>", next_ms=NOW_MS + 4_000)
    text = await ann.page(shop.path)
    assert "<b>a" not in text
    assert "<i>503" not in text
    assert "&lt;i&gt;503" in text
    assert f"/b/{row.id}" in text
    assert "move 1 of it" in text
    assert "in 4 s" in text
    assert "next attempt" in text
    assert "/redrive" not in text
    assert f"d-{trip.id}" in await ann.page(f"{shop.path}?state=sent", part=True)
    assert f"d-{trip.id}" not in await ann.page(f"{shop.path}?state=pending", part=True)
    assert "No delivery is held" in await ann.page(f"{shop.path}?state=held")
    assert (await ann.get(f"{shop.path}?state=odd")).status == 400


async def test_dead_ones_of_an_outage_are_sent_again_together(shop: Shop, ann: Visitor) -> None:
    row = await shop.breaker()
    await shop.outage(row.id)
    await shop.die(1)
    text = await ann.page(shop.path)
    dead = [found for found in await shop.rows(shop.channel_id) if found.state == "dead"]
    assert "Send dead ones again (2)" in text
    assert "Send 2 dead deliveries again?" in text
    assert "1 outage of 1 breaker;" in text
    assert text.count("Send again (all 2 of this outage)") == 2
    reply = await ann.post(f"{shop.path}/{dead[0].id}/redrive")
    assert "2 deliveries will be sent again within seconds: this one, and 1 of the same outage." in reply.body.decode()
    assert await shop.words(shop.channel_id) == ["trip pending", "recover pending"]
    again = await ann.post(f"{shop.path}/{dead[0].id}/redrive")
    assert again.status == 409
    assert "not dead" in again.body.decode()
    assert "delivery.redrive" in await ann.page("audit?action=delivery.")


async def test_all_dead_ones_are_sent_again_and_counted(shop: Shop, ann: Visitor) -> None:
    for name in ("a", "b", "c"):
        await shop.moves((await shop.breaker(name)).id, "open", ts_ms=NOW_MS)
    await shop.die(3)
    text = await ann.page(shop.path)
    assert "Send 3 dead deliveries again?" in text
    assert "3 outages of 3 breakers" in text
    reply = await ann.post(f"{shop.path}/redrive")
    assert "3 deliveries will be sent again" in reply.body.decode()
    assert await shop.words(shop.channel_id) == ["trip pending"] * 3
    none = await ann.post(f"{shop.path}/redrive")
    assert (none.status, "no dead delivery" in none.body.decode()) == (409, True)


async def test_what_would_mislead_people_is_left_alone_and_says_so(shop: Shop, ann: Visitor) -> None:
    row = await shop.breaker()
    await shop.outage(row.id)
    await shop.send_all(shop.channel_id, "dead")
    await shop.moves(row.id, "open")
    await shop.send_all(shop.channel_id)
    text = await ann.page(shop.path)
    assert text.count("Left alone: this channel was told the contrary since.") == 2
    assert "Send again" not in text
    reply = await ann.post(f"{shop.path}/redrive")
    assert reply.status == 409
    assert "believe the contrary" in reply.body.decode()


async def test_dead_ones_are_counted_where_their_channel_is_shown(shop: Shop, ann: Visitor) -> None:
    row = await shop.breaker()
    await shop.moves(row.id, "open", ts_ms=NOW_MS)
    link = f'<a class="badge bad" href="{ann.path(shop.path)}?state=dead"'
    for path in ("channels", f"channels/{shop.channel_id}"):
        assert link not in await ann.page(path)
    await shop.die(1)
    for path in ("channels", f"channels/{shop.channel_id}"):
        text = await ann.page(path)
        assert link in text
        assert ">1 dead</a>" in text


async def test_older_ones_are_on_the_next_page(shop: Shop, ann: Visitor) -> None:
    for number in range(51):
        await shop.moves((await shop.breaker(f"b{number}")).id, "open", ts_ms=NOW_MS)
    text = await ann.page(shop.path)
    (older,) = re.findall(r'href="([^"]+)" rel="next"', text)
    rest = await ann.page(older.replace("&amp;", "&"))
    assert (text.count('<tr id="d-'), rest.count('<tr id="d-')) == (50, 1)
    assert ">Newest<" in rest
    assert 'rel="next"' not in rest


async def test_a_silent_receiver_says_why(shop: Shop, ann: Visitor, guest: Visitor) -> None:
    """On the list of channels, too: the last failure, and when it is asked again. Wherever states are looked at it
    says that people were not told."""
    breaker = await shop.breaker()
    await shop.moves(breaker.id, "open", ts_ms=NOW_MS)
    (trip,) = await shop.take(shop.channel_id, now_ms=NOW_MS)
    version = (await shop.store.waiting_channels())[0].version or ""
    circuit = Circuit(shop.channel_id, version, None, Pace(), NOW_MS - 1_000)
    for _ in range(FAILURES_MAX):
        circuit.note(DOWN, circuit.seq, NOW_MS - 1_000)
    retry = DeliveryResult(delivery_id=trip.id, result="retry", at_ms=NOW_MS, next_ms=NOW_MS + 1)
    await shop.store.settle_deliveries(shop.epoch, [retry], [circuit.row()])
    for path in ("channels", f"channels/{shop.channel_id}", shop.path):
        text = await ann.page(path)
        assert "receiver fails" in text, path
        assert "the connection was refused" in text
        assert "asked again" in text
    assert "waits until its receiver is asked again" in await ann.page(shop.path)
    for path in ("", f"b/{breaker.id}", "timeline"):
        text = await ann.page(path, part=True)
        assert "reached</a>: 1 notification waits, the oldest for" in text, path
        assert "the connection was refused" in text
    assert "be reached" not in await guest.page(), "a project key sees no channels"


async def test_who_may_not_sends_nothing_again(shop: Shop, guest: Visitor) -> None:
    await shop.moves((await shop.breaker()).id, "open", ts_ms=NOW_MS)
    await shop.die(1)
    (row,) = await shop.rows(shop.channel_id)
    assert (await guest.post(f"{shop.path}/redrive")).status == 403
    assert (await guest.post(f"{shop.path}/{row.id}/redrive")).status == 403
    assert await shop.words(shop.channel_id) == ["trip dead"]
