"""`python -m tests.bench <name> [options]`: hands over to the `main` of tests/bench/<name>.py."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    if not argv or argv[0] not in names:
        print(f"usage: python -m tests.bench {{{','.join(names)}}} [options]", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"tests.bench.{argv[0]}").main(argv[1:]) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
