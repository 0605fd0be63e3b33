"""What tests of several folders share: one PostgreSQL server, started when the first of them asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import postgres


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
