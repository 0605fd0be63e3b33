"""What is shown of a receiver's words: never more than the plain rule shows, at a cost that no config makes large."""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from api.wire.requests_accounts import CONFIG_BYTES_MAX
from breaker_actors.notify.egress import excerpt as module
from breaker_actors.notify.egress.excerpt import CONFIG_MAX, SHOWN_MAX, shown_of
from breaker_actors.notify.egress.http_outcome import Answer, judge
from breaker_actors.notify.model import Destination
from breaker_actors.text.escaping import for_ascii


def _spelled_out(text: str) -> list[str]:
    """Every secret part of a text, each piece of an address for itself."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return [text]
    if parts.scheme in ("http", "https"):
        long = [piece for piece in (*parts.path.split("/"), parts.query, parts.fragment) if len(piece) >= 8]
        values = [value for _, value in parse_qsl(parts.query, keep_blank_values=True)]
        return [shown for piece in (*long, *values) for shown in (piece, unquote(piece))]
    rest = text.partition("://")[2]
    user, at, _ = rest.partition("@")
    pieces = [*re.split("[/:@?&=,+]", rest), text] if rest else []
    login = [_basic(unquote(user))] if at else []
    return [text, *text.split()[1:], *login, *pieces, *map(unquote, pieces)]


def _basic(login: str) -> str:
    return b64encode(login.encode()).decode().rstrip("=")


def _secrets(config: dict[str, str]) -> list[str]:
    login = f"{config.get('username') or ''}:{config.get('password') or ''}"
    spelled = [_basic(login)] if config.get("username") else []
    return [*spelled, *(part for text in config.values() for part in _spelled_out(text))]


def _hides(text: str, config: dict[str, str]) -> bool:
    """The plain rule: of each secret all of it from 4 characters on, or 8 in a row, in a line or what it is without
    percent signs."""
    plain = for_ascii(text)
    shown = plain if len(plain) <= SHOWN_MAX else plain[: SHOWN_MAX - 3] + "..."
    return any(
        (len(secret) >= 4 and secret in line) or any(line[i : i + 8] in secret for i in range(len(line) - 7))
        for line in (shown.lower(), unquote(shown).lower())
        for secret in map(str.lower, _secrets(config))
    )


SIGNS = "aB3xyzé ßİΣσ%:/@?&=,+.-"
TEXTS = st.one_of(
    st.text(SIGNS, max_size=40),
    st.text(SIGNS, max_size=40).map("json://".__add__),
    st.text(SIGNS, max_size=40).map("https://h.example/".__add__),
    st.text("abxyz:@%", max_size=30).map(lambda text: f"tgram://{quote(text)}@h/{text}"),
)
CONFIGS = st.dictionaries(st.sampled_from(["url", "username", "password", "note"]), TEXTS, min_size=1)
SPELLINGS: list[Callable[[str], str]] = [
    str, str.upper, str.title, quote, unquote, lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
]  # fmt: skip


@st.composite
def _said(draw: st.DrawFn) -> tuple[dict[str, str], str]:
    """A config, and words with a piece of one of its secrets."""
    config = draw(CONFIGS)
    secret = draw(st.sampled_from(_secrets(config) or [""]))
    begin = draw(st.integers(0, max(len(secret) - 8, 0)))
    piece = secret[begin : draw(st.integers(begin + 7, begin + 12))]
    around = st.text(SIGNS, max_size=6)
    return config, draw(around) + draw(st.sampled_from(SPELLINGS))(piece) + draw(around)


@given(_said())
@example(({"url": "json://ΑΒΓΣ:Δ"}, "%CE%91%CE%92%CE%93%CE%A3"))
@example(({"url": "json://aİb"}, "a%C4%B0b"))
@example(({"url": "json://ab%2Fcd:e"}, "ab/cd"))
def test_what_the_plain_rule_hides_is_hidden_whichever_way_it_reads(case: tuple[dict[str, str], str]) -> None:
    config, words = case
    hidden = _hides(words, config)
    event("hidden" if hidden else "shown")
    if hidden:
        assert shown_of(words, config) == ""
        line = for_ascii(words)
        if len(line) <= SHOWN_MAX:
            assert shown_of(line[::-1], config) == ""


SECRET = "xoxb-9Qw8Er7Ty6-Zz"
BACK = SECRET[::-1]


@pytest.mark.parametrize(
    "said",
    [BACK, BACK.upper(), f"no {BACK[3:11]} here", quote(BACK).replace("-", "%2D"), SECRET.replace("-", "%2D")[::-1]],
)
def test_a_secret_from_back_to_front_is_one(said: str) -> None:
    for config in ({"secret": SECRET}, {"url": f"https://h.example/{SECRET}"}, {"url": f"tgram://{SECRET}/1"}):
        assert shown_of(said, config) == ""
        assert shown_of("9Qw8Er7 is no 7re8wQ9", config) == "9Qw8Er7 is no 7re8wQ9"


def test_a_login_from_back_to_front_is_one() -> None:
    sent = _basic("operator-1187:a long password")
    assert shown_of(sent[::-1], {"username": "operator-1187", "password": "a long password"}) == ""


def test_an_attempt_does_not_tell_its_channels_secret_from_back_to_front() -> None:
    to = Destination(channel_id="c", kind="webhook", config={"url": "https://h.example/", "secret": SECRET})
    assert judge(to, Answer(status=400, body=msgspec.json.encode({"message": BACK})), 0).error == (
        "answered 400 Bad Request"
    )


def test_of_a_config_with_more_text_nothing_is_shown() -> None:
    config: dict[str, Any] = {"url": "https://h.example/", "headers": {"a": ["x" * (CONFIG_MAX - 18)]}}
    assert shown_of("no such thing", config) == "no such thing"
    assert shown_of("no such thing", config | {"b": "y"}) == ""


def test_long_words_are_looked_at_as_far_as_they_may_be_shown() -> None:
    assert shown_of("no " * 20_000, {}) == ("no " * 60)[: SHOWN_MAX - 3] + "..."
    assert shown_of(" " * 20_000 + "no", {}) == ""


# what it costs

WORDS = ["zyxwvutsrq" * 16, "%7Azyxwvutsrq" * 16, "%7A" * 400, "é" * 60_000]


UNITS = {
    "x://": (":", "a", "abcd:", "%41bcd:", "İ@"),
    "https://h/?": ("%41", "a=", "a=bcde&"),
    "https://h/": ("abcdefgh/", "/%e1", "ΐ"),
    "words ": ("abcd ",),
}


def _filled(begin: str, unit: str, size: int) -> str:
    return (begin + unit * (size // len(unit.encode())))[: size - len(begin)]


def _crafted() -> Iterator[dict[str, Any]]:
    for size in (CONFIG_MAX, CONFIG_BYTES_MAX - 50):
        for begin, units in UNITS.items():
            for unit in units:
                yield {"url": "https://hooks.example.com/a", "x": _filled(begin, unit, size - 40)}
        yield {"x": [f"a://b{n:03}@" + ":" * (size // 200 - 12) for n in range(200)]}
        yield {"username": {"k" * (size - 40): 0}, "password": [["p" * 9]]}
        yield {"username": "x://" + "%41bcd:" * (size // 8) + " abcd" * (size // 50), "password": "p"}
        yield {"username": "x://" + "é@" * (size // 8), "password": "y://" + "%41@" * (size // 10)}


STEPS_MAX = 60 * CONFIG_MAX
"""Of the interpreter; a comparison of a run is about a dozen."""


def _steps(work: Callable[[], object]) -> int:
    """The interpreter's own steps within the module; the work is broken off where there are too many."""
    seen = 0

    def note(frame: FrameType, kind: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        seen += kind == "opcode"
        assert seen <= STEPS_MAX
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        work()
    finally:
        sys.settrace(before)
    return seen


@pytest.mark.parametrize("words", WORDS)
def test_no_config_and_no_words_make_an_answer_cost_much(words: str) -> None:
    for config in _crafted():
        _steps(partial(shown_of, words, config))
    usual = {"url": "https://hooks.example.com/services/T0/B0/abcdefgh"}
    assert 500 < _steps(partial(shown_of, words, usual)) < 20_000
