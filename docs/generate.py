"""Makes pages of `docs/reference`, and pictures of other pages, from the code: `uv run python docs/generate.py`.

`tests/unit/test_docs.py` fails while a page differs from what is made here.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REFERENCE = "docs/reference"
HOUR, MINUTE, SECOND = 3_600_000, 60_000, 1_000
PLACE = re.compile(r"<!-- made by docs/generate.py: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
MADE = "Made by `docs/generate.py` from {source}: edit that."
KEYS = {
    "user_key": "user",
    "admin_key": "admin",
    "project_key": "project",
    "reader_key": "reader",
    "ingest_token": "ingest token",
    "ingest_password": "ingest token",
    "signature": "signature",
    "health_token": "health token",
    "metrics_token": "metrics token",
}


def settings_page() -> str:
    """Every environment variable, its default and meaning."""
    from breaker_actors.settings import SECRET_BYTES_MAX, Settings, client_table

    head = "Environment variables; an unknown `BREAKERS_*` name is an error at the start. See also [limits](limits.md)."
    files = (
        "A file may hold each secret: `BREAKERS_DATABASE_URL_FILE=/run/secrets/database-url` in place of"
        " `BREAKERS_DATABASE_URL`, and so on. What counts is its one line of UTF-8 text without the line end, at most"
        f" {in_bytes(SECRET_BYTES_MAX)}; it is read once, at the start. Both set, or a file that can't be read, is an"
        " error."
    )
    clients = "Commands that speak to a running service (`list`, `get`, `watch`...) also read these; options go first."
    made = MADE.format(source="`breaker_actors/settings.py`")
    return page("Settings", head, files, made, Settings.table(), "## Variables of clients", clients, client_table())


def metrics_page() -> str:
    """Every metric, by the name Prometheus sees."""
    from breaker_actors.telemetry.catalog import reference_table

    head = "How to scrape them, and how histograms are exported: [metrics and logs](../operations/observability.md)."
    return page("Metrics", head, MADE.format(source="`breaker_actors/telemetry/catalog.py`"), reference_table())


def limits_page() -> str:
    """`limits.tmpl` with the figures of settings and constants."""
    return re.sub(r"\{\{(.+?)\}\}", lambda m: figure(m[1]), (ROOT / REFERENCE / "limits.tmpl").read_text())


def figure(name: str) -> str:
    """The default of a setting, or the constant `module:NAME`, with its unit."""
    if ":" in name:
        module, _, constant = name.partition(":")
        return str(getattr(import_module(module), constant))
    from breaker_actors.settings import Settings

    value = Settings.model_fields[name].default
    if not value and name.startswith("rate_"):
        return "none"
    return in_bytes(value) if "_bytes" in name else in_time(value) if name.endswith("_ms") else str(value)


def in_bytes(value: int) -> str:
    """In the largest binary unit that divides it."""
    units = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
    return next((f"{value // size} {unit}" for size, unit in units if value % size == 0), f"{value} bytes")


def in_time(value: int) -> str:
    """In the largest unit that divides it."""
    units = ((HOUR, "h"), (MINUTE, "min"), (SECOND, "s"))
    return next((f"{value // size} {unit}" for size, unit in units if value % size == 0), f"{value} ms")


def cli_page() -> str:
    """Every command with its arguments and options."""
    from typer.main import get_command

    from api.cli.main import app

    command: Any = get_command(app)
    head = (
        "All of `breakers`. Settings count for every command; `--data-dir` names the directory of the service. Lists"
        " are tables on a terminal, elsewhere lines of cells with tabs between them; `breakers --no-headers COMMAND`"
        " leaves their titles out, for scripts."
    )
    return page("Commands", head, MADE.format(source="`api/cli`"), "\n\n".join(commands(command, "breakers")))


def commands(command: Any, name: str) -> Iterator[str]:
    """The section of each command below `command`, in alphabetical order."""
    if hasattr(command, "commands"):
        for child in sorted(command.commands):
            yield from commands(command.commands[child], f"{name} {child}")
        return
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([name, *(p.metavar or p.name.upper() for p in arguments), "[OPTIONS]"])
    lines = [f"## {name}", "", " ".join(command.help.split()), "", f"    {usage}"]
    rows = [f"| {spelling(p)} | {default(p)} | {cell(p.help)} |" for p in command.params]
    if rows:
        lines += ["", "| argument or option | default | what it does |", "|---|---|---|", *rows]
    yield "\n".join(lines)


def spelling(parameter: Any) -> str:
    """As it is typed."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return ", ".join(f"`{word}`" for word in [*parameter.opts, *parameter.secondary_opts])


def default(parameter: Any) -> str:
    """Its default; "required", or nothing."""
    if parameter.required:
        return "required"
    value = parameter.default
    return f"`{value}`" if isinstance(value, int | float | str) and value not in (False, "") else ""


def cell(text: str | None) -> str:
    """As it may stand in a table."""
    return " ".join((text or "").split()).replace("|", "\\|")


def api_page() -> str:
    """Every operation of the HTTP interface: path, who may call it, what it answers."""
    from api.openapi.document import document

    head = (
        "All operations. Fields, types and examples: `/docs` of a running service (needs no internet access),"
        " `/openapi.json`, or `uv run breakers openapi`. Keys: [semantics](../semantics.md#10-keys-errors-health)."
    )
    tables: dict[str, list[str]] = {}
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            keys = ", ".join(dict.fromkeys(KEYS[k] for way in operation["security"] for k in way)) or "none"
            optional = " (optional)" if {} in operation["security"] and keys != "none" else ""
            statuses = " ".join(operation["responses"])
            row = f"| {method.upper()} | `{path}` | {cell(operation['summary'])} | {keys}{optional} | {statuses} |"
            tables.setdefault(operation["tags"][0], []).append(row)
    titles = ("| method | path | what | keys | statuses |", "|---|---|---|---|---|")
    body = "\n\n".join("\n".join((f"## {tag}", "", *titles, *rows)) for tag, rows in tables.items())
    return page("Operations of the API", head, MADE.format(source="`api/openapi`"), body)


def page(title: str, *paragraphs: str) -> str:
    """A page of these paragraphs."""
    return "\n\n".join((f"# {title}", *paragraphs)) + "\n"


def layers() -> str:
    """The floors of the import contracts as one picture."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    floors = [c for c in contracts if c["type"] == "layers"]
    lines = ["flowchart TB"]
    for contract in (c for c in floors if "containers" in c):
        (package,) = contract["containers"]
        rows = ["&emsp;".join(re.split(r"[ |:()]+", row.strip("()"))) for row in contract["layers"]]
        names = [f"{package}_{number}" for number in range(len(rows))]
        lines.append(f"    subgraph {package}")
        lines += [f'        {name}["{row}"]' for name, row in zip(names, rows, strict=True)]
        lines += [f"        {' --> '.join(names)}", "    end"]
    (packages,) = (c["layers"] for c in floors if "containers" not in c)
    lines += [f"    {above} ==> {below}" for above, below in itertools.pairwise(packages)]
    return mermaid(lines)


def states() -> str:
    """The moves of a breaker, from the table of transitions."""
    from breaker_actors.core.moves import TRANSITIONS

    causes = {"closed": "breach", "half_open": "breach, or fail"}
    moves = [f"    {prev} --> {curr}: {reason or causes[prev]}" for (prev, curr), reason in TRANSITIONS.items()]
    return mermaid(["stateDiagram-v2", "    [*] --> closed", *moves])


def fields() -> str:
    """Every field of a rule: unit, default, bounds and meaning."""
    from breaker_actors.core.rule_fields import FIELDS

    rows = [f"| `{f.name}` | {f.unit} | {given(f)} | {bounds(f)} | {cell(f.meaning)} |" for f in FIELDS]
    return table(("field", "unit", "default", "bounds", "meaning"), rows)


def params() -> str:
    """The keys of kind_params."""
    from breaker_actors.core.rule_fields import PARAMS

    rows = [f"| `{f.name}` | {given(f)} | {bounds(f)} | {cell(f.meaning)} |" for f in PARAMS]
    return table(("key", "default", "bounds", "meaning"), rows)


def words() -> str:
    """What each kind, operator and policy means, in one table."""
    from breaker_actors.core.rule_fields import MEANINGS

    rows = [f"| {name} | `{word}` | {meaning} |" for name, of in MEANINGS.items() for word, meaning in of.items()]
    return table(("field", "word", "meaning"), rows)


def given(field: Any) -> str:
    """A field's default, as it is written in JSON; "required", or nothing."""
    if field.required:
        return "required"
    return "none" if field.default is None else json.dumps(field.default).strip('"')


def bounds(field: Any) -> str:
    """The words or the bounds of a field."""
    if field.words:
        return ", ".join(field.words)
    return "" if field.low is None else f"{field.low} to {field.high}"


def table(head: tuple[str, ...], rows: list[str]) -> str:
    return "\n".join((f"| {' | '.join(head)} |", "|" + "---|" * len(head), *rows)) + "\n"


def mermaid(lines: list[str]) -> str:
    return "\n".join(("```mermaid", *lines, "```")) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    f"{REFERENCE}/settings.md": settings_page,
    f"{REFERENCE}/metrics.md": metrics_page,
    f"{REFERENCE}/limits.md": limits_page,
    f"{REFERENCE}/cli.md": cli_page,
    f"{REFERENCE}/api.md": api_page,
}
PICTURES: dict[str, Callable[[], str]] = {
    "layers": layers,
    "states": states,
    "fields": fields,
    "params": params,
    "words": words,
}


def with_pictures(text: str) -> str:
    """A page with its generated pictures made anew."""

    def draw(match: re.Match[str]) -> str:
        return f"<!-- made by docs/generate.py: {match[1]} -->\n{PICTURES[match[1]]()}<!-- end -->"

    return PLACE.sub(draw, text)


def everything() -> dict[Path, str]:
    """What each page that is made, wholly or in part, should be."""
    made = {ROOT / name: make() for name, make in PAGES.items()}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if path not in made and PLACE.search(path.read_text()):
            made[path] = with_pictures(path.read_text())
    return made


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for target, text in everything().items():
        target.write_text(text)
