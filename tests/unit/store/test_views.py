"""Shares of a router's view from its metadata (semantics.md section 7)."""

from __future__ import annotations

import pytest

from breaker_actors.core.log_entries import Link
from breaker_actors.errors import Invalid
from breaker_actors.store.config.routing_tables import Linked, check_shares, links_of, share_of

METADATA = {"canary:a": "10", "canary:id-b": "5.5", "canary:b": "7", "weight:a": "3", "team": "x"}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("static", (None, None, None)), ("canary", (10.0, 5.5, None)), ("weighted", (3.0, 1.0, 1.0))],
)
def test_shares(mode: str, expected: tuple[float | None, ...]) -> None:
    """The id wins over the name; without an entry a canary takes all and a weight is 1."""
    linked = [Linked(f"id-{name}", name, "m") for name in "abc"]
    links = links_of(mode, METADATA, linked)  # type: ignore[arg-type]
    assert links == tuple(Link(b.breaker_id, "m", share) for b, share in zip(linked, expected, strict=True))


@pytest.mark.parametrize("text", ["", "ten", "-1", "nan", "inf", "-inf"])
def test_bad_shares(text: str) -> None:
    """Finite and not negative, or Invalid, also for an entry that nothing uses yet."""
    with pytest.raises(Invalid, match="weight:a"):
        share_of("weighted", {"weight:a": text}, "id", "a")
    with pytest.raises(Invalid, match="canary:nobody"):
        check_shares({"canary:nobody": text})
    check_shares(METADATA)
