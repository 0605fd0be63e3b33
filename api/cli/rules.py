"""`breakers plan | apply | adopt | drift` and `breakers rules`: rules as code, for a running service."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.breaker_client import BreakerClient, DataDir, Insecure, Project, Url, open_client
from api.cli.errors import FAILED
from api.cli.history import bars
from api.cli.output import note, put, put_json, put_script
from api.cli.spans import span_ms
from api.cli.store_access import AsJson, log_to_stderr
from breaker_actors.clock import SystemClock, rfc3339
from breaker_actors.core.rule_remarks import remarks_on
from breaker_actors.errors import BreakersError, Invalid
from breaker_actors.text.counting import counted

if TYPE_CHECKING:
    from breaker_actors.settings import Settings
    from pipelines.rules.model import RuleSet

CHANGES = 2
"""Exit code where there are changes, and it was asked for in detail."""
REFUSED = ("adopt", "conflict")
"""What an apply says no to."""
SIGNS = {"create": "+", "update": "~", "delete": "-", "adopt": "!", "conflict": "!"}
WORDS = {"create": "to make", "update": "to change", "delete": "to delete"}
WORDS |= {"adopt": "to adopt", "conflict": "in conflict"}

RULES = Path("rules")
"""Where files are looked for unless others are given."""

rules = typer.Typer(name="rules", no_args_is_help=True, help="Rules as code: files, and what they look like.")
Files = Annotated[
    list[Path] | None, typer.Argument(help="Directories and files of rules; default: rules.", metavar="[PATH]...")
]
Detailed = Annotated[
    bool, typer.Option("--detailed-exitcode", help="Leave with 0 for no changes, 2 for some, 1 for an error.")
]
Backtested = Annotated[
    str | None,
    typer.Option(
        "--backtest",
        help="Say of each changed rule what it would have done on the samples of the service on this machine, so far"
        " back: 7d.",
        metavar="SPAN",
    ),
]
IfPlan = Annotated[
    str | None, typer.Option("--if-plan", help="Only what the plan of this version said.", metavar="VERSION")
]
Strict = Annotated[bool, typer.Option("--strict", help="Leave with 1 for rules that are hardly meant, too.")]
Report = Annotated[Path | None, typer.Option(help="With --backtest: write a page that shows it here.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]
Destructive = Annotated[bool, typer.Option("--allow-destructive", help="Also where most breakers would go.")]
Owner = Annotated[
    str | None,
    typer.Option(help="Whose files, where none are given; default: the owner of those in rules, else default."),
]
OfOwner = Annotated[str | None, typer.Option(help="Only what this owner declares; default: everything.")]
From = Annotated[str | None, typer.Option("--from", help="Take over what this owner declares, too.", metavar="OWNER")]


def install(app: typer.Typer) -> None:
    """Adds the commands."""
    app.add_typer(rules)
    for command in (plan, apply, adopt, drift):
        app.command()(command)


@contextmanager
def _told(read: list[RuleSet]) -> Iterator[None]:
    """Errors are lines on stderr, those about a thing of the files behind its place there; exit code 1."""
    try:
        yield
    except BreakersError as error:
        for line in _lines(error, read):
            note(f"breakers: {line}")
        raise typer.Exit(FAILED) from None


def _lines(error: BreakersError, read: list[RuleSet]) -> list[str]:
    if "problems" in error.details:
        return str(error).splitlines()
    placed = [(place, text) for path, text in error.details.items() if (place := _place(path, read)) is not None]
    return [f"{place}: {text}" for place, text in placed] or [" ".join(str(error).split())]


def _place(path: str, read: list[RuleSet]) -> str | None:
    """Where the thing of a path such as breakers.a.threshold stands."""
    from pipelines.rules.model import SECTIONS

    section, _, rest = path.partition(".")
    for one in read:
        things = next((one.section(known) for known in SECTIONS if known == section), {})
        names = [name for name in things if rest == name or rest.startswith(f"{name}.")]
        if names:
            name = max(names, key=len)
            return f"{things[name].place_of(rest[len(name) + 1 :])}: {path}"
    return None


def _document(paths: list[Path] | None, read: list[RuleSet]) -> dict[str, Any]:
    from pipelines.rules.files import read as read_files
    from pipelines.rules.secrets import resolved

    read.append(read_files(paths or [RULES]))
    return resolved(read[0], os.environ)


def _document_as_far(paths: list[Path] | None, read: list[RuleSet]) -> dict[str, Any]:
    """The same without the secrets that are missing here, which it tells of."""
    from pipelines.rules.files import read as read_files
    from pipelines.rules.secrets import resolved_as_far

    read.append(read_files(paths or [RULES]))
    document, missing = resolved_as_far(read[0], os.environ)
    for one in missing:
        note(f"breakers: {one}: not looked at; an apply needs it")
    return document


def _tell_address(document: Mapping[str, Any], client: BreakerClient) -> None:
    """Says where variables and files of this machine go, before they do."""
    if any("references" in channel for channel in document.get("channels", {}).values()):
        note(f"breakers: what env: and file: of these rules refer to goes to {client.address}")


def plan(
    paths: Files = None,
    detailed: Detailed = False,
    backtest: Backtested = None,
    report: Report = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show what files of rules would change, what was changed by hand since they were applied, and by whom."""
    read: list[RuleSet] = []
    with _told(read):
        if report is not None and backtest is None:
            raise Invalid("--report shows what --backtest finds: give both")
        settings = None
        if backtest is not None:
            from api.cli.planning import settings_of_samples

            settings = settings_of_samples(data_dir)
        document = _document_as_far(paths, read)
        with open_client(url, project, data_dir, insecure_http) as client:
            _tell_address(document, client)
            planned = client.plan_rules(document)
            project_id = client.project_id()
        _tell_remarks(read[0])
        if backtest is not None and settings is not None:
            planned["backtest"] = _consequences(planned, read[0], project_id, settings, backtest, report, json)
    _show(planned, json)
    if detailed and planned["changes"]:
        raise typer.Exit(FAILED if any(one["act"] in REFUSED for one in planned["changes"]) else CHANGES)


def apply(
    paths: Files = None,
    yes: Yes = False,
    if_plan: IfPlan = None,
    allow_destructive: Destructive = False,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Make a project as files of rules say, whole or not at all; what was changed by hand is undone."""
    read: list[RuleSet] = []
    with _told(read):
        if if_plan is not None and not re.fullmatch(r"[0-9a-f]{32}", if_plan):
            raise Invalid("--if-plan: give the version that a plan prints")
        document = _document(paths, read)
        with open_client(url, project, data_dir, insecure_http) as client:
            _tell_address(document, client)
            planned = client.plan_rules(document)
            refused = [one for one in planned["changes"] if one["act"] in REFUSED]
            if planned["changes"] and not refused and not yes:
                _show(planned, False)
                if not sys.stdin.isatty():
                    raise Invalid("give --yes to apply this")
                typer.confirm("Apply?", abort=True)
            done = client.apply_rules(document, if_plan or planned["version"], allow_destructive)
        _tell_remarks(read[0])
    if json:
        put_json(done)
    else:
        if yes:  # else they were shown when it was asked
            _show_changes(done["changes"])
        put(f"applied: {counted(done['count'], 'change')}" if done["changed"] else "nothing to do")


def adopt(
    paths: Files = None,
    from_owner: From = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Let files own what is there under their names, as it is: nothing of it changes."""
    read: list[RuleSet] = []
    with _told(read):
        document = _document(paths, read)
        with open_client(url, project, data_dir, insecure_http) as client:
            _tell_address(document, client)
            adopted = client.adopt_rules(document, from_owner)
    if json:
        put_json({"adopted": adopted, "address": client.address})
        return
    for one in adopted:
        put(f"adopted {one}")
    if not adopted:
        note("breakers: nothing to adopt")


def drift(
    paths: Files = None,
    owner: Owner = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Say what was changed by hand since files were applied; leaves with 2 where anything was, 1 for an error."""
    with _told([]), open_client(url, project, data_dir, insecure_http) as client:
        whose = _owner(paths, owner)
        found = client.drift_rules(whose)
        if not found["changes"]:
            _refuse_nobody(whose, client.export_rules(whose))
    _show(found, json)
    if found["changes"]:
        raise typer.Exit(CHANGES)


def _owner(paths: list[Path] | None, owner: str | None) -> str:
    """Whose things are looked at: the one named, or the owner of the files. Raises Invalid."""
    from pipelines.rules.files import read as read_files
    from pipelines.rules.model import DEFAULT_OWNER

    if owner is not None and paths:
        raise Invalid("give files or --owner: files say whose they are")
    if owner is not None:
        return owner
    return read_files(paths or [RULES]).owner if paths or RULES.exists() else DEFAULT_OWNER


@rules.command("export")
def export(
    owner: OfOwner = None,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Print what is there as a file of rules, in its only form: secrets by where they came from."""
    from pipelines.rules.writing import text_of

    with _told([]), open_client(url, project, data_dir, insecure_http) as client:
        document = client.export_rules(owner)
        if owner is not None:
            _refuse_nobody(owner, document)
    if json:
        put_json(document)
    else:
        put_script(text_of(document).removesuffix("\n"))


@rules.command("check")
def check(paths: Files = None, strict: Strict = False) -> None:
    """Read files of rules and say what is wrong in them, and which are hardly meant; no service is asked."""
    from pipelines.rules.files import read as read_files
    from pipelines.rules.model import SECTIONS

    read: list[RuleSet] = []
    with _told(read):
        read.append(found := read_files(paths or [RULES]))
        _refuse_wrong(found)
    remarks = _tell_remarks(found)
    put(f"{', '.join(_counted(len(found.section(name)), name) for name in SECTIONS)}, owner {found.owner}")
    if strict and remarks:
        raise typer.Exit(FAILED)


def _refuse_wrong(found: RuleSet) -> None:
    """Raises Invalid for what the service would refuse in any project."""
    from api.rules.checking import wrong_in
    from pipelines.rules.secrets import unresolved

    wrong = wrong_in(*unresolved(found), SystemClock().now_ms())
    if wrong:
        raise Invalid("\n".join(f"{place}: {words}" for place, words in wrong.items()), wrong)


def _counted(count: int, name: str) -> str:
    return f"{count} {name[:-1] if count == 1 else name}"


def _tell_remarks(read: RuleSet) -> int:
    """Tells of rules that can hardly do what was meant, with their places; how many there are."""
    told = [
        f"{one.place_of(remark.field)}: breakers.{name}.{remark.field}: {remark.message}"
        for name, one in read.breakers.items()
        if one.rule is not None
        for remark in remarks_on(one.rule)
    ]
    for words in told:
        note(f"breakers: {words}")
    return len(told)


@rules.command("schema")
def schema() -> None:
    """Print the JSON Schema of files of rules, for editors."""
    from api.openapi.rule_files import schema_of_rule_files

    put_json(schema_of_rule_files())


def _refuse_nobody(owner: str, exported: Mapping[str, Any]) -> None:
    """Raises Invalid where an owner declares nothing: nobody is watched under a name that was misspelled."""
    if not any(value for key, value in exported.items() if key not in ("owner", "labels")):
        raise Invalid(f"the owner {owner!r} declares nothing here: say whose files are meant with --owner")


def _show(planned: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        put_json(planned)
        return
    _show_changes(planned["changes"])
    for one in planned.get("backtest", ()):
        put(f"backtest {one['breaker']}: {one['told']}")
    acts = [change["act"] for change in planned["changes"]]
    counts = [f"{acts.count(act)} {words}" for act, words in WORDS.items() if act in acts]
    put(", ".join(counts) if counts else "no changes")
    if planned["changes"] and planned["version"]:
        put(f"version {planned['version']}")
    if any(change["by_hand"] for change in planned["changes"]):
        note("breakers: `breakers apply` undoes what was changed by hand; `breakers rules export` shows it as files")


def _show_changes(changes: Sequence[Mapping[str, Any]]) -> None:
    for change in changes:
        _show_change(change)


def _show_change(change: Mapping[str, Any]) -> None:
    more = f": {change['message']}" if change["message"] else ""
    put(f"{SIGNS[change['act']]} {change['kind']} {change['name']}{more}")
    for field in change["fields"]:
        if field["secret"]:
            put(f"    {field['field']}: {'not shown' if change['act'] == 'create' else 'changed'}")
        elif change["act"] == "create":
            put(f"    {field['field']}: {_value(field['after'])}")
        else:
            put(f"    {field['field']}: {_value(field['before'])} -> {_value(field['after'])}")
    if hand := change["by_hand"]:
        what = f"changed by hand ({', '.join(hand['fields'])})" if hand["fields"] else "deleted by hand"
        who = f" by {hand['name'] or hand['who']}" if hand["who"] else ""
        at = f" at {rfc3339(hand['at_ms'])}" if hand["at_ms"] is not None else ""
        put(f"    {what}{who}{at}")


def _value(value: Any) -> str:
    import json

    return "-" if value is None else json.dumps(value)


def _consequences(
    planned: Mapping[str, Any],
    read: RuleSet,
    project_id: str,
    settings: Settings,
    span: str,
    report: Path | None,
    as_json: bool,
) -> list[dict[str, Any]]:
    from api.cli.planning import changed_rules
    from pipelines.planned import consequences, without_page

    changed = changed_rules(planned, read)
    log_to_stderr()
    with bars(as_json) as tell:
        told = partial(tell, "rules tried on samples", total=len(changed))
        told(0)
        rows = consequences(changed, project_id, settings, span_ms(span), report, told)
    if words := without_page(report, rows):
        note(f"breakers: {words}")
    return rows
