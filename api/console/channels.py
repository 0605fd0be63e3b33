"""Notification channels: who is told of a trip or a recovery, whether that works, and setting them up by kind.

Addresses and secrets come masked from the API; none is on any page, and a form keeps what is left empty.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from quart import Response, request

from api.console.acts import Undo, done, lead_to
from api.console.asking import Refused, ask
from api.console.blueprint import blueprint
from api.console.guard import form
from api.console.looks import page
from api.console.paging import address_of_page, asked_page, pages_of
from api.console.project import managed_project, open_project
from api.console.refusing import ms_of, place, refused_at, wrong
from api.console.unreached import failure, silences_of
from api.context.current import authorized_project
from api.context.replica import replica
from api.openapi.words import words_of
from api.wire.remarks import CANNOT_WORK, NO_MAIL_SERVER, channel_remarks
from breaker_actors.notify.channels.config import ADDRESS_KEYS
from breaker_actors.store.rows import DEAD_LOOKED_AT, DeliveryQuery, DeliveryRow

ROWS = 25
"""Channels on a page: what is known of each receiver is a query of its own."""
EVENTS = {
    "trip": "trip: a move to open",
    "recover": "recover: a move to closed",
    "observed": "observed: the same of breakers that observe",
}
KINDS = {
    "slack": "Slack",
    "pagerduty": "PagerDuty",
    "alertmanager": "Alertmanager",
    "email": "E-mail",
    "webhook": "Webhook",
    "apprise": "Apprise",
}
SAID = {
    "made": "The channel was made. Send a test to see whether its receiver takes it.",
    "deleted": "The channel was deleted.",
}


class Field(NamedTuple):
    """A field of a kind's config. `secret`: what is stored is never shown again; `needed`: there is no channel without;
    `lines`: it has several."""

    name: str
    title: str
    words: str
    secret: bool = True
    needed: bool = False
    lines: bool = False


FIELDS: Mapping[str, tuple[Field, ...]] = {
    "slack": (
        Field(
            "webhook_url",
            "Webhook address",
            "The incoming webhook of your Slack app: https://hooks.slack.com/services/… Who has it can write there.",
            needed=True,
        ),
    ),
    "pagerduty": (
        Field("routing_key", "Routing key", "The integration key of a service, Events API v2.", needed=True),
        Field("severity", "Severity", "critical, error, warning or info. Empty: critical, as trips are.", secret=False),
        Field("events_url", "Events address", "Empty: that of PagerDuty. Set it for the EU region, or a proxy."),
    ),
    "alertmanager": (
        Field("url", "Address", "That of the Alertmanager: https://alerts.example:9093", needed=True),
        Field("username", "User name", "Where it asks for one (basic authentication).", secret=False),
        Field("password", "Password", "That of the user."),
        Field("bearer_token", "Bearer token", "In place of user name and password."),
        Field(
            "labels",
            "Labels",
            "One a line, as severity: critical; at most 32, beside those that say which breaker it is. They replace"
            " those stored.",
            lines=True,
        ),
        Field(
            "generator_url",
            "Address of this console",
            "As the readers of alerts reach it: alerts link to their breaker. Empty: to the newest trace.",
        ),
    ),
    "email": (Field("to", "Recipients", "Addresses with commas between them, at most 50.", secret=False, needed=True),),
    "webhook": (
        Field("url", "Address", "An http or https address that takes a POST with JSON.", needed=True),
        Field(
            "secret", "Secret", "Signs each request, so that the receiver can tell that it is ours. Empty: not signed."
        ),
        Field(
            "headers", "Headers", "One a line, as X-Team: payments; at most 32. They replace those stored.", lines=True
        ),
    ),
    "apprise": (
        Field(
            "url",
            "Address",
            "As apprise writes it, such as ntfys://ntfy.example/topic or tgram://token/chat. It has one receiver.",
            needed=True,
        ),
    ),
}


class Quiet(NamedTuple):
    """Why nothing is tried on a channel now: the state of its circuit, what its receiver did last, and how many
    notifications wait."""

    state: str
    retry_ms: int | None
    why: str
    pending: int


class Line(NamedTuple):
    """A channel on the screen. `quiet`: why nothing is tried now; `remarks`: what is wrong with how it is set up, and
    whether it `can_send` all the same; `last`: its newest delivery; `dead`: how many were given up lately."""

    channel: dict[str, Any]
    quiet: Quiet | None
    remarks: list[str]
    can_send: bool
    last: DeliveryRow | None
    dead: int

    @property
    def kind(self) -> str:
        return KINDS[self.channel["channel"]]

    @property
    def address(self) -> str:
        """Where it sends to, masked."""
        return address_of(self.channel)


def address_of(channel: Mapping[str, Any]) -> str:
    """Where a channel sends to, masked."""
    kind, config = channel["channel"], channel["config"]
    found = config.get(ADDRESS_KEYS[kind]) or ("events.pagerduty.com" if kind == "pagerduty" else "")
    return ", ".join(map(str, found)) if isinstance(found, list) else str(found)


@blueprint.get("/p/<project_id>/channels")
async def channels(project_id: str) -> Response:
    project = await open_project(project_id)
    found = (await ask("GET", f"/projects/{project.id}/notification-channels")).body["channels"]
    slack = (await ask("GET", f"/projects/{project.id}")).body["slack_webhook_url"]
    pages = pages_of(len(found), ROWS)
    number, quiet = min(asked_page(), pages), await quiet_of(project.id)
    shown = found[(number - 1) * ROWS : number * ROWS]
    return await page(
        "channels.html",
        project=project,
        lines=[await _line(project.id, channel, quiet.get(channel["id"])) for channel in shown],
        slack=slack,
        slack_quiet=quiet.get(project.id) if slack else None,
        slack_dead=await replica().outbox.dead_deliveries(project.id, project.id) if slack else 0,
        slack_last=await last_of(project.id, project.id) if slack else None,
        number=number,
        pages=pages,
        page_address=address_of_page,
        kinds=KINDS,
        said=SAID.get(request.args.get("said", ""), ""),
        ms_of=ms_of,
        dead_among=DEAD_LOOKED_AT,
    )


@blueprint.get("/p/<project_id>/channels/new")
async def new_channel(project_id: str) -> Response:
    """The form of one kind, or the choice of a kind."""
    project = await managed_project(project_id)
    kind = request.args.get("kind", "")
    return await page(
        "channel_new.html", project=project, kind=kind if kind in KINDS else "", **_form_of(kind, {}), channel=None
    )


@blueprint.post("/p/<project_id>/channels/new")
async def make_channel(project_id: str) -> Response:
    await authorized_project(project_id, "manage")
    given = await form()
    kind = given.get("kind", "")
    try:
        body = {
            "channel": kind,
            "name": given.get("name", ""),
            "config": _config(kind, given),
            "events": _events(given),
        }
        once = {"Idempotency-Key": given.get("once", "") or secrets.token_hex(16)}
        path = f"/projects/{project_id}/notification-channels"
        made = (await ask("POST", path, body, {"strict": "true"}, once)).body["channel"]
    except Refused as error:
        return await refused_at(error, _places(kind))
    return lead_to(f"/console/p/{project_id}/channels/{made['id']}?said=made")


@blueprint.get("/p/<project_id>/channels/<channel_id>")
async def channel(project_id: str, channel_id: str) -> Response:
    project = await open_project(project_id)
    found = (await ask("GET", f"/projects/{project.id}/notification-channels/{channel_id}")).body
    return await page(
        "channel.html",
        project=project,
        line=await _line(project.id, found, (await quiet_of(project.id)).get(found["id"])),
        channel=found,
        said=SAID.get(request.args.get("said", ""), ""),
        ms_of=ms_of,
        dead_among=DEAD_LOOKED_AT,
        **_form_of(found["channel"], found["config"]),
    )


@blueprint.post("/p/<project_id>/channels/<channel_id>")
async def change_channel(project_id: str, channel_id: str) -> Response:
    path, given = f"/projects/{project_id}/notification-channels/{channel_id}", await form()
    before = (await ask("GET", path)).body
    kind, name = before["channel"], given.get("name", "").strip() or before["name"]
    try:
        config = _config(kind, given, before["config"])
        body = {"name": name, "events": _events(given)} | ({"config": config} if config else {})
        answer = await ask("PATCH", path, body)
    except Refused as error:
        return await refused_at(error, _places(kind))
    words = f"{name} was changed."
    if config:
        return await done(f"{words} The addresses and secrets before are gone: set them again to go back.", answer)
    old = {"name": before["name"]} | {f"event-{event}": "on" for event in before["events"]}
    return await done(words, answer, Undo(f"/console/p/{project_id}/channels/{channel_id}", old))


@blueprint.post("/p/<project_id>/channels/<channel_id>/enabled")
async def enable_channel(project_id: str, channel_id: str) -> Response:
    enabled = (await form()).get("enabled") == "true"
    answer = await ask("PATCH", f"/projects/{project_id}/notification-channels/{channel_id}", {"enabled": enabled})
    name = answer.body["channel"]["name"]
    back = Undo(f"/console/p/{project_id}/channels/{channel_id}/enabled", {"enabled": str(not enabled).lower()})
    if enabled:
        return await done(f"{name} is enabled: it tells what happens from now on.", answer, back)
    return await done(f"{name} is disabled: nothing is sent on it, and what waited is dropped.", answer, back)


@blueprint.post("/p/<project_id>/channels/<channel_id>/test")
async def test_channel(project_id: str, channel_id: str) -> Response:
    path = f"/projects/{project_id}/notification-channels/{channel_id}"
    found = (await ask("GET", path)).body
    answer = await ask("POST", f"{path}/test")
    return await done(f"{found['name']}: {answer.body['message']} Its receiver took it; look there.", answer)


@blueprint.post("/p/<project_id>/channels/<channel_id>/delete")
async def delete_channel(project_id: str, channel_id: str) -> Response:
    await ask("DELETE", f"/projects/{project_id}/notification-channels/{channel_id}")
    return lead_to(f"/console/p/{project_id}/channels?said=deleted")


async def quiet_of(project_id: str) -> dict[str, Quiet]:
    """What is known of the channels whose receivers fail, by id."""
    return {
        id_: Quiet(told.state, ms_of(told.retry_at), failure(told.last_error, told.last_status), row.pending)
        for id_, (row, told) in (await silences_of(project_id)).items()
    }


async def _line(project_id: str, channel: dict[str, Any], quiet: Quiet | None) -> Line:
    titles = {f"config.{field.name}": field.title for field in FIELDS[channel["channel"]]}
    found = channel_remarks(channel["channel"], channel["config"])
    can_send = all(told.code != CANNOT_WORK for told in found)
    remarks = [f"{titles.get(told.field, told.field)} {told.message}." for told in found]
    if channel["channel"] == "email" and replica().settings.smtp_host is None:
        remarks.append(NO_MAIL_SERVER.message)
        can_send = False
    last = await last_of(project_id, channel["id"])
    dead = await replica().outbox.dead_deliveries(project_id, channel["id"])
    return Line(channel, quiet, remarks, can_send, last, dead)


async def last_of(project_id: str, channel_id: str) -> DeliveryRow | None:
    """The newest delivery of a channel."""
    found = await replica().outbox.deliveries(DeliveryQuery(project_id=project_id, channel_id=channel_id, limit=1))
    return found[0] if found else None


def _form_of(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the form of a kind knows. Of a secret it shows the mask beside its field, to tell that there is one."""
    shown = {name: value for name, value in config.items() if value not in (None, "", [], {})}
    return {
        "fields": FIELDS.get(kind, ()),
        "kinds": KINDS,
        "events": EVENTS,
        "stored": {name: _one_line(value) for name, value in shown.items()},
        "once": secrets.token_hex(16),
        "place": place,
        "words": words_of,
    }


def _one_line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {text}" for name, text in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _config(kind: str, given: Mapping[str, str], stored: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The config that a form asks for. Of a stored one only what changes: an empty secret is kept, one that is to be
    removed is null."""
    found: dict[str, Any] = {}
    for field in FIELDS.get(kind, ()):
        text = given.get(f"config.{field.name}", "").strip()
        if stored is not None and given.get(f"drop.{field.name}"):
            found[field.name] = None
        elif text and not (stored is not None and not field.secret and text == _one_line(stored.get(field.name))):
            found[field.name] = _pairs(field.name, text) if field.lines else text
        elif not text and stored and not field.secret and stored.get(field.name) and f"config.{field.name}" in given:
            found[field.name] = None
    return found


def _pairs(field: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        name, colon, value = line.partition(":")
        if not colon:
            raise wrong(f"config.{field}", f"line {number} has no colon between name and value")
        found[name.strip()] = value.strip()
    return found


def _events(given: Mapping[str, str]) -> list[str]:
    return [event for event in EVENTS if given.get(f"event-{event}")]


def _places(kind: str) -> list[str]:
    return ["name", "events", *(f"config.{field.name}" for field in FIELDS.get(kind, ()))]
