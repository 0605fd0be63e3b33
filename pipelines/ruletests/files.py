"""Reads test files: `*.test.yaml`, with the rules they name. Every problem is told with file, line and a word.

rules: [checkout.yaml]          # files or folders, as seen from here; or `breakers:` as in a file of rules;
interval: 1s                    # without either, the rules of this folder
tests:
  - name: opens when a third of the calls fail
    breaker: checkout-errors    # or a list of them; may be left out where there is only one
    samples: "ok x30 (ok fail)x60 _x30"
    expect:
      - 1m closed -> open
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from breaker_actors.errors import Invalid
from pipelines.candidates import guess
from pipelines.rules.files import TESTS, content_of, declared, read
from pipelines.rules.model import Declared, Place, Problem, RuleSet, refused
from pipelines.rules.yaml_text import Keys, Text, parse, shown
from pipelines.ruletests import parts
from pipelines.ruletests.arrivals import NOTHING, Arrivals, check_rows, merged
from pipelines.ruletests.cases import Case, Happening, course
from pipelines.ruletests.expectations import Expected, expected
from pipelines.ruletests.times import DEFAULT_START_MS, instant_ms, span_ms, time_ms

T = TypeVar("T")
TOP = ("rules", "breakers", "start", "interval", "tolerance", "tests")
FIELDS = (
    "name", "breaker", "start", "until", "interval", "tolerance", "begin", "samples", "meanwhile", "expect",
)  # fmt: skip
FILES_MAX = 10_000
DEFAULTS = {"interval": "1s", "tolerance": 0}


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of some files, and all breakers they could have tested."""

    cases: tuple[Case, ...]
    breakers: tuple[Declared, ...]


def read_tests(paths: Iterable[str | Path] | str | Path) -> Suite:
    """The tests of files and of folders with all `*.test.yaml` below them. Raises Invalid with every problem."""
    reading = _Reading()
    for path in test_files([Path(paths)] if isinstance(paths, str | Path) else map(Path, paths)):
        try:
            _FileReader(reading, path, parse(str(path), content_of(path))).read()
        except Invalid as error:
            reading.problems += list(told_in(error, Place(str(path), 1), ""))
    if reading.problems:
        raise refused(reading.problems)
    if not reading.cases:
        raise Invalid("there is no test in these files")
    return Suite(tuple(reading.cases), tuple(reading.breakers.values()))


def test_files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and those below folders. Raises Invalid for a path that is none."""
    found = dict[Path, None]()
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.name.endswith(TESTS) and not _is_hidden(one, path))
            if not inside:
                raise Invalid(f"{path}: no *.test.yaml lies in this folder")
            found |= dict.fromkeys(inside)
        elif path.is_file():
            found[path] = None
        else:
            raise refused([Problem(Place(str(path), 1), "", "unreadable", "there is no such file or folder")])
    if len(found) > FILES_MAX:
        raise Invalid(f"there are more than {FILES_MAX} files of tests")
    return list(found)


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def told_in(error: Invalid, place: Place, path: str) -> Iterator[Problem]:
    """The problems of an error, or the error as one at a place."""
    for one in error.details.get("problems") or ():
        yield Problem(Place(one["file"], one["line"]), one["path"], one["word"], one["message"])
    if not error.details.get("problems"):
        message = "; ".join(f"{name} {problem}" for name, problem in error.details.items()) or str(error)
        yield Problem(place, path, "invalid_value", message)


@dataclass(slots=True)
class _Reading:
    """What was read so far, of all files. Rules and samples that several tests name are read once."""

    cases: list[Case] = field(default_factory=list)
    breakers: dict[tuple[str, int, str], Declared] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    samples: parts.Cache = field(default_factory=dict)
    rows: int = 0
    _rules: dict[tuple[Path, ...], RuleSet] = field(default_factory=dict)

    def rules(self, paths: tuple[Path, ...]) -> RuleSet:
        if paths not in self._rules:
            self._rules[paths] = read(paths)
        return self._rules[paths]


class _FileReader:
    """One file of tests."""

    def __init__(self, reading: _Reading, path: Path, text: Text) -> None:
        self._reading, self._path = reading, path
        self._lines = {shown(keys): line for keys, line in text.lines.items()}
        self._inline = _by_breaker(text.lines)
        self._top = text.content
        self._breakers: dict[str, Declared] = {}

    def read(self) -> None:
        top = self._top
        if not isinstance(top, Mapping):
            self._refuse("", "not_an_object", "a file of tests is an object with tests")
            return
        if not self._check_fields(top, "", TOP):
            return
        self._attempt("rules", self._read_rules)
        tests = top.get("tests")
        if not isinstance(tests, list) or not tests:
            self._refuse("tests", "invalid_value", "must be a list of tests")
            return
        names = dict[str, str]()
        for number, fields in enumerate(tests):
            path = f"tests[{number}]"
            if not isinstance(fields, Mapping):
                self._refuse(path, "not_an_object", "a test is an object")
            elif self._check_fields(fields, path, FIELDS):
                self._add(path, fields, names)

    def _add(self, path: str, fields: Mapping[str, Any], names: dict[str, str]) -> None:
        name = fields.get("name")
        if not isinstance(name, str) or not name.strip():
            self._refuse(f"{path}.name", "invalid_value", "a test has a name")
            return
        if name in names:
            self._refuse(f"{path}.name", "twice", f"is there twice, first at {self._place(names[name])}")
            return
        names[name] = f"{path}.name"
        before = len(self._reading.problems)
        case = _CaseReader(self, path, fields).case(name)
        if case is not None and len(self._reading.problems) == before:
            self._reading.cases.append(case)

    def _read_rules(self) -> None:
        given, inline = self._top.get("rules"), self._top.get("breakers")
        if given is None and inline is None:
            given = "."
        listed = [given] if isinstance(given, str) else given or []
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise Invalid("must be a path or a list of paths")
        if listed:
            found = self._reading.rules(tuple((self._path.parent / one).resolve() for one in listed))
            self._breakers |= found.breakers
        for name, fields in (inline or {}).items() if isinstance(inline, Mapping | None) else ():
            self._add_inline(name, fields)
        if not self._breakers and not self._reading.problems:
            raise Invalid("no breaker is declared there")
        for one in self._breakers.values():
            self._reading.breakers[one.place.file, one.place.line, one.name] = one

    def _add_inline(self, name: str, fields: Any) -> None:
        path = f"breakers.{name}"
        if not isinstance(fields, Mapping):
            self._refuse(path, "not_an_object", "must be an object of fields")
        elif name in self._breakers:
            self._refuse(path, "twice", f"is there twice, first at {self._breakers[name].place}")
        else:
            one, problems = declared("breakers", name, fields, self._place(path), self._inline.get(name, {}))
            self._breakers[name] = one
            self._reading.problems += problems

    # -- what tests ask of their file ---------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        return self._path.parent

    @property
    def cache(self) -> parts.Cache:
        """Samples of files that were read."""
        return self._reading.samples

    @property
    def problems(self) -> int:
        """How many there are so far, in all files."""
        return len(self._reading.problems)

    def default(self, name: str) -> Any:
        return self._top.get(name, DEFAULTS.get(name))

    def breaker(self, name: Any) -> Declared:
        if name is None and len(self._breakers) == 1:
            return next(iter(self._breakers.values()))
        if not isinstance(name, str) or name not in self._breakers:
            there = ", ".join(list(self._breakers)[:10])
            raise Invalid(f"there is no breaker {name!r}; {guess(str(name), there, list(self._breakers))}")
        return self._breakers[name]

    def line(self, path: str) -> int:
        return self._lines.get(path, 1)

    def _place(self, path: str) -> Place:
        return Place(str(self._path), self.line(path))

    def place(self, path: str) -> Place:
        while path not in self._lines and "." in path:
            path = path.rpartition(".")[0]
        return self._place(path)

    def _refuse(self, path: str, word: str, message: str) -> None:
        self._reading.problems.append(Problem(self.place(path), path, word, message))

    def _check_fields(self, fields: Mapping[str, Any], path: str, known: Sequence[str]) -> bool:
        """Whether all fields are known."""
        strange = [name for name in fields if name not in known]
        for name in strange:
            inner = f"{path}.{name}" if path else name
            self._refuse(inner, "unknown_field", f"is no field: {guess(name, ', '.join(known), known)}")
        return not strange

    def _attempt(self, path: str, read_it: Callable[[], T]) -> T | None:
        return self.attempt(path, read_it)

    def attempt(self, path: str, read_it: Callable[[], T], line: int | None = None) -> T | None:
        """What `read_it` gives, or None and a problem at the path."""
        place = self.place(path) if line is None else Place(str(self._path), line)
        try:
            return read_it()
        except Invalid as error:
            self._reading.problems += told_in(error, place, path)
            return None

    def count_rows(self, arrivals: Arrivals) -> None:
        self._reading.rows += len(arrivals)
        check_rows(self._reading.rows)


class _CaseReader:
    """One test of a file."""

    def __init__(self, file: _FileReader, path: str, fields: Mapping[str, Any]) -> None:
        self._file, self._at, self._fields = file, path, fields

    def case(self, name: str) -> Case | None:
        """None where something is wrong; what that is was noted."""
        before = self._file.problems
        breakers = self._take("breaker", self._breakers) or ()
        interval_ms = self._take("interval", lambda: _positive(span_ms(self._get("interval")))) or 1000
        within_ms = self._take("tolerance", lambda: span_ms(self._get("tolerance"))) or 0
        start_ms = self._take("samples" if self._get("start") is None else "start", self._start)
        if self._file.problems > before or start_ms is None:
            return None
        arrivals = self._take("samples", lambda: self._samples(start_ms, interval_ms)) or NOTHING
        happenings = self._take("meanwhile", lambda: parts.happenings(self._fields.get("meanwhile"), start_ms)) or ()
        begin = self._take("begin", lambda: parts.begin(self._fields.get("begin"), start_ms))
        until_ms = self._take("until", lambda: self._until(start_ms))
        expect = self._expect(breakers, start_ms, until_ms, within_ms)
        if self._file.problems > before:
            return None
        end_ms = until_ms if until_ms is not None else _end(start_ms, arrivals, happenings, expect)
        if until_ms is None:
            expect = self._expect(breakers, start_ms, end_ms, within_ms)
        dated = self._get("start") is not None
        place = self._file.place(self._at)
        made = Case(name, place, breakers, start_ms, end_ms, dated, begin, arrivals, happenings, expect)
        self._take("meanwhile", lambda: [course(made, one.rule) for one in breakers if one.rule is not None])
        self._take("samples", lambda: self._file.count_rows(arrivals))
        return made

    def _get(self, name: str) -> Any:
        return self._fields.get(name, self._file.default(name))

    def _take(self, name: str, read_it: Callable[[], T]) -> T | None:
        return self._file.attempt(f"{self._at}.{name}", read_it)

    def _breakers(self) -> tuple[Declared, ...]:
        given = self._fields.get("breaker")
        named = given if isinstance(given, list) else [given]
        found = tuple({one.name: one for one in map(self._file.breaker, named)}.values())
        if not found:
            raise Invalid("name a breaker, or a list of them")
        return found

    def _start(self) -> int:
        given = self._get("start")
        if given is not None:
            return instant_ms(given)
        first = [parts.first_ms(one, self._file.folder, self._file.cache) for one in parts.listed(self._fields)]
        return min((ms for ms in first if ms is not None), default=DEFAULT_START_MS)

    def _samples(self, start_ms: int, interval_ms: int) -> Arrivals:
        if "samples" not in self._fields:
            raise Invalid('a test has samples: "ok x30 fail x10", or a file')
        context = parts.Context(self._file.folder, self._file.cache, start_ms, interval_ms)
        return merged([parts.arrivals(one, context) for one in parts.listed(self._fields)])

    def _until(self, start_ms: int) -> int | None:
        given = self._fields.get("until")
        until_ms = None if given is None else time_ms(given, start_ms)
        if until_ms is not None and until_ms < start_ms:
            raise Invalid("a test ends after its start")
        return until_ms

    def _expect(
        self, breakers: Sequence[Declared], start_ms: int, end_ms: int | None, within_ms: int
    ) -> dict[str, tuple[Expected, ...]]:
        """The lines by breaker: the same for all, or an object with those of each."""
        path, given = f"{self._at}.expect", self._fields.get("expect")
        if "expect" not in self._fields:
            self._take("expect", lambda: _fail("a test expects something: lines, or [] for no move at all"))
        by_name = given if isinstance(given, Mapping) else {one.name: given for one in breakers}
        found = dict[str, tuple[Expected, ...]]()
        for name, lines in by_name.items():
            inner = f"{path}.{name}" if isinstance(given, Mapping) else path
            numbered = self._file.attempt(inner, lambda lines=lines, at=inner: self._numbered(lines, at)) or []  # type: ignore[misc]
            read_all = [
                self._file.attempt(inner, lambda t=text, n=line: expected(t, start_ms, end_ms, within_ms, n), line)  # type: ignore[misc]
                for line, text in numbered
            ]
            ordered = sorted(filter(None, read_all), key=lambda one: one.at_ms)
            found[name] = tuple(ordered)
        named = {one.name for one in breakers}
        if strange := sorted(found.keys() ^ named):
            self._take("expect", lambda: _fail(f"names {', '.join(strange)}; the test has {', '.join(sorted(named))}"))
        return found

    def _numbered(self, lines: Any, path: str) -> list[tuple[int, str]]:
        """Lines of text or of a list with their numbers in the file."""
        if lines is None:
            return []
        if isinstance(lines, str):
            first = self._file.line(path) + ("\n" in lines)
            split = ((first + i, line.partition("#")[0].strip()) for i, line in enumerate(lines.splitlines()))
            return [(number, line) for number, line in split if line]
        if not isinstance(lines, list) or not all(isinstance(one, str) for one in lines):
            raise Invalid("must be lines: text, or a list of texts")
        return [(self._file.line(f"{path}[{i}]"), line) for i, line in enumerate(lines)]


def _by_breaker(lines: Mapping[Keys, int]) -> dict[str | int, dict[str, int]]:
    """Where the fields of each breaker stand that the file declares itself."""
    found = dict[str | int, dict[str, int]]()
    for keys, line in lines.items():
        if len(keys) > 2 and keys[0] == "breakers":
            found.setdefault(keys[1], {})[shown(keys[2:])] = line
    return found


def _positive(ms: int) -> int:
    if ms < 1:
        raise Invalid("must be 1 ms at least")
    return ms


def _fail(message: str) -> None:
    raise Invalid(message)


def _end(
    start_ms: int, arrivals: Arrivals, happenings: Sequence[Happening], expect: Mapping[str, Sequence[Expected]]
) -> int:
    """When a test ends that does not say: with the last thing that comes or is expected."""
    lines = (one.at_ms + one.within_ms for those in expect.values() for one in those)
    last = [int(arrivals.at[-1])] if len(arrivals) else []
    return max([start_ms, *last, *(one.at_ms for one in happenings), *lines])
