"""What replicas have counted: each finds that of the others, for as long as they are there."""

from __future__ import annotations

from breaker_actors.directory.exchange import GONE_S, PARTS_MAX, Exchange
from breaker_actors.messages import Counted
from tests.support.fake_gateway import FakeClock


def of(actor: str, n: float = 1.0) -> Counted:
    return Counted(actor=actor, values={("breakers_streams_opened_total",): n}, histograms={})


def test_each_finds_the_newest_of_all() -> None:
    exchange = Exchange(FakeClock())
    assert exchange.exchange(of("api-a")) == [of("api-a")]
    assert exchange.exchange(of("api-b")) == [of("api-a"), of("api-b")]
    assert exchange.exchange(of("api-a", 2.0)) == [of("api-b"), of("api-a", 2.0)]


def test_who_brings_nothing_is_gone() -> None:
    clock = FakeClock()
    exchange = Exchange(clock)
    exchange.exchange(of("api-a"))
    clock.seconds += GONE_S
    assert len(exchange.exchange(of("api-b"))) == 2
    clock.seconds += 0.1
    assert exchange.exchange(of("api-b")) == [of("api-b")]


def test_they_are_bounded() -> None:
    """Who has been silent for longest goes first."""
    exchange = Exchange(FakeClock())
    for i in range(PARTS_MAX + 3):
        found = exchange.exchange(of(f"api-{i}"))
    assert [counted.actor for counted in found] == [f"api-{i}" for i in range(3, PARTS_MAX + 3)]
