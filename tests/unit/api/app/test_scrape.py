"""`/metrics`: the series of breakers, for whoever has the token."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from api.context.replica import EXTENSION
from api.wire import exposition_meters
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Unavailable
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerDraft
from breaker_actors.telemetry.catalog import EVERY, TABLE
from breaker_actors.telemetry.meters import Meters
from tests.support.exposed import full
from tests.support.fake_gateway import NOW_MS, view
from tests.support.hostile import NAMES
from tests.support.web_world import RULE, World

TOKEN = "scrapes-only-this"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, metrics_token=TOKEN, metrics_breakers_max=3)


async def scrape(world: World) -> str:
    answer = await world.call("GET", "/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    return (await answer.get_data()).decode()


def series(text: str) -> dict[tuple[str, ...], float]:
    """Values by name, breaker and state or so."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            more = [sample.labels[name] for name in ("breaker", "state") if name in sample.labels]
            found[(sample.name, *more)] = sample.value
    return found


async def test_a_state_is_one_series_for_each_word(world: World) -> None:
    row = await world.breaker("checkout", threshold=250)
    world.gateway.views[row.id] = view(state="half_open", allow_rate=0.4, value=260.5, transition_seq=7)
    found = series(await scrape(world))
    assert {key[2]: n for key, n in found.items() if key[0] == "breakers_breaker_state"} == {
        "closed": 0,
        "open": 0,
        "half_open": 1,
    }
    assert {name: found[name, "checkout"] for name, *more in found if more == ["checkout"]} == {
        "breakers_breaker_info": 1,
        "breakers_breaker_threshold": 250,
        "breakers_breaker_allow_rate": 0.4,
        "breakers_breaker_value": 260.5,
        "breakers_breaker_window_samples": 4,
        "breakers_breaker_indeterminate": 0,
        "breakers_breaker_stale": 0,
        "breakers_breaker_state_since_timestamp_seconds": NOW_MS / 1000 - 120,
        "breakers_breaker_last_evaluation_timestamp_seconds": NOW_MS / 1000 - 1,
        "breakers_breaker_transitions_total": 7,
    }


async def test_what_is_not_known_has_no_series(world: World) -> None:
    row = await world.breaker("new")
    world.gateway.views[row.id] = view(value=None, last_eval_ms=0, verdict="indeterminate")
    world.gateway.stale.add(row.id)
    found = series(await scrape(world))
    assert ("breakers_breaker_value", "new") not in found
    assert ("breakers_breaker_last_evaluation_timestamp_seconds", "new") not in found
    assert found["breakers_breaker_indeterminate", "new"] == found["breakers_breaker_stale", "new"] == 1


async def test_it_shows_the_oldest_of_all_projects_and_counts_the_rest(world: World) -> None:
    for i in range(2):
        await world.breaker(f"ours-{i}")
    theirs = BreakerDraft(name="theirs", rule=parse_rule(RULE))
    await world.store.create_breaker(world.other.id, theirs, world.clock.now_ms())
    for i in range(2, 4):
        await world.breaker(f"ours-{i}")
    found = series(await scrape(world))
    assert {key[1] for key in found if key[0] == "breakers_breaker_info"} == {"ours-0", "ours-1", "theirs"}
    assert found[("breakers_breakers",)] == 5
    assert found[("breakers_breakers_not_shown",)] == 2


async def test_a_second_of_scrapes_is_one_look(world: World) -> None:
    await world.breaker("a")
    before = await scrape(world)
    await world.breaker("b")
    assert await scrape(world) == before
    world.clock.seconds += 1.0
    assert ("breakers_breaker_info", "b") in series(await scrape(world))


async def test_names_can_not_become_series(world: World) -> None:
    names = [*NAMES, 'a"} 1\nbreakers_breaker_state{breaker="b', "back\\slash", "new\nline"]
    world.app.extensions[EXTENSION].settings.__dict__["metrics_breakers_max"] = 1_000
    made = [await world.breaker(name) for name in names]
    found = series(await scrape(world))
    assert {key[1] for key in found if key[0] == "breakers_breaker_info"} == {row.name for row in made}
    assert sum(key[0] == "breakers_breaker_state" for key in found) == 3 * len(made)


@pytest.mark.parametrize("key", [None, "user", "admin", "project", "nobody"])
async def test_no_key_reads_it(world: World, key: str | None) -> None:
    assert (await world.call("GET", "/metrics", key)).status_code == 401


async def test_an_api_key_is_told_which_token_is_asked_for(world: World) -> None:
    refused = await world.call("GET", "/metrics")
    assert refused.status_code == 401
    assert "BREAKERS_METRICS_TOKEN" in (await refused.get_json())["message"]


@pytest.mark.parametrize(("fields", "status"), [({}, 401), ({"metrics_open": True}, 200)])
async def test_without_a_token_it_is_open_only_where_asked(world: World, fields: dict[str, bool], status: int) -> None:
    parts = world.app.extensions[EXTENSION]
    wanted = parts.settings.model_copy(update={"metrics_token": None, **fields})
    world.app.extensions[EXTENSION] = replace(parts, settings=wanted)
    assert (await world.call("GET", "/metrics", None)).status_code == status
    assert (await world.call("GET", "/metrics", None, headers={"Authorization": "Bearer "})).status_code == status


async def test_it_tells_what_processes_have_counted(world: World) -> None:
    """A histogram as one; what a process of another release counts beside it is passed over."""
    meters = Meters("router", "router-0")
    meters.observe("breakers_log_append_seconds", 0.002, 3)
    meters.observe("breakers_log_append_seconds", 20.0)
    counted = meters.counted()
    counted.values[("breakers_of_tomorrow_total",)] = 1
    counted.histograms[("breakers_evaluation_lag_seconds",)] = ((1, 2), 3.0)
    world.gateway.processes = [counted, Meters("breaker", "breaker-0").counted()]
    world.gateway.silent = 1
    text = await scrape(world)
    (family,) = [f for f in text_string_to_metric_families(text) if f.name == "breakers_log_append_seconds"]
    found = {(x.name.removeprefix(family.name), x.labels.get("le")): x.value for x in family.samples}
    assert family.type == "histogram"
    assert {x.labels["actor"] for x in family.samples} == {"router-0"}
    assert (found["_bucket", "0.001"], found["_bucket", "0.0025"], found["_bucket", "10.0"]) == (0, 3, 3)
    assert (found["_bucket", "+Inf"], found["_count", None], found["_sum", None]) == (4, 4, 20.006)
    assert "breakers_of_tomorrow" not in text
    assert "breakers_evaluation_lag_seconds" not in text
    assert 'breakers_transitions_total{actor="breaker-0",kind="trip"} 0.0' in text
    assert ("breakers_processes", 2.0) in [(key[0], n) for key, n in series(text).items()]
    assert series(text)[("breakers_processes_not_shown",)] == 1


async def test_processes_have_so_many_lines_at_most(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones, each name once."""
    monkeypatch.setattr(exposition_meters, "LINES_MAX", 150)
    one = full("router")
    world.gateway.processes = [one, structs.replace(one, actor="router-1"), one, full("directory")]
    found = series(await scrape(world))
    assert found[("breakers_processes",)] == 2
    assert found[("breakers_processes_not_shown",)] == 2


async def test_without_the_store_processes_are_shown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(most: int) -> None:
        raise Unavailable("the database does not answer")

    await world.breaker("a")
    monkeypatch.setattr(world.store, "scraped_breakers", away)
    world.gateway.processes = [full("router")]
    found = series(await scrape(world))
    assert found[("breakers_processes",)] == 1
    assert not {name for name, *_ in found if name.startswith(("breakers_breaker_", "breakers_breakers"))}


async def test_promtool_has_nothing_to_say(world: World) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool")
    for name in ("a", "b", "c"):
        await world.breaker(name)
    world.gateway.processes = [full(part) for part in EVERY]
    text = await scrape(world)
    assert text.count("# TYPE") > len(TABLE)
    found = await asyncio.to_thread(
        subprocess.run, [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
