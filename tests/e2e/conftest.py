"""One real service for all end-to-end tests of a session that ask for `live`. They come one after the other, and it
ends with the last of them: an idle service takes a fifth of a core from the tests after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live import LiveService, serving
from tests.support.real_senders import NODE_PACKAGES, installed

HERE = Path(__file__).parent
_running = pytest.StashKey[LiveService]()


def _asks_for_live(item: pytest.Item | None) -> bool:
    return "live" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def metrics_token() -> str:
    return f"scrapes-only-{os.urandom(8).hex()}"


@pytest.fixture(scope="session")
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, metrics_token: str
) -> Iterator[LiveService]:
    folder = tmp_path_factory.mktemp("service")
    (token := folder / "token").write_text(metrics_token)
    with serving(folder / "data", BREAKERS_METRICS_TOKEN_FILE=str(token)) as service:
        request.session.stash[_running] = service
        yield service


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what programs for Node send with."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"name": "shop", "private": true}')
    command = ["npm", "install", "--no-fund", "--no-audit", "--ignore-scripts", "--omit=optional", *NODE_PACKAGES]
    installed(command, folder)
    return folder


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that ask for it come first, in the places that this folder's tests have among the others."""
    places = [n for n, item in enumerate(items) if item.path.is_relative_to(HERE)]
    ours = sorted((items[n] for n in places), key=lambda item: not _asks_for_live(item))
    for place, item in zip(places, ours, strict=True):
        items[place] = item


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if _asks_for_live(item) and not _asks_for_live(nextitem) and _running in item.session.stash:
        item.session.stash[_running].stop()
