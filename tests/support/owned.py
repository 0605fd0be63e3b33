"""Routers as their owner holds them, without one."""

from __future__ import annotations

from breaker_actors.core.log_entries import RouterView
from breaker_actors.messages import RouterAssignment
from breaker_actors.router.group import OwnedRouter
from breaker_actors.wal.base import RouterHead

EMPTY = RouterView(version=1)


def owned_router(router_id: str = "r", project_id: str = "p", view: RouterView = EMPTY) -> OwnedRouter:
    """Of a log with one record."""
    head = RouterHead(
        router_id=router_id,
        epoch=1,
        offset=1,
        last_received_ms=1,
        alive_ms=1,
        view_offset=1,
        view=None,
        generation=1,
        keys=(),
    )
    assignment = RouterAssignment(router_id=router_id, project_id=project_id, epoch=1, log_slot="s")
    return OwnedRouter(assignment, head, view)
