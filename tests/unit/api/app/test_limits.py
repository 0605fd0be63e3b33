"""Budgets of callers: what they count together, what a refusal looks like, and who is exempt."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from api.admission.addresses import source
from api.app import create_app
from api.context.replica import EXTENSION
from api.middleware.rate_limits import EVENTS_BURST, RecentCallers, budget
from breaker_actors.messages import EventDraft
from breaker_actors.notify.model import Attempt, Destination, Message
from breaker_actors.settings import Settings
from tests.support.arrow_streams import STREAM, of_polars
from tests.support.asgi import ask
from tests.support.web_world import TIMING, World, error_of
from tests.unit.api.app.test_accounts import CHANNELS


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path,
        rate_requests_per_s=3,
        rate_events_per_s=2,
        rate_ingest_per_s=1,
        rate_tests_per_minute=2,
        rate_examined_per_minute=120,
        rate_unknown_per_s=5,
    )


async def refused(world: World, limit: str, method: str, path: str, key: str | None = "user", most: int = 50) -> None:
    """Soon: a budget fills up again while a slow machine spends it."""
    for _ in range(most):
        response = await world.call(method, path, key)
        if response.status_code == 429:
            break
    body = await error_of(response, 429, "rate_limited")
    assert body["details"]["limit"] == limit
    assert limit in body["message"]
    assert response.headers["Retry-After"].isdigit()
    assert int(response.headers["Retry-After"]) >= 1


async def test_all_routes_of_a_key_share_its_budget_and_keys_do_not(world: World) -> None:
    for path in ("breakers", "routers", "/v1/projects"):
        assert (await world.call("GET", path)).status_code == 200
    await refused(world, "BREAKERS_RATE_REQUESTS_PER_S", "GET", "breakers")
    assert (await world.call("GET", "breakers", "admin")).status_code == 200


async def test_all_sessions_of_a_key_share_its_budget(world: World) -> None:
    key, now_ms = await world.store.find_key(world.keys["user"]), world.clock.now_ms()
    assert key is not None
    for n in range(10):
        await world.store.create_session(key.id, f"t{n}", now_ms, now_ms + 60_000)
    path, seen = f"/console/p/{world.project.id}", list[int]()
    for turn in range(60):
        sent = [("Cookie", f"breakers_session=t{turn % 10}"), ("Accept", "text/html")]
        seen.append((await ask(world.app, "GET", path, sent, None)).status)
        if seen[-1] == 429:
            break
    assert seen[-1] == 429, seen
    assert len(seen) < 30, "each would have three by itself"
    other = await world.store.find_key(world.keys["admin"])
    assert other is not None
    await world.store.create_session(other.id, "other", now_ms, now_ms + 60_000)
    sent = [("Cookie", "breakers_session=other"), ("Accept", "text/html")]
    assert (await ask(world.app, "GET", f"/console/p/{world.project.id}", sent, None)).status == 200


async def test_events_have_a_budget_of_their_own(world: World) -> None:
    for _ in range(2):
        assert (await world.call("GET", "events")).status_code == 200
    await refused(world, "BREAKERS_RATE_EVENTS_PER_S", "GET", "events", most=2 * EVENTS_BURST)
    assert (await world.call("GET", "breakers")).status_code == 200


async def test_columns_count_by_their_samples(world: World) -> None:
    """As many requests of JSON would."""
    router = await world.router()
    columns = {"router_id": [router.id] * 9_001, "metric": ["m"] * 9_001, "value": [1.0] * 9_001}
    headers = {"Content-Type": STREAM, "X-EB-Timestamp": str(world.clock.now_ms())}
    response = await world.call("POST", "ingest", None, data=of_polars(pl.DataFrame(columns)), headers=headers)
    assert response.status_code == 202
    response = await world.call("POST", "ingest", None, json=[])
    assert response.status_code == 429
    assert 8 <= int(response.headers["Retry-After"]) <= 10


async def test_ingest_is_counted_per_project(world: World) -> None:
    assert (await world.call("POST", "ingest", None, data=b"x")).status_code == 400
    await refused(world, "BREAKERS_RATE_INGEST_PER_S", "POST", "ingest", "user")


async def test_a_project_has_one_budget_however_its_id_is_spelled(world: World) -> None:
    """Its ingest budget is spent by one spelling, and a test notification counts under each."""
    shouted = f"/v1/projects/{world.project.id.upper()}"
    assert (await world.call("POST", "ingest", None, data=b"x")).status_code == 400
    assert (await world.call("POST", f"{shouted}/ingest", None, data=b"x")).status_code == 429
    object.__setattr__(world.app.extensions[EXTENSION], "sender", Counted())
    config = {"url": "https://hook.example/"}
    made = await (await world.call("POST", CHANNELS, "admin", json={"channel": "webhook", "config": config})).get_json()
    rest = f"notification-channels/{made['channel']['id']}/test"
    assert (await world.call("POST", f"{world.path}/{rest}")).status_code == 200
    assert (await world.call("POST", f"{shouted}/{rest}", "admin")).status_code == 200
    assert (await world.call("POST", f"{shouted}/{rest}", "admin")).status_code == 429


async def test_test_notifications_have_a_budget_of_their_own(world: World) -> None:
    """Per project, whatever the channel and the key; and per key, whatever the project. Other requests go on."""
    sender = Counted()
    object.__setattr__(world.app.extensions[EXTENSION], "sender", sender)
    config = {"url": "https://hook.example/"}
    first, second = [
        (await (await world.call("POST", CHANNELS, "admin", json={"channel": "webhook", "config": config})).get_json())
        for _ in range(2)
    ]
    paths = [f"{CHANNELS}/{made['channel']['id']}/test" for made in (first, second)]
    assert (await world.call("POST", paths[0])).status_code == 200
    assert (await world.call("POST", paths[1], "admin")).status_code == 200
    for path in paths:
        response = await world.call("POST", path)
        await error_of(response, 429, "rate_limited")
        assert 20 <= int(response.headers["Retry-After"]) <= 30
    assert sender.sent == 2
    assert (await world.call("GET", CHANNELS)).status_code == 200


async def test_who_may_not_test_uses_up_no_budget(world: World) -> None:
    """Keys of other organisations, keys without the right, and channels that are not there don't count."""
    object.__setattr__(world.app.extensions[EXTENSION], "sender", Counted())
    config = {"url": "https://hook.example/"}
    made = await (await world.call("POST", CHANNELS, json={"channel": "webhook", "config": config})).get_json()
    path = f"{CHANNELS}/{made['channel']['id']}/test"
    for _ in range(3):
        assert (await world.call("POST", path, "project")).status_code == 403
        assert (await world.call("POST", path, "stranger")).status_code == 404
    assert (await world.call("POST", f"{CHANNELS}/none/test")).status_code == 404
    assert (await world.call("POST", path)).status_code == 200


async def test_addresses_that_are_looked_at_have_a_budget(world: World) -> None:
    """All of a request are one look. A plan and an apply of as many channels as there may be always have room; then the
    project waits, with plans as with creates, and everything else goes on."""
    sender = Counted()
    object.__setattr__(world.app.extensions[EXTENSION], "sender", sender)
    config = {"url": "json://hook.example/"}
    document = {"channels": {f"c{n}": {"channel": "apprise", "config": config} for n in range(100)}}
    for verb in ("plan", "apply"):
        assert (await world.call("POST", f"rules:{verb}", json=document)).status_code == 200
    assert sender.looks == [100, 100]
    assert (await world.call("POST", "rules:plan", json=document)).status_code == 200, "nothing changes"
    document["channels"] = {"c1": {"channel": "apprise", "config": {"url": "json://other.example/"}}}
    for path, body in (
        ("rules:plan", document),
        (CHANNELS, {"channel": "apprise", "config": config}),
    ):
        response = await world.call("POST", path, "admin", json=body)
        problem = await error_of(response, 429, "rate_limited")
        assert problem["details"]["limit"] == "BREAKERS_RATE_EXAMINED_PER_MINUTE"
        assert int(response.headers["Retry-After"]) >= 1
    assert sender.looks == [100, 100, 0]
    webhook = {"channel": "webhook", "config": {"url": "https://hook.example/"}}
    assert (await world.call("POST", "rules:plan", "admin", json={"channels": {"w": webhook}})).status_code == 200


class Counted:
    """A sender that only counts."""

    sent = 0

    def __init__(self) -> None:
        self.looks: list[int] = []

    async def send(self, to: Destination, message: Message) -> Attempt:
        self.sent += 1
        return Attempt(result="sent", status=200)

    async def examine(self, org_id: str, many: Sequence[Destination]) -> list[str | None]:
        self.looks.append(len(many))
        return [""] * len(many)

    async def close(self) -> None:
        pass


async def test_a_new_key_for_each_request_gains_nothing(world: World) -> None:
    """Unknown keys count against the address they come from, on streams as well; a key that is known does not."""
    assert (await world.call("GET", "breakers")).status_code == 200
    statuses = [(await world.call("GET", "breakers", f"eb_random_{n}")).status_code for n in range(12)]
    assert statuses[:4] == [401] * 4
    assert 429 in statuses
    streams = [(await world.call("GET", "breakers/state:stream", f"eb_other_{n}")).status_code for n in range(12)]
    assert 429 in streams
    assert (await world.call("GET", "breakers")).status_code == 200


async def test_a_valid_key_does_not_count_against_its_address(world: World) -> None:
    """Each time as if seen for the first time, as after a restart or a revocation of another key."""
    caches = world.app.extensions[EXTENSION].caches
    for key in ("user", "admin") * 6:
        caches.forget_access()
        assert (await world.call("GET", "/v1/workspaces", key)).status_code == 200


async def test_projects_that_are_not_there_count_against_the_address(world: World) -> None:
    for _ in range(40):
        path = f"/v1/projects/{uuid.uuid4()}/ingest"
        response = await world.call("POST", path, None, data=b"[]")
        if response.status_code == 429:
            break
        assert response.status_code == 404
    await error_of(response, 429, "rate_limited")


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("<local>", "<local>"),
        (None, "unknown"),
    ],
)
def test_what_one_can_have_many_of_counts_as_one_source(address: str | None, counted: str) -> None:
    assert source(address) == counted


async def test_probes_are_free(world: World) -> None:
    for _ in range(8):
        assert (await world.call("GET", "/api/healthz", None)).status_code == 200


def test_replicas_share_a_rate() -> None:
    assert budget("X", 0, 1, None) == []
    (limit,) = budget("X", 20, 4, None)
    assert (limit.count, limit.inverse) == (20, 0.2)
    (limit,) = budget("X", 20, 4, None, burst=300)
    assert (limit.count, limit.inverse) == (300, 0.2)


async def test_a_pager_reads_ten_thousand_events_without_a_pause(world: World) -> None:
    """In pages of the default size, as fast as it can, under the default rate; who goes on for ever is refused."""
    drafts = [_event(n) for n in range(10_000)]
    await world.store.add_backfill_events(world.project.id, "run", drafts, world.clock.now_ms())
    world.app = create_app(world.gateway, Settings(), world.clock, TIMING, owns_gateway=False)
    async with world.app.test_app():
        pages, cursor = 0, ""
        while cursor is not None:
            response = await world.call("GET", f"events?source=backfill&cursor={cursor}")
            assert response.status_code == 200, (pages, await response.get_json())
            cursor, pages = (await response.get_json())["next_cursor"], pages + 1
        assert pages == 200
        await refused(world, "BREAKERS_RATE_EVENTS_PER_S", "GET", "events", most=1_000)


def _event(n: int) -> tuple[str, EventDraft]:
    draft = EventDraft(
        name="a",
        prev="closed",
        curr="open",
        ts_ms=n,
        transition_seq=n + 1,
        reason="threshold_exceeded",
        allow_rate=0.0,
        value=1.0,
        rule={},
        agg={},
    )
    return "00000000-0000-4000-8000-000000000001", draft


async def test_callers_unheard_of_are_forgotten() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    later = now.replace(hour=1)
    callers = RecentCallers(2)
    for name in ("a", "b", "a", "c"):
        await callers.set(name, later)
    assert [await callers.get(name, now) for name in "abc"] == [later, now, later]
    assert callers.forgotten == 1
