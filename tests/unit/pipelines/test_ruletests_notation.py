"""The notation of samples expands as a naive reading of it does; what it can't say is refused."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.errors import Invalid
from pipelines.ruletests.arrivals import merged, of_series
from pipelines.ruletests.expectations import holds
from pipelines.ruletests.notation import expand
from pipelines.ruletests.times import instant_ms, offset, span_ms, time_ms, written

Row = tuple[int, float, bool, int, int]
NUMBERS = st.decimals(-1000, 1000, places=2, allow_nan=False).map(lambda d: f"{d.normalize():f}")
STEPS = st.one_of(st.just(""), st.decimals(-9, 9, places=1).filter(bool).map(lambda d: f"{d:+f}"))
TIMES = st.one_of(st.just(1), st.integers(1, 5))


@st.composite
def samples(draw: st.DrawFn) -> tuple[str, list[tuple[float, bool, int]]]:
    """The text of samples that are repeated, and what they are."""
    times, count = draw(TIMES), draw(st.sampled_from([1, 1, 7]))
    shown = f"*{count}" if count > 1 else ""
    repeated = f"x{times}" if times > 1 or draw(st.booleans()) else ""
    if draw(st.booleans()):
        word = draw(st.sampled_from(["ok", "fail"]))
        return f"{word}{shown}{repeated and ' ' + repeated}", [(1.0, word == "ok", count)] * times
    value, step, ok = draw(NUMBERS), draw(STEPS), draw(st.booleans())
    values = [float(Decimal(value) + i * Decimal(step or 0)) for i in range(times)]
    return f"{value}{step}{'' if ok else '!'}{shown}{repeated}", [(one, ok, count) for one in values]


@st.composite
def series(draw: st.DrawFn) -> tuple[str, list[Row]]:
    """A text, and what it comes to, told thing by thing: each moves a cursor by an interval of 10."""
    words, rows, at, batch = list[str](), list[Row](), 0, 0
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["sample", "pause", "group", "jump"]))
        if kind == "sample":
            text, found = draw(samples())
            for value, ok, count in found:
                rows.append((at, value, ok, count, batch))
                at, batch = at + 10, batch + 1
        elif kind == "pause":
            times = draw(TIMES)
            text, at = f"_x{times}", at + 10 * times
        elif kind == "group":
            inside, times = draw(st.lists(samples(), min_size=1, max_size=3)), draw(TIMES)
            text = f"({' '.join(one for one, _ in inside)})x{times}"
            for _ in range(times):
                rows += [(at, *row, batch) for _, found in inside for row in found]
                at, batch = at + 10, batch + 1
        else:
            at += draw(st.integers(0, 50))
            text, batch = f"@{at}", batch + 1
        words.append(text)
    return draw(st.sampled_from([" ", "  ", "\n"])).join(words), rows


@given(series())
@settings(max_examples=60, deadline=None)
def test_it_expands_as_a_naive_reading_does(drawn: tuple[str, list[Row]]) -> None:
    text, rows = drawn
    found = expand(text, 10)
    assert found.offset_ms.tolist() == [row[0] for row in rows]
    assert found.value.tolist() == [row[1] for row in rows]
    assert found.ok.tolist() == [row[2] for row in rows]
    assert found.count.tolist() == [row[3] for row in rows]
    together = [a[4] == b[4] for a, b in pairwise(rows)]
    assert (np.diff(found.batch) == 0).tolist() == together


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0.2xx", "'0.2xx' is no sample"),
        ("okay", "'okay' is no sample"),
        ("_!", "'_!' is no sample"),
        ("(1", "a bracket is not closed"),
        ("1)", "a closing bracket stands behind samples"),
        ("((1))", "brackets don't nest"),
        ("(1 _)", "within brackets there are samples only"),
        ("()", "a closing bracket stands behind samples"),
        ("1 1 @5", "time doesn't go back"),
        ("@5x2", "no duration"),
        ("1x0", "repeated 1 to 1000000 times"),
        ("1*0", "stands for 1 to 10000000"),
        ("1x900000 1x900000", "expands to 1000000 samples at most"),
        ("(1x1000 2x1000)x1000", "expands to 1000000 samples at most"),
        ("1e999", "a value is too large"),
    ],
)
def test_what_it_can_not_say(text: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        expand(text, 10)


def test_decimal_steps_are_exact() -> None:
    assert expand("0.1+0.1x3", 1).value.tolist() == [0.1, 0.2, 0.3]


def test_series_are_merged_by_time_and_records_stay_apart() -> None:
    first = of_series(expand("1x3", 10), 0, 0, None)
    second = of_series(expand("(7 8)x2", 10), 10, 3, "size")
    both = merged([first, second])
    assert both.at.tolist() == [0, 10, 10, 10, 20, 20, 20]
    assert both.ts_ms.tolist() == [0, 10, 7, 7, 20, 17, 17]
    assert (np.diff(both.record) != 0).tolist() == [True, True, False, True, True, False]
    assert both.of("latency").value.tolist() == [1, 1, 1]
    assert both.of("size").value.tolist() == [1, 1, 7, 8, 1, 7, 8]


@given(st.integers(0, 400 * 86_400_000))
def test_offsets_read_as_they_are_written(ms: int) -> None:
    assert span_ms(offset(ms)) == ms
    assert instant_ms(written(ms)) == ms


def test_times() -> None:
    assert time_ms("1m30s", 1000) == 91_000
    assert time_ms(500, 1000) == 1_500
    assert time_ms("2026-01-01T01:00+01:00", 5) == time_ms("2026-01-01", 7)
    for wrong in ("soon", True, None, -1, "1x", "2026-13-01", "1.5"):
        with pytest.raises(Invalid, match=r"is no (time|instant)"):
            time_ms(wrong, 0)


@pytest.mark.parametrize(
    ("text", "got", "same"),
    [
        ("0.33", 1 / 3, True),
        ("0.333", 1 / 3, True),
        ("0.34", 1 / 3, False),
        ("30", 30, True),
        ("30", 31, False),
        ("1.5e+03", 1_520.0, True),
        ("1.5e+03", 1_560.0, False),
        ("recovered", "recovered", True),
        ("0", None, False),
    ],
)
def test_a_figure_holds_when_it_is_that_rounded(text: str, got: float | str | None, same: bool) -> None:
    assert holds(text, got) is same
