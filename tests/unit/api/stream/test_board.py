"""One state as bytes, a project's states by name, and the difference between two boards."""

from __future__ import annotations

from api.stream.sse import HEARTBEAT, encode_state
from api.stream.state_board import Board, BreakerEntry, stream_names
from breaker_actors.core.model import StateWord
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import FeedEntry
from breaker_actors.store.rows import StoredState, StreamSnapshot
from tests.support.web_world import told

RULE = parse_rule({"metric": "m", "kind": "avg", "op": "gt", "threshold": 1})
P = "project"


def stored(name: str, breaker_id: str, state: StateWord = "closed", rate: float = 1.0, seq: int = 0) -> StoredState:
    return StoredState(
        breaker_id=breaker_id,
        name=name,
        rule=RULE,
        created_ms=0,
        state=state,
        allow_rate=rate,
        transition_seq=seq,
        record=None,
    )


def board(*states: StoredState, gone: tuple[str, ...] = (), position: int = 10) -> Board:
    return Board(StreamSnapshot(position=position, states=states, gone=gone))


def entry(breaker_id: str, state: StateWord, rate: float, seq: int, sequence: int) -> FeedEntry:
    return FeedEntry(sequence, "state", P, breaker_id, state, rate, seq)


def pushed(*shown: BreakerEntry | None) -> list[tuple[str, str, float | None]]:
    """What clients are told."""
    return told(b"".join(one.message for one in shown if one is not None))


def test_the_rate_is_a_number_in_half_open_and_null_elsewhere() -> None:
    assert encode_state("a", "closed", 1.0) == (
        b'event: state\ndata: {"breaker":"a","state":"closed","allow_rate":null}\n\n'
    )
    assert told(encode_state("a", "open", 0.0)) == [("a", "open", None)]
    assert told(encode_state("a", "half_open", 0.2)) == [("a", "half_open", 0.2)]


def test_a_name_cannot_break_the_framing() -> None:
    for name in ("a\n\ndata: x", "\r\n", "\u2028", '"', "é"):
        assert told(encode_state(name, "closed", 1.0)) == [(name, "closed", None)]


def test_the_heartbeat_is_a_comment() -> None:
    assert HEARTBEAT == b": heartbeat\n\n"


def test_a_younger_breaker_of_the_same_name_goes_by_its_id() -> None:
    assert stream_names([stored("a", "1"), stored("b", "2"), stored("a", "3"), stored("a", "4")]) == {
        "1": "a",
        "2": "b",
        "3": "3",
        "4": "4",
    }


def test_a_snapshot_tells_every_state_and_closed_for_gone_names() -> None:
    found = board(stored("a", "1"), stored("b", "2", "half_open", 0.4), gone=("c", "a"))
    assert told(found.piece(None)[0]) == [("a", "closed", None), ("b", "half_open", 0.4), ("c", "closed", None)]


def test_an_entry_moves_a_board_once() -> None:
    found = board(stored("a", "1", seq=4))
    assert found.apply(entry("1", "open", 0.0, 5, sequence=10)) is None, "the snapshot has it already"
    assert pushed(found.apply(entry("1", "open", 0.0, 5, sequence=11))) == [("a", "open", None)]
    assert found.apply(entry("1", "open", 0.0, 5, sequence=11)) is None, "nothing new"
    assert found.apply(entry("1", "closed", 1.0, 3, sequence=12)) is None, "an older transition"
    assert found.apply(entry("9", "open", 0.0, 1, sequence=13)) is None, "unknown until the reload"
    assert told(found.piece(None)[0]) == [("a", "open", None)]


def test_entries_of_one_transaction_share_a_sequence_and_all_count() -> None:
    found = board(stored("a", "1"), stored("b", "2"))
    assert found.apply(entry("1", "open", 0.0, 1, sequence=12))
    assert found.apply(entry("2", "open", 0.0, 1, sequence=12))


def test_a_change_of_rate_is_a_message_too() -> None:
    found = board(stored("a", "1", "half_open", 0.2, seq=2))
    assert pushed(found.apply(entry("1", "half_open", 0.4, 2, sequence=11))) == [("a", "half_open", 0.4)]


def test_a_new_board_tells_new_names_and_a_last_closed_for_lost_ones() -> None:
    old = board(stored("a", "1", "open", 0.0), stored("b", "2"), stored("c", "3", "open", 0.0))
    new = board(stored("z", "1", "open", 0.0), stored("b", "2"), stored("d", "4"), gone=("a", "c"))
    assert pushed(*new.diff_from(old)) == [
        ("a", "closed", None),
        ("c", "closed", None),
        ("z", "open", None),
        ("d", "closed", None),
    ]


def test_swapped_names_tell_the_state_now_under_each_name() -> None:
    old = board(stored("a", "1", "open", 0.0), stored("b", "2"))
    new = board(stored("b", "1", "open", 0.0), stored("a", "2"))
    assert sorted(pushed(*new.diff_from(old))) == [("a", "closed", None), ("b", "open", None)]


def test_the_younger_namesake_takes_the_name_when_the_older_goes() -> None:
    old = board(stored("a", "1"), stored("a", "2", "open", 0.0))
    new = board(stored("a", "2", "open", 0.0))
    assert pushed(*new.diff_from(old)) == [("2", "closed", None), ("a", "open", None)]
