"""What one line of the table of operations says, and the shorthands the table is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from api.auth import Right

Access = Right | Literal["open", "signed", "probe", "metrics"]
"""Who may: a right of a key; anybody; anybody with the project's signature or ingest token where asked for; probes of
health; readers of metrics."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One header or query parameter; `type` as msgspec reads it."""

    name: str
    place: Literal["query", "header"]
    type: Any
    about: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One successful answer: its body (None: there is none), or a content type of its own; and its headers."""

    body: Any = None
    about: str = "Done."
    content: str = "application/json"
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Either:
    """A body of one of several types, where msgspec has no union of them."""

    types: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `id` is the name of the handler; `refusals` come on top of those `access` implies.
    `lenient`: a body that can't be read is as good as none. `takes`: content types of a body in a protocol of others,
    and `complains`: the content types of errors then."""

    method: str
    path: str
    id: str
    summary: str
    answers: dict[int, Answer]
    access: Access = "manage"
    refusals: tuple[int, ...] = ()
    body: Any = None
    body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    links: tuple[str, ...] = ()
    lenient: bool = False
    takes: tuple[str, ...] = ()
    complains: tuple[str, ...] = ("application/json",)

    @property
    def statuses(self) -> tuple[int, ...]:
        """Every status this operation can answer with."""
        found = {*self.answers, *self.refusals, *IMPLIED[self.access]}
        if self.body is not None:
            found |= {413, 422} if self.lenient else {400, 413, 422}
        if self.takes:
            found |= {400, 413, 415}
        if "{" in self.path:
            found.add(404)
        return tuple(sorted(found))

    @property
    def is_foreign(self) -> bool:
        """Whether its answers, errors too, are those of another protocol."""
        return self.complains != ("application/json",)

    @property
    def checks_fields(self) -> bool:
        """Whether its body is looked through for fields that are none of its kind."""
        return self.body is not None and not self.lenient and self.access != "signed"

    @property
    def tag(self) -> str:
        """The part of the interface it belongs to."""
        words = [word.partition(":")[0] for word in self.path.split("/") if word and "{" not in word]
        if words[0] in (whole := {"api": "health", "docs": "docs"}):
            return whole[words[0]]
        return "projects" if len(words) < 3 and words[1:] == ["projects"] else words[-1 if len(words) < 3 else 2]


IMPLIED: dict[Access, tuple[int, ...]] = {
    "manage": (401, 403, 429, 500, 503),
    "edit_metadata": (401, 403, 429, 500, 503),
    "operate": (401, 403, 429, 500, 503),
    "read_rules": (401, 403, 429, 500, 503),
    "read_runtime": (401, 403, 429, 500, 503),
    "ingest": (401, 403, 429, 500, 503),
    "signed": (401, 429, 500, 503),
    "probe": (401, 500),
    "metrics": (401, 500, 503),
    "open": (500,),
}
"""Statuses that come from before the handler."""


def ok(body: Any, *headers: str, about: str = "Done.") -> dict[int, Answer]:
    return {200: Answer(body, about, headers=headers)}


GONE: dict[int, Answer] = {204: Answer(None, "Gone.")}


STRICT_SAMPLES = Parameter("strict", "query", bool, "true refuses samples that have a field which is none of a sample.")
STRICT = Parameter("strict", "query", bool, "true refuses fields of the body that the request does not have.")
ONCE = Parameter(
    "Idempotency-Key",
    "header",
    Annotated[str, Meta(max_length=255)],
    "The same request again within a day makes nothing new.",
)


def creating(
    path: str,
    id: str,
    summary: str,
    body: Any,
    made: Any,
    link: str,
    refusals: tuple[int, ...] = (),
    body_required: bool = True,
) -> Operation:
    """A POST that makes something once per Idempotency-Key and answers `made`, whose id other paths take as `link`."""
    answers = {201: Answer(made, "Made.", headers=("Idempotency-Replayed",))}
    return Operation(
        "POST",
        path,
        id,
        summary,
        answers,
        refusals=refusals,
        body=body,
        body_required=body_required,
        parameters=(ONCE,),
        links=(link,),
    )


def editing(path: str, id: str, summary: str, body: Any, changed: Any, refusals: tuple[int, ...] = ()) -> Operation:
    """A PATCH, which changes nothing without a body and answers the thing as it is now."""
    return Operation("PATCH", path, id, summary, ok(changed), refusals=refusals, body=body, body_required=False)


IF_NONE_MATCH = Parameter("If-None-Match", "header", str, "Entity tags the caller holds.")


def polled(
    path: str, id: str, summary: str, body: Any, access: Access = "read_runtime", method: str = "GET"
) -> Operation:
    """A read with a weak ETag."""
    answers = {
        200: Answer(body, "What is stored now.", headers=("ETag",)),
        304: Answer(None, "The caller holds this content already.", headers=("ETag",)),
    }
    return Operation(method, path, id, summary, answers, access, parameters=(IF_NONE_MATCH,))
