"""`breakers logs` and what `serve` says on stdout: lines of all processes in one, by time, and nothing else."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import logs
from api.cli.main import app
from api.launch import log_lines
from api.launch.log_lines import LogLines

TRIP = {"event": "transition", "name": "checkout", "prev": "closed", "curr": "open", "value": 512.5, "reason": "trip"}
CHANGE = {"event": "change", "action": "breaker.create", "name": "checkout", "target_id": "b-1", "who": "key k-1"}


def line(second: int, process: str, level: str = "info", **fields: Any) -> str:
    head = {"ts": f"2026-01-01T00:00:{second:02}.000Z", "level": level, "event": "beat", "process": process}
    return json.dumps(head | fields) + "\n"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "data" / "logs").mkdir(parents=True, mode=0o700)
    (tmp_path / "data").chmod(0o700)
    return tmp_path / "data"


def write(data_dir: Path, name: str, *lines: str) -> None:
    with (data_dir / "logs" / f"worker-{name}.err").open("a") as file:
        file.writelines(lines)


def shown(data_dir: Path, *options: str) -> list[str]:
    done = CliRunner().invoke(app, ["logs", "--data-dir", str(data_dir), *options])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_lines_of_all_processes_come_by_time(data_dir: Path) -> None:
    write(data_dir, "a", ":actor_name:JournalActor\n", line(2, "journal-0", **TRIP), "Traceback (most recent)\n")
    write(data_dir, "b", line(1, "api", **CHANGE), line(3, "breaker-1", "warning", event="late", n=7), '{"ts": 1}\n')
    assert shown(data_dir) == [
        "2026-01-01T00:00:01.000Z breaker.create checkout (b-1) by key k-1",
        "2026-01-01T00:00:02.000Z checkout: closed -> open at 512.5 (trip)",
        "2026-01-01T00:00:03.000Z warning late process=breaker-1 n=7",
    ]
    assert [json.loads(text)["event"] for text in shown(data_dir, "--json")] == ["change", "transition", "late"]
    assert len(shown(data_dir, "--lines", "1")) == 1
    assert shown(data_dir, "--lines", "0") == []


def test_lines_are_chosen_by_role_level_and_kind(data_dir: Path) -> None:
    write(data_dir, "a", line(1, "journal-0", **TRIP), line(2, "journal-0"), line(3, "router-0", "critical"))
    assert len(shown(data_dir, "--role", "journal")) == 2
    assert len(shown(data_dir, "--role", "journal", "--role", "router")) == 3
    assert len(shown(data_dir, "--level", "error")) == 1
    assert len(shown(data_dir, "--told")) == 1


def test_a_service_that_has_ended_left_the_ends_of_its_lines(data_dir: Path) -> None:
    (data_dir / "logs").rename(data_dir / "logs-last")
    (data_dir / "logs-last" / "worker-a.err").write_text(line(1, "api"))
    assert len(shown(data_dir)) == 1


def test_where_nothing_has_run_that_is_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["logs", "--data-dir", str(tmp_path / "none")])
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "no service has run in" in done.stderr


def left_behind(data_dir: Path, mode: int) -> Path:
    """The link to a folder of logs as a power loss leaves it, and the folder anew."""
    folder = data_dir.parent / "brk-1"
    logs_of_ray = folder / "ray" / "session_latest" / "logs"
    logs_of_ray.mkdir(parents=True)
    folder.chmod(mode)
    (data_dir / "logs").rmdir()
    (data_dir / "logs").symlink_to(logs_of_ray)
    (logs_of_ray / "worker-a.err").write_text(line(1, "api", event="of the link"))
    return folder


def test_a_link_is_followed_to_a_folder_of_ours_alone(data_dir: Path) -> None:
    folder = left_behind(data_dir, 0o700)
    assert "of the link" in shown(data_dir)[0]
    folder.chmod(0o777)
    done = CliRunner().invoke(app, ["logs", "--data-dir", str(data_dir)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "is open to other users" in done.stderr
    (data_dir / "logs-last").mkdir(mode=0o700)
    (data_dir / "logs-last" / "worker-a.err").write_text(line(1, "api"))
    assert "of the link" not in shown(data_dir)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_is_not_read(data_dir: Path) -> None:
    os.chown(left_behind(data_dir, 0o700), 65_534, 65_534)
    done = CliRunner().invoke(app, ["logs", "--data-dir", str(data_dir)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "belongs to another user" in done.stderr


def test_what_is_no_regular_file_is_passed_over_without_waiting(data_dir: Path) -> None:
    write(data_dir, "a", line(1, "api"))
    os.mkfifo(data_dir / "logs" / "b.err")
    (data_dir / "secret").write_text(line(2, "api"))
    (data_dir / "logs" / "c.err").symlink_to(data_dir / "secret")
    (data_dir / "logs" / "d.err").mkdir()
    assert len(shown(data_dir)) == 1


def test_hostile_names_move_no_cursor(data_dir: Path) -> None:
    write(data_dir, "a", line(1, "journal-0", **{**TRIP, "name": "a\x1b[2J\nb\u202e"}))
    (text,) = shown(data_dir)
    assert not {"\x1b", "\u202e"} & set(text)


def test_what_grows_is_read_once_and_what_is_half_waits_for_its_end(data_dir: Path) -> None:
    found = LogLines(data_dir / "logs")
    write(data_dir, "a", line(1, "api"), line(2, "api")[:20])
    assert [each["ts"][17:19] for each in found.new()] == ["01"]
    assert found.new() == []
    write(data_dir, "a", line(2, "api")[20:])
    write(data_dir, "b", line(0, "api"))
    assert [each["ts"][17:19] for each in found.new()] == ["00", "02"]


def test_a_file_that_was_rotated_is_read_from_its_begin(data_dir: Path) -> None:
    found = LogLines(data_dir / "logs")
    write(data_dir, "a", *(line(n, "api") for n in range(5)))
    assert len(found.new()) == 5
    (data_dir / "logs" / "worker-a.err").unlink()
    write(data_dir, "a", line(9, "api"))
    assert len(found.new()) == 1


def test_looks_are_bounded(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "LAST_BYTES", 1_000)
    monkeypatch.setattr(log_lines, "READ_MAX", 1_000)
    write(data_dir, "a", *(line(n % 60, "api", n=n) for n in range(100)), "x" * (log_lines.LINE_BYTES_MAX + 5_000))
    write(data_dir, "b", *(line(n % 60, "api", n=n) for n in range(100)))
    found = LogLines(data_dir / "logs")
    last = [each["n"] for each in found.last()]
    assert last[-1] == 99
    assert len(last) < 20
    for _ in range(200):
        found.new()
    write(data_dir, "a", "\n", line(1, "api", n=100))
    assert [each["n"] for each in found.new()] == [100]


def test_serve_tells_transitions_and_changes_alone(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", lambda pause_s: True)
    write(data_dir, "a", line(1, "api", **CHANGE), line(2, "api"), line(3, "journal-0", **TRIP))
    logs.tell_on_stdout(data_dir / "logs", stop)
    assert [json.loads(text)["event"] for text in capsys.readouterr().out.splitlines()] == ["change", "transition"]


def test_a_move_by_hand_says_whose_and_figures_are_for_people() -> None:
    moved = TRIP | {"ts": "t", "value": 0.30000000000000004, "by": "ann", "comment": "deploy"}
    assert logs.text_of(moved) == "t checkout: closed -> open at 0.3 (trip) by ann: deploy"


def test_a_change_is_told_by_the_name_of_the_key(data_dir: Path) -> None:
    write(data_dir, "a", line(1, "api", **CHANGE, who_name="ana"))
    assert shown(data_dir) == ["2026-01-01T00:00:01.000Z breaker.create checkout (b-1) by ana"]


DEAD = {
    **{"event": "notification_dead", "channel_id": "c-1", "breaker_id": "b-1", "name": "checkout", "kind": "trip"},
    **{"attempts": 9, "error": "answered 404 Not Found"},
}


def test_alerts_that_reach_nobody_are_told_with_the_way_to_more() -> None:
    look = "(`breakers deliveries list --channel c-1"
    dead = logs.text_of(DEAD | {"ts": "t"})
    assert dead == f"t channel c-1: the trip of checkout was not sent: answered 404 Not Found {look} --state dead`)"
    silent = {"ts": "t", "event": "channel_silent", "channel_id": "c-1", "error": "x" * 10_000}
    assert logs.text_of(silent) == f"t channel c-1 can't be told, its alerts wait: {'x' * logs.WHY_MAX} {look}`)"
    assert logs.text_of({"ts": "t", "event": "channel_answers", "channel_id": "c-1"}) == "t channel c-1 answers again"
    unsent = {"ts": "t", "event": "notifications_unsent", "channel_id": "c-1", "count": 7, "state": "dead"}
    assert logs.text_of(unsent) == f"t channel c-1: 7 alerts ended unsent, dead {look}`)"
    assert "1 alert ended unsent" in logs.text_of(unsent | {"count": 1})


def test_serve_tells_dead_alerts_of_a_channel_once_a_minute(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", lambda pause_s: True)
    lines = [line(n, "notifier", "warning", **DEAD | {"channel_id": channel}) for n, channel in enumerate("ababa")]
    write(data_dir, "n", *lines, line(9, "notifier", "warning", event="channel_silent", channel_id="a"))
    logs.tell_on_stdout(data_dir / "logs", stop)
    told = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(one["event"], one["channel_id"]) for one in told] == [
        *[("notification_dead", channel) for channel in "ab"],
        ("channel_silent", "a"),
    ]
    sparing = logs.Sparing()
    assert [sparing.lets(DEAD, now_s) for now_s in (0.0, 59.0, 60.0)] == [True, False, True]
    for n in range(3 * logs.CHANNELS_KNOWN):
        assert sparing.lets(DEAD | {"channel_id": str(n)}, 61.0)


def test_serve_tells_once_that_samples_can_not_be_stored() -> None:
    """Each process says it every ten seconds; told is the first line, and the first one that it is over."""
    fails = {"ts": "t", "event": "log_unwritable", "error": "the sample log does not answer: database or disk is full"}
    back = {"ts": "t", "event": "log_writable"}
    told = "t samples can't be stored: the sample log does not answer: database or disk is full (`breakers doctor`)"
    assert (logs.text_of(fails), logs.text_of(back)) == (told, "t samples are stored again")
    sparing = logs.Sparing()
    lines = [(fails, 0.0), (fails, 1.0), (fails, 61.0), (back, 62.0), (back, 63.0), (fails, 121.0), (back, 122.0)]
    assert [sparing.lets(one, now_s) for one, now_s in lines] == [True, False, False, True, False, True, True]
    assert not sparing.lets(fails, 130.0), "too soon after the last one"
    assert not sparing.lets(back, 131.0), "nobody was told"
    assert sparing.lets(fails, 190.0)
    assert {"log_unwritable", "log_writable"} <= set(logs.TOLD)
