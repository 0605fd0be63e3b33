"""Numbers of things in sentences."""

import pytest

from breaker_actors.text.counting import counted


@pytest.mark.parametrize(
    ("count", "noun", "nouns", "said"),
    [
        (0, "breaker", None, "0 breakers"),
        (1, "breaker", None, "1 breaker"),
        (2_000, "router", None, "2,000 routers"),
        (2, "entry", "entries", "2 entries"),
        (1, "entry", "entries", "1 entry"),
    ],
)
def test_one_is_singular(count: int, noun: str, nouns: str | None, said: str) -> None:
    assert counted(count, noun, nouns) == said
