"""The rooms of the house: what each folder says of itself, and where the classes live that cross a process."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from breaker_actors import errors
from breaker_actors.breaker.host import BreakerHost
from breaker_actors.directory.host import DirectoryHost
from breaker_actors.journal.host import JournalHost
from breaker_actors.notify.notifier import NotifierHost
from breaker_actors.router.host import RouterHost
from breaker_actors.transport import peers, rpc

ROOT = Path(__file__).parents[2]
PACKAGES = ("breaker_actors", "api", "pipelines")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})
CROSSING = {"breaker_actors.messages", "breaker_actors.core.model", "breaker_actors.errors", "breaker_actors.settings"}
HOSTS: dict[type, type] = {
    peers.RouterPeer: RouterHost,
    peers.BreakerPeer: BreakerHost,
    peers.JournalPeer: JournalHost,
    peers.DirectoryPeer: DirectoryHost,
    peers.NotifierPeer: NotifierHost,
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def said(folder: Path) -> tuple[list[str], set[str]]:
    """The sentences of a folder's first paragraph, and the names it calls public."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    first, *rest = re.split(r"\n\s*\n", text)
    public = [paragraph for paragraph in rest if paragraph.startswith("Public: ")]
    assert len(public) == 1, "one paragraph that begins with `Public: `"
    return re.split(r"(?<=\.)\s+", first.strip()), set(re.findall(r"`([^`]+)`", public[0]))


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_each_folder_says_who_lives_there_what_comes_in_and_what_goes_out(folder: Path) -> None:
    sentences, _ = said(folder)
    assert len(sentences) == 3, sentences
    assert [sentence.split()[0] for sentence in sentences[1:]] == ["In:", "Out:"]
    assert all(len(sentence.split()) >= 4 and sentence.endswith(".") for sentence in sentences), sentences


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_each_public_name_is_there(folder: Path) -> None:
    for name in said(folder)[1]:
        module, _, inner = name.partition(".")
        path = folder / f"{module}.py"
        if path.is_file():
            assert not inner or inner in names_in(path), name
        elif not (folder / module).is_dir():
            assert module in names_in(folder / "__init__.py"), name


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_others_import_only_what_a_folder_calls_public(folder: Path) -> None:
    public = said(folder)[1]
    used = {
        (importer, module, name)
        for importer in FILES
        if folder not in importer.parents
        for module, name in imports_from(importer, folder)
    }
    assert {use for use in used if not {use[1], ".".join(use[1:]).strip(".")} & public} == set()


def names_in(path: Path) -> set[str]:
    """Everything a module has at its top."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def imports_from(importer: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Module (or name of the folder itself) and name of each import that leads directly into a folder."""
    inside = ".".join(folder.relative_to(ROOT).parts)
    for module, names in imports_of(importer):
        for name in names:
            if module == inside:
                yield name, ""
            elif module.startswith(f"{inside}.") and (folder / f"{module[len(inside) + 1 :]}.py").is_file():
                yield module[len(inside) + 1 :], name


@functools.cache
def imports_of(path: Path) -> list[tuple[str, list[str]]]:
    """Each import of names from a module, anywhere in a file."""
    return [
        (node.module, [alias.name for alias in node.names])
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None
    ]


def calls(peer: type) -> dict[str, Callable[..., Any]]:
    """The methods of a peer that call another process, by the name of the method there."""
    found = {}
    for method in vars(peer).values():
        if inspect.isfunction(method) and method.__name__ != "__init__":
            found |= {
                name: method for name in re.findall(r'net\.call\(\s*self\.name, "(\w+)"', inspect.getsource(method))
            }
    return found


def own_classes(hint: Any, seen: set[Any]) -> Iterator[type]:
    """Every class of this program in a type hint, and in the fields of those."""
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        if hint in seen or hint.__module__.split(".")[0] not in PACKAGES:
            return
        seen.add(hint)
        yield hint
        for inner in typing.get_type_hints(hint).values():
            yield from own_classes(inner, seen)
    for inner in typing.get_args(hint):
        if not isinstance(inner, str):
            yield from own_classes(inner, seen)


def crossing(method: Callable[..., Any]) -> set[type]:
    hints = typing.get_type_hints(method)
    return {kind for hint in hints.values() for kind in own_classes(hint, set())}


REMOTE = [
    *((peer.__name__, name, method) for peer in HOSTS for name, method in calls(peer).items()),
    *((host.__name__, name, getattr(host, name)) for peer, host in HOSTS.items() for name in calls(peer)),
    ("Net", "process", peers.Net.process),
    ("Net", "topology", peers.Net.topology),
    ("Wires", "find", rpc.Wires.__init__),
]


@pytest.mark.parametrize(("owner", "name", "method"), REMOTE, ids=[f"{owner}.{name}" for owner, name, _ in REMOTE])
def test_what_crosses_a_process_lives_in_four_modules(owner: str, name: str, method: Callable[..., Any]) -> None:
    """Values are pickled by module path: a class that moves can't be read by the release before."""
    assert {
        f"{kind.__module__}.{kind.__name__}" for kind in crossing(method) if kind.__module__ not in CROSSING
    } == set()


def test_every_peer_is_looked_at() -> None:
    declared = {kind for kind in vars(peers).values() if isinstance(kind, type) and issubclass(kind, peers._Peer)}
    assert declared - {peers._Peer} == set(HOSTS)
    methods = [m for peer in HOSTS for m in vars(peer).values() if inspect.isfunction(m) and m.__name__ != "__init__"]
    asking = {method for peer in HOSTS for method in calls(peer).values()}
    assert {method.__qualname__ for method in methods if method not in asking} == {"DirectoryPeer.report_asides"}


def test_the_walk_finds_what_does_not_belong() -> None:
    """The rule above sees through containers, unions and fields."""

    async def method(found: list[tuple[str, rpc.Wires | None]]) -> dict[str, peers.RouterPeer]: ...

    method.__annotations__ = {"found": list[tuple[str, rpc.Wires | None]], "return": dict[str, peers.RouterPeer]}
    assert {rpc.Wires, peers.RouterPeer} <= crossing(method)


def test_errors_that_cross_are_ours() -> None:
    """What an actor raises passes between processes as it is; a subclass elsewhere could not be read there."""
    own = [name for name, kind in vars(errors).items() if getattr(kind, "__module__", "") == errors.__name__]
    derived = re.compile(rf"^class \w+\(.*\b({'|'.join(own)})\b.*\):", re.MULTILINE)
    found = {path.name for path in (ROOT / "breaker_actors").rglob("*.py") if derived.search(path.read_text())}
    assert found == {"errors.py"}
