"""Ingest tokens: what they open, what they stand in for, and whom those who have none can't slow down."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from api.admission.shares import Shares
from api.context.replica import EXTENSION
from api.routes import ingest as route
from api.routes.ingest_steps import NO_TOKEN
from breaker_actors.settings import Settings
from tests.support.web_world import World, error_of, soon
from tests.unit.api.app.matrix import password
from tests.unit.api.app.test_callers import ELSEWHERE, FLOODS, HERE, flood, intake_of, signing, status, turn_on_signing
from tests.unit.api.app.test_intake import MIB, Call

WRONG = "eb_ingest_" + "0" * 64


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path,
        bodies_in_flight_bytes=16 * MIB,
        max_body_bytes=MIB,
        body_timeout_ms=600_000,
        rate_ingest_per_s=2_000,
        rate_unknown_per_s=2_000,
    )


@pytest.fixture(autouse=True)
def impatient(world: World) -> None:
    """What is refused is refused at once."""
    intake_of(world).patience_s = 0.0


async def make(world: World, name: str = "prometheus") -> dict[str, Any]:
    """A new token as the API shows it."""
    answer = await world.call("POST", "keys", json={"name": name, "kind": "ingest"})
    assert answer.status_code == 201
    return dict(await answer.get_json())


def sent_as(token: str) -> tuple[dict[str, str], ...]:
    """Both ways to send it."""
    return {"Authorization": f"Bearer {token}"}, {"Authorization": password(token, "any")}


async def post(world: World, headers: dict[str, str] | None = None, body: bytes = b"[]", **more: str) -> int:
    return await status(world, "POST", "ingest", None, data=body, headers={**(headers or {}), **more})


async def sample(world: World) -> bytes:
    router = await world.router()
    return json.dumps([{"router_id": router.id, "metric": "m", "ts_ms": world.clock.now_ms(), "value": 1}]).encode()


async def test_a_token_lives_like_a_project_key(world: World) -> None:
    made = await make(world)
    token = made["key"]
    assert (made["kind"], made["key_prefix"]) == ("ingest", token[:14])
    assert token.startswith("eb_ingest_")
    for headers in sent_as(token):
        assert await post(world, headers) == 202
    listed = {row["id"]: row for row in (await (await world.call("GET", "keys")).get_json())["keys"]}
    assert sorted(row["kind"] for row in listed.values()) == ["ingest", "project"]
    assert "key" not in listed[made["id"]]

    async def used() -> bool:
        rows = (await (await world.call("GET", "keys")).get_json())["keys"]
        return next(row for row in rows if row["id"] == made["id"])["last_used_at"] is not None

    async with asyncio.timeout(5):
        while not await used():
            await asyncio.sleep(0.05)
    entry = (await (await world.call("GET", "audit?action=key.create")).get_json())["entries"][0]
    assert entry["after"] == {"kind": "ingest", "name": "prometheus", "prefix": token[:14]}
    assert await status(world, "DELETE", f"keys/{made['id']}") == 204
    for headers in sent_as(token):
        assert await post(world, headers) == 401


@pytest.mark.parametrize("kind", ["admin", "user", "", 3, []])
async def test_a_project_makes_keys_of_its_own_kinds_alone(world: World, kind: Any) -> None:
    answer = await world.call("POST", "keys", json={"kind": kind})
    assert "kind" in (await error_of(answer, 422, "validation_failed"))["details"]


async def test_a_token_stands_in_for_the_signature(world: World) -> None:
    """Whatever the request's own signature says, and as long as it is a token of the project."""
    secret, body = await turn_on_signing(world), await sample(world)
    token = (await make(world))["key"]
    for headers in sent_as(token):
        assert await post(world, headers, body) == 202
    assert len(world.gateway.parts) == 2
    assert await post(world, sent_as(token)[0], body, **signing(world, "00" * 32, body)) == 202
    good = signing(world, secret, body)
    assert await post(world, good, body) == 202
    assert await post(world, good, body, Authorization=f"Bearer {WRONG}") == 401
    assert await post(world, good, body, Authorization=f"Bearer {world.keys['project']}") == 202
    assert await post(world, None, body) == 401
    assert len(world.gateway.parts) == 5


async def test_a_repeat_with_a_token_is_known_by_its_key_or_its_time(world: World) -> None:
    await turn_on_signing(world)
    body, headers = await sample(world), sent_as((await make(world))["key"])[0]
    for more in ({"Idempotency-Key": "a"}, {"X-EB-Timestamp": "1795242595980"}):
        world.gateway.parts.clear()
        for _ in range(2):
            assert await post(world, headers, body, **more) == 202
        first, again = (set(part.keys) for part in world.gateway.parts)
        assert first & again


@pytest.mark.parametrize("signed", [False, True])
async def test_a_wrong_token_is_never_passed_over(world: World, signed: bool) -> None:
    """Nothing of its body is read, and the project's people can see that it was refused."""
    if signed:
        await turn_on_signing(world)
    org_id = world.other.org_id
    foreign = (await world.store.create_key(org_id, "ingest", "f", 1, world.other.id))[1]
    assert await post(world) == (401 if signed else 202)
    for token, expected in ((WRONG, 401), (foreign, 404)):
        for headers in sent_as(token):
            call = Call(world, ELSEWHERE, 100, authorization=headers["Authorization"])
            await asyncio.wait_for(call.task, 5)
            assert call.statuses == [expected]
            assert call.pipe.asked == 0
    seen = world.app.extensions[EXTENSION].ingested.of(world.project.id)
    assert {code: noted.count for code, noted in seen.requests.items()} == {"unauthorized": 2 + signed, "not_found": 2}


@pytest.mark.parametrize("header", ["Bearer {project}", "Bearer {user}", "Bearer nobody", "Basic x", "Bearer null"])
async def test_other_credentials_change_nothing(world: World, header: str) -> None:
    """Clients that send a key with everything go on as ever. For a signature it is no substitute."""
    headers = {"Authorization": header.format(**world.keys)}
    answer = await world.call("POST", "ingest", None, data=b"[]", headers=headers)
    assert (answer.status_code, await answer.get_json()) == (202, {"accepted": 0})
    await turn_on_signing(world)
    words = await error_of(await world.call("POST", "ingest", None, data=b"[]", headers=headers), 401, "unauthorized")
    assert words["message"] == NO_TOKEN


async def test_where_a_token_is_asked_for_nothing_else_will_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What endpoints ask that nobody signs for: `sender_project`."""
    token = (await make(world))["key"]
    monkeypatch.setattr(route, "sender_token", lambda: "asked for")
    for name in ("user", "admin", "project", "stranger"):
        for headers in sent_as(world.keys[name]):
            assert await post(world, headers) == 403, name
    for headers in ({}, {"Authorization": "Basic x"}, *sent_as("nobody"), *sent_as(WRONG)):
        assert await post(world, headers) == 401
    for headers in sent_as(token):
        assert await post(world, headers) == 202
        assert await status(world, "POST", f"/v1/projects/{world.other.id}/ingest", None, headers=headers) == 404


@pytest.mark.parametrize("kind", FLOODS)
async def test_who_has_a_token_is_served_beside_a_flood_without(world: World, kind: tuple[int, int, int]) -> None:
    """From that very address, though it is as if seen for the first time."""
    headers = sent_as((await make(world))["key"])[1]
    async with flood(world, HERE, kind):
        world.app.extensions[EXTENSION].caches.forget_access()
        assert [await post(world, headers) for _ in range(2)] == [202, 202]


async def test_a_slow_flood_with_a_token_shuts_nobody_out(world: World) -> None:
    header = sent_as((await make(world))["key"])[1]["Authorization"]
    assert await post(world, {"Authorization": header}) == 202
    async with flood(world, HERE, FLOODS[1], authorization=header):
        assert await post(world) == 202
        for name in ("admin", "user", "project"):
            assert await status(world, "GET", "status", name) == 200


async def test_a_remembered_token_counts_for_itself_from_the_start(world: World) -> None:
    """Of sixteen requests in flight those of one address and project may have two; one with a token is a third."""
    header = sent_as((await make(world))["key"])[0]["Authorization"]
    assert await post(world, {"Authorization": header}) == 202
    intake_of(world).requests = Shares("requests", 16)
    calls = [Call(world, ELSEWHERE, 100) for _ in range(3)]
    with_token = Call(world, ELSEWHERE, 100, authorization=header)
    await soon(lambda: with_token.pipe.asked and any(call.statuses for call in calls))
    assert [call.statuses for call in calls] == [[], [], [429]]
    for call in (*calls, with_token):
        await call.end()


async def asked_until_refused(world: World, header: str | None, body: bytes = b"[]") -> list[int]:
    """Statuses up to the first 429."""
    seen: list[int] = []
    while 429 not in seen:
        seen.append(await post(world, {"Authorization": header} if header else None, body))
        assert len(seen) < 200
    return seen


class TestBudgets:
    """Each token has a budget of its own, of the setting that a project has one of."""

    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(data_dir=tmp_path, rate_ingest_per_s=1, rate_unknown_per_s=5)

    async def test_tokens_and_strangers_use_up_nothing_of_each_other(self, world: World) -> None:
        first, second = [(await make(world, name))["key"] for name in ("first", "second")]
        bearer, basic = (headers["Authorization"] for headers in sent_as(first))
        assert (await asked_until_refused(world, None))[0] == 202
        assert await post(world, {"Authorization": bearer}) == 202  # found, and its budget is still whole
        assert set(await asked_until_refused(world, bearer)) == {202, 429}
        body = await error_of(
            await world.call("POST", "ingest", None, data=b"[]", headers={"Authorization": basic}), 429, "rate_limited"
        )
        assert body["details"]["limit"] == "BREAKERS_RATE_INGEST_PER_S"
        for headers in sent_as(second):
            assert await post(world, headers) == 202

    async def test_a_new_token_for_each_request_gains_nothing(self, world: World) -> None:
        """It counts against the address, and looks for no row more once that is beyond its budget."""
        assert await post(world) == 202
        find, looked = world.store.find_key, list[str]()

        async def counted(key: str) -> Any:
            looked.append(key)
            return await find(key)

        world.store.find_key = counted  # type: ignore[method-assign]
        seen = [await post(world, sent_as(f"eb_ingest_{n}")[n % 2]) for n in range(12)]
        assert seen[:4] == [401] * 4
        assert 429 in seen
        assert len(looked) == seen.count(401)

    async def test_a_valid_token_does_not_count_against_its_address(self, world: World) -> None:
        token, caches = (await make(world))["key"], world.app.extensions[EXTENSION].caches
        for n in range(12):
            caches.forget_access()
            assert await post(world, sent_as(token)[n % 2]) == 202
