"""What one project's reads may cost the others: many who ask for the same have it read once, lists have a budget."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from api.admission.read_budget import SETTING, ReadBudget
from api.context.replica import EXTENSION
from api.lookup.remembered import Remembered
from api.lookup.states import FEW, STATUS_S
from api.routes import spec
from breaker_actors.errors import Unavailable
from breaker_actors.settings import Settings
from tests.support.fake_gateway import FakeClock, view
from tests.support.web_world import RULE, World, error_of
from tests.unit.api.app.test_accounts import body_of

MANY = FEW + 20


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, breakers_per_project_max=MANY, rate_reads_per_s=MANY)


def counted(owner: Any, name: str) -> list[Any]:
    """The calls of a method from here on."""
    calls, plain = list[Any](), getattr(owner, name)

    async def noted(*given: Any) -> Any:
        calls.append(given)
        return await plain(*given)

    setattr(owner, name, noted)
    return calls


async def fill(world: World, n: int = MANY) -> list[str]:
    items = [RULE | {"name": f"b{i}"} for i in range(n)]
    made = await body_of(await world.call("PUT", "breakers", json={"breakers": items}))
    return [row["id"] for row in made["breakers"]]


async def together(world: World, n: int, *asked: Any, **more: Any) -> set[int]:
    found = await asyncio.gather(*(world.call(*asked, **more) for _ in range(n)))
    return {response.status_code for response in found}


# status


async def test_the_status_of_a_large_project_is_read_once_for_all(world: World) -> None:
    ids = await fill(world)
    calls = counted(world.gateway, "states")
    assert await together(world, 20, "GET", "status", "project") == {200}
    assert len(calls) == 1
    world.gateway.views[ids[0]] = view(state="open")
    world.clock.seconds += STATUS_S / 2
    assert (await body_of(await world.call("GET", "status")))["open_count"] == 0
    world.clock.seconds += STATUS_S / 2
    assert (await body_of(await world.call("GET", "status")))["open_count"] == 1
    assert len(calls) == 2


async def test_a_change_of_the_configuration_is_in_the_next_status(world: World) -> None:
    ids = await fill(world)
    assert (await body_of(await world.call("GET", "status")))["closed_count"] == MANY
    assert (await world.call("DELETE", f"breakers/{ids[0]}")).status_code == 204
    assert (await body_of(await world.call("GET", "status")))["closed_count"] == MANY - 1


async def test_the_status_of_a_small_project_is_as_it_is_now(world: World) -> None:
    (breaker_id,) = await fill(world, 1)
    assert (await body_of(await world.call("GET", "status")))["open_count"] == 0
    world.gateway.views[breaker_id] = view(state="open")
    assert (await body_of(await world.call("GET", "status")))["open_count"] == 1


async def test_large_batches_of_a_project_share_their_reads(world: World) -> None:
    """The first has a read of its own, all that come meanwhile have the next one; small ones are read by themselves."""
    ids = await fill(world)
    world.app.extensions[EXTENSION].reads._per_s = 0
    calls = counted(world.gateway, "states")
    assert await together(world, 20, "POST", "breakers/state:batch", "project", json={"breaker_ids": ids}) == {200}
    assert len(calls) <= 5
    body = await body_of(await world.call("POST", "breakers/state:batch", json={"breaker_ids": ids[:5]}))
    assert [state["breaker_id"] for state in body["states"]] == ids[:5]
    assert [len(given[1]) for given in calls][-1] == 5


# the budget


def test_whatever_is_left_grants_a_whole_answer() -> None:
    budget = ReadBudget(100, 200)
    assert [budget.spend("a", 150, 0.0) for _ in range(2)] == [0.0, 0.0]
    assert budget.spend("a", 1, 0.0) == pytest.approx(1.0)
    assert budget.spend("a", 0, 0.0) == pytest.approx(1.0)
    assert budget.spend("b", 150, 0.0) == 0.0
    assert budget.spend("a", 0, 1.01) == 0.0
    assert ReadBudget(0, 1).spend("a", 10**9, 0.0) == 0.0


def test_what_was_not_there_is_given_back() -> None:
    budget = ReadBudget(100, 200)
    assert budget.spend("a", 500, 0.0) == 0.0
    budget.give_back("a", 400)
    assert budget.spend("a", 150, 0.0) == 0.0
    assert budget.spend("a", 0, 0.0) == pytest.approx(0.5)
    budget.give_back("a", 10**9)
    budget.give_back("b", 1)
    assert [budget.spend(name, 200, 0.0) for name in "ab"] == [0.0, 0.0]
    assert budget.spend("a", 0, 0.0) > 0


def test_of_too_many_projects_the_one_unheard_of_longest_is_forgotten() -> None:
    budget = ReadBudget(1, 1, projects_max=2)
    for name in ("a", "b", "a", "c"):
        budget.spend(name, 100, 0.0)
    assert budget.spend("a", 1, 0.0) > 0
    assert budget.spend("b", 1, 0.0) == 0.0


def test_polling_everything_once_a_second_is_within_the_defaults() -> None:
    found = Settings()
    budget = ReadBudget(found.rate_reads_per_s, 2 * found.breakers_per_project_max)
    assert {budget.spend("a", found.breakers_per_project_max, float(second)) for second in range(1_000)} == {0.0}


async def test_beyond_the_budget_nothing_is_read(world: World) -> None:
    """Twice everything at once, then 429 for every list of the project, and for no other request."""
    ids = await fill(world)
    batch = {"json": {"breaker_ids": ids}}
    for _ in range(2):
        assert (await world.call("POST", "breakers/state:batch", "project", **batch)).status_code == 200
    names = ("list_breakers", "breaker_metadata", "list_routers", "list_keys", "list_channels", "list_mappings")
    calls = [counted(world.store, name) for name in names] + [counted(world.gateway, "states")]
    lists = (
        "breakers",
        "breakers/metadata",
        "routers",
        "routers/metadata",
        "keys",
        "notification-channels",
        "mappings",
    )
    for path in lists:
        refused = await world.call("GET", path)
        assert (await error_of(refused, 429, "rate_limited"))["details"]["limit"] == SETTING
        assert int(refused.headers["Retry-After"]) >= 1
    await error_of(await world.call("POST", "breakers/state:batch", **batch), 429, "rate_limited")
    assert not any(calls)
    assert (await world.call("GET", f"breakers/{ids[0]}/state", "project")).status_code == 200
    assert (await world.call("GET", f"/v1/projects/{world.other.id}/breakers", "stranger")).status_code == 200
    world.clock.seconds += 1.01
    assert (await world.call("POST", "breakers/state:batch", "project", **batch)).status_code == 200


@pytest.mark.parametrize("path", ["breakers", "breakers/metadata"])
async def test_what_a_list_tells_counts_also_where_the_caller_has_it(world: World, path: str) -> None:
    await fill(world)
    first = await world.call("GET", path)
    held = {"If-None-Match": first.headers["ETag"]}
    assert (await world.call("GET", path, headers=held)).status_code == 304
    assert (await world.call("GET", path, headers=held)).status_code == 429


# probes


@pytest.mark.parametrize("down", [False, True])
async def test_readyz_looks_once_for_all(world: World, down: bool) -> None:
    """For all who ask at the same time, and within half a second of it; what is seen then is told to the next."""
    world.gateway.down = down
    status = 503 if down else 200
    calls, counts = counted(world.gateway, "ready"), counted(world.store, "count_aside")
    assert await together(world, 30, "GET", "/api/readyz", None) == {status}
    assert len(calls) == 1
    assert len(counts) <= 1
    world.gateway.down = not down
    assert (await world.call("GET", "/api/readyz", None)).status_code == status
    world.clock.seconds += 0.5
    assert (await world.call("GET", "/api/readyz", None)).status_code == 503 + 200 - status
    assert len(calls) == 2


async def test_a_caller_that_leaves_ends_nobody_elses_look() -> None:
    clock, go = FakeClock(), asyncio.Event()
    kept: Remembered[int] = Remembered(1.0, clock.monotonic, names_max=2)

    async def look() -> int:
        await go.wait()
        return 5

    first, second = (asyncio.create_task(kept.get("a", look)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    assert await asyncio.wait_for(second, 5) == 5
    assert first.cancelled()
    for name in "bcd":
        await kept.get(name, look)
    assert len(kept._looks) == 2


async def test_a_failure_is_told_to_all_and_forgotten_in_time() -> None:
    clock, looks = FakeClock(), list[int]()
    kept: Remembered[int] = Remembered(1.0, clock.monotonic)

    async def fail() -> int:
        looks.append(1)
        raise Unavailable

    for _ in range(3):
        with pytest.raises(Unavailable):
            await kept.get("a", fail)
    assert len(looks) == 1
    clock.seconds += 1.0
    with pytest.raises(Unavailable):
        await kept.get("a", fail)
    assert len(looks) == 2


async def test_the_description_is_encoded_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    spec._document.cache_clear()
    encoded, plain = list[Any](), spec.plain_text
    monkeypatch.setattr(spec, "plain_text", lambda value: encoded.append(value) or plain(value))
    for _ in range(3):
        assert (await world.call("GET", "/openapi.json", None)).status_code == 200
    assert len(encoded) == 1
    assert world.app.extensions[EXTENSION]
