"""Tables where there is little room, and ids by their beginnings."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from api.cli import output
from api.cli.named import begun_id
from api.cli.narrow import narrowed, widths
from breaker_actors.clock import rfc3339
from breaker_actors.errors import Invalid

NOW_MS = 1_790_000_000_000
ID = "0b54de71-1111-4222-8333-944455556666"
TITLES = ("id", "time", "kind", "last error", "channel")
ROW = [ID, rfc3339(NOW_MS - 1_000), "trip", "answered 404 Not Found", "operations"]
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_with_room_nothing_is_shortened() -> None:
    assert narrowed(TITLES, [ROW], 120, NOW_MS, ("id",), ("channel",)) == (list(TITLES), [ROW])


def test_times_are_local_and_ids_begin() -> None:
    titles, (row, older) = narrowed(TITLES, [ROW, [ID, rfc3339(NOW_MS - DAY_MS), *ROW[2:]]], 100, NOW_MS, ("id",))
    assert titles == list(TITLES)
    assert row == ["0b54de71", "16:13:19", *ROW[2:]]
    assert older[1] == "2026-09-20 16:13:20"


def test_what_no_command_takes_by_its_beginning_is_in_full() -> None:
    assert narrowed(("id",), [[ID]], 80, NOW_MS)[1] == [[ID]]


@pytest.mark.parametrize(("width", "gone"), [(100, 0), (40, 1), (30, 2)])
def test_the_least_columns_go_first(width: int, gone: int) -> None:
    titles, _ = narrowed(TITLES, [ROW], width, NOW_MS, ("id",), ("channel", "kind"))
    assert [title for title in TITLES if title not in titles] == ["kind", "channel"][2 - gone :]


def test_a_column_has_room_for_its_words() -> None:
    assert widths(["last error", "id"], [["answered 404 Not Found", ID], ["x" * 90, "-"]]) == [18, 36]


def test_no_word_is_broken_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    titles = ("id", "time", "kind", "breaker", "state", "attempts", "last status", "last error", "channel", "mute")
    began = "2020-01-31T10:00:00.000Z"
    row = (ID, began, "recover", "checkout-latency", "suppressed", 20, 404, "no trip of it", "ops", ID)
    output.put_table(titles, [row], short=("id", "mute"), least=("mute", "attempts", "channel", "last status"))
    told = capsys.readouterr().out
    for word in ("0b54de71", "2020-01-31", "recover", "checkout-latency", "suppressed", "breaker", "error"):
        assert word in told, told
    assert max(map(len, told.splitlines())) <= 80
    assert "mute" not in told


def test_an_id_by_its_beginning() -> None:
    other = ID.replace("1111", "2222")
    assert begun_id("mute", ID.upper(), [ID, other]) == ID
    assert begun_id("mute", "0b54de71-1", [ID, other]) == ID
    for wanted, words in (
        ("0b54de71", "2 ids of a mute begin with 0b54de71: give more of it"),
        ("0b54de7", "there is no mute 0b54de7: of an id at least 8 characters are needed"),
        ("ffffffff", "there is no mute ffffffff"),
    ):
        with pytest.raises(Invalid, match=f"^{words}$"):
            begun_id("mute", wanted, [ID, other])
