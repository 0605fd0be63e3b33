"""What tests of several folders share: one PostgreSQL server, started when the first of them asks for it, and logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import pytest
import structlog
from typer.main import get_command

from breaker_actors.telemetry import logs
from tests.support import postgres, routes, workers
from tests.support.fresh import statements_compiled_once
from tests.support.workers import (
    pytest_cmdline_main,
    pytest_collection,
    pytest_collection_modifyitems,
    pytest_runtest_protocol,
    pytest_xdist_make_scheduler,
)

__all__ = (
    "pytest_cmdline_main",
    "pytest_collection",
    "pytest_collection_modifyitems",
    "pytest_runtest_protocol",
    "pytest_xdist_make_scheduler",
)

workers.keep_bytecode()
routes.remember_compiled()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A running server with a template of the current schema. Not to be killed: `postgres.own_server()` is for that."""
    with postgres.server() as found:
        yield found


@pytest.fixture
def postgres_url(postgres_server: postgres.Server) -> Iterator[str]:
    """A fresh database with the current schema."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_server: postgres.Server) -> Iterator[str]:
    """A fresh database with nothing in it."""
    with postgres_server.database(empty=True) as url:
        yield url


@pytest.fixture(scope="session", autouse=True)
def _statements_compiled_once() -> Iterator[None]:
    with statements_compiled_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def _commands_built_once() -> Iterator[None]:
    """typer builds all commands anew at every call, which takes longer than most of them."""
    with patch("typer.testing._get_command", cache(get_command)):
        yield


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands run in this process configure the logs of their own, onto a stderr that is gone afterwards."""
    before, root = structlog.get_config(), logging.getLogger()
    yield
    structlog.configure(**before)
    for ours in [handler for handler in root.handlers if handler.get_name() == logs.__name__]:
        root.removeHandler(ours)
