"""The fast path against the core at length: every effect and the record at the end are the same, to the last bit.

`pytest -m slow tests/parity`, worked on by a process per core; a small version of it is
tests/unit/pipelines/test_parity.py.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.support.history import differing_rules, is_alike, is_log_alike
from tests.support.series import SERIES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RULES, SAMPLES = 200, 100_000
LOGS, SAMPLES_OF_LOG = 2_000, 400
WORK = {"test_made_up": is_alike, "test_made_up_logs": is_log_alike, "test_real_series": differing_rules}


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[object]]]:
    """By test: what comes of its work, which for all tests that are asked for begins with the first of them."""
    items = [
        item for item in request.session.items if isinstance(item, pytest.Function) and item.module == request.module
    ]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        yield {item.nodeid: pool.submit(WORK[item.originalname], **item.callspec.params) for item in items}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def outcome(request: pytest.FixtureRequest, outcomes: dict[str, Future[object]]) -> object:
    return outcomes[request.node.nodeid].result()


@pytest.mark.parametrize("count", [SAMPLES])
@pytest.mark.parametrize("seed", range(1000, 1000 + RULES))
def test_made_up(seed: int, count: int, outcome: object) -> None:
    """Any rule over 100,000 samples: late ones, equal times, records of a log, pauses, in chunks of any size."""
    assert outcome is True


@pytest.mark.parametrize("count", [SAMPLES_OF_LOG])
@pytest.mark.parametrize("seed", range(10_000, 10_000 + LOGS))
def test_made_up_logs(seed: int, count: int, outcome: object) -> None:
    """Gaps, modes and overrides between the samples, as in a service's log."""
    assert outcome is True


@pytest.mark.parametrize("timing", [(7_200_000, 300_000, 3_600_000), (3_600_000, 10_000, 60_000), (900_000, 60_000, 0)])
@pytest.mark.parametrize("series", SERIES, ids=lambda path: path.name)
def test_real_series(series: Path, timing: tuple[int, int, int], outcome: object) -> None:
    """All kinds over real metrics, five minutes between samples, with timers slower and much faster than that."""
    assert outcome == []
