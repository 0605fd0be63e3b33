"""`breakers deliveries`: what was told on a channel, and dead letters sent again, on the store of a data directory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from api.cli.deliveries import _older
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import DeliveryRow
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World
from tests.unit.api.cli.test_admin import breakers, lines, refused


@pytest.fixture
def shop(tmp_path: Path) -> dict[str, Any]:
    """A channel with a sent outage, a dead one and a trip that waits; where it is and its rows."""

    async def make() -> dict[str, Any]:
        store = make_store(Settings(data_dir=tmp_path))
        await store.open()
        told = OutboxWorld(await World.make(store))
        await told.open()
        channel, first, second = await told.channel(), await told.breaker(), await told.breaker("b")
        await told.outage(first.id)
        await told.send_all(channel.id, status=200)
        await told.outage(second.id)
        await told.send_all(channel.id, "dead", status=404, error="answered 404 Not Found")
        await told.moves(first.id, "open")
        rows = await told.rows(channel.id)
        await store.close()
        place = ["--project", told.world.project_id, "--channel", channel.id]
        return {"folder": tmp_path, "place": place, "rows": rows}

    return asyncio.run(make())


def rows_of(shop: dict[str, Any]) -> list[DeliveryRow]:
    found: list[DeliveryRow] = shop["rows"]
    return found


def test_list(shop: dict[str, Any]) -> None:
    """Newest first, all or of a state, as columns or as JSON."""
    shown = lines(breakers(shop["folder"], "deliveries", "list", *shop["place"]))
    assert [line[0] for line in shown] == [row.id for row in reversed(rows_of(shop))]
    assert [line[2:6] for line in shown] == [
        ["trip", "a", "pending", "0"],
        ["recover", "a", "dead", "0"],
        ["trip", "a", "dead", "1"],
        ["recover", "a", "sent", "1"],
        ["trip", "a", "sent", "1"],
    ]
    assert shown[2][6:8] == ["404", "answered 404 Not Found"]
    dead = lines(breakers(shop["folder"], "deliveries", "list", *shop["place"], "--state", "dead", "--limit", "1"))
    assert [line[0] for line in dead] == [rows_of(shop)[3].id]
    printed = breakers(shop["folder"], "deliveries", "list", *shop["place"], "--json")
    assert [one["id"] for one in json.loads(printed.stdout)["deliveries"]] == [line[0] for line in shown]


def test_redrive(shop: dict[str, Any]) -> None:
    """One brings its pair along; a second time there is nothing dead."""
    trip, recover = rows_of(shop)[2:4]
    done = lines(breakers(shop["folder"], "deliveries", "redrive", *shop["place"], recover.id))
    assert [line[:1] + line[4:6] for line in done] == [[trip.id, "pending", "0"], [recover.id, "pending", "0"]]
    listed = lines(breakers(shop["folder"], "deliveries", "list", *shop["place"]))
    assert {line[8] for line in done} <= {line[8] for line in listed}, "channels have their names here, too"
    result = breakers(shop["folder"], "deliveries", "redrive", *shop["place"], trip.id)
    assert result.exit_code == 1
    assert "pending, not dead" in result.stderr
    assert lines(breakers(shop["folder"], "deliveries", "redrive", *shop["place"], "--all")) == []


def test_what_is_left_alone_is_counted(shop: dict[str, Any]) -> None:
    """None was sent: exit code 1, also as JSON, whose shape stays."""
    folder, place = shop["folder"], shop["place"]

    good = breakers(folder, "deliveries", "redrive", *place, "--all")
    assert good.stderr.endswith("queued again 2\n")
    none = breakers(folder, "deliveries", "redrive", *place, rows_of(shop)[0].id, "--json")
    assert (none.exit_code, json.loads(none.stdout)) == (1, {"deliveries": []})
    assert none.stderr.endswith("queued again 0, left alone 1: This delivery is sent, not dead\n")


def test_an_id_may_be_given_by_its_beginning(shop: dict[str, Any]) -> None:
    recover = rows_of(shop)[3]
    done = lines(breakers(shop["folder"], "deliveries", "redrive", *shop["place"], recover.id[:8]))
    assert recover.id in [line[0] for line in done]
    unknown = breakers(shop["folder"], "deliveries", "redrive", *shop["place"], "ffffffff-")
    refused(unknown, "there is no dead delivery ffffffff-")


def test_redrive_all(shop: dict[str, Any]) -> None:
    done = breakers(shop["folder"], "deliveries", "redrive", *shop["place"], "--all", "--json")
    assert [one["state"] for one in json.loads(done.stdout)["deliveries"]] == ["pending", "pending"]


def test_wrong_use(shop: dict[str, Any]) -> None:
    folder, place = shop["folder"], shop["place"]
    refused(breakers(folder, "deliveries", "redrive", *place), "--all")
    refused(breakers(folder, "deliveries", "redrive", *place, "x", "--all"), "--all")
    refused(breakers(folder, "deliveries", "list", "--project", "p", "--channel", "c"), "there is no project p")
    result = breakers(folder, "deliveries", "redrive", *place, "nothing")
    assert (result.exit_code, "there is no delivery nothing of this channel in project" in result.stderr) == (1, True)


def test_all_channels_at_once(shop: dict[str, Any]) -> None:
    """Each with the name of its channel."""
    project = shop["place"][:2]
    shown = lines(breakers(shop["folder"], "deliveries", "list", *project))
    assert [line[0] for line in shown] == [row.id for row in reversed(rows_of(shop))]
    assert len({line[-1] for line in shown}) == 1


def test_the_project_of_the_environment_counts(shop: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands for --project in both commands, and what is not found is told with its project."""
    folder, project_id, channel_id = shop["folder"], shop["place"][1], shop["place"][3]
    monkeypatch.setenv("BREAKERS_PROJECT", project_id)
    assert len(lines(breakers(folder, "deliveries", "list"))) == len(rows_of(shop))
    refused(breakers(folder, "deliveries", "list", "--channel", "hook"), f"there is no channel hook in {words(shop)}")
    assert len(lines(breakers(folder, "deliveries", "redrive", "--channel", channel_id, "--all"))) == 2
    empty = breakers(folder, "deliveries", "redrive", "--channel", channel_id, "--all")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert f"no dead delivery in {words(shop)}" in empty.stderr
    none = breakers(folder, "deliveries", "list", "--state", "dead")
    assert (none.exit_code, none.stderr) == (0, f"breakers: no dead delivery in {words(shop)}\n")


def words(shop: dict[str, Any]) -> str:
    return f"project shop ({shop['place'][1]})"


def test_redrive_all_of_a_long_outage(shop: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first one and the newest; what is between is told by them."""
    monkeypatch.setattr("breaker_actors.store.rows.REDRIVEN_MAX", 2)
    assert _older(shop["rows"][:2] * 3) == {shop["rows"][1].id, shop["rows"][0].id}
    assert _older(shop["rows"][:2]) == _older(shop["rows"][2:]) == set()
