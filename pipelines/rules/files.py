"""Reads directories and files of rules: YAML in the words of the REST interface, with names in the place of ids.

A duration may be written with its unit: `window: 5m` is `window_ms: 300000`, and so is `window_ms: 5m`. A time may be
written as people do: `ends: 2026-12-24T00:00:00Z`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from breaker_actors.clock import unix_ms
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Invalid
from pipelines.candidates import RULE_FIELDS, duration_ms, guess
from pipelines.rules.model import DEFAULT_OWNER, SECTIONS, Declared, Place, Problem, RuleSet, Section, refused
from pipelines.rules.secrets import plain_secrets
from pipelines.rules.yaml_text import Keys, Text, parse, shown

FILE_BYTES_MAX = 4 << 20
FILES_MAX = 10_000
NAME_CHARS_MAX = 255
OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
SUFFIXES = (".yaml", ".yml")
TESTS = (".test.yaml", ".test.yml")
"""Files of tests: no rules are read from them where they lie in a directory."""
FIELDS: Mapping[Section, tuple[str, ...]] = {
    "breakers": (*RULE_FIELDS, "mode", "shadow_of", "actions", "metadata"),
    "routers": ("mode", "enabled", "metadata", "breakers"),
    "mappings": ("matchers", "to", "enabled"),
    "channels": ("channel", "config", "enabled", "events"),
    "mutes": ("matchers", "all", "starts_ms", "ends_ms", "windows", "zone", "comment"),
}
_INSTANTS = ("starts_ms", "ends_ms")
_DURATIONS = "must be a duration, such as 500ms, 30s, 5m, 1h30m"
_TOP = ("owner", "labels", *SECTIONS)


def read(paths: Iterable[str | Path] | str | Path) -> RuleSet:
    """All rules of files and of directories with what lies below them, `*.test.yaml` and hidden ones left out. Raises
    Invalid with every problem and its place."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    merged = _Merged()
    for file in rule_files(Path(path) for path in given):
        try:
            merged.add(str(file), parse(str(file), content_of(file)))
        except Invalid as error:
            merged.problems += [_problem(one) for one in error.details["problems"]]
    if merged.problems:
        raise refused(merged.problems)
    return merged.rule_set()


def read_text(text: str, file: str = "rules.yaml") -> RuleSet:
    """The same of one file's text."""
    merged = _Merged()
    merged.add(file, parse(file, text))
    if merged.problems:
        raise refused(merged.problems)
    return merged.rule_set()


def rule_files(paths: Iterable[Path]) -> list[Path]:
    """The files that `read` looks at, in order. Raises Invalid for a path that is none."""
    found = dict[Path, None]()
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.is_file() and _is_rules(one.relative_to(path)))
            if not inside:  # a wrong path, or a checkout that failed: an apply would take everything away
                raise refused([Problem(Place(str(path), 0), "", "empty", "there is no file of rules in it")])
            found |= dict.fromkeys(inside)
        elif path.exists():
            found[path] = None
        else:
            raise refused([Problem(Place(str(path), 0), "", "unreadable", "there is no such file or directory")])
    if len(found) > FILES_MAX:
        raise Invalid(f"There are more than {FILES_MAX} files of rules.")
    return list(found)


def _is_rules(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return path.name.endswith(SUFFIXES) and not path.name.endswith(TESTS) and not hidden


def content_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise refused([Problem(Place(str(file), 0), "", "unreadable", f"has more than {FILE_BYTES_MAX} bytes")])
        return content.decode("utf-8")
    except OSError as error:
        message = f"can't be read: {error.strerror or error}"
    except UnicodeDecodeError:
        message = "can't be read: it is not UTF-8"
    raise refused([Problem(Place(str(file), 0), "", "unreadable", message)])


def _problem(told: Mapping[str, Any]) -> Problem:
    return Problem(Place(told["file"], told["line"]), told["path"], told["word"], told["message"])


@dataclass(slots=True)
class _Merged:
    """What was read so far, of all files."""

    owner: tuple[str, Place] | None = None
    labels: dict[str, str] = field(default_factory=dict)
    things: dict[Section, dict[str, Declared]] = field(default_factory=lambda: {name: {} for name in SECTIONS})
    problems: list[Problem] = field(default_factory=list)

    def rule_set(self) -> RuleSet:
        return RuleSet(self.owner[0] if self.owner else DEFAULT_OWNER, self.labels, **self.things)

    def add(self, file: str, text: Text) -> None:
        content = {} if text.content is None else text.content
        if not isinstance(content, Mapping):
            self._refuse(Place(file, 1), "", "not_an_object", "a file of rules is an object")
            return
        for key, value in content.items():
            place = Place(file, text.lines.get((key,), 1))
            if key not in _TOP:
                self._refuse(place, key, "unknown_field", f"is no field: {guess(key, ', '.join(_TOP), _TOP)}")
            elif key == "owner":
                self._set_owner(value, place)
            elif key == "labels":
                self._add_labels(value, place)
            elif value is not None:
                self._add_section(key, value, file, text.lines)

    def _refuse(self, place: Place, path: str, word: str, message: str) -> None:
        self.problems.append(Problem(place, path, word, message))

    def _set_owner(self, value: Any, place: Place) -> None:
        if not isinstance(value, str) or not OWNER.fullmatch(value):
            words = "must be at most 63 letters, digits, dots, slashes, dashes and underscores"
            self._refuse(place, "owner", "invalid_value", words)
        elif self.owner is not None and self.owner[0] != value:
            self._refuse(place, "owner", "twice", f"is {self.owner[0]} at {self.owner[1]}; a directory has one owner")
        else:
            self.owner = (value, place)

    def _add_labels(self, value: Any, place: Place) -> None:
        if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
            self._refuse(place, "labels", "invalid_value", "must be an object of texts")
            return
        for key, one in value.items():
            if self.labels.setdefault(key, one) != one:
                self._refuse(place, f"labels.{key}", "twice", f"is {self.labels[key]!r} in another file")

    def _add_section(self, section: Section, value: Any, file: str, lines: Mapping[Keys, int]) -> None:
        if not isinstance(value, Mapping):
            place = Place(file, lines.get((section,), 1))
            self._refuse(place, section, "not_an_object", "must be an object: names, with the fields of each")
            return
        within: dict[str, dict[str, int]] = {name: {} for name in value}
        for keys, line in lines.items():
            if keys[0:1] == (section,) and len(keys) > 2:
                within[str(keys[1])][shown(keys[2:])] = line
        for name, fields in value.items():
            path = f"{section}.{name}"
            place = Place(file, lines.get((section, name), 1))
            if not name.strip() or len(name) > NAME_CHARS_MAX or "\0" in name:
                self._refuse(place, path, "invalid_value", f"a name has 1 to {NAME_CHARS_MAX} characters")
            elif not isinstance(fields, Mapping):
                self._refuse(place, path, "not_an_object", "must be an object of fields")
            elif (first := self.things[section].get(name)) is not None:
                self._refuse(place, path, "twice", f"is there twice, first at {first.place}")
            else:
                one, problems = declared(section, name, fields, place, within[name])
                self.things[section][name] = one
                self.problems += problems


def declared(
    section: Section, name: str, fields: Mapping[str, Any], place: Place, lines: Mapping[str, int]
) -> tuple[Declared, list[Problem]]:
    """One thing with its durations in milliseconds, and what is wrong with it: fields that are none, durations that
    can't be read, and for breakers all that a rule must keep."""
    problems = list[tuple[str, str, str]]()
    known, plain = FIELDS[section], dict[str, Any]()
    for key, value in fields.items():
        full = key if key in known else f"{key}_ms"
        if full not in known:
            problems.append((key, "unknown_field", f"is no field: {guess(key, ', '.join(known), known)}"))
        elif full in plain:
            problems.append((key, "twice", f"{full} is there twice"))
        else:
            read_as = _instant if full in _INSTANTS else _milliseconds
            plain[full] = read_as(value) if full.endswith("_ms") else value
            if full != key and not isinstance(plain[full], int):
                words = "must be a time, such as 2026-12-24T00:00:00Z" if full in _INSTANTS else _DURATIONS
                problems.append((key, "invalid_value", words))
    bare = Declared(section, name, plain, place, lines)
    rule = None
    for path in plain_secrets(fields.get("config")) if section == "channels" else ():
        words = "is secret and does not belong in a file: write {env: NAME} or {file: PATH}"
        problems.append((path, "plain_secret", words))
    if section == "breakers" and not problems:
        try:
            rule = parse_rule(plain)
        except Invalid as error:
            problems += [(path, "invalid_value", message) for path, message in error.details.items()]
    given = set(fields)
    told = [
        Problem(bare.place_of(_written(path, given)), f"{section}.{name}.{path}", word, message)
        for path, word, message in problems
    ]
    return Declared(section, name, plain, place, lines, rule), told


def _instant(value: Any) -> Any:
    """Unix milliseconds of a time in ISO 8601 that says its zone; anything else as it is."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return value
    return value if found is None or found.tzinfo is None else unix_ms(found)


def _written(path: str, given: set[str]) -> str:
    """The path of a field as the file has it, which may have written its duration with a unit."""
    short = path.removesuffix("_ms")
    return short if path not in given and short in given else path


def _milliseconds(value: Any) -> Any:
    found = duration_ms(value) if isinstance(value, str) else None
    return value if found is None else found
