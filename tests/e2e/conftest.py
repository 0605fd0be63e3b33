"""One real service for all end-to-end tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.live import LiveService, serving


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with serving(tmp_path_factory.mktemp("service") / "data") as service:
        yield service
