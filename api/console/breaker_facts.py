"""What is told of one breaker beside its state: its settings, its last moves, who hears of it, what watches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from api.admission.intake import Turn
from api.console.asking import Refused, ask
from api.console.refusing import ms_of
from api.console.unreached import OWN_SLACK, failure
from api.context.current import callers
from api.context.replica import replica
from api.lookup.project_index import Shown
from breaker_actors.core.model import BreakerMode, Rule
from breaker_actors.core.rule_fields import POLICY_MEANINGS
from breaker_actors.core.rule_remarks import never_moves
from breaker_actors.notify.channels.wording import duration, figure
from breaker_actors.store.mutes.matching import BreakerFacts, Effort, Spent, asks_routers, matches_breaker
from breaker_actors.store.rows import DeliveryRow, MuteRow, ProjectRow
from breaker_actors.text.escaping import link

MOVES = 20
ROUTERS_MAX, SHADOWS_MAX, CHANNELS_MAX, MUTES_MAX = 50, 20, 50, 20
ROUTERS_LOOKED_AT = 10
"""Routers whose labels are looked at for mutes that ask for them."""
MUTES_EFFORT, MUTES_SLICE = 10_000_000, 2_000_000
"""What matching mutes may take for one page, and before others have their turn: about nanoseconds."""
DIFFERENCES_MAX = 10


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A breaker's settings, as the API tells them."""

    id: str
    name: str
    rule: Rule
    mode: BreakerMode
    metadata: dict[str, str]
    router_ids: list[str]
    shadow_of: str | None


class Named(NamedTuple):
    id: str
    name: str


class Links(NamedTuple):
    """What a breaker hangs on and what watches it; of each as many as are shown."""

    routers: list[Named]
    watched: Named | None
    shadows: list[Named]


class Sent(NamedTuple):
    """A channel that was told of a move, and what came of it."""

    channel_id: str
    name: str
    state: str
    error: str = ""


class Told(NamedTuple):
    """Who was told of a move; `trace`: a link to its newest trace."""

    sent: list[Sent]
    trace: str | None


class Compared(NamedTuple):
    """A shadow beside what it watches. `told`: of the API; `words`: why there is nothing to tell."""

    shadow: Named
    watched: Named
    told: dict[str, Any] | None
    words: str


async def row_of(path: str) -> Row:
    """The breaker at a path of the API."""
    body = (await ask("GET", path)).body["breaker"]
    return msgspec.convert(body | {"rule": msgspec.convert(body, Rule)}, Row)


async def links_of(project_id: str, row: Row) -> Links:
    """By name, where it is known already."""
    index = await replica().indexes.get(project_id)
    known = index.rows.get(row.id)
    routers = {} if known is None else known.routers
    shadows = [Named(one.id, one.name) for one in index.rows.values() if one.shadow_of == row.id]
    watched = None
    if row.shadow_of is not None:
        other = index.rows.get(row.shadow_of)
        watched = Named(row.shadow_of, row.shadow_of if other is None else other.name)
    return Links(
        [Named(id_, routers.get(id_, id_)) for id_ in row.router_ids[:ROUTERS_MAX]], watched, shadows[:SHADOWS_MAX]
    )


async def comparison(path: str, row: Row, links: Links) -> Compared | None:
    """Of the last day; of a breaker that is watched with its first shadow."""
    if links.watched is not None:
        shadow, watched = Named(row.id, row.name), links.watched
    elif links.shadows:
        shadow, watched = links.shadows[0], Named(row.id, row.name)
    else:
        return None
    try:
        answer = await ask("GET", f"{path.rpartition('/')[0]}/{shadow.id}/comparison")
    except Refused as error:
        return Compared(shadow, watched, None, error.message)
    return Compared(shadow, watched, answer.body, "")


def remarks(state: Mapping[str, Any], row: Row | None) -> list[str]:
    """Why it is not evaluated, or not by all that was sent; worst first. `state`: of the API."""
    found: list[str] = []
    windowed = state["window_ms"] and not (row is not None and row.rule.kind == "consecutive_failures")
    over = f" in the last {duration(state['window_ms'])}" if windowed else ""
    if state.get("stale"):
        found.append("Its owner did not answer: this is what was stored, and may be old.")
    if row is not None and not row.router_ids and row.shadow_of is None:
        found.append("It hangs on no router, so no samples come.")
    if row is not None:
        found += never_moves(row.rule)
    if state["indeterminate"] and state["observed"]:
        counts = f"{figure(state['sample_count'])} of {figure(max(1, state['min_count']))}"
        found.append(f"Indeterminate: too few samples, {counts}{over}.{_so(state, row)}")
    elif state["indeterminate"]:
        ever = "; it has never moved" if state["transition_seq"] == 0 else ""
        found.append(f"Indeterminate: no samples{over}{ever}.{_so(state, row)}")
    if state["held_back"]:
        found.append("Held back: a breach stands, and the state is kept for its minimum time.")
    if state["late"]:
        found.append(f"Samples that came too late to count: {figure(state['late'])}.")
    if state["truncated"]:
        most = figure(replica().settings.window_samples_max)
        found.append(f"Samples that left the window early: {figure(state['truncated'])}; it holds {most} at most.")
    return found


def _so(state: Mapping[str, Any], row: Row | None) -> str:
    """What comes of too few samples; while it is open they do not matter."""
    if state["machine_state"] == "half_open" and row is not None:
        return f" In half_open that counts as {POLICY_MEANINGS[row.rule.half_open_indeterminate_policy]}."
    return " It stays closed until there are enough." if state["machine_state"] == "closed" else ""


async def moves_of(project_id: str, breaker_id: str, cursor: str) -> tuple[list[dict[str, Any]], str | None]:
    """A page of its moves, newest first, with those of a backfill; and the cursor of the next page."""
    query: dict[str, str | int | bool | None] = {"breaker_id": breaker_id, "limit": MOVES, "cursor": cursor}
    answer = await ask("GET", f"/projects/{project_id}/events", query=query | {"source": "all"})
    events: list[dict[str, Any]] = answer.body["events"]
    told = ({"value": None, "by": None, "comment": None, "hidden_by": None, "source": "live"} | one for one in events)
    return list(told), answer.body["next_cursor"]


async def channels_of(project_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await ask("GET", f"/projects/{project_id}/notification-channels")).body["channels"]
    return found


async def told_of(
    project: ProjectRow, moves: Sequence[Mapping[str, Any]], channels: Sequence[Mapping[str, Any]]
) -> dict[int, Told]:
    """Who was told of moves, by their sequence; of a backfill nobody is."""
    live = [move["sequence"] for move in moves if move["source"] == "live"]
    found = await replica().outbox.deliveries_of(project.id, project.shard, live) if live else {}
    names = {channel["id"]: str(channel["name"]) for channel in channels} | {project.id: OWN_SLACK}
    return {
        sequence: Told(
            [_sent(row, names) for row in rows],
            trace_of(rows),
        )
        for sequence, rows in found.items()
    }


def _sent(row: DeliveryRow, names: Mapping[str, str]) -> Sent:
    error = failure(row.last_error, row.last_status)
    return Sent(row.channel_id, names.get(row.channel_id, "a deleted channel"), row.state, error)


def unheard(state: str, moves: Sequence[Mapping[str, Any]], told: Mapping[int, Told]) -> list[Sent]:
    """What was given up of the last trip of an outage that goes on, where nobody was told of the outage at all, as far
    as its moves are here. `moves`: newest first. Pure."""
    dead = list[Sent]()
    if state == "closed":
        return dead
    for move in moves:
        if move["source"] != "live" or move["hidden_by"]:
            continue
        if move["curr"] == "closed":
            break
        sent = told[move["sequence"]].sent if move["sequence"] in told else []
        if any(one.state in ("sent", "pending", "held") for one in sent):
            return []
        dead = dead or [one for one in sent if one.state == "dead"]
        if move["prev"] == "closed":
            break
    return dead


def trace_of(rows: Sequence[DeliveryRow]) -> str | None:
    """The link to a trace that notifications of one move have."""
    return next((url for row in rows if (url := link(row.told.trace_url))), None)


def untold(move: Mapping[str, Any], channels: Sequence[Mapping[str, Any]]) -> str:
    """Why nobody is known to have been told of a move."""
    if move["source"] == "backfill":
        return "Nobody was told: it was loaded afterwards"
    if move["curr"] == "half_open":
        return "Nobody is told of half_open"
    if move["hidden_by"]:
        return "Nobody was told: callers did not see it"
    if not channels:
        return "Nobody was told: there is no channel"
    if all((ms_of(channel["inserted_at"]) or 0) > move["ts_ms"] for channel in channels):
        return "Nobody was told: there was no channel yet"
    return "No delivery of it is known"


class Muting:
    """Which mutes match, looked for in the turns of one request: a matcher after the other, for MUTES_SLICE before
    others are served, and for MUTES_EFFORT in all."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._effort = Effort(MUTES_EFFORT)
        self._ends = MUTES_EFFORT

    async def matches(self, mute: MuteRow, breaker: BreakerFacts) -> bool:
        """Whether the mute matches the breaker, on whichever channels. Raises Spent, and Overloaded where too many wait
        for their turn."""
        for matcher in mute.matchers:
            if self._effort.left <= self._ends:
                await self._turn.next()
                self._ends = self._effort.left - MUTES_SLICE
            if not matches_breaker((matcher,), breaker, self._effort):
                return False
        return True


async def muted_among(project_id: str, rows: Sequence[Shown]) -> dict[str, str]:
    """Of some breakers those that an active mute matches, with its comment. Mutes that ask for labels of routers are
    told on a breaker's own page alone: here they would cost a read for each router. Raises Overloaded."""
    active = [mute for mute in await _active_mutes(project_id) if not asks_routers(mute.matchers)]
    found = dict[str, str]()
    async with Turn(replica().intake.turns, callers()) as turn:
        muting = Muting(turn)
        with suppress(Spent):
            for row in rows if active else ():
                facts = _facts(row)
                for mute in active:
                    if await muting.matches(mute, facts):
                        found[row.id] = mute.comment
                        break
    return found


async def _active_mutes(project_id: str) -> list[MuteRow]:
    now_ms = replica().clock.now_ms()
    return [mute for mute in await replica().mutes.list_mutes(project_id) if mute.state(now_ms) == "active"]


def _facts(row: Shown | Row, routers: Sequence[dict[str, str]] = ()) -> BreakerFacts:
    """What mutes look at; `routers`: their labels."""
    return BreakerFacts(
        id=row.id,
        name=row.name,
        metric=row.rule.metric,
        kind=row.rule.kind,
        metadata=dict(row.metadata),
        routers=tuple(routers),
    )


async def mutes_of(project_id: str, row: Row) -> list[MuteRow]:
    """The active mutes that match the breaker, on all channels or on some. Raises Overloaded."""
    active = await _active_mutes(project_id)
    labels = list[dict[str, str]]()
    if any(asks_routers(mute.matchers) for mute in active):
        for router_id in row.router_ids[:ROUTERS_LOOKED_AT]:
            router = await replica().config.get_router(project_id, router_id)
            labels += [] if router is None else [router.metadata]
    facts, found = _facts(row, labels), list[MuteRow]()
    async with Turn(replica().intake.turns, callers()) as turn:
        muting = Muting(turn)
        with suppress(Spent):
            for mute in active:
                if await muting.matches(mute, facts):
                    found.append(mute)
    return found[:MUTES_MAX]
