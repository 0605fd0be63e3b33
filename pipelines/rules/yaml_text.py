"""YAML with the line of each value, read by the core schema of YAML 1.2: `no` and `22:30` are texts, not false and
1350; a key that is there twice is a problem."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any

from pipelines.rules.model import Place, Problem, refused
from pipelines.yaml_depth import LOADER, check_depth

NODES_MAX = 1_000_000
"""Values of one file, an alias counted as often as it is used."""
Keys = tuple[str | int, ...]
yaml: Any = importlib.import_module("yaml")


class _Loader(LOADER):  # type: ignore[misc]
    yaml_implicit_resolvers: dict[str | None, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("merge", "<<", "<"),
)


def add_scalars(kind: Any) -> None:
    """To a loader or dumper: which plain words are no texts."""
    for tag, pattern, first in _SCALARS:
        kind.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"\A(?:{pattern})\Z"), list(first))


add_scalars(_Loader)


@dataclass(frozen=True, slots=True)
class Text:
    """A file's content as plain values. `lines`: where each stands, by the keys and numbers that lead to it."""

    content: Any
    lines: dict[Keys, int]


def parse(file: str, text: str) -> Text:
    """The only document of a file; None for an empty one. Raises Invalid."""
    loader = _Loader(text)
    try:
        check_depth(text)
        node = loader.get_single_node()
        walk = _Walk(file, loader)
        content = None if node is None else walk.value(node, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = Place(file, 1 if mark is None else mark.line + 1)
        raise refused(
            [Problem(place, "", "not_yaml", f"not YAML: {getattr(error, 'problem', None) or error}")]
        ) from None
    except (ValueError, RecursionError) as error:
        raise refused([Problem(Place(file, 1), "", "not_yaml", f"not YAML: {error}")]) from None
    finally:
        loader.dispose()
    if walk.problems:
        raise refused(walk.problems)
    return Text(content, walk.lines)


def shown(path: Keys) -> str:
    """`breakers.a.windows[0]` for the keys and numbers of a path."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


class _Walk:
    def __init__(self, file: str, loader: Any) -> None:
        self._file, self._loader = file, loader
        self._count = 0
        self.lines: dict[Keys, int] = {}
        self.problems: list[Problem] = []

    def value(self, node: Any, path: Keys) -> Any:
        self._count += 1
        if self._count > NODES_MAX:
            raise ValueError(f"more than {NODES_MAX} values")
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, n)) for n, item in enumerate(node.value)]
        if node.tag == "tag:yaml.org,2002:int":
            return int(node.value)
        try:
            return self._loader.construct_object(node, deep=True)
        except (AttributeError, LookupError):  # a tag says what the text is not
            words = f"is not what its tag {node.tag.removeprefix('tag:yaml.org,2002:')} says"
            place = Place(self._file, node.start_mark.line + 1)
            self.problems.append(Problem(place, shown(path), "not_yaml", words))
            return None

    def _mapping(self, node: Any, path: Keys) -> dict[str, Any]:
        own, merges = dict[str, Any](), list[dict[str, Any]]()
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                of = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for one in of:
                    found = self.value(one, path)
                    merges.append(found if isinstance(found, dict) else {})
                continue
            place = Place(self._file, key_node.start_mark.line + 1)
            key = key_node.value
            if not isinstance(key, str):
                self.problems.append(Problem(place, shown(path), "not_yaml", "a key must be a text"))
                continue
            inner = (*path, key)
            if key in own:
                first = Place(self._file, self.lines[inner])
                self.problems.append(Problem(place, shown(inner), "twice", f"is there twice, first at {first}"))
                continue
            self.lines[inner] = place.line
            own[key] = self.value(value_node, inner)
        merged = dict[str, Any]()
        for one in reversed(merges):  # the first one that has a key says what it is
            merged.update(one)
        return {**merged, **own}
