"""Apps made by the hundred: what werkzeug writes for a route is written once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from werkzeug.routing import Rule

_BUILDER = "_compile_builder"


def remember_builders() -> None:
    """Keeps the functions that build a route's URL. For each of the 50 routes of each app werkzeug compiles two, which
    is 50 ms per app; they depend on nothing but the route. Without the method (another werkzeug) all is as it was."""
    write: Callable[..., Any] | None = getattr(Rule, _BUILDER, None)
    if write is None or hasattr(write, "known"):
        return
    known: dict[Any, Any] = {}

    def remembered(rule: Any, append_unknown: bool = True) -> Any:
        defaults = tuple(sorted((rule.defaults or {}).items()))
        key = (tuple(rule._trace), defaults, append_unknown)
        if key not in known:
            known[key] = write(rule, append_unknown)
        return known[key]

    remembered.known = known  # type: ignore[attr-defined]
    setattr(Rule, _BUILDER, remembered)
