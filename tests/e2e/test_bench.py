"""The service bench in its smoke size: the outcome is checked, not the figures."""

from __future__ import annotations

import pytest

from tests.bench.service import measure
from tests.support.live import LiveService

pytestmark = pytest.mark.e2e


def test_the_service_bench_makes_breakers_that_work(live: LiveService) -> None:
    figures = measure(live, 12)
    assert figures["breakers"] == 12
    assert figures["actors"] >= 1
