"""What a draft of a rule would have done on recorded samples, beside what the running rule did: the transitions that
`breakers backtest --from-service` tells of the same rules."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from quart import Response, g

from api.auth import path_uuid
from api.console import drafts
from api.console.asking import ask
from api.console.blueprint import blueprint
from api.console.chart import instant, json_text, told_of, unit_of
from api.console.guard import form
from api.console.looks import environment, span
from api.console.project import managed_project, open_project
from api.console.recorded import KEPT_S, Wanted, desk
from api.context.replica import replica
from breaker_actors.core.model import Rule
from breaker_actors.core.rule_remarks import remarks_on
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import BreakersError, Invalid

if TYPE_CHECKING:
    from api.console.replays import Course, Kept

ROWS = 100
"""Transitions on a page."""
WINDOWS_MAX, GRACE_MAX_MS = 500, 86_400_000
ANEW_S = 0.0
"""A page that opens has the samples read anew; while its draft changes they are kept."""
NOW, DRAFT, BOTH = "now", "draft", "both"
LINES = (
    ("trips", "Trips", ""),
    ("incidents", "Incidents", ""),
    ("open_ms", "Time open", "span"),
    ("half_open_ms", "Time half_open", "span"),
    ("recoveries", "Recoveries", ""),
    ("transitions", "Transitions", ""),
    ("windows", "Labelled windows", ""),
    ("caught", "Caught", ""),
    ("false_trips", "False trips", ""),
    ("latency_ms", "Mean latency", "span"),
)
"""What is compared: name, label, and how it is shown."""


@blueprint.post("/p/<project_id>/b/<breaker_id>/try")
async def try_edit(project_id: str, breaker_id: str) -> Response:
    """The draft against the rule that runs, over the breaker's own samples."""
    project, breaker_id = await open_project(project_id), path_uuid(breaker_id)
    breaker = (await ask("GET", f"/projects/{project.id}/breakers/{breaker_id}")).body["breaker"]
    return await _tried(Wanted(project.id, breaker_id), drafts.edited(breaker))


@blueprint.post("/p/<project_id>/new/try")
async def try_new(project_id: str) -> Response:
    """The draft alone, over what a router got."""
    project, given = await managed_project(project_id), await form()
    if not given.get("router") or not given.get("metric"):
        return json_text({"told": "No router is chosen yet.", "html": "", "chart": None})
    wanted = Wanted(project.id, "", path_uuid(given["router"]), given["metric"])
    return await _tried(wanted, drafts.fresh())


async def _tried(wanted: Wanted, base: Mapping[str, Any]) -> Response:
    """HTML of numbers and moves, and what the chart draws. What can't be tried is said in words."""
    given = await form()
    begun = replica().clock.monotonic()
    shown: dict[str, Any] = {"problems": {}, "remarks": [], "counts": [], "moves": [], "yaml": "", "lines": LINES}
    chart, told = None, ""
    try:
        fields = drafts.drafted(given, g.fields, base)
        rule = parse_rule(fields)
        shown |= {"remarks": [one.message for one in remarks_on(rule)]}
        shown |= {"yaml": await desk().aside(lambda: _yaml(fields))}
        windows, grace_ms = _windows(given), _grace(given)
        if wanted.breaker_id and rule.metric != base["metric"]:
            raise Invalid(f"Its recorded samples are of {base['metric']!r}; there are none of {rule.metric!r} to try.")
        view = _view(given)
        found = await desk().work(
            wanted,
            rule,
            ANEW_S if given.get("anew") else KEPT_S,
            lambda kept, late: _compared(kept, late, wanted, rule, windows, grace_ms, view),
        )
        took_s = replica().clock.monotonic() - begun
        told = f"{found.pop('looked')}, in {took_s:.2f} s. {' '.join(found.pop('notes'))}"
        chart = found.pop("chart")
        shown |= found
    except Invalid as error:
        shown["problems"], told = {k: v for k, v in error.details.items() if isinstance(v, str)}, error.message
    except BreakersError as error:
        told = error.message
    shown |= {"now_ms": replica().clock.now_ms(), "opened": False, "pages": 1, "number": 1, "total": 0} | shown
    html = environment().get_template("tried.html").render(shown)
    return json_text({"told": told, "html": html, "chart": chart})


def _compared(
    kept: Kept,
    late: Callable[[], bool],
    wanted: Wanted,
    rule: Rule,
    windows: Any,
    grace_ms: int,
    view: tuple[int | None, int | None, int],
) -> dict[str, Any]:
    """In the thread: both rules in one pass, or the draft alone where no breaker runs."""
    from api.console.replays import LOOKS, banded, courses, thinned, told
    from pipelines.candidates import Candidate
    from pipelines.replay.scoring import labelled

    labels = None if windows is None else labelled(windows, kept.names)
    draft = Candidate(DRAFT, rule)
    names = [NOW, DRAFT] if wanted.breaker_id else [DRAFT]
    first, last, number = view
    from_ms, to_ms = (first or kept.first_ms, last or kept.end_ms)
    rules = [kept.breaker, draft] if wanted.breaker_id else [draft]
    done = dict(zip(names, courses(kept, rules, late, (from_ms, to_ms), labels, grace_ms), strict=True))
    running = kept.breaker.rule
    lines = [["threshold", rule.threshold, [7, 5]]]
    series = {DRAFT: done[DRAFT]}
    if NOW in done and running.threshold != rule.threshold:
        lines = [["threshold now", running.threshold, [2, 4]], ["draft", rule.threshold, [7, 5]]]
    if NOW in done and _measure(running) != _measure(rule):
        series = {NOW: done[NOW], DRAFT: done[DRAFT]}
    hole_ms = max(rule.window_ms, 3 * (to_ms - from_ms) // LOOKS)
    points = {name: thinned(course.values, hole_ms) for name, course in series.items()}
    moves = _merged(done)
    pages = max(1, -(-len(moves) // ROWS))
    number = min(number, pages)
    return {
        "counts": [(name, told(course, labels)) for name, course in done.items()],
        "moves": moves[(number - 1) * ROWS : number * ROWS],
        "total": len(moves),
        "pages": pages,
        "number": number,
        "opened": number > 1,
        "looked": f"Looked at {kept.samples:,} samples from {instant(kept.first_ms)} to {instant(kept.last_ms)}",
        "notes": told_of(kept) if wanted.breaker_id else [],
        "units": {NOW: running, DRAFT: rule, BOTH: rule},
        "chart": {
            **unit_of(rule),
            "from": from_ms,
            "to": max(to_ms, from_ms + 1),
            "series": [
                {"name": f"value {name}" if len(points) > 1 else "value", "at": [at for at, _ in those],
                 "value": [value for _, value in those], "dashed": name == NOW,
                 **unit_of(running if name == NOW else rule)}
                for name, those in points.items()
            ],
            "lines": lines,
            "hole_ms": hole_ms,
            "strips": [{"name": name, "bands": banded(one.stays, from_ms, to_ms)} for name, one in done.items()],
        },
    }  # fmt: skip


def _measure(rule: Rule) -> tuple[Any, ...]:
    """What rules have in common that have the same values."""
    return rule.kind, rule.window_ms, rule.min_count, rule.kind_params


def _merged(done: Mapping[str, Course]) -> list[tuple[str, dict[str, Any]]]:
    """The moves of all rules, the newest first; one that both make at one time is one."""
    from api.console.replays import told_move

    found: dict[tuple[int, str, str], tuple[str, dict[str, Any]]] = {}
    for name, course in done.items():
        for move in course.moves:
            key = move.ts_ms, move.prev, move.curr
            found[key] = (BOTH if key in found else name, told_move(move))
    return [found[key] for key in sorted(found, key=lambda key: key[0], reverse=True)]


def _windows(given: Mapping[str, str]) -> Any:
    """Labelled windows as the command takes them in a file. Raises Invalid."""
    text = given.get("windows", "").strip()
    if not text:
        return None
    try:
        found = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise Invalid("The windows are not JSON.", {"windows": f"not JSON: {error}"}) from None
    if not isinstance(found, list | dict):  # a text would name a file of this machine
        raise Invalid("The windows are no list of [start, end].", {"windows": "expected a list of [start, end]"})
    lists = [found] if isinstance(found, list) else [one for one in found.values() if isinstance(one, list)]
    if sum(map(len, lists)) > WINDOWS_MAX:
        raise Invalid(f"At most {WINDOWS_MAX} windows are tried.", {"windows": f"more than {WINDOWS_MAX}"})
    return found


def _grace(given: Mapping[str, str]) -> int:
    grace_ms = drafts.number(given.get("grace_ms", ""), whole=True) or 0
    if not isinstance(grace_ms, int) or not 0 <= grace_ms <= GRACE_MAX_MS:
        words = f"must be a whole number of milliseconds from 0 to {GRACE_MAX_MS} ({span(GRACE_MAX_MS)})"
        raise Invalid("The grace is no span of time.", {"grace_ms": words})
    return grace_ms


def _view(given: Mapping[str, str]) -> tuple[int | None, int | None, int]:
    """From when to when the chart is wanted, and which page of the moves."""
    found = [drafts.number(given.get(name, ""), whole=True) for name in ("from", "to", "page")]
    from_ms, to_ms, page = (one if isinstance(one, int) and 0 < one < 1 << 53 else None for one in found)
    if from_ms is None or to_ms is None or from_ms >= to_ms:
        from_ms = to_ms = None
    return from_ms, to_ms, page or 1


def _yaml(fields: Mapping[str, Any]) -> str:
    """The draft as a file of a rule; what is left to its default is left out."""
    yaml: Any = importlib.import_module("yaml")
    given = {name: value for name, value in fields.items() if value not in (None, {})}
    return str(yaml.safe_dump(given, sort_keys=False, allow_unicode=True))
