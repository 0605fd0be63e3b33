"""The house rules that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("breaker_actors", "api", "pipelines")
LINES_MAX, METHODS_MAX, IMPORTS_MAX = 60, 25, 15


def test_every_package_of_ours_has_a_docstring_that_says_its_role() -> None:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            assert not text.strip() or text.lstrip().startswith('"""'), path


def test_only_three_files_import_ray_in_breaker_actors() -> None:
    importers = {
        path.name
        for path in (ROOT / "breaker_actors").rglob("*.py")
        if re.search(r"^\s*(import|from) ray\b", path.read_text(), re.MULTILINE)
    }
    assert importers == {"actors.py", "rollout.py", "ray_export.py"}


def too_large(name: str, text: str) -> Iterator[str]:
    """Names a module that imports more than IMPORTS_MAX modules of the project, and what is too long in it."""
    tree = ast.parse(text)
    if len(imported(tree.body)) > IMPORTS_MAX:
        yield f"{name} imports"
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            if sum(isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) for inner in node.body) > METHODS_MAX:
                yield f"{name} {node.name}"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno + 1 > LINES_MAX:
                yield f"{name} {node.name}"


def imported(body: list[ast.stmt]) -> set[str]:
    """Modules of the project that are imported when a module is, or for its types."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] in PACKAGES:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES}
        elif isinstance(node, ast.If):
            found |= imported(node.body)
    return found


def test_functions_classes_and_imports_stay_small() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files if "versions" not in path.parts}
    assert {found for name, text in texts.items() for found in too_large(name, text)} == set()


def test_the_rule_sees_what_is_too_large() -> None:
    methods = "\n".join(f"    def m{n}(self): ..." for n in range(METHODS_MAX + 1))
    lines = "\n".join("    pass" for _ in range(LINES_MAX))
    imports = "\n".join(f"    from api.m{n} import x" for n in range(IMPORTS_MAX + 1))
    large = f"if TYPE_CHECKING:\n{imports}\nclass C:\n{methods}\ndef f():\n{lines}\n"
    assert list(too_large("large.py", large)) == ["large.py imports", "large.py C", "large.py f"]
