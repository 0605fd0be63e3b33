"""Lines of StatsD and DogStatsD: what they mean, and what is malformed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.statsd.lines import KINDS, WEIGHT_MAX, WORDS, Form, Malformed, cut, form_of, numbers_of

GOOD = {
    b"page.views:1|c": ("counter", "page.views", (), 1.0, None, [1.0]),
    b"page.views:3|c|@0.1": ("counter", "page.views", (), 10.0, None, [3.0]),
    b"fuel.level:0.5|g": ("gauge", "fuel.level", (), 1.0, None, [0.5]),
    b"fuel.level:-0.5|g": ("gauge", "fuel.level", (), 1.0, None, [-0.5]),
    b"fuel.level:+4|g": ("gauge", "fuel.level", (), 1.0, None, [4.0]),
    b"song:240|h|@0.5": ("timing", "song", (), 2.0, None, [240.0]),
    b"song:320|ms": ("timing", "song", (), 1.0, None, [320.0]),
    b"song:3e-2|d": ("timing", "song", (), 1.0, None, [0.03]),
    b"song:1:2:3.5|ms": ("timing", "song", (), 1.0, None, [1.0, 2.0, 3.5]),
    b"a:1|c|#k:v,bare,url:http://x:80/y": (
        "counter", "a", (("bare", "true"), ("k", "v"), ("url", "http://x:80/y")), 1.0, None, [1.0],
    ),
    b"a:1|c|#b:2,a:1|@1": ("counter", "a", (("a", "1"), ("b", "2")), 1.0, None, [1.0]),
    b"a:1|c|#k:1,k:2,e:": ("counter", "a", (("e", ""), ("k", "2")), 1.0, None, [1.0]),
    b"a:1|c|#": ("counter", "a", (), 1.0, None, [1.0]),
    b"a:1|c|#,k:v,": ("counter", "a", (("k", "v"),), 1.0, None, [1.0]),
    b"a:1|c|#k:v|c:83c0a99c0a54c0c187f461c7980e9b57|T1656581400": (
        "counter", "a", (("k", "v"),), 1.0, 1_656_581_400, [1.0],
    ),
    b"a:1|g|T1656581400": ("gauge", "a", (), 1.0, 1_656_581_400, [1.0]),
    b"a:1|ms|T1656581400": ("timing", "a", (), 1.0, None, [1.0]),
    b"a:1|c|e:it-false,cn-web|card:low|future:1|": ("counter", "a", (), 1.0, None, [1.0]),
    b"a:1|c\r": ("counter", "a", (), 1.0, None, [1.0]),
    "größe:1|g|#stadt:Köln".encode(): ("gauge", "größe", (("stadt", "Köln"),), 1.0, None, [1.0]),
}  # fmt: skip
BAD = {
    b"": "no_value",
    b"hello": "no_value",
    b"a:1": "no_value",
    b"a:1|": "no_value",
    b":1|c": "invalid_name",
    b"\xff:1|c": "invalid_name",
    b"n" * 1025 + b":1|c": "invalid_name",
    b"a:1|x": "unknown_type",
    b"a:1|C": "unknown_type",
    b"a:1|c:2|c": "unknown_type",
    b"a|c": "invalid_value",
    b"a:|c": "invalid_value",
    b"a:1:|ms": "invalid_value",
    b"a:one|c": "invalid_value",
    b"a:1_000|c": "invalid_value",
    b"a: 1|c": "invalid_value",
    b"a:nan|g": "invalid_value",
    b"a:inf|g": "invalid_value",
    b"a:1e999|g": "invalid_value",
    b"a:0x10|g": "invalid_value",
    b"a:" + b"1" * 65 + b"|g": "invalid_value",
    b"a:1|c|@0": "invalid_rate",
    b"a:1|c|@2": "invalid_rate",
    b"a:1|c|@": "invalid_rate",
    b"a:1|c|@nan": "invalid_rate",
    b"a:1|c|@1e-9": "invalid_rate",
    b"a:1|c|#:v": "invalid_tags",
    b"a:1|c|#k:\xff": "invalid_tags",
    b"a:1|c|#" + b",".join(b"k%d" % n for n in range(129)): "invalid_tags",
    b"a:1|c|#k:" + b"v" * 2049: "invalid_tags",
    b"a:1|c|#" + b"k" * 4097: "invalid_tags",
    b"a:1|c|Tomorrow": "invalid_time",
    b"a:1|g|T0": "invalid_time",
    b"a:1|g|T99999999999": "invalid_time",
    b"_e{5,4}:title|text": "event",
    b"_sc|disk|0": "event",
}


def read(line: bytes) -> tuple[Form, list[float]]:
    name, text, rest = cut(line)
    form = form_of(name, rest)
    return form, numbers_of(text)


@pytest.mark.parametrize("line", GOOD)
def test_a_line_means(line: bytes) -> None:
    form, values = read(line)
    assert (form.kind, form.name, form.tags, form.weight, form.time_s, values) == GOOD[line]


@pytest.mark.parametrize("line", BAD)
def test_a_line_is_malformed(line: bytes) -> None:
    with pytest.raises(Malformed) as error:
        read(line)
    assert error.value.reason == BAD[line]


def test_each_reason_has_its_words_and_its_line() -> None:
    assert set(BAD.values()) == WORDS.keys() - {"negative_count"}  # which is the aggregate's


@given(st.binary(max_size=200) | st.from_regex(rb"[\w.:]{0,9}[-+\d.e:]{0,9}\|(c|g|ms|h|s|d)[|@#T:,\w.]{0,20}"))
def test_no_line_breaks_anything(line: bytes) -> None:
    try:
        form, values = read(line)
    except Malformed:
        return
    assert form.kind in KINDS.values()
    assert 1 <= form.weight <= WEIGHT_MAX
    assert all(abs(value) < float("inf") for value in values)


WORD = st.text(st.characters(exclude_characters=":|,#@\n\r", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    WORD.filter(lambda name: not name.startswith(("_e{", "_sc"))),
    st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5),
    st.sampled_from(sorted(KINDS)),
    st.floats(1e-6, 1),
    st.dictionaries(WORD, WORD, max_size=5),
)
def test_what_a_client_writes_is_read_again(
    name: str, values: list[float], kind: bytes, rate: float, tags: dict[str, str]
) -> None:
    packed = ":".join(map(repr, values))
    line = f"{name}:{packed}|{kind.decode()}|@{rate!r}|#{','.join(f'{k}:{v}' for k, v in tags.items())}"
    form, found = read(line.encode())
    assert (form.kind, form.name, form.tags) == (KINDS[kind], name, tuple(sorted(tags.items())))
    assert (form.weight, found) == (1 / rate, values)
