"""What workers do without while they start: modules that nothing in them uses, and most looks for garbage."""

from __future__ import annotations

import contextlib
import gc
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from api.launch import quick_imports, worker

BEGUN = """
import gc, json, sys, time
from api.launch import quick_imports
usual = gc.get_threshold()
quick_imports.IMPORTING_S = 0.2
quick_imports.begin()
assert gc.get_threshold() == (quick_imports.YOUNG_MAX, *usual[1:])
gc.set_threshold(gc.get_threshold()[0], 20, 30)  # what others want of older objects stays
time.sleep(0.6)
assert gc.get_threshold() == (usual[0], 20, 30)
{imports}
print(json.dumps(sorted(name for name in ("pandas", "pyarrow", "rich") if sys.modules.get(name))))
"""


@pytest.mark.parametrize(
    "imports", ["import ray.serve._private.replica, ray.serve._private.controller, httpx", "import structlog, api.app"]
)
def test_workers_import_nothing_that_they_do_not_use(imports: str) -> None:
    """Serve, httpx and structlog go on without what they take if it is there."""
    run = subprocess.run([sys.executable, "-c", BEGUN.format(imports=imports)], capture_output=True, text=True)
    assert (run.stdout.split(), run.stderr) == (["[]"], "")


def test_what_was_imported_before_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_imports, "UNUSED", ("json", "brk_nothing"))
    monkeypatch.setattr(quick_imports.threading, "Timer", lambda *_: Later())
    usual = gc.get_threshold()
    try:
        quick_imports.begin()
        assert sys.modules["json"] is not None
        with pytest.raises(ImportError):
            __import__("brk_nothing")
    finally:
        gc.set_threshold(*usual)
        del sys.modules["brk_nothing"]


class Later:
    daemon = False

    def start(self) -> None:
        assert self.daemon  # the end of a worker does not wait for it


def test_a_module_is_absent_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with pytest.raises(ImportError), quick_imports.absent("this"):
        import this  # noqa: F401
    assert "this" not in sys.modules
    json = sys.modules["json"]
    with quick_imports.absent("json"):
        assert sys.modules["json"] is json
    assert sys.modules["json"] is json


def test_garbage_is_collected_again_after_all() -> None:
    with contextlib.suppress(ZeroDivisionError), quick_imports.uncollected():
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()
    gc.disable()
    try:
        with quick_imports.uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_worker_is_rays_own_program_and_finds_no_modules_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    folder = str(Path(worker.__file__).parent)
    monkeypatch.setattr(sys, "path", [folder, *sys.path])
    monkeypatch.setattr(quick_imports, "begin", lambda: done.append("begin"))
    monkeypatch.setattr(runpy, "run_module", lambda name, **options: done.append((name, options)))
    worker.main()
    assert folder not in sys.path
    program = "ray._private.workers.default_worker"
    assert done == ["begin", (program, {"run_name": "__main__", "alter_sys": True})]


def test_it_takes_what_rays_takes() -> None:
    run = subprocess.run([sys.executable, worker.__file__, "--help"], capture_output=True, text=True)
    assert run.returncode == 0
    assert "--raylet-name" in run.stdout
