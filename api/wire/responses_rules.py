"""Answers about rules as code."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.wire.responses import Answer
from api.wire.types import Count, JsonObject, Ms
from breaker_actors.store.rows import DeclaredKind

Act = Literal["create", "update", "delete", "adopt", "conflict"]
PlanVersion = Annotated[str, Meta(examples=["5d41402abc4b2a76b9719d911017c592"])]


class RuleField(Answer, kw_only=True):
    """A field that would change. `secret`: the values are not shown."""

    field: str
    before: Any = None
    after: Any = None
    secret: bool = False


class ByHand(Answer, kw_only=True):
    """What was changed since the files were applied, by whom (id and name of a key) and when, as far as the audit log
    knows."""

    fields: list[str]
    who: str | None = None
    name: str | None = None
    at_ms: Ms | None = None
    action: str | None = None


class RuleChange(Answer, kw_only=True):
    """One change. adopt: it is there and nobody's, `breakers adopt` takes it over; conflict: it is another owner's."""

    act: Act
    kind: DeclaredKind
    name: str
    id: str | None = None
    fields: list[RuleField] = msgspec.field(default_factory=list)
    owner: str | None = None
    message: str | None = None
    by_hand: ByHand | None = None


class RulesPlan(Answer, kw_only=True):
    """`version`: of what would be done, for the If-Match of an apply."""

    owner: str
    version: PlanVersion
    count: Count
    changes: list[RuleChange]


class RulesApplied(Answer, kw_only=True):
    """What was done."""

    owner: str
    changed: bool
    count: Count
    changes: list[RuleChange]


class RulesAdopted(Answer, kw_only=True):
    """What is the owner's now, as kind.name."""

    owner: str
    adopted: list[str]


class RulesExport(Answer, kw_only=True):
    """A document as applies take it. `owner` null: of everything, whoever declares it."""

    owner: str | None
    labels: dict[str, str]
    breakers: dict[str, JsonObject]
    routers: dict[str, JsonObject]
    mappings: dict[str, JsonObject]
    channels: dict[str, JsonObject]
    mutes: dict[str, JsonObject]
