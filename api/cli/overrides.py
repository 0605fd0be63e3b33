"""`breakers override | overrides | observe | enforce`: what callers see of breakers of a running service."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from api.cli.breaker_client import BreakerClient, DataDir, Insecure, Project, Url, WhichBreaker, open_client
from api.cli.errors import one_line_errors
from api.cli.output import put, put_json, put_table
from api.cli.spans import UNTIL_HELP, Match, ask_at_once, ends_ms, matchers_of, show_preview
from api.cli.store_access import AsJson, instant
from breaker_actors.clock import SystemClock
from breaker_actors.errors import ConfirmationNeeded, Invalid

Opened = Annotated[bool, typer.Option("--open", help="No call passes.")]
Closed = Annotated[bool, typer.Option("--closed", help="All calls pass.")]
Throttle = Annotated[float | None, typer.Option(min=0, max=1, help="This share of calls passes, seen as half_open.")]
End = Annotated[bool, typer.Option("--end", help="End the override in force.")]
Reason = Annotated[
    str | None,
    typer.Option(help="Why; the audit log tells it, and events of what changes for callers. Needed for a new one."),
]
Span = Annotated[str | None, typer.Option("--for", help="How long, as 90m, 2h or 1d; default: 1h.", metavar="SPAN")]
Until = Annotated[str | None, typer.Option(help=UNTIL_HELP, metavar="TIME")]
Ramp = Annotated[bool, typer.Option("--then-half-open", help="A ramp begins where it ends.")]
Everything = Annotated[bool, typer.Option("--all", help="All breakers of the project.")]
Preview = Annotated[bool, typer.Option("--preview", help="Change nothing; say which breakers it would concern.")]
Destructive = Annotated[bool, typer.Option("--allow-destructive", help="Also more than half of ten breakers or more.")]
Named = Annotated[str | None, typer.Argument(help="Name or id of the breaker; or --match, or --all.", metavar="NAME")]


def install(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("override")(override)
    app.command("overrides")(list_overrides)
    app.command("observe")(observe)
    app.command("compare")(compare)
    app.command("enforce")(enforce)


def override(
    name: Named = None,
    opened: Opened = False,
    closed: Closed = False,
    throttle: Throttle = None,
    end: End = False,
    reason: Reason = None,
    span: Span = None,
    until: Until = None,
    then_half_open: Ramp = False,
    match: Match = None,
    everything: Everything = False,
    preview: Preview = False,
    allow_destructive: Destructive = False,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Override what callers see of a breaker, or of all that match, for a time; or end that. The breaker's own machine
    runs on underneath."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        many = matchers_of(match, everything)
        needed = {"name a breaker, or say --match or --all": (name is None) != (not many)}
        if not end and not preview:
            kinds = opened + closed + (throttle is not None)
            needed |= {"say one of --open, --closed, --throttle SHARE and --end": kinds == 1}
            needed |= {"say --reason: others will ask why": reason is not None}
        ask_at_once(needed)
        if preview:
            show_preview(client.preview_overrides(many or _only(client, name)), json)
            return
        fields = {} if end else _fields(opened, closed, throttle, reason, span, until, then_half_open)
        was = many or not end or client.is_overridden(client.find(str(name))["id"])
        done = (
            _change_all(client, many, fields, reason, allow_destructive)
            if many
            else _change(client, str(name), fields, reason, span)
        )
    if json:
        put_json(done)
    elif many:
        put(f"{done['changed']} of {done['matches']} breakers that match")
    elif (shown := done["override"]) is None:
        put(("ended" if was else "no override was in force") + _beneath(done))
    else:
        put(f"{shown['kind']} until {instant(shown['until_ms'])}")


def list_overrides(
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List the overrides in force: breaker, kind, share of calls that pass, until when, by whom, why."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        rows = client.overrides()
        if not rows:
            client.note_none("overrides")
    if json:
        put_json({"overrides": rows})
        return
    titles = ("breaker", "kind", "passes", "until", "by", "reason")
    lines = [(r["name"], r["kind"], r["allow_rate"], instant(r["until_ms"]), r["by"], r["reason"]) for r in rows]
    put_table(titles, lines, least=("passes", "by"))


def observe(
    name: WhichBreaker,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    data_dir: DataDir = None,
) -> None:
    """Let a breaker observe: it evaluates as ever, callers see it closed, and nobody is told."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        client.change(client.find(name)["id"], {"mode": "observe"})
    put(f"{name} observes")


def compare(
    name: WhichBreaker,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Compare a shadow with the breaker that it watches, over the last day: trips and time in each state, then each
    stretch in which they differ: from, to, state of the shadow, state of the watched one."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        found = client.compare(client.find(name)["id"])
    if json:
        put_json(found)
        return
    put(f"from {instant(found['since_ms'])} to {instant(found['until_ms'])}, {found['differing']} differences")
    sides = [(side, found[side]) for side in ("shadow", "watched")]
    figures = ("trips", "closed_ms", "half_open_ms", "open_ms")
    put_table(("", *figures), [(side, *(one[figure] for figure in figures)) for side, one in sides])
    rows = [(instant(r["from_ms"]), instant(r["to_ms"]), r["shadow"], r["watched"]) for r in found["differences"]]
    put_table(("from", "to", "shadow", "watched"), rows)


def enforce(
    name: WhichBreaker,
    confirm: Annotated[bool, typer.Option("--confirm", help="Also while its machine is not closed.")] = False,
    url: Url = None,
    project: Project = None,
    insecure_http: Insecure = False,
    data_dir: DataDir = None,
) -> None:
    """Enforce a breaker that observed: callers see what its machine says."""
    with one_line_errors(), open_client(url, project, data_dir, insecure_http) as client:
        try:
            client.change(client.find(name)["id"], {"mode": "enforce"} | ({"confirm": True} if confirm else {}))
        except ConfirmationNeeded as error:
            raise Invalid(
                f"the machine of {name} is {error.details['machine_state']}, and callers would see it at once"
                ": say --confirm to enforce it"
            ) from None
    put(f"{name} is enforced")


def _only(client: BreakerClient, name: str | None) -> dict[str, Any]:
    return {"matchers": [{"field": "id", "op": "=", "value": client.find(str(name))["id"]}]}


def _fields(
    opened: bool,
    closed: bool,
    throttle: float | None,
    reason: str | None,
    span: str | None,
    until: str | None,
    ramp: bool,
) -> dict[str, Any]:
    """The body of a request for an override of one of three kinds. Raises Invalid."""
    fields: dict[str, Any] = {"reason": reason}
    fields["kind"] = "force_open" if opened else "force_closed" if closed else "throttle"
    if throttle is not None:
        fields["allow_rate"] = throttle
    if (end := ends_ms(span, until, SystemClock().now_ms())) is not None:
        fields["until_ms"] = end
    return fields | ({"then": "half_open"} if ramp else {})


def _change(
    client: BreakerClient, name: str, fields: dict[str, Any], reason: str | None, span: str | None
) -> dict[str, Any]:
    breaker_id = client.find(name)["id"]
    if fields:
        try:
            return client.set_override(breaker_id, fields)
        except Invalid as error:
            raise Invalid(str(error).replace("until_ms: ", "--for: " if span else "--until: ")) from None
    client.end_override(breaker_id, reason)
    status = client.states([breaker_id])[breaker_id]
    told = {} if status.get("override") else {name: status[name] for name in ("state", "allow_rate")}
    return {"breaker_id": breaker_id, "override": None} | told


def _beneath(done: dict[str, Any]) -> str:
    """What callers see now, where its owner has heard of the end."""
    return f"; callers see {done['state']}, {done['allow_rate']:.0%} of calls pass" if "state" in done else ""


def _change_all(
    client: BreakerClient, many: dict[str, Any], fields: dict[str, Any], reason: str | None, destructive: bool
) -> dict[str, Any]:
    if fields:
        return client.set_overrides(many | fields, destructive)
    return client.end_overrides(many | ({} if reason is None else {"reason": reason}))
