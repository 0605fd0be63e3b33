"""The runs that there are of a project, and how one is taken back: it is noted first, for whoever loads it just then;
then its samples leave the history store, then what is known of the run goes, last that there was one. A removal that
was stopped goes on when it is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from breaker_actors.errors import Invalid
from pipelines.backfill.manifest import Manifest, Summary, check_run_id, removal_of
from pipelines.sources import history_store as history
from pipelines.sources.object_store import Place

Tell = Callable[[int, int], None]


class Run(NamedTuple):
    """A run of a project. `summary`: None while it has not ended."""

    run_id: str
    began_ms: int
    summary: Summary | None


def runs(place: Place, project_id: str) -> list[Run]:
    """All runs of a project, those that began last first."""
    under = f"runs/project={project_id}"
    found = [name.split("/")[-2] for name in place.names(under) if name.endswith("/manifest.json")]
    return sorted((run_of(place, project_id, run_id) for run_id in found), key=lambda run: -run.began_ms)


def run_of(place: Place, project_id: str, run_id: str) -> Run:
    """Raises Invalid where there is none."""
    folder = f"runs/project={project_id}/{check_run_id(run_id)}"
    content, done = place.read(f"{folder}/manifest.json"), place.read(f"{folder}/done.json")
    if content is None:
        known = "`breakers backfills list` shows those there are"
        raise Invalid(f"there is no run {run_id} in project {project_id}; {known}")
    summary = None if done is None else msgspec.json.decode(done, type=Summary)
    return Run(run_id, msgspec.json.decode(content, type=Manifest).now_ms, summary)


def announce(place: Place, project_id: str, run_id: str) -> None:
    """From here on nobody goes on loading the run, and who does takes back what he has written since. Raises Invalid
    where there is no such run."""
    run_of(place, project_id, run_id)
    place.write(removal_of(f"runs/project={project_id}/{run_id}"), b"")


def remove(place: Place, project_id: str, run_id: str, tell: Tell = lambda done, total: None) -> int:
    """Removes the files of a run; how many samples' files there were."""
    folder = f"runs/project={project_id}/{run_id}"
    samples = history.files(place, project_id, run=run_id)
    known = sorted(place.names(folder), key=lambda name: name.endswith("/manifest.json"))
    for done, name in enumerate([*samples, *known], 1):
        place.remove(name)
        tell(done, len(samples) + len(known))
    return len(samples)
