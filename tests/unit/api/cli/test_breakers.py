"""The commands for breakers against the app of a whole service, over HTTP."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from api.cli import watch
from api.cli.audit import changes
from api.cli.breaker_client import BreakerClient, open_client
from api.cli.breakers import _note, _since
from api.cli.main import app
from breaker_actors.clock import SystemClock, rfc3339
from breaker_actors.core.rule_fields import FIELDS, KIND_MEANINGS
from breaker_actors.errors import Unavailable
from breaker_actors.store.rows import RouterDraft
from tests.contract.store_world import event
from tests.support.cluster import until
from tests.support.remote_write import Sent, body1, body2
from tests.support.senders import JSON, PROTOBUF, encoded
from tests.support.town import RULE, Town, refused, town
from tests.unit.api.protocols.test_otlp import point, request_of

HOSTILE = "\x1b[2J[red]\tx"
__all__ = ["town"]


def test_a_breaker_is_made_shown_changed_and_deleted(town: Town, tmp_path: Path) -> None:
    file = tmp_path / "rule.json"
    file.write_text(json.dumps({"kind": "delta", "kind_params": {"alpha": 0.5}, "min_count": 3}))
    refused(town.run("create", "--file", str(file), *RULE), "say how the breaker is to be named")
    named = tmp_path / "named.json"
    named.write_text('{"name": "of the file"}')
    assert town.json("create", "--file", str(named), *RULE)["name"] == "of the file"
    made = town.json("create", "crud", "--file", str(file), *RULE, "--kind", "delta", "--delta-of", "max")
    assert (made["name"], made["kind"], made["min_count"]) == ("crud", "delta", 3)
    assert made["kind_params"] == {"alpha": 0.5, "delta_of": "max"}
    assert town.run("edit", "crud", "--alpha", "0.25", "--no-half-open-backoff-enabled").exit_code == 0
    changed = town.json("get", made["id"].upper())
    assert changed["kind_params"] == {"alpha": 0.25, "delta_of": "max"}
    assert changed["half_open_backoff_enabled"] is False
    assert changed["status"]["state"] == "closed"
    assert town.run("edit", "crud", "--file", "-", text='{"threshold": 7}').exit_code == 0
    assert "threshold\t7.0" in town.run("get", "crud").stdout
    assert town.run("edit", "crud", "--rename", "crud2").exit_code == 0
    refused(town.run("edit", "crud2"), "say what to change")
    refused(town.run("delete", "crud2"), "--yes")
    assert town.run("delete", "crud2", "--yes").stdout == f"deleted {made['id']}\n"
    refused(town.run("get", "crud2"), "there is no breaker crud2")


def test_list_and_events_tell_of_a_trip(town: Town) -> None:
    row = town.wait(town.service.breaker("tripping", cooldown_ms=600_000))
    town.wait(town.service.send(row.router_ids[0], [500.0]))
    town.wait(town.service.in_state(row.id, "open"))
    (found,) = [b for b in town.json("list", "--state", "open")["breakers"] if b["name"] == "tripping"]
    assert found["status"]["allow_rate"] == 0
    line = next(line for line in town.run("list").stdout.splitlines() if line.startswith("tripping\t")).split("\t")
    assert (line[1], line[4]) == ("open", "> 100")
    assert "tripping" not in town.run("list", "--state", "closed").stdout
    town.wait(town.service.breaker("a quiet one"))
    listed = [line.split("\t")[0] for line in town.run("list").stdout.splitlines()]
    assert listed.index("tripping") < listed.index("a quiet one"), "what is open comes first"
    names = [row["name"] for row in town.json("list")["breakers"]]
    assert names == sorted(names), "for programs by name alone"
    event = town.run("events", "tripping", "--limit", "1").stdout.split("\t")
    assert event[1:4] == ["tripping", "closed", "open"]
    assert town.json("events", row.id)["events"][-1]["breaker_id"] == row.id


def test_the_list_says_what_keeps_a_breaker_from_moving(town: Town) -> None:
    held = town.wait(town.service.breaker("held", min_state_duration_ms=3_600_000, window_ms=600_000))
    few = town.wait(town.service.breaker("few", min_count=3, window_ms=600_000))
    for row in (held, few):
        town.wait(town.service.send(row.router_ids[0], [500.0]))

    def notes() -> dict[str, str]:
        rows = [line.split("\t") for line in town.run("list").stdout.splitlines()]
        return {row[0]: row[-1] for row in rows}

    async def heard() -> bool:
        return all([(await town.service.state(row.id)).view.sample_count for row in (held, few)])

    town.wait(until(heard))
    assert re.fullmatch(r"held back until (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\dZ", notes()["held"])
    (told,) = [one for one in town.json("list")["breakers"] if one["name"] == "held"]
    assert told["status"]["deadline_ms"] == told["status"]["state_since_ms"] + 3_600_000
    assert notes()["few"] == "judges after 2 more samples"

    async def set_aside() -> None:
        owner = town.service.net.actors[await town.service.owner(held.id)]
        owner._hosted[held.id].set_aside()

    town.wait(set_aside())
    assert notes()["held"].startswith("stands still, its owner does not answer for it")
    silent, off = [town.wait(town.service.breaker(name, min_count=3)) for name in ("silent", "off")]

    async def switch_off() -> None:
        store, now_ms = town.service.store, town.service.clock.now_ms()
        edit = partial(replace, enabled=False)
        await store.update_router(town.service.project.id, off.router_ids[0], edit, now_ms)

    town.wait(switch_off())
    assert notes()["silent"] == f"no samples of {silent.rule.metric} in its window"
    assert notes()["off"] == "its router is disabled"


def test_the_note_of_an_open_breaker_says_when_it_is_left() -> None:
    """By the machine's deadline, not by what callers see since an override ended; nothing is judged until then."""
    row = {"cooldown_ms": 5_000, "min_state_duration_ms": 0, "half_open_backoff_enabled": True, "router_ids": ["r"]}
    status = {"state": "open", "state_since_ms": 0, "next_eval_ms": 1_000, "transition_seq": 3, "sample_count": 0}

    def said(deadline_ms: int | None) -> str | None:
        return _note(row, status | {"deadline_ms": deadline_ms}, {"r"})

    assert said(9_000) == "half_open at 00:00:09Z", "a tick before it moves nothing"
    assert said(86_400_000) == "half_open at 1970-01-02 00:00:00Z"
    assert said(None) == "half_open at 00:00:01Z"


def test_the_note_of_an_empty_window_claims_nothing_of_what_was_counted_before() -> None:
    row = {"metric": "latency", "min_count": 3, "min_state_duration_ms": 0, "router_ids": []}
    status = {"state": "closed", "state_since_ms": 0, "sample_count": 0, "held_back": False, "indeterminate": True}
    assert _note(row, status | {"late": 0}, ()) == "no samples of latency in its window"
    said = _note(row, status | {"late": 7}, ())
    assert said == "no samples of latency in its window, and 7 so far came too late for it"


def test_times_in_little_room() -> None:
    assert _since(3_600_000, 86_400_000) == "01:00:00Z"
    assert _since(3_600_000, 90_000_000) == "1970-01-01"


def test_an_address_without_a_scheme(town: Town) -> None:
    refused(town.run("list", "--url", "127.0.0.1:7117"), "did you mean http://127.0.0.1:7117?")


def test_names_are_guessed_and_several_are_told_with_ids(town: Town) -> None:
    ids = {town.create("twin"), town.create("twin")}
    result = town.run("get", "twin")
    refused(result, "2 breakers are named twin")
    assert all(id_ in result.stderr for id_ in ids)
    refused(town.run("get", "twni"), "did you mean twin?")
    refused(town.run("get", str(uuid4())), "there is no breaker")
    refused(town.run("list", "--project", "projekt"), "there is no project projekt: did you mean project?")
    assert town.run("list", "--project", "project").exit_code == 0


def test_what_is_not_found_is_told_with_its_project(town: Town) -> None:
    name = f"project project ({town.credentials.project_id})"
    refused(town.run("get", "zebra"), f"there is no breaker zebra in {name}")
    other = town.wait(
        town.service.store.create_project(town.service.project.org_id, town.credentials.workspace_id, "void", 2)
    )
    for command in ("list", "events", "mutes", "overrides", "mappings list"):
        result = town.run(*command.split(), env={"BREAKERS_PROJECT": "void"})
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.endswith(f" in project void ({other.id})\n"), command


def test_what_the_service_refuses_is_one_line(town: Town, tmp_path: Path) -> None:
    refused(town.run("create", "bad", *RULE, "--kind", "averge"), "kind")
    refused(town.run("create", "bad"), "metric")
    refused(town.run("create", "bad", "--file", str(tmp_path / "none")), "can't be read")
    refused(town.run("create", "bad", "--file", "-", text="[1]"), "stdin is not a JSON object")
    refused(town.run("create", "bad", "--file", "-", text="{"), "stdin is not valid JSON")
    words = "The key is that of BREAKERS_KEY: it was revoked, or is of another service; `breakers keys create` makes"
    refused(town.run("list", env={"BREAKERS_KEY": "wrong"}), words, code=1)
    refused(town.run("mute", "--all", "--for", "5m"), "say --comment")
    refused(
        town.run("mute"), "say --match FIELD=VALUE or --all; say --for SPAN, --until TIME or --window; say --comment"
    )
    refused(town.run("create", "--kind", "avg"), "breakers create NAME ...; say --metric, --op, --threshold")
    nothing = "name a breaker, or say --match or --all; say one of --open, --closed, --throttle SHARE and --end; say --"
    refused(town.run("override"), nothing)
    refused(town.run("list", "--url", "http://127.0.0.1:1"), "nobody listens", code=1)


def test_the_environment_stands_for_credentials(town: Town, tmp_path: Path) -> None:
    known = town.credentials
    env = {"BREAKERS_URL": known.base_url, "BREAKERS_KEY": known.user_key, "BREAKERS_PROJECT": known.project_id}
    assert CliRunner().invoke(app, ["list", "--data-dir", str(tmp_path / "x")], env=env).exit_code == 0
    (tmp_path / "key").write_text(env.pop("BREAKERS_KEY") + "\n")
    env["BREAKERS_KEY_FILE"] = str(tmp_path / "key")
    assert CliRunner().invoke(app, ["list", "--data-dir", str(tmp_path / "x")], env=env).exit_code == 0
    refused(CliRunner().invoke(app, ["list", "--data-dir", str(tmp_path / "x")]), "BREAKERS_KEY")


def test_hostile_names_stay_text(town: Town) -> None:
    id_ = town.create(HOSTILE)
    for arguments in (("list",), ("get", id_), ("events",), ("get", HOSTILE)):
        shown = town.run(*arguments)
        assert shown.exit_code == 0, shown.output
        assert "\x1b" not in shown.stdout
    assert "\\x1b[2J[red]\\tx\t" in town.run("list").stdout
    assert town.run("delete", HOSTILE, "-y").exit_code == 0


def test_watch_tells_states_and_their_changes(town: Town) -> None:
    row = town.wait(town.service.breaker("watched"))
    with open_client(None, None, town.folder, False) as client:
        found = (m for m in watch.changes(client) if m["breaker"] in ("watched", row.id))
        assert next(found)["state"] == "closed"
        town.wait(town.service.send(row.router_ids[0], [500.0]))
        assert next(found)["state"] == "open"
        found.close()


class Breaking:
    """A client whose stream breaks off; None: it can't be had."""

    def __init__(self, *streams: Sequence[str] | None) -> None:
        self.streams = list(streams)

    @contextmanager
    def stream(self) -> Iterator[Iterator[str]]:
        lines = self.streams.pop(0) if self.streams else None
        if lines is None:
            raise Unavailable("away")
        yield iter(lines)


def line(state: str) -> str:
    return f'data: {{"breaker": "a", "state": "{state}", "allow_rate": null}}'


def collect(client: Any, pauses: list[float]) -> Iterator[str]:
    """States of the changes of breakers that are all there."""
    shown: list[str] = []
    names: Any = SimpleNamespace(has=lambda _: True, is_sure=True, shown=lambda message: message["breaker"])
    told = watch.Told(names, lambda message: shown.append(message["state"]), None, False)
    for message in watch.changes(client, pauses.append):
        told.take(message)
        yield from shown
        shown.clear()


def test_watch_connects_again_with_bounded_pauses_and_tells_only_changes() -> None:
    client: Any = Breaking([line("closed")], None, None, ["", ": heartbeat", "data: {", line("closed"), line("open")])
    pauses: list[float] = []
    states = collect(client, pauses)
    assert (next(states), next(states)) == ("closed", "open")
    assert pauses == [0.5, 1.0, 2.0]
    with pytest.raises(Unavailable, match="away"):
        next(states)
    assert max(pauses) == watch.PAUSE_MAX_S
    assert len(pauses) == 3 + watch.ATTEMPTS_MAX


def test_watch_fails_at_once_when_there_is_nothing_at_first() -> None:
    pauses: list[float] = []
    with pytest.raises(Unavailable):
        next(collect(Breaking(), pauses))
    assert not pauses


@pytest.mark.parametrize("json_lines", [False, True])
def test_watch_ends_cleanly_at_ctrl_c(town: Town, json_lines: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(client: BreakerClient, **_: Any) -> Iterator[dict[str, Any]]:
        yield {"breaker": HOSTILE, "state": "half_open", "allow_rate": 0.2}
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "changes", interrupted)
    monkeypatch.setattr(watch.Names, "has", lambda *_: True)
    monkeypatch.setattr(watch.Names, "shown", lambda _, message: message["breaker"])
    result = town.run("watch", *(["--json"] if json_lines else []))
    assert (result.exit_code, result.stdout.count("\n"), result.stderr) == (0, 1, "")
    if json_lines:
        assert json.loads(result.stdout)["breaker"] == HOSTILE
    else:
        assert result.stdout.split("\t")[1:] == ["\\x1b[2J[red]\\tx", "half_open", "0.2\n"]


def test_watch_tells_breakers_of_one_name_apart() -> None:
    """The stream names the first by the name, others by their ids."""
    client: Any = SimpleNamespace(breakers=lambda: [{"id": "1", "name": "a"}, {"id": "2", "name": "a"}])
    there = watch.Names(client)
    messages = [{"breaker": name, "state": "open"} for name in ("a", "2")]
    assert all(map(there.has, messages))
    assert [(there.id_of(m), there.shown(m)) for m in messages] == [("1", "a"), ("2", "a (2)")]


def test_watch_leaves_deleted_breakers_out() -> None:
    """The stream tells of them as closed. New ones are asked for, not more than once a second."""
    clock: Any = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    client: Any = SimpleNamespace(asked=0, names=["a"])

    def breakers() -> list[dict[str, str]]:
        client.asked += 1
        return [{"id": f"id of {name}", "name": name} for name in client.names]

    client.breakers = breakers
    there = watch.Names(client, clock)
    seen = [there.has({"breaker": name, "state": "closed"}) for name in ("a", "gone", "a")]
    assert (seen, client.asked) == ([True, False, True], 1)
    client.names = ["b"]
    assert there.has({"breaker": "a", "state": "open"})
    assert client.asked == 1
    clock.now_s = 2.0
    assert [there.has({"breaker": name, "state": "closed"}) for name in ("a", "b")] == [False, True]
    assert client.asked == 2


def test_watch_says_that_a_breaker_was_deleted() -> None:
    """The stream says `closed` of it, whatever it said before; a list tells, at the next heartbeat where that was too
    soon after another one. A new one of the same name is shown anew."""
    clock: Any = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    names = ["a", "b", "c"]
    client: Any = SimpleNamespace(breakers=lambda: [{"id": f"id of {name}", "name": name} for name in names])
    shown: list[tuple[str, str]] = []
    told = watch.Told(
        watch.Names(client, clock), lambda message: shown.append((message["breaker"], message["state"])), None, False
    )

    def hear(name: str, state: str = "closed") -> list[tuple[str, str]]:
        shown.clear()
        told.take({"breaker": name, "state": state, "allow_rate": None})
        return list(shown)

    assert [hear(name) for name in "abc"] == [[(name, "closed")] for name in "abc"]
    assert hear("c", "open") == [("c", "open")]
    del names[:]
    clock.now_s = 2.0
    assert hear("a") == [("a", "deleted")]
    names[:] = ["a"]
    clock.now_s = 2.5
    assert (hear("b"), hear("a")) == ([("b", "deleted")], [])
    assert hear("c") == [("c", "deleted")]
    told.look_again()
    assert shown == [("c", "deleted"), ("a", "closed")]
    names.clear()
    assert hear("a") == []
    told.look_again()
    assert shown == [("a", "deleted")]
    names[:] = ["new"]
    assert hear("new") == []
    told.look_again()
    assert shown == [("new", "closed")]


def test_watch_calls_at_heartbeats() -> None:
    beats: list[int] = []
    lines = [": heartbeat", "", line("open"), ": heartbeat", ": another comment"]
    assert [found["state"] for found in watch.messages(lines, lambda: beats.append(1))] == ["open"]
    assert len(beats) == 2


def test_a_project_is_changed(town: Town) -> None:
    """Signed ingest is a switch of the command line, too."""
    refused(town.run("projects", "edit"), "say what to change: --signed-ingest")
    told = town.run("projects", "edit", "--signed-ingest")
    assert (told.exit_code, told.stdout) == (0, f"changed {town.credentials.project_id}\n")
    assert "samples without a signature are refused" in told.stderr
    again = town.json("projects", "edit", town.credentials.project_id, "--no-signed-ingest")
    assert (again["enable_signed_ingest"], again["name"]) == (False, town.service.project.name)


def test_a_project_is_made(town: Town) -> None:
    """In the only workspace, or in one by its name or id."""
    made = town.run("projects", "create", "yard")
    assert made.exit_code == 0, made.output
    id_ = made.stdout.strip()
    assert made.stderr == f"breakers: a key for it: breakers keys create --kind project --project {id_}\n"
    row = town.wait(town.service.store.get_project(id_))
    assert (row.name, row.workspace_id) == ("yard", town.service.project.workspace_id)
    other = town.json("projects", "create", "barn", "--workspace", row.workspace_id)
    assert (other["name"], len(other["ingest_secret"]) > 20) == ("barn", True)
    refused(town.run("projects", "create", "x", "--workspace", "nowhere"), "there is no workspace nowhere")
    make = town.service.store.create_workspace
    second = town.wait(make(town.service.project.org_id, "Second", "second", 1))
    refused(town.run("projects", "create", "x"), "name the workspace with --workspace: there are 2 workspaces: ")
    assert town.json("projects", "create", "x", "--workspace", "Second")["workspace_id"] == second.id


def test_every_kind_and_field_is_explained() -> None:
    explain: Callable[..., Result] = lambda *words: CliRunner().invoke(app, ["explain", *words])  # noqa: E731
    listed = explain().stdout
    assert all(f"{kind}: {meaning}" in listed for kind, meaning in KIND_MEANINGS.items())
    shown = explain("percentile").stdout
    assert all(field.meaning in shown for field in FIELDS if field.name not in ("kind", "kind_params"))
    assert KIND_MEANINGS["percentile"] in explain("kind").stdout
    assert "alpha" in json.loads(explain("delta", "--json").stdout)["kind_params"]
    refused(explain("avgg"), "did you mean avg?")
    refused(explain("shop"), "; of a breaker: breakers get shop")
    assert "0 to 1" in explain("allow_rate").stdout
    assert "half_open" in explain("state").stdout


def test_what_the_service_remarks_is_said(town: Town, tmp_path: Path) -> None:
    """Unknown fields of a file, a share that is none, a name that there is: the breaker is made all the same."""
    file = tmp_path / "rule.json"
    file.write_text(json.dumps({"metric": "m", "kind": "error_rate", "op": "gt", "threshold": 5, "windowms": 1}))
    for told in (["windowms", "never opens"], ["windowms", "never opens", "named so"]):
        refused(town.run("create", "remarked", "--file", str(file)), "nothing was saved")
        result = town.run("create", "remarked", "--file", str(file), "--yes")
        assert result.exit_code == 0
        assert all(words in result.stderr for words in told)
        assert ("named so" in result.stderr) == ("named so" in told)


def test_several_breakers_on_one_router(town: Town) -> None:
    first = town.json("create", "latency", *RULE)
    (router,) = first["router_ids"]
    second = town.json("create", "errors", *RULE, "--router", router)
    assert second["router_ids"] == town.json("get", "errors")["router_ids"] == [router]
    routers = town.wait(town.service.store.list_routers(town.service.project.id))
    assert {id_ for one in routers for id_ in one.breaker_ids} >= {first["id"], second["id"]}
    assert all(one.breaker_ids for one in routers), "none is left over"
    refused(town.run("create", "lost", *RULE, "--router", "nowhere"), "there is no router nowhere")
    refused(town.run("get", "lost"), "there is no breaker lost")


def test_one_observes_from_the_start(town: Town) -> None:
    made = town.run("create", "watchful", *RULE, "--observe")
    assert "observes: callers see it closed until `breakers enforce`" in made.stderr
    assert town.json("get", "watchful")["mode"] == "observe"


def test_events_of_a_backfill_are_asked_for(town: Town) -> None:
    made = town.json("create", "loaded", *RULE)
    for source in ("live", "backfill", "all"):
        assert town.json("events", made["id"], "--source", source) == {"events": []}
    assert town.run("events", "--source", "elsewhere").exit_code == 2
    assert town.run("events", "loaded").stderr == ""
    store, project = town.service.store, town.service.project.id
    town.wait(store.add_backfill_events(project, "run-1", [(made["id"], event(1, ts_ms=1))], 5))
    told = town.run("events", "loaded")
    assert (told.exit_code, told.stdout) == (0, "")
    assert told.stderr == "breakers: there are events of a backfill alone: --source backfill shows them\n"
    assert town.run("events", "loaded", "--source", "backfill").stderr == ""


def test_events_since(town: Town) -> None:
    """A span before now, or a time; what is neither is one line."""
    made, now_ms = town.json("create", "lately", *RULE), SystemClock().now_ms()
    store, project = town.service.store, town.service.project.id
    town.wait(store.add_backfill_events(project, "run-2", [(made["id"], event(1, ts_ms=now_ms - 7_200_000))], 5))
    asked = ("events", "lately", "--source", "all")
    assert len(town.json(*asked, "--since", "3h")["events"]) == 1
    assert town.json(*asked, "--since", "90m") == {"events": []}
    assert len(town.json(*asked, "--since", rfc3339(now_ms - 7_200_001))["events"]) == 1
    assert town.json(*asked, "--since", rfc3339(now_ms)) == {"events": []}
    refused(town.run(*asked, "--since", "yesterday"), "--since yesterday: not a time with a zone")


def test_a_mute_is_previewed_made_listed_changed_and_ended(town: Town) -> None:
    town.create("muted one")
    what = ("--match", "name~muted*", "--match", "metadata.team!=x")
    assert town.run("mute", *what, "--preview").stdout == "matches 1 breaker, 0 open now\n  muted one\n"
    assert town.json("mute", "--match", "name=nobody", "--preview") == {"matches": 0, "open": 0, "breakers": []}
    made = town.run("mute", *what, "--for", "1h30m", "--comment", "deploy \x1b[2J").stdout.strip()
    (row,) = [one for one in town.json("mutes")["mutes"] if one["id"] == made]
    assert (row["state"], row["matches"], row["created_name"]) == ("active", 1, "u")
    assert row["ends_ms"] - row["starts_ms"] <= 5_400_000
    line = town.run("mutes").stdout.splitlines()[0].split("\t")
    assert (line[:2], line[3:7]) == ([made, "active"], ["u", "1", "0", "0"])
    assert line[7] == "name~muted* metadata.team!=x"
    assert "\x1b" not in line[8]
    changed = town.json("mute", "--id", made, "--for", "2d", "--comment", "longer")
    assert (changed["comment"], len(changed["matchers"])) == ("longer", 2)
    refused(town.run("unmute", "ffffffff"), "there is no mute ffffffff")
    assert town.run("unmute", made[:8]).stdout == f"ended {made}\n"
    assert [one["id"] for one in town.json("mutes", "--state", "expired")["mutes"]] == [made]
    assert town.json("mutes")["mutes"] == []


def test_what_can_never_open_is_asked_about_and_listed(town: Town) -> None:
    """Percent in the place of a share would leave calls without a breaker."""
    town.create("never opens")
    refused(town.run("edit", "never opens", "--kind", "error_rate", "--threshold", "50"), "nothing was saved")
    assert town.run("edit", "never opens", "--rename", "never opens now").exit_code == 0
    assert town.run("edit", "never opens now", "--kind", "error_rate", "--threshold", "50", "--yes").exit_code == 0
    assert "with gt 50 this breaker never opens" in " ".join(town.run("list").stdout.split())


def test_an_override_is_set_listed_and_ended(town: Town) -> None:
    """By name, with how long and why; `list` says so, too."""
    town.create("forced one")
    refused(town.run("override", "forced one", "--open"), "say --reason")
    refused(town.run("override", "forced one", "--reason", "x"), "say one of --open")
    refused(town.run("override", "--open", "--reason", "x"), "name a breaker, or say --match or --all")
    refused(town.run("override", "forced one", "--open", "--reason", "x", "--for", "2 days"), "say how long")
    set_ = town.run("override", "forced one", "--open", "--reason", "moving \x1b[2J", "--for", "30m")
    assert set_.stdout.startswith("force_open until ")
    (row,) = [one for one in town.json("overrides")["overrides"] if one["name"] == "forced one"]
    assert (row["kind"], row["until_ms"] - row["since_ms"]) == ("force_open", pytest.approx(1_800_000, abs=5_000))
    assert "\x1b" not in town.run("overrides").stdout
    throttled = town.json("override", "forced one", "--throttle", "0.2", "--reason", "less", "--then-half-open")
    assert (throttled["override"]["allow_rate"], throttled["override"]["then"]) == (0.2, "half_open")
    assert town.run("override", "forced one", "--end", "--reason", "moved").stdout.startswith("ended")
    assert town.json("overrides")["overrides"] == []
    assert town.run("override", "forced one", "--end").stdout.startswith("no override was in force; callers see ")
    refused(
        town.run("override", "forced one", "--open", "--reason", "x", "--for", "3d"),
        "--for: An override of this project lasts at most 86400000 ms, 1 day (override_max_ms)",
    )


def test_the_audit_log_says_who_did_what_and_when(town: Town) -> None:
    """Newest first; by action, target, key and time; a revoked key still has its name."""
    made = town.create("audited")
    town.run("edit", "audited", "--threshold", "250")
    town.run("override", "audited", "--open", "--reason", "moving \x1b[2J", "--for", "30m")
    rows = town.json("audit", "--target", made)["entries"]
    assert [row["action"] for row in rows] == ["override.set", "breaker.update", "breaker.create"]
    assert {row["who"] for row in rows} == {"u"}
    assert rows == town.json("audit", "--target", "audited")["entries"]
    lines = [line.split("\t") for line in town.run("audit", "--target", made).stdout.splitlines()]
    assert [line[1:5] for line in lines] == [["u", row["action"], "audited", made] for row in rows]
    town.run("override", "audited", "--end", "--reason", "moved")
    ended = town.run("audit", "--target", made, "--limit", "1").stdout.split("\t")
    assert (ended[2], ended[5]) == ("override.end", "moved\n")
    assert [line[5] for line in lines] == ["force_open: moving \\x1b[2J", "rule.threshold 100.0 -> 250.0", "-"]
    assert [row["action"] for row in town.json("audit", "--action", "breaker.", "--limit", "1")["entries"]]
    assert town.json("audit", "--target", made, "--action", "override.")["entries"][1:] == rows[:1]
    assert town.json("audit", "--target", made, "--who", "u", "--since", "1h")["entries"][1:] == rows
    assert town.json("audit", "--who", "nobody")["entries"] == []
    assert town.json("audit", "--since", "2100-01-01T00:00:00Z")["entries"] == []
    refused(town.run("audit", "--since", "yesterday"), "not a time with a zone")
    refused(town.run("audit", "--action", "Trip"), "action")
    # the fixture's key is of 1970, and what is so old goes
    assert {row["action"] for row in town.json("audit", "--org")["entries"]} >= {"workspace.create"}


def test_the_audit_log_keeps_the_name_of_a_revoked_key(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    s = town.service
    now_ms = SystemClock().now_ms()
    key, text = town.wait(s.store.create_key(s.project.org_id, "user", "leaver", now_ms))
    monkeypatch.setenv("BREAKERS_KEY", text)
    made = town.create("left behind")
    monkeypatch.delenv("BREAKERS_KEY")
    town.wait(s.store.revoke_key(s.project.org_id, key.id, now_ms))
    assert {row["target_id"] for row in town.json("audit", "--org", "--action", "key.")["entries"]} >= {key.id}
    (row,) = town.json("audit", "--who", "leaver")["entries"]
    assert (row["who"], row["key_id"], row["target_id"]) == ("leaver", key.id, made)


def test_what_changed_is_told_shortly() -> None:
    before = {"name": "a", "metadata": {"x": "1"}, "updated_ms": 1}
    entry = {"action": "breaker.update", "before": before, "after": {"name": "b", "metadata": {}, "updated_ms": 2}}
    assert changes(entry) == "name a -> b, metadata.x 1 -> -"
    assert changes(entry | {"after": None}) is None
    large = {"before": {"actions": {"omitted_characters": 9}}, "after": {"name": "n" * 99}}
    assert changes(entry | large) == f'actions {{"omitted_characters": 9}} -> -, name - -> {"n" * 37}...'


def test_overrides_of_all_that_match(town: Town) -> None:
    """A preview names them; the same matchers set and end."""
    town.create("pay a")
    town.create("pay b")
    what = ("--match", "name~pay *")
    assert town.json("override", *what, "--preview")["matches"] == 2
    assert town.run("override", *what, "--closed", "--reason", "x").stdout == "2 of 2 breakers that match\n"
    assert town.json("override", *what, "--end") == {"matches": 2, "changed": 2}


def test_a_breaker_observes_and_is_enforced(town: Town) -> None:
    """Both by name."""
    town.create("tried one")
    assert town.run("observe", "tried one").stdout == "tried one observes\n"
    assert town.json("get", "tried one")["mode"] == "observe"
    assert town.run("enforce", "tried one").stdout == "tried one is enforced\n"
    assert town.json("get", "tried one")["mode"] == "enforce"


def test_enforcing_what_is_not_closed_says_the_option(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.create("open one")
    answer = {"code": "confirmation_needed", "message": "send confirm true", "details": {"machine_state": "open"}}

    def change(client: BreakerClient, *_: Any) -> None:
        raise client.refusal(409, answer)

    monkeypatch.setattr(BreakerClient, "change", change)
    refused(
        town.run("enforce", "open one"),
        "the machine of open one is open, and callers would see it at once: say --confirm",
    )


def test_a_mute_that_matches_nothing_says_so(town: Town) -> None:
    """Beside its id, which stays alone on stdout."""
    made = town.run("mute", "--match", "name=nobody", "--for", "1h", "--comment", "c")
    assert made.stderr == "breakers: warning: it matches no breaker now\n"
    changed = town.run("mute", "--id", made.stdout.strip(), "--match", "name!=nobody")
    assert (changed.exit_code, changed.stderr) == (0, "")
    assert town.run("unmute", made.stdout.strip()).exit_code == 0
    refused(town.run("mute", "--match", "nam=x", "--for", "1h", "--comment", "c"), "Expected name, id, metric, kind")


def test_a_mute_recurs_in_windows(town: Town) -> None:
    windows = ("--window", "fri-mon 22:00-06:00", "--window", "wed,wed 00:00-24:00", "--zone", "Europe/Berlin")
    made = town.json("mute", "--all", "--comment", "nights", *windows)
    assert [one["weekdays"] for one in made["windows"]] == [["fri", "sat", "sun", "mon"], ["wed"]]
    assert (made["all"], made["ends_ms"], made["zone"]) == (True, None, "Europe/Berlin")
    assert "everything; fri,sat,sun,mon 22:00-06:00 Europe/Berlin; wed 00:00-24:00" in town.run("mutes").stdout
    assert town.run("unmute", made["id"]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--match", "name", "--for", "1h"), "say FIELD=VALUE"),
        (("--all", "--for", "soon"), "say how long as 90m"),
        (("--all", "--for", "1h", "--until", "2026-12-24T18:00:00Z"), "not both"),
        (("--all", "--until", "2026-12-24T18:00:00"), "not a time with a zone"),
        (("--all", "--window", "always"), "say it as"),
        (("--all", "--window", "someday 01:00-02:00"), "someday is none of mon"),
        (("--all",), "say --for SPAN, --until TIME or --window"),
        (("--for", "1h"), "say --match FIELD=VALUE or --all"),
        (("--match", "state=open", "--for", "1h"), "matchers[0].field"),
    ],
)
def test_mutes_that_are_none(town: Town, words: tuple[str, ...], said: str) -> None:
    refused(town.run("mute", "--comment", "c", *words), said)


def test_unmuting_what_is_not_there(town: Town) -> None:
    for wanted in (str(uuid4()), "x/../y"):
        result = town.run("unmute", wanted)
        assert result.exit_code != 0
        assert result.stdout == ""


def test_mappings_are_made_listed_changed_moved_and_removed(town: Town) -> None:
    router = town.wait(town.service.store.create_router(town.service.project.id, RouterDraft(name="shop"), 1))[0]
    match = ("--match", "name=requests", "--match", "label.env!=test")
    first = town.run("mappings", "create", "first \x1b[2J", *match, "--router", "label.to").stdout.strip()
    to = ("--router", "shop", "--scale", "1000", "--as", "value", "--temporality", "delta", "--series-max", "5")
    rules = [part for rule in ("!error", "code<500", "rpc=0|OK", "good") for part in ("--ok", rule)]
    made = town.json("mappings", "create", *match, *to, *rules, "--metric", "latency", "--position", "1", "--disable")
    assert made["to"] == {
        "router": router.id,
        "metric": "latency",
        "scale": 1000.0,
        "as": "value",
        "ok": [
            {"absent": "error"},
            {"below": {"key": "code", "limit": 500.0}},
            {"in": {"key": "rpc", "values": ["0", "OK"]}},
            {"label": "good"},
        ],
        "temporality": "delta",
        "series_max": 5,
    }
    lines = [line.split("\t") for line in town.run("mappings", "list").stdout.splitlines()]
    assert [line[:3] for line in lines] == [["1", made["name"], "disabled"], ["2", "first \\x1b[2J", "enabled"]]
    assert lines[1][3:] == ["name=requests label.env!=test", "label.to", "-", first]
    shown = dict(line.split("\t") for line in town.run("mappings", "show", first).stdout.splitlines())
    assert (shown["position"], shown["to.scale"], shown["to.ok"]) == ("2", "1.0", "[]")
    back = ("--own-metric", "--ok-by-convention", "--enable", "--position", "2", "--rename", "second")
    changed = town.json("mappings", "edit", made["name"], *back)
    assert (changed["to"]["metric"], changed["to"]["ok"], changed["to"]["scale"]) == (None, [], 1000.0)
    assert (changed["position"], changed["name"], changed["enabled"]) == (2, "second", True)
    refused(town.run("mappings", "edit", "second"), "say what to change")
    refused(town.run("mappings", "show", "secnd"), "did you mean second?")
    assert town.run("mappings", "remove", "second", first).stdout == f"removed {made['id']}\nremoved {first}\n"
    assert town.json("mappings", "list") == {"mappings": []}


def test_a_list_of_mappings_goes_out_and_comes_back(town: Town, tmp_path: Path) -> None:
    for name in "ab":
        town.run("mappings", "create", name, "--match", "name~http.*", "--router", "label.to")
    file = tmp_path / "mappings.json"
    file.write_text(town.run("mappings", "list", "--json").stdout)
    assert town.run("mappings", "replace", str(file)).output == "unchanged: 2 mappings\n", (
        "nothing is said of positions"
    )
    rows = json.loads(file.read_text())["mappings"]
    turned = town.run("mappings", "replace", "-", text=json.dumps({"mappings": rows[::-1]}))
    assert turned.stdout == "replaced: 2 mappings\n"
    assert [row["name"] for row in town.json("mappings", "list")["mappings"]] == ["b", "a"]
    refused(town.run("mappings", "replace", "-", text='{"mappings": [{}]}'), "matchers")
    assert town.run("mappings", "replace", "-", text='{"mappings": []}').stdout == "replaced: 0 mappings\n"


def test_a_preview_of_series_says_what_becomes_of_each(town: Town) -> None:
    series = [
        {"name": "http.client.request.duration", "labels": {"server.address": "nowhere"}, "type": "histogram"},
        {"name": "x\x1b[2J", "labels": {"router_id": "nobody"}},
    ]
    told = town.run("mappings", "preview", "-", text=json.dumps({"series": series}))
    assert told.stderr == "breakers: 0 mapped, 1 unmatched, 1 refused\n"
    first, second = [line.split("\t") for line in told.stdout.splitlines()]
    assert first[:2] == ["http.client.request.duration", "unmatched"]
    assert second == ["x\\x1b[2J", "refused", "-", "-", "-", "router_id", "the project has no router nobody"]
    refused(town.run("mappings", "preview", "-", text="{}"), "series")


def test_a_preview_of_a_payload_says_what_becomes_of_its_points(town: Town, tmp_path: Path) -> None:
    file = tmp_path / "request.bin"
    labels = {"__name__": "up", "router_id": "nobody"}
    metrics = request_of({"name": "up", "gauge": {"dataPoints": [point(asInt=1)]}})
    for protocol, body in (
        ("remote-write-1", body1(Sent(labels=labels, value=1.0))),
        ("remote-write-2", body2(Sent(labels=labels, value=1.0))),
        ("otlp", encoded(metrics, JSON)),
        ("otlp", gzip.compress(encoded(metrics, PROTOBUF))),
    ):
        file.write_bytes(body)
        told = town.run("mappings", "preview", str(file), "--protocol", protocol)
        assert told.exit_code == 0, told.stderr
        assert told.stdout.startswith("up\t")
        if protocol == "otlp":
            assert "points: 0 taken, 1 unmatched, 0 absent, 0 rejected\n" in told.stderr
        else:
            assert "rejected: up: the project has no router nobody (router_not_found)\n" in told.stderr
    refused(town.run("mappings", "preview", str(file), "--protocol", "remote-write-2"), "snappy")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--match", "name=x"), "say --match and --router"),
        (("--router", "label.x"), "say --match and --router"),
        (("--match", "name", "--router", "label.x"), "say FIELD=VALUE"),
        (("--match", "nam=x", "--router", "label.x"), "Expected name, label.KEY or resource.KEY"),
        (("--match", "name=x", "--router", "nobody"), "there is no router nobody"),
        (("--match", "name=x", "--router", "label.x", "--ok", "code<many"), "many is no number"),
        (("--match", "name=x", "--router", "label.x", "--scale", "inf"), "not a finite number"),
        (("--match", "name=x", "--router", "label.x", "--series-max", "0"), "to.series_max"),
    ],
)
def test_mappings_that_are_none(town: Town, words: tuple[str, ...], said: str) -> None:
    refused(town.run("mappings", "create", *words), said)


def test_a_shadow_is_made_and_compared(town: Town) -> None:
    """By the name of what it watches."""
    watched = town.create("watched one")
    made = town.json("create", "stricter one", "--shadow-of", "watched one", *RULE)
    assert (made["shadow_of"], made["mode"]) == (watched, "observe")
    assert town.json("compare", "stricter one")["differing"] == 0
    shown = town.run("compare", "stricter one").stdout.splitlines()
    assert shown[0].endswith(", 0 differences")
    assert [line.split("\t")[:2] for line in shown[1:]] == [["shadow", "0"], ["watched", "0"]]
    refused(town.run("compare", "watched one"), "no shadow")
    assert town.run("mutes", "--state", "expired").exit_code == 0
