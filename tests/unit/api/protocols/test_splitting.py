"""Requests of remote-write 2.0 are split where they hold strings and time series alone, spelled as encoders do."""

from __future__ import annotations

import random

import pytest

from api.protocols import remote_write2
from api.protocols.bounds import ENTRIES_MAX, SYMBOLS_MAX
from api.protocols.memory import Memory
from api.protocols.splitting import BYTES_MAX, split
from breaker_actors.errors import BadRequest
from tests.support.open_protocols import NOW_MS, Request2, outcome, request2


def test_what_encoders_spell_is_split() -> None:
    """Also strings and time series of more than 127 and 16,383 bytes, and none at all."""
    assert split(b"") == ([], [])
    rnd = random.Random(1)
    for size in (0, 1, 127, 128, 16_383, 16_384):
        request = request2(rnd)
        request.symbols.append("x" * size)
        request.timeseries.add(labels_refs=[1] * size)
        symbols = [text.encode() for text in request.symbols]
        series = [one.SerializeToString() for one in request.timeseries]
        assert split(request.SerializeToString()) == (symbols, series)
        mixed = Request2.FromString(request.SerializeToString()).SerializeToString() * 2
        assert split(mixed) == (symbols * 2, series * 2)


@pytest.mark.parametrize(
    "more",
    [
        b"\x38\x01", b"\x0a\x00", b"\x20\x01", b"\x23\x24", b"\x22\x80\x00", b"\x22\x81\x00x", b"\xa2\x00\x00",
        b"\x22\x02x", b"\x2a", b"\xff", b"\x02\x00",
    ],
)  # fmt: skip
def test_anything_else_is_read_field_by_field(more: bytes) -> None:
    """Unknown and repeated fields, other kinds of the known, groups, sizes and tags of too many bytes, cut off ones."""
    body = Request2(symbols=["", "__name__", "up"]).SerializeToString()
    assert split(body) is not None
    assert split(body + more) is None
    assert split(more + body) is None


def test_what_is_too_much_is_not_split() -> None:
    assert split(b"\x22\x00" * SYMBOLS_MAX) is not None
    assert split(b"\x22\x00" * (SYMBOLS_MAX + 1)) is None
    assert split(b"\x2a\x00" * ENTRIES_MAX) is not None
    assert split(b"\x2a\x00" * (ENTRIES_MAX + 1)) is None
    large = Request2(symbols=["x" * (BYTES_MAX - 4)]).SerializeToString()
    assert len(large) == BYTES_MAX
    assert split(large) is not None
    assert split(large + b"\x22\x00") is None


def test_errors_name_places_in_the_body() -> None:
    request = Request2(symbols=["", "__name__", "up"])
    for at in range(3):
        request.timeseries.add(labels_refs=[1, 2]).samples.add(value=at, timestamp=NOW_MS)
    body = request.SerializeToString() + b"\x2a\x03\x12\x07\x01"
    for shortcut in (True, False):
        with pytest.raises(BadRequest) as caught:
            remote_write2.decode(body, Memory(), shortcut)
        assert caught.value.details["where"] == f"byte {len(body) - 3}"


def test_time_series_and_strings_may_take_turns() -> None:
    """A string may stand behind the time series that names it."""
    rnd = random.Random(5)
    for _ in range(20):
        request = request2(rnd, 30)
        fields = [Request2(symbols=[text]).SerializeToString() for text in request.symbols]
        places = sorted(rnd.randrange(len(fields) + 1) for _ in request.timeseries)
        for place, one in reversed(list(zip(places, request.timeseries, strict=True))):
            fields.insert(place, Request2(timeseries=[one]).SerializeToString())
        body, memory = b"".join(fields), Memory()
        careful = outcome(lambda body=body: remote_write2.decode(body, Memory(), shortcut=False))
        for _ in range(2):
            assert outcome(lambda body=body, memory=memory: remote_write2.decode(body, memory)) == careful
