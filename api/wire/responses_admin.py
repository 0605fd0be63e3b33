"""Answer bodies of the operator's part of the interface, made of what the parts have said; pure."""

from __future__ import annotations

from api.wire.responses import Answer, shown
from api.wire.types import Count, Instant, Ms, Uuid
from breaker_actors import messages
from breaker_actors.clock import rfc3339
from breaker_actors.gateway.status import ActorStatus as Actor
from breaker_actors.gateway.status import ClusterStatus as Cluster
from breaker_actors.gateway.status import JournalStatus, Kind, State


class Node(Answer, kw_only=True):
    id: str
    address: str
    cpus: float
    head: bool


class JournalFigures(Answer, kw_only=True):
    epoch: Count
    sequence: Count
    position: Count


class Journal(Answer, kw_only=True):
    """Figures null: it does not answer."""

    name: str
    epoch: Count | None
    sequence: Count | None
    position: Count | None


class ActorStatus(Answer, kw_only=True):
    """Null: it has no such figure, or did not say. `holds`: routers or breakers placed there; `routers`, `breakers`:
    what it says it has itself. `behind`: breakers that have not applied all they were sent, `lag` log records at most;
    `unheard`: links to routers that nobody serves; `overdue_ms`: age of the oldest unfired timer; `damaged`: routers
    whose logs are not as they were written, a hundred at most; `fault`: why the log's last write failed, "" when it did
    not; `logs_ahead`: routers whose logs are ahead of the clock, a hundred at most, by `ahead_ms` at most;
    `ahead`: breakers that are; `clock_doubted_ms`: by how much the clock stepped ahead and is not believed."""

    name: str
    kind: Kind
    state: State
    since_ms: Ms | None
    restarts: Count | None
    holds: Count
    incarnation: str | None
    node_id: str | None
    pid: Count | None
    started_ms: Ms | None
    routers: Count | None
    waiting: Count | None
    log_bytes: dict[str, Count] | None
    damaged: list[Uuid] | None
    fault: str | None
    logs_ahead: list[Uuid] | None
    ahead_ms: Count | None
    clock_doubted_ms: Count | None
    breakers: Count | None
    starting: Count | None
    behind: Count | None
    lag: Count | None
    unheard: Count | None
    overdue_ms: Count | None
    ahead: Count | None


class ActorBudgets(Answer, kw_only=True):
    router: Count | None
    breaker: Count | None


class ProjectLimit(Answer, kw_only=True):
    """A project at its share: log_bytes (its samples are refused), transitions (they wait), window_samples, events and
    deliveries (the oldest leave early), configuration_bytes and audit_bytes (changes are refused). Or an organisation:
    log_bytes, configuration_bytes, events and deliveries (of all its projects together), org_audit_bytes,
    gone_audit_bytes (of deleted projects), projects, workspaces, keys (no more can be made); the other id is
    null. One per project and part of the service that says so, 100 at most."""

    project_id: Uuid | None
    org_id: Uuid | None
    limit: messages.ShareLimit
    used: Count
    max: Count


class ClusterStatus(Answer, kw_only=True):
    """`journal`: the first of `journals`, null: it does not answer; `set_aside` null: the store does not."""

    ts_ms: Ms
    timestamp: Instant
    nodes: list[Node]
    replicas: Count
    budgets: ActorBudgets
    journal: JournalFigures | None
    journals: list[Journal]
    log_bytes: Count
    set_aside: Count | None
    actors: list[ActorStatus]
    limits: list[ProjectLimit]


class Rebalanced(Answer, kw_only=True):
    """To be repeated while anything is left."""

    moved: Count
    left: Count


_FIGURES = tuple(
    name
    for kind in (messages.RouterFigures, messages.BreakerFigures)
    for name in kind.__struct_fields__
    if name != "limits"
)
"""What actors say of themselves; limits of projects are listed for all actors together."""


def cluster_status(status: Cluster) -> ClusterStatus:
    first = status.journals[0].figures
    return shown(
        ClusterStatus,
        status,
        ts_ms=status.at_ms,
        timestamp=rfc3339(status.at_ms),
        nodes=[shown(Node, node) for node in status.nodes],
        budgets=ActorBudgets(router=status.budgets.get("router"), breaker=status.budgets.get("breaker")),
        journal=None if first is None else shown(JournalFigures, first),
        journals=[_journal(one) for one in status.journals],
        actors=[_actor(actor) for actor in status.actors],
        limits=[shown(ProjectLimit, share, max=share.most) for share in status.limits],
    )


def _journal(journal: JournalStatus) -> Journal:
    figures = journal.figures
    if figures is None:
        return Journal(name=journal.name, epoch=None, sequence=None, position=None)
    return shown(Journal, figures, name=journal.name)


def _actor(actor: Actor) -> ActorStatus:
    process, figures = actor.process, actor.router or actor.breaker
    return shown(
        ActorStatus,
        actor,
        incarnation=actor.incarnation or None,
        node_id=None if process is None else process.node,
        pid=None if process is None else process.pid,
        started_ms=None if process is None else process.started_ms,
        **{name: getattr(figures, name, None) for name in _FIGURES},
    )


def rebalanced(step: messages.Rebalanced) -> Rebalanced:
    return shown(Rebalanced, step)
