"""`breakers channels` against the app of a whole service, over HTTP."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner, Result

from api.cli.channels import Event, _line
from api.cli.main import app
from api.launch import doctor
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import Alert, ChannelDraft, ChannelEvent
from tests.support.cluster import service
from tests.support.receivers import Reply, WebReceiver
from tests.support.town import Town, refused, town_of

SECRET = "hush-hush-0123456789"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """Its notifications may go to a receiver on this machine."""
    with town_of(tmp_path_factory.mktemp("town"), allow_private_destinations=True) as found:
        yield found


@pytest.fixture
def receiver(town: Town) -> Iterator[WebReceiver]:
    found = WebReceiver()
    town.wait(found.__aenter__())
    yield found
    town.wait(found.__aexit__(None, None, None))


def test_the_words_are_those_of_the_service() -> None:
    alert, observed = get_args(ChannelEvent)
    assert alert == Alert
    assert [str(event) for event in Event] == [*get_args(Alert), *get_args(observed)]


def test_a_channel_is_made_tried_changed_and_removed(town: Town, receiver: WebReceiver, tmp_path: Path) -> None:
    file = tmp_path / "hook.json"
    file.write_text(json.dumps({"url": receiver.url(), "secret": SECRET}))
    made = town.run("channels", "create", "webhook", "hook \x1b[2J", "--config", str(file), "--event", "trip")
    id_ = made.stdout.strip()
    assert made.stderr == f"breakers: try it: breakers channels test {id_}\n"
    other = town.json("channels", "create", "webhook", "--config", str(file), "--disable")
    assert (other["enabled"], other["events"]) == (False, ["trip", "recover"])
    lines = [line.split("\t") for line in town.run("channels", "list").stdout.splitlines()]
    assert ["hook \\x1b[2J", "webhook", "enabled", "trip", id_] in lines
    assert town.run("channels", "test", id_).stdout == "The test notification was sent.\n"
    assert len(receiver.requests) == 1
    changed = town.json("channels", "edit", id_, "--rename", "hook", "--event", "recover", "--event", "observed")
    assert (changed["name"], changed["events"], changed["enabled"]) == ("hook", ["recover", "observed"], True)
    town.run("channels", "edit", "hook", "--config", "-", "--disable", text=json.dumps({"timeout": None}))
    shown = town.run("channels", "show", "hook").stdout
    assert "enabled\tfalse" in shown.lower()
    assert "config.url\t" in shown
    for told in (shown, town.run("channels", "list", "--json").stdout):
        assert SECRET not in told
    refused(town.run("channels", "edit", "hook"), "say what to change")
    refused(town.run("channels", "show", "hok"), "did you mean hook?")
    removed = town.run("channels", "remove", "hook", other["id"])
    assert removed.stdout == f"removed {id_}\nremoved {other['id']}\n"
    empty = town.run("channels", "list")
    assert empty.stdout == ""
    assert empty.stderr.startswith("breakers: no channels in ")


def test_what_can_not_be_made_or_sent(town: Town, receiver: WebReceiver, tmp_path: Path) -> None:
    refused(town.run("channels", "create", "webhook"), "say --config")
    refused(town.run("channels", "create", "pigeon", "--config", "-", text="{}"), "channel: ")
    refused(town.run("channels", "create", "webhook", "--config", "-", text="[]"), "stdin is not a JSON object")
    refused(town.run("channels", "create", "webhook", "--config", "-", text='{"url": "ftp://a"}'), "config.url")
    file = tmp_path / "hook.json"
    file.write_text(json.dumps({"url": receiver.url()}))
    id_ = town.run("channels", "create", "webhook", "deaf", "--config", str(file)).stdout.strip()
    receiver.usual = Reply(status=404)
    refused(town.run("channels", "test", "deaf"), "404")
    town.run("channels", "remove", id_)


def test_the_list_says_whose_receiver_fails() -> None:
    """And what waits for it; a channel that is disabled is that."""
    row = {"name": "hook", "channel": "webhook", "enabled": True, "events": ["trip"], "id": "1"}
    silence = {"state": "open", "pending": 3, "oldest_at": "2026-11-21T06:30:00.000Z"}
    told = [_line(row | {"silence": one})[2] for one in (None, silence, silence | {"pending": 0})]
    waiting = "receiver fails: 3 waiting since 2026-11-21T06:30:00.000Z"
    assert told == ["enabled", waiting, "receiver fails"]
    assert "1000 or more waiting" in _line(row | {"silence": silence | {"pending": 1_000}})[2]
    assert _line(row | {"silence": silence, "enabled": False})[2] == "disabled"


async def _backup(folder: Path) -> None:
    """The data of a service with two channels, one of them disabled."""
    async with service(folder) as s:
        for name, enabled in (("hook", True), ("off", False)):
            draft = ChannelDraft(
                name=name, channel="webhook", config={"url": "http://127.0.0.1:9/"}, enabled=enabled, events=("trip",)
            )
            await s.store.create_channel(s.project.id, draft, s.clock.now_ms())


async def _after(folder: Path) -> tuple[list[bool], str]:
    """Which channels are enabled, and who is named by the newest entry of the audit log."""
    store = make_store(Settings(data_dir=folder))
    await store.open()
    try:
        (org,) = await store.list_orgs()
        (project,) = await store.list_projects(org.id)
        found = [row.enabled for row in await store.list_channels(project.id)]
        with sqlite3.connect(folder / "breakers.sqlite") as connection:
            (by,) = connection.execute("SELECT who FROM audit ORDER BY number DESC LIMIT 1").fetchone()
        connection.close()
        return found, str(by)
    finally:
        await store.close()


def test_all_channels_of_a_copy_are_disabled_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy beside the live service tells nobody; the data of a service that runs is left alone unless --yes is
    said."""
    folder = tmp_path / "copy"
    asyncio.run(_backup(folder))
    monkeypatch.delenv("BREAKERS_DATABASE_URL", raising=False)

    def disable(*more: str) -> Result:
        return CliRunner().invoke(app, ["channels", "disable-all", "--data-dir", str(folder), *more])

    monkeypatch.setattr(doctor, "running", lambda data_dir: 4711)
    refusal = disable()
    assert (refusal.exit_code, asyncio.run(_after(folder))[0]) == (2, [True, False])
    assert "(pid 4711): stop it first, or say --yes" in refusal.stderr
    monkeypatch.setattr(doctor, "running", lambda data_dir: None)
    done = disable()
    assert done.exit_code == 0, done.output
    first, last = done.stdout.splitlines()
    assert first.endswith("/hook")
    assert last == "1 disabled: a service that starts here tells nobody by a channel"
    assert asyncio.run(_after(folder)) == ([False, False], "command line")
    assert json.loads(disable("--json").stdout) == {"disabled": [], "left": []}
    monkeypatch.setenv("BREAKERS_DATABASE_URL", "postgresql://127.0.0.1:9/none")
    assert "may be a live service's" in disable().stderr
