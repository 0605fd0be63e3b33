"""Every operation of the interface with every kind of key, about own and foreign ids: the status is the one that a rule
of `matrix.py` says, and what is refused changes nothing."""

from __future__ import annotations

import re

import pytest

from api.openapi.operation import Operation
from api.openapi.table import OPERATIONS
from tests.support.asgi import Reply
from tests.support.estate import Estate
from tests.unit.api.app.matrix import ROWS, Caller, Row, Target, callers, expected, senders, targets

READS = {"GET", "HEAD"}
WORDS = {401: "unauthorized", 403: "forbidden", 404: "not_found"}


def test_every_operation_has_a_row() -> None:
    """A new one needs a rule."""
    assert [operation.id for operation in OPERATIONS if operation.id not in ROWS] == []
    assert ROWS.keys() - {operation.id for operation in OPERATIONS} == set()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)
async def test_who_may_do_what(estate: Estate, operation: Operation) -> None:
    row, before = ROWS[operation.id], await estate.snapshot()
    try:
        let_in = [case for case in cases(estate, operation) if not await refused(estate, operation, row, *case)]
        assert await estate.snapshot() == before
        for caller, target in let_in:
            reply = await send(estate, operation, row, caller, target)
            assert reply.status == row.passes, (caller, target, reply)
            if operation.method not in READS:
                await estate.restore()
        assert await estate.snapshot() == before
    finally:
        await estate.restore()


def cases(estate: Estate, operation: Operation) -> list[tuple[Caller, Target]]:
    names = re.findall(r"{(\w+)}", operation.path)
    everybody = callers(estate.world.keys)
    if ROWS[operation.id].rule in ("signed", "ingest"):
        everybody |= senders(estate.world.keys)
    return [(caller, target) for target in targets(names) for caller in everybody.values()]


async def refused(estate: Estate, operation: Operation, row: Row, caller: Caller, target: Target) -> bool:
    """Asks, if a refusal is expected, and holds the answer against it."""
    status = expected(row, caller, target)
    if status == row.passes:
        return False
    reply = await send(estate, operation, row, caller, target)
    assert reply.status == status, (caller, target, reply)
    if operation.method != "HEAD" and not operation.is_foreign:
        assert reply.code == WORDS[status]
    return True


async def send(estate: Estate, operation: Operation, row: Row, caller: Caller, target: Target) -> Reply:
    ids = target.ids(estate.ids)
    home = estate.ids[caller.org or "ours"]
    body = row.filled(home if row.rule == "organisation" else ids)
    return await estate.ask(operation.method, operation.path.format(**ids), caller.headers, body)
