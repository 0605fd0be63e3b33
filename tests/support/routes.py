"""Apps made by the thousand: what werkzeug works out for a route is worked out once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from werkzeug.routing import Rule

_COMPILE = "compile"
_SHARED = ("_parts", "_trace", "_converters")
"""What compiling leaves in a route and nothing changes afterwards."""


def remember_compiled() -> None:
    """Keeps what compiling a route comes to: the parts of its path and the functions that build its URL. It is half of
    what making an app costs, and depends on nothing but the route. Without the method (another werkzeug) all is as it
    was."""
    compile_anew: Callable[..., Any] | None = getattr(Rule, _COMPILE, None)
    if compile_anew is None or hasattr(compile_anew, "known"):
        return
    known: dict[Any, Any] = {}

    def compile_once(rule: Any) -> None:
        key = _key(rule)
        if key not in known:
            compile_anew(rule)
            shared = {name: getattr(rule, name) for name in _SHARED}
            known[key] = (shared, rule._build.__func__, rule._build_unknown.__func__)
            return
        shared, build, build_unknown = known[key]
        vars(rule).update(shared)
        rule.arguments.update(rule._converters)
        rule._build, rule._build_unknown = build.__get__(rule), build_unknown.__get__(rule)

    compile_once.known = known  # type: ignore[attr-defined]
    setattr(Rule, _COMPILE, compile_once)


def _key(rule: Any) -> Any:
    """All that compiling looks at."""
    place = (rule.rule, rule.merge_slashes, rule.map.host_matching, rule.host, rule.subdomain)
    return (*place, frozenset((rule.defaults or {}).items()), frozenset(rule.map.converters.items()))
