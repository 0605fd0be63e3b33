"""`breakers channels` against the app of a whole service, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from api.cli.channels import Event
from breaker_actors.store.rows import Alert, ChannelEvent
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
