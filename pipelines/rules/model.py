"""What a directory of rules declares, as values: things by kind and name, each with its place in the files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from breaker_actors.core.model import Rule
from breaker_actors.errors import Invalid
from pipelines.candidates import Candidate

Section = Literal["breakers", "routers", "mappings", "channels", "mutes"]
SECTIONS: tuple[Section, ...] = get_args(Section)
DEFAULT_OWNER = "default"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands; `line` counts from 1, and is 0 for a file or directory itself."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong. `path`: of the field, such as breakers.checkout.window_ms. `word`: for machines."""

    place: Place
    path: str
    word: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.path}: {self.message}" if self.path else f"{self.place}: {self.message}"


def refused(problems: Sequence[Problem]) -> Invalid:
    """The error for problems of files, one a line, in the order of their places. `details.problems` has them with
    file, line, path, word and message."""
    ordered = sorted(problems, key=lambda problem: (problem.place.file, problem.place.line))
    told = [
        {"file": p.place.file, "line": p.place.line, "path": p.path, "word": p.word, "message": p.message}
        for p in ordered
    ]
    return Invalid("\n".join(map(str, ordered)), {"problems": told})


@dataclass(frozen=True, slots=True)
class Declared:
    """One thing. `fields`: in the words of the REST interface, durations in milliseconds, other things by name,
    secrets as references. `lines`: of its fields, by their paths within it. `rule`: of a breaker."""

    section: Section
    name: str
    fields: Mapping[str, Any]
    place: Place
    lines: Mapping[str, int] = field(default_factory=dict)
    rule: Rule | None = None

    def place_of(self, path: str) -> Place:
        """Where a field stands, or the next thing around it that is in the file."""
        while path and path not in self.lines:
            cut = max(path.rfind("."), path.rfind("["))
            path = path[:cut] if cut > 0 else ""
        return Place(self.place.file, self.lines.get(path, self.place.line))


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All that a directory declares, each section in the order of the files."""

    owner: str = DEFAULT_OWNER
    labels: Mapping[str, str] = field(default_factory=dict)
    breakers: Mapping[str, Declared] = field(default_factory=dict)
    routers: Mapping[str, Declared] = field(default_factory=dict)
    mappings: Mapping[str, Declared] = field(default_factory=dict)
    channels: Mapping[str, Declared] = field(default_factory=dict)
    mutes: Mapping[str, Declared] = field(default_factory=dict)

    def section(self, name: Section) -> Mapping[str, Declared]:
        found: Mapping[str, Declared] = getattr(self, name)
        return found

    def candidates(self) -> list[Candidate]:
        """The breakers as replays take them; each takes all samples."""
        return [Candidate(name, one.rule) for name, one in self.breakers.items() if one.rule is not None]

    def document(self) -> dict[str, Any]:
        """The whole set as the service takes it: fields by section and name."""
        return {
            "owner": self.owner,
            "labels": dict(self.labels),
            **{name: {one.name: dict(one.fields) for one in self.section(name).values()} for name in SECTIONS},
        }
