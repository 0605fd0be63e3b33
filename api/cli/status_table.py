"""`breakers status` for eyes: the answer of /v1/admin/status as two tables and lines below."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from breaker_actors.text.counting import counted
from breaker_actors.text.escaping import for_rich, for_terminal

PIPE_WIDTH = 160
COLOURS = {"up": "green", "starting": "yellow", "away": "red"}
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def show(status: dict[str, Any], console: Console | None = None) -> None:
    (console or Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)).print(
        Group(_nodes(status), _actors(status), _summary(status), *_faults(status), *_limits(status))
    )


def _nodes(status: dict[str, Any]) -> Table:
    table = _table("node", "address", "CPUs", "")
    for node in status["nodes"]:
        table.add_row(
            for_rich(node["id"][:8]), for_rich(node["address"]), f"{node['cpus']:g}", "head" if node["head"] else ""
        )
    return table


def _actors(status: dict[str, Any]) -> Table:
    table = _table("actor", "state", "since", "node", "pid", "restarts", "holds", "behind", "lag", "overdue")
    for actor in status["actors"]:
        table.add_row(
            for_rich(actor["name"]),
            Text(for_terminal(actor["state"]), COLOURS.get(actor["state"], "")),
            _ago(status["ts_ms"], actor["since_ms"]),
            for_rich((actor["node_id"] or "-")[:8]),
            for_rich(_cell(actor["pid"])),
            for_rich(_cell(actor["restarts"])),
            for_rich(str(actor["holds"])),
            _warned(actor["behind"], actor["waiting"]),
            _warned(actor["lag"]),
            "-" if actor["overdue_ms"] is None else _span(actor["overdue_ms"]),
        )
    return table


def _summary(status: dict[str, Any]) -> Text:
    journals = status.get("journals") or [{"name": "journal", **(status["journal"] or {"sequence": None})}]
    parts = [
        f"replicas {status['replicas']}",
        *(_journal(one if len(journals) > 1 else one | {"name": "journal"}) for one in journals),
        f"logs {status['log_bytes'] / (1 << 20):.1f} MiB",
        *(f"at most {count} {kind} actors" for kind, count in status["budgets"].items() if count is not None),
    ]
    aside = status["set_aside"]
    if aside:
        parts.append(f"{aside} stored things could not be read: breakers aside list")
    is_away = any(one["sequence"] is None for one in journals)
    return Text(for_terminal(", ".join(parts)), "red" if is_away or aside else "")


def _journal(journal: dict[str, Any]) -> str:
    sequence = journal["sequence"]
    return f"{journal['name']} does not answer" if sequence is None else f"{journal['name']} at {sequence}"


def _faults(status: dict[str, Any]) -> list[Text]:
    """A line for each actor whose samples can't be stored or don't count, all or those of some routers."""
    lines = []
    for actor in status["actors"]:
        if actor["kind"] == "router" and actor["state"] == "away" and actor["holds"]:
            refused = f"samples of its {counted(actor['holds'], 'router')} are refused"
            lines.append(f"{actor['name']} does not answer: {refused}")
        if fault := actor.get("fault"):
            lines.append(f"{actor['name']}: samples can't be stored: {fault}")
        if damaged := actor.get("damaged"):
            lines.append(f"{actor['name']}: logs are damaged, of routers {', '.join(damaged)}: breakers recover")
        if ahead := actor.get("logs_ahead"):
            span = _span(actor["ahead_ms"])
            lines.append(
                f"{actor['name']}: logs are up to {span} ahead of the clock, of routers {', '.join(ahead)}: their"
                " samples are refused until it gets there, or breakers recover --ahead"
            )
        if count := actor.get("ahead"):
            ahead = f"{counted(count, 'breaker')} {'is' if count == 1 else 'are'} ahead of the clock"
            lines.append(f"{actor['name']}: {ahead}: samples of now do not count there")
        if doubted := actor.get("clock_doubted_ms"):
            lines.append(
                f"{actor['name']}: the clock stepped ahead by {_span(doubted)}, believed if that lasts a minute"
            )
    return [Text(for_terminal(line), "red") for line in lines]


def _limits(status: dict[str, Any]) -> list[Text]:
    """A line for each project and organisation at its share of something."""
    lines = {
        f"{_whose(limit)} at its limit: {limit['limit']} {limit['used']} of {limit['max']}": None
        for limit in status.get("limits", ())
    }
    return [Text(for_terminal(line), "yellow") for line in lines]


def _whose(limit: dict[str, Any]) -> str:
    project_id = limit["project_id"]
    return f"organisation {limit['org_id']}" if project_id is None else f"project {project_id}"


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=True)
    return table


def _warned(*figures: int | None) -> Text:
    """The first figure there is, yellow unless it is nothing."""
    found = _first(figures)
    return Text(for_terminal(_cell(found)), "yellow" if found else "")


def _first(figures: Iterable[int | None]) -> int | None:
    return next((figure for figure in figures if figure is not None), None)


def _cell(value: int | None) -> str:
    return "-" if value is None else str(value)


def _ago(now_ms: int, then_ms: int | None) -> str:
    return "-" if then_ms is None else _span(max(0, now_ms - then_ms))


def _span(ms: int) -> str:
    for size, unit in _UNITS:
        if ms >= size:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
