"""The program of the workers on a single node: Ray's own, once Python is ready to import quickly
(api/launch/quick_imports.py). On a cluster workers are Ray's alone: those of other jobs may want what is left out.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    # Python looks for modules beside a program first. None of this folder is to take the place of another one.
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]
    import runpy

    from api.launch import quick_imports

    quick_imports.begin()
    runpy.run_module("ray._private.workers.default_worker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
