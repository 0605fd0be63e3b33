"""Which services of apprise the channel kind takes, read from apprise's own sources.

A service is taken when its plugin sends with `requests` and imports nothing else that reaches out of its process or
writes files. What is not on the list below counts as such. `uv run python -m tests.support.apprise_services` writes
breaker_actors/notify/channels/apprise_services.py anew.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

MODULE = Path(__file__).parents[2] / "breaker_actors/notify/channels/apprise_services.py"
SENDS = "requests"
HARMLESS = frozenset(
    "__future__ base64 binascii calendar collections contextlib contextvars copy cryptography dataclasses datetime"
    " email enum functools gzip hashlib hmac html io itertools json logging math os random re requests"
    " requests_oauthlib secrets string struct threading time typing urllib uuid xml zoneinfo".split()
)
"""Packages that reach nothing by themselves, but for requests, which the child carries, and for files and threads,
whose harm its audit hook and limits bound."""
HARMLESS_HELPERS = frozenset({"is_secure_http_url", "read_bounded_response"})
"""What plugins may take of apprise.utils.http, which has sockets beside these."""
HOSTS = ("{host}", "{hostname}")


class Service(NamedTuple):
    """A plugin: its name, the schemas of its addresses, whether each address has the receiver's host, and what keeps
    it out, which is nothing for those that are taken."""

    name: str
    schemas: tuple[str, ...]
    has_host: bool
    hindrances: tuple[str, ...]


def _imports(file: Path) -> Iterator[tuple[int, str, str]]:
    """Level, module and name of each import; name "" where all of the module is meant."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.level, node.module or "", alias.name) for alias in node.names)


def _files(plugin: type) -> list[Path]:
    """Those of a plugin and of the plugins of apprise that it is derived from, less what all have."""
    found: list[Path] = []
    for base in plugin.__mro__:
        if ".plugins." in base.__module__ and not base.__module__.endswith(".plugins.base"):
            file = Path(inspect.getfile(base))
            found += [file] if file.parent.name == "plugins" else sorted(file.parent.glob("*.py"))
    return list(dict.fromkeys(found))


def _hindrances(files: list[Path]) -> tuple[str, ...]:
    imports = {found for file in files for found in _imports(file)}
    found = {
        module.partition(".")[0]
        for level, module, _ in imports
        if level == 0 and module.partition(".")[0] not in HARMLESS
    }
    found |= {module for level, module, _ in imports if level and module == "utils.socket"}
    found |= {
        f"{module}.{name}"
        for level, module, name in imports
        if level and module == "utils.http" and name not in HARMLESS_HELPERS
    }
    if not any(level == 0 and module == SENDS for level, module, _ in imports):
        found.add(f"no {SENDS}")
    return tuple(sorted(found))


@cache
def services() -> tuple[Service, ...]:
    """All of the installed apprise, by name."""
    from apprise.plugins import N_MGR

    plugins: list[Any] = sorted(N_MGR.plugins(include_disabled=True), key=lambda plugin: plugin.__name__)
    return tuple(
        Service(
            plugin.__name__.removeprefix("Notify"),
            tuple(sorted(plugin.schemas(plugin))),
            all(any(host in template for host in HOSTS) for template in plugin.templates),
            _hindrances(_files(plugin)),
        )
        for plugin in plugins
    )


def table() -> Mapping[str, list[str]]:
    """The schemas by the name of their list in MODULE."""
    taken = [service for service in services() if not service.hindrances]
    return {
        "WITH_HOST": sorted(schema for one in taken if one.has_host for schema in one.schemas),
        "OTHERS": sorted(schema for one in taken if not one.has_host for schema in one.schemas),
        "LEFT_OUT": sorted(schema for one in services() if one.hindrances for schema in one.schemas),
    }


WORDS = {
    "WITH_HOST": "Their addresses name the receiver's host.",
    "OTHERS": "The receiver is the service's own, or what stands for the host may be something else.",
    "LEFT_OUT": "They send otherwise than with requests, or can't be known to.",
}


def source() -> str:
    """The text of MODULE."""
    lines = [
        '"""The schemas of the addresses of apprise; tests/support/apprise_services.py writes this."""\n',
        "from __future__ import annotations\n",
    ]
    for name, schemas in table().items():
        lines.append(f"{name} = frozenset(")
        lines.append('    """')
        lines += textwrap.wrap(" ".join(schemas), 116, initial_indent="    ", subsequent_indent="    ")
        lines.append('    """.split()')
        lines.append(")")
        lines.append(f'"""{WORDS[name]}"""')
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(source())
    else:
        MODULE.write_text(source())
