"""`breakers create` and `breakers edit`: a breaker from flags, one for each field of a rule, or from a JSON file."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from api.cli.breaker_client import DataDir, Insecure, Project, Url, WhichBreaker, open_client
from api.cli.errors import one_line_errors
from api.cli.json_file import read_object
from api.cli.output import note, put, put_json
from api.cli.spans import ask_at_once
from api.cli.store_access import AsJson
from breaker_actors.core import rule_remarks
from breaker_actors.core.rule_fields import FIELDS, PARAMS, RuleField
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Invalid
from breaker_actors.text.escaping import for_terminal

RULE_FIELDS = frozenset(field.name for field in FIELDS)
NEEDED = ("metric", "kind", "op", "threshold")
"""What a rule can't do without."""
WORDS_SHOWN = 4
"""So many words of a field are listed in its usage."""

NewName = Annotated[
    str | None, typer.Argument(help="Name of the new breaker; default: that in --file.", metavar="[NAME]")
]
Rename = Annotated[str | None, typer.Option(help="New name of the breaker.")]
ShadowOf = Annotated[
    str | None, typer.Option(help="Name or id of the breaker that it watches, as its shadow; see `breakers compare`.")
]
Router = Annotated[
    str | None,
    typer.Option(help="Name or id of the router whose samples it takes, in place of one of its own: several on one."),
]
Observe = Annotated[
    bool, typer.Option("--observe", help="It observes from its first sample on: callers see it closed, nobody is told.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Also a rule that can never move its breaker; ask nothing.")]
File = Annotated[str | None, typer.Option(help="JSON file with fields of the breaker, - for stdin; flags go first.")]


def rule_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for each field of a rule and each key of kind_params, in place of `**flags`."""
    signature = inspect.signature(command, eval_str=True)
    kept = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    fields = [field for field in (*FIELDS, *PARAMS) if field.name != "kind_params"]
    options = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(field))
        for field in fields
    ]
    positional = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in kept]
    parameters = [*positional[:1], *options, *positional[1:]]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return command


def _option(field: RuleField) -> Any:
    """The type and the option of a field."""
    name, meaning = "--" + field.name.replace("_", "-"), _meaning(field)
    if isinstance(field.default, bool):
        return Annotated[bool | None, typer.Option(f"{name}/--no-{name[2:]}", help=meaning)]
    if field.low is not None:
        return Annotated[int | None, typer.Option(name, help=meaning)]
    number = field.name in ("threshold", "percentile", "alpha")
    words = "|".join(field.words) if 0 < len(field.words) <= WORDS_SHOWN else None
    return Annotated[(float if number else str) | None, typer.Option(name, help=meaning, metavar=words)]


def _meaning(field: RuleField) -> str:
    """What it means, its words where the usage does not list them, and what counts where it is not given."""
    words = f" One of {', '.join(field.words)}." if len(field.words) > WORDS_SHOWN else ""
    needed = (" Needed for that kind." if field in PARAMS else " Needed by create.") if field.required else ""
    default = f" Default: {field.default}." if isinstance(field.default, int | float | str) else ""
    return f"{field.meaning}{words}{needed}{default}"


@rule_options
def create(
    name: NewName = None,
    file: File = None,
    router: Router = None,
    shadow_of: ShadowOf = None,
    observe: Observe = False,
    yes: Yes = False,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
    **flags: Any,
) -> None:
    """Create a breaker, with a router of its own unless --router names one; show its id. It needs --metric, --kind,
    --op and --threshold. What the fields mean: `breakers explain`."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        more = [] if router is None else [client.router_id(router)]
        fields = _fields(file, flags, {}) | ({} if name is None else {"name": name})
        if "name" not in fields:
            missing = ", ".join(f"--{name}" for name in NEEDED if name not in fields)
            named = "say how the breaker is to be named: breakers create NAME ..."
            ask_at_once({named: False, f"say {missing}": not missing})
        _ask(fields, yes)
        fields |= {} if shadow_of is None else {"shadow_of": client.find(shadow_of)["id"]}
        fields |= {"mode": "observe"} if observe else {}
        row = client.create(fields)
        for router_id in more:
            client.link(router_id, row["id"])
        for own in row["router_ids"] if more else ():
            client.take_off(own, row["id"])
    linked = more or row["router_ids"]
    put_json(row | {"router_ids": linked}) if json else put(row["id"])
    if row["mode"] == "observe":
        note("observes: callers see it closed until `breakers enforce`")
    note(f"takes samples of router{'s' if len(linked) > 1 else ''} {' and '.join(linked)}")
    if row["min_state_duration_ms"]:
        note(f"stays closed for {row['min_state_duration_ms'] / 1_000:g} s at least (min_state_duration_ms)")


@rule_options
def edit(
    name: WhichBreaker,
    rename: Rename = None,
    file: File = None,
    yes: Yes = False,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
    **flags: Any,
) -> None:
    """Change fields of a breaker; those not given stay."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        row = client.find(name)
        fields = _fields(file, flags, row.get("kind_params") or {})
        fields |= {} if rename is None else {"name": rename}
        if not fields:
            raise Invalid("say what to change: a field, --rename or --file")
        if fields.keys() & RULE_FIELDS:
            _ask(row | fields, yes)
        row = client.change(row["id"], fields)
    put_json(row) if json else put(f"changed {row['id']}")


def never_moves(fields: Mapping[str, Any]) -> str | None:
    """What keeps a rule from ever moving its breaker; None where nothing does, or fields are missing or wrong."""
    try:
        return next(iter(rule_remarks.never_moves(parse_rule(fields))), None)
    except Invalid:
        return None


def _ask(fields: Mapping[str, Any], yes: bool) -> None:
    """Asks about a rule that never opens its breaker, or always does. Raises Invalid where nobody can be asked."""
    told = never_moves(fields)
    if told is None or yes:
        return
    if not sys.stdin.isatty():
        raise Invalid(f"nothing was saved. {told} Say --yes to save it all the same")
    typer.confirm(for_terminal(f"{told} Save it all the same?"), abort=True, err=True)


def _fields(file: str | None, flags: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """The fields of the file and, over them, those of the flags; flags of kind_params join those there are."""
    fields = {} if file is None else read_object(file)
    given = {name: value for name, value in flags.items() if value is not None}
    keys = {field.name for field in PARAMS}
    own = {name: given.pop(name) for name in keys & given.keys()}
    before = fields.get("kind_params", params)
    if own and not isinstance(before, dict | None):
        raise Invalid("kind_params: not an object")
    return fields | given | ({"kind_params": (before or {}) | own} if own else {})
