"""Answer bodies of the operator's part of the interface. Pure functions of what the parts have said."""

from __future__ import annotations

import msgspec

from api.bodies import Body, rfc3339
from breaker_actors.messages import BreakerFigures, JournalFigures, Rebalanced, RouterFigures
from breaker_actors.status import ActorStatus, ClusterStatus

_FIGURES = (*RouterFigures.__struct_fields__, *BreakerFigures.__struct_fields__)


def cluster_status(status: ClusterStatus) -> Body:
    return {
        "ts_ms": status.at_ms,
        "timestamp": rfc3339(status.at_ms),
        "nodes": [msgspec.structs.asdict(node) for node in status.nodes],
        "replicas": status.replicas,
        "budgets": {kind: status.budgets.get(kind) for kind in ("router", "breaker")},
        "journal": _journal(status.journal),
        "log_bytes": status.log_bytes,
        "actors": [_actor(actor) for actor in status.actors],
    }


def _journal(figures: JournalFigures | None) -> Body | None:
    return None if figures is None else msgspec.structs.asdict(figures)


def _actor(actor: ActorStatus) -> Body:
    """Everything is there for everyone: null is what it does not have, or did not say."""
    process = actor.process
    told = actor.router or actor.breaker
    figures = dict.fromkeys(_FIGURES) | ({} if told is None else msgspec.structs.asdict(told))
    return {
        "name": actor.name,
        "kind": actor.kind,
        "state": actor.state,
        "since_ms": actor.since_ms,
        "restarts": actor.restarts,
        "holds": actor.holds,
        "incarnation": actor.incarnation or None,
        "node_id": None if process is None else process.node,
        "pid": None if process is None else process.pid,
        "started_ms": None if process is None else process.started_ms,
        **figures,
    }


def rebalanced(step: Rebalanced) -> Body:
    return {"moved": step.moved, "left": step.left}
