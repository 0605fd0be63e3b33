"""One real service for all end-to-end tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.live import LiveService


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    service = LiveService(tmp_path_factory.mktemp("service") / "data")
    try:
        yield service
    finally:
        service.stop()
