"""Answer bodies of mappings, made of stored rows and of what became of series; pure."""

from __future__ import annotations

from collections.abc import Mapping as Lookup
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from api.protocols.mapping import Outcome, Refused, Target
from api.protocols.points import Points, Series
from api.protocols.taking import Taking
from api.wire.responses import Answer, Texts, list_of, shown
from api.wire.types import Count, Ms, Uuid
from breaker_actors.store.mappings.model import As, MappingTo, SeriesMatcher, Temporality
from breaker_actors.store.rows import MappingRow


class Mapping(Answer, kw_only=True):
    id: Uuid
    project_id: Uuid
    position: Count
    name: str
    matchers: list[SeriesMatcher]
    to: MappingTo
    enabled: bool
    version: Count
    inserted_ms: Ms
    updated_ms: Ms


class MappingSingle(Answer, kw_only=True):
    mapping: Mapping


class MappingsReplaced(Answer, kw_only=True):
    changed: bool
    count: Count
    mappings: list[Mapping]


class SeriesPreview(Answer, kw_only=True, rename={"take_as": "as"}):
    """What a series would become (outcome mapped), or why not (refused: code, message). `mapping_id`: null for a
    built-in mapping; `mapping`: null where none matches."""

    name: str
    labels: dict[str, str]
    resource: dict[str, str]
    points: Count | None = None
    outcome: Literal["mapped", "unmatched", "refused"]
    mapping_id: Uuid | None = None
    mapping: str | None = None
    router_id: Uuid | None = None
    router: str | None = None
    metric: str | None = None
    ok: bool | None = None
    scale: float | None = None
    take_as: As | None = None
    temporality: Temporality | None = None
    code: str | None = None
    message: str | None = None


class RejectedPoint(Answer, kw_only=True):
    where: str
    code: str
    message: str


class PointsPreview(Answer, kw_only=True):
    """What the points of a payload would come to."""

    taken: Count
    unmatched: Count
    absent: Count
    rejected: Count
    errors: list[RejectedPoint]


class MappingsPreviewed(Answer, kw_only=True):
    mapped: Count
    unmatched: Count
    refused: Count
    series: list[SeriesPreview]
    points: PointsPreview | None = None


MappingList = list_of("MappingList", "mappings", Mapping)


def mapping(row: MappingRow) -> Mapping:
    return shown(Mapping, row, matchers=list(row.matchers))


def mapping_single(row: MappingRow) -> MappingSingle:
    return MappingSingle(mapping=mapping(row))


def mappings_replaced(changed: bool, texts: Texts) -> MappingsReplaced:
    return MappingsReplaced(changed=changed, count=len(texts), mappings=texts)


def previewed(
    series: Sequence[Series], outcomes: Sequence[Outcome], router_names: Lookup[str, str]
) -> MappingsPreviewed:
    """What became of series, in their order."""
    found = [_preview(one, outcome, router_names) for one, outcome in zip(series, outcomes, strict=True)]
    return MappingsPreviewed(**_counts(outcomes), series=found)


def payload_previewed(
    points: Points, outcomes: Sequence[Outcome], router_names: Lookup[str, str], found: Taking, most: int
) -> MappingsPreviewed:
    """The same of a payload, of its first `most` series, with what its points come to."""
    series = [_preview(*pair, router_names) for pair in zip(points.series[:most], outcomes, strict=False)]
    for one, n in zip(series, np.bincount(points.of, minlength=len(series)).tolist(), strict=False):
        one.points = n
    came_to = PointsPreview(
        taken=found.taken,
        unmatched=found.unmatched,
        absent=found.absent,
        rejected=found.rejected,
        errors=[RejectedPoint(where=one.where, code=one.code, message=one.message) for one in found.errors],
    )
    return MappingsPreviewed(**_counts(outcomes), series=series, points=came_to)


def _counts(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    mapped = sum(isinstance(one, Target) for one in outcomes)
    refused = sum(isinstance(one, Refused) for one in outcomes)
    return {"mapped": mapped, "unmatched": len(outcomes) - mapped - refused, "refused": refused}


def _preview(series: Series, outcome: Outcome, router_names: Lookup[str, str]) -> SeriesPreview:
    told: dict[str, Any] = {"name": series.name, "labels": series.labels, "resource": series.resource}
    if isinstance(outcome, Refused):
        mapping = outcome.mapping or None
        return SeriesPreview(
            **told,
            outcome="refused",
            mapping_id=outcome.mapping_id,
            mapping=mapping,
            code=outcome.code,
            message=outcome.message,
        )
    if not isinstance(outcome, Target):
        return SeriesPreview(**told, outcome="unmatched")
    return SeriesPreview(
        **told,
        outcome="mapped",
        mapping_id=outcome.mapping_id,
        mapping=outcome.mapping,
        router_id=outcome.router_id,
        router=router_names[outcome.router_id],
        metric=outcome.metric,
        ok=outcome.ok,
        scale=outcome.scale,
        take_as=outcome.take_as,
        temporality=outcome.temporality,
    )
