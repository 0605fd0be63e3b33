"""What crosses processes survives the crossing."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breaker_actors import errors
from breaker_actors.core.log_entries import (
    BreakerSet,
    Gap,
    Link,
    RouterView,
    decode_breaker,
    decode_gap,
    decode_samples,
    decode_view,
    encode_entry,
    encode_samples,
    merge_samples,
)
from breaker_actors.core.model import Rule

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.BreakersError)]


@pytest.mark.parametrize("error", CLASSES)
def test_errors_survive_pickling(error: type[errors.BreakersError]) -> None:
    made = error("what happened", {"field": "why"})
    back = pickle.loads(pickle.dumps(made))
    assert (type(back), str(back), back.details, back.code) == (error, "what happened", {"field": "why"}, error.code)
    assert str(error()) == error.__doc__


def test_settings_views_and_gaps_survive_the_log() -> None:
    rule = Rule(metric="m", kind="percentile", op="gte", threshold=1.5, kind_params={"percentile": 99.9})
    settings = BreakerSet(breaker_id="b", version=3, name="n", rule=rule, created=True, after_seq=7)
    assert decode_breaker(encode_entry(settings)) == settings
    view = RouterView(version=2, mode="canary", enabled=False, links=(Link("b", "m", 10.0), Link("c", "m")))
    assert decode_view(encode_entry(view)) == view
    assert decode_gap(encode_entry(Gap(1, 2))) == Gap(1, 2)


Row = tuple[str, int, float, bool]
row = st.tuples(st.sampled_from("abc"), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.booleans())


def encode(rows: list[Row]) -> bytes:
    metrics = list(dict.fromkeys(r[0] for r in rows))
    grouped = [r for m in metrics for r in rows if r[0] == m]
    counts = [sum(r[0] == m for r in rows) for m in metrics]
    columns = list(zip(*grouped, strict=True))
    return encode_samples(
        metrics, counts, np.array(columns[1], np.int64), np.array(columns[2], float), np.array(columns[3], bool)
    )


def decoded(payload: bytes) -> dict[str, list[tuple[int, float, bool]]]:
    columns = decode_samples(payload)
    found = {}
    for metric in columns.metrics:
        batch = columns.of(metric)
        assert batch is not None
        found[metric] = list(zip(batch.ts_ms.tolist(), batch.value.tolist(), batch.ok.tolist(), strict=True))
    assert columns.of("never there") is None
    return found


@given(st.lists(st.lists(row, min_size=1, max_size=20), min_size=1, max_size=4))
def test_samples_survive_the_log_and_merging_keeps_their_order(parts: list[list[Row]]) -> None:
    expected: dict[str, list[tuple[int, float, bool]]] = {}
    for part in parts:
        for metric, *sample in part:
            expected.setdefault(metric, []).append(tuple(sample))  # type: ignore[arg-type]
    assert decoded(merge_samples([encode(part) for part in parts])) == expected
