"""A threshold for a draft out of the recorded samples, without labels: what `breakers suggest --rule` does, within the
bounds of a screen. The draft is tried with it beside, as every draft is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from quart import Response, g

from api.auth import path_uuid
from api.console import drafts
from api.console.asking import ask
from api.console.blueprint import blueprint
from api.console.chart import instant, json_text
from api.console.guard import form
from api.console.project import managed_project, open_project
from api.console.recorded import KEPT_S, Wanted, desk
from api.context.replica import replica
from breaker_actors.core.model import Rule
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import BreakersError, Invalid, Overloaded

if TYPE_CHECKING:
    from api.console.replays import Kept

SAMPLES_MAX = 100_000
"""The newest ones that are looked at; a second or two of work where windows are usual."""
TRIPS_MAX = 1_000
LATE = "To suggest one takes too long for a screen with this window; `breakers suggest` takes its time."


@blueprint.post("/p/<project_id>/b/<breaker_id>/suggest")
async def suggest_edit(project_id: str, breaker_id: str) -> Response:
    """For the draft, over the breaker's own samples."""
    project, breaker_id = await open_project(project_id), path_uuid(breaker_id)
    breaker = (await ask("GET", f"/projects/{project.id}/breakers/{breaker_id}")).body["breaker"]
    return await _suggested(Wanted(project.id, breaker_id), drafts.edited(breaker))


@blueprint.post("/p/<project_id>/new/suggest")
async def suggest_new(project_id: str) -> Response:
    """For a draft, over what a router got."""
    project, given = await managed_project(project_id), await form()
    if not given.get("router") or not given.get("metric"):
        return json_text({"told": "Choose a metric, and a router that is there already.", "threshold": None})
    wanted = Wanted(project.id, "", path_uuid(given["router"]), given["metric"])
    return await _suggested(wanted, drafts.fresh())


async def _suggested(wanted: Wanted, base: Mapping[str, Any]) -> Response:
    """`threshold` (None: none is suggested) and `told`, which says why."""
    given, begun = await form(), replica().clock.monotonic()
    threshold = None
    try:
        rule = parse_rule({**drafts.drafted(given, g.fields, base), "threshold": 0.0})
        trips = _trips(given)
        if wanted.breaker_id and rule.metric != base["metric"]:
            raise Invalid(f"Its recorded samples are of {base['metric']!r}; there are none of {rule.metric!r}.")
        threshold, told = await desk().work(wanted, rule, KEPT_S, lambda kept, late: _found(kept, late, rule, trips))
        told += f" It took {replica().clock.monotonic() - begun:.2f} s."
    except BreakersError as error:
        told = error.message
    return json_text({"told": told, "threshold": threshold})


def _found(kept: Kept, late: Callable[[], bool], rule: Rule, trips: float) -> tuple[float | None, str]:
    """In the thread."""
    from pipelines.suggest.threshold import threshold_of

    def watch() -> None:
        if late():
            raise Overloaded(LATE)

    found = threshold_of(kept.batches(), rule, trips, SAMPLES_MAX, kept.window_samples_max, watch)
    words = " ".join(f"{one[:1].upper()}{one[1:].removesuffix('.')}." for one in found.why)
    span = f"from {instant(found.first_ms)} to {instant(found.last_ms)}"
    return found.value, f"{words} Looked at {found.samples:,} samples {span}."


def _trips(given: Mapping[str, str]) -> float:
    found = drafts.number(given.get("trips_a_week", "") or "1", whole=False)
    if isinstance(found, str) or found is None or not 0 <= found <= TRIPS_MAX:
        raise Invalid(f"Trips a week: a number from 0 to {TRIPS_MAX}.")
    return float(found)
