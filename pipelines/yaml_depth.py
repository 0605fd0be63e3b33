"""How deep YAML may be, for whoever reads any. PyYAML has to be installed."""

from __future__ import annotations

import importlib
from typing import Any

DEPTH_MAX = 100
"""Lists and objects within each other. libyaml composes them by recursion in C, which has no end of its own but that of
the stack, and its time grows with the square of the depth."""
yaml: Any = importlib.import_module("yaml")
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""With libyaml where it is there."""


def check_depth(text: str) -> None:
    """Raises RecursionError as soon as too much is within each other, YAMLError where the text is none before that."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_MAX:
            raise RecursionError(f"line {event.start_mark.line + 1} is more than {DEPTH_MAX} levels deep")
