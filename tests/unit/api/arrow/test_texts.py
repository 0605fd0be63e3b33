"""Which texts of a column are alike, against a dictionary, also where hashes say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.arrow import texts
from api.arrow.texts import ABSENT, TOO_LONG, Coded, Pool, Strings, Traced, coded

TEXTS = st.sampled_from([b"", b"a", b"a\0", b"\0", b"ab" * 4, b"ab" * 4 + b"c", b"x" * 512, b"x" * 513, b"\xff"])
COLUMNS = st.lists(st.none() | TEXTS | st.binary(max_size=20), max_size=60)


def strings(column: list[bytes | None]) -> Strings:
    lengths = np.array([len(text or b"") for text in column], np.int64)
    data = np.frombuffer(b"".join(text or b"" for text in column), np.uint8)
    valid = np.array([text is not None for text in column], np.bool_)
    return Strings(data, np.cumsum(lengths) - lengths, lengths, None if valid.all() else valid)


def naive(column: list[bytes | None]) -> Coded:
    known: dict[bytes, int] = {}
    codes = []
    for text in column:
        if text is None or len(text) > 512:
            codes.append(ABSENT if text is None else TOO_LONG)
        else:
            codes.append(known.setdefault(text, len(known)))
    return Coded(np.array(codes, np.intp), list(known))


@pytest.mark.parametrize("factor", [None, 0], ids=["a hash", "a hash that says nothing"])
@pytest.mark.parametrize("block", [3, texts.BLOCK])
@settings(deadline=None, max_examples=40)
@given(column=COLUMNS)
def test_what_is_alike(column: list[bytes | None], block: int, factor: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "BLOCK", block)
        if factor is not None:
            patch.setattr(texts, "_FACTORS", np.zeros(4, np.uint64))
        found, expected = coded(strings(column)), naive(column)
    assert found.codes.tolist() == expected.codes.tolist()
    assert found.texts == expected.texts


def test_many_and_all_of_them_different() -> None:
    column: list[bytes | None] = [b"%d" % (n * 7919) for n in range(30_000)]
    assert coded(strings(column)).codes.tolist() == list(range(30_000))


def test_a_pool_of_several_parts() -> None:
    pool = Pool()
    assert [pool.add(strings([b"a", b"b"])), pool.add(strings([None, b"a"])), len(pool)] == [0, 2, 4]
    assert coded(pool.strings()).codes.tolist() == [0, 1, ABSENT, 0]


def test_traces_that_are_wrong() -> None:
    """Characters count, not bytes."""
    column = [b"t", "é".encode() * 3, "é".encode() * 4, b"\xff", b"xxx", b"xxxx"]
    found = Traced(np.array([0, 1, 2, 3, 4, 5, ABSENT, 0]), strings(list(column)))
    assert found.wrong(3).tolist() == [False, False, True, True, False, True, False, False]
    assert Traced(np.array([0, 4]), strings([*column[:1], *column[:4]])).texts(np.array([0])) == ["t"]
    plain = Traced(np.array([0, 1, ABSENT]), strings([b"xxx", b"xxxx"]))
    assert plain.wrong(3).tolist() == [False, True, False]
    assert plain.texts(np.array([0, 2])) == ["xxx", ""]
