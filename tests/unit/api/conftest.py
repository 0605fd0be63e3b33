"""All tests of the API look for waits in turns that callers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.held_turns import waits_noted


@pytest.fixture(autouse=True)
def _no_wait_for_the_store_in_a_shared_turn() -> Iterator[None]:
    with waits_noted() as found:
        yield
    assert not found, f"a turn that callers share was held here:\n{found[0]}"
