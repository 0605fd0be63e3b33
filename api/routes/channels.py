"""Notification channels: who is told when a breaker trips or recovers."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import uuid4

from quart import Blueprint, Response

from api.context.current import authorized_project, current_key_id, expect_list, remark, spend_reads, tell
from api.context.examining import examine
from api.context.fields import refuse, sent_fields, strict
from api.context.replica import replica
from api.middleware.idempotency import noted, once
from api.middleware.rate_limits import spend_test
from api.wire import responses_accounts as bodies
from api.wire import responses_deliveries as lists
from api.wire.http import json_response, no_content
from api.wire.remarks import NO_MAIL_SERVER, channel_remarks, cut_off_remarks, mail_remarks
from api.wire.requests_accounts import ChannelCreate, ChannelPatch, channel_draft, channel_edit
from breaker_actors.errors import Invalid, NotFound, SendFailed
from breaker_actors.notify.channels.config import ADDRESS_KEYS
from breaker_actors.notify.model import Destination, sample
from breaker_actors.store.base import ChannelEdit
from breaker_actors.store.rows import ChannelKind, ChannelRow, ProjectRow

blueprint = Blueprint("channels", __name__, url_prefix="/v1/projects/<project_id>/notification-channels")

READS = 100
"""Things that a channel in a list counts as: telling one costs as much as telling so many breakers."""


@blueprint.get("")
async def list_channels(project_id: str) -> Response:
    project = await authorized_project(project_id, "manage")
    await expect_list(project.id)
    rows = await replica().config.list_channels(project.id)
    spend_reads(project.id, READS * len(rows))
    if not replica().settings.allow_private_destinations:
        remark(cut_off_remarks((row.name, row.enabled, row.channel, row.config) for row in rows))
    if replica().settings.smtp_host is None:
        remark(mail_remarks((row.name, row.enabled, row.channel) for row in rows))
    failing = {row.channel_id: row for row in await replica().outbox.failing_channels(project.id)}
    item = partial(lists.listed_channel, failing=failing, now_ms=replica().clock.now_ms())
    return await tell(rows, item, lists.ChannelList)


@blueprint.post("")
async def create_channel(project_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    draft = channel_draft(await sent_fields(ChannelCreate), parts.settings.allow_private_destinations)
    if strict():
        refuse(channel_remarks(draft.channel, draft.config))
    await _examine(project, draft.channel, draft.config)
    asked = await once(project.org_id, bodies.channel_single, project.id)
    row = await parts.config.create_channel(project.id, draft, parts.clock.now_ms(), current_key_id(), asked)
    noted(asked)
    _remark(row)
    return json_response(bodies.channel_single(row), 201)


@blueprint.get("/<channel_id>")
async def get_channel(project_id: str, channel_id: str) -> Response:
    # Bare, unlike the others: the document leaves it open, and typed clients read it so.
    return json_response(bodies.channel(await _channel(project_id, channel_id)))


@blueprint.patch("/<channel_id>")
async def update_channel(project_id: str, channel_id: str) -> Response:
    project, parts = await authorized_project(project_id, "manage"), replica()
    row = await _channel(project_id, channel_id)
    fields = await sent_fields(ChannelPatch)
    edit = channel_edit(fields, parts.settings.allow_private_destinations)
    after = edit(row)
    if after.config is not row.config:
        await _examine(project, after.channel, after.config)
    if strict():
        edit = _refusing(edit)
    changed = await parts.config.update_channel(row.project_id, row.id, edit, parts.clock.now_ms(), by=current_key_id())
    _remark(changed)
    return json_response(bodies.channel_single(changed))


@blueprint.delete("/<channel_id>")
async def delete_channel(project_id: str, channel_id: str) -> Response:
    row, parts = await _channel(project_id, channel_id), replica()
    await parts.config.delete_channel(row.project_id, row.id, parts.clock.now_ms(), by=current_key_id())
    return no_content()


@blueprint.post("/<channel_id>/test")
async def test_channel(project_id: str, channel_id: str) -> Response:
    """Sends at once, whatever `enabled` and `events` say, and says what came of it."""
    project, parts = await authorized_project(project_id, "manage"), replica()
    row = await _channel(project_id, channel_id)
    await spend_test()
    to = Destination(channel_id=row.id, kind=row.channel, config=row.config, org_id=project.org_id)
    message = sample(project.id, project.name, parts.clock.now_ms(), str(uuid4()))
    attempt = await parts.sender.send(to, message)
    if attempt.result != "sent":
        raise SendFailed(f"The test notification could not be sent: {attempt.error}", _status(attempt.status))
    return json_response(bodies.ChannelTest(status="sent", message="The test notification was sent."))


async def _examine(project: ProjectRow, kind: ChannelKind, config: dict[str, Any]) -> None:
    """Refuses an address that the library of its kind can't read."""
    if problem := (await examine(project, [(kind, config)]))[0]:
        place = f"config.{ADDRESS_KEYS[kind]}"
        raise Invalid(f"{place} {problem}", {place: problem})


def _refusing(edit: ChannelEdit) -> ChannelEdit:
    """The same change, refused where it makes a config that can't work, or has keys that nothing reads."""

    def strictly(row: ChannelRow) -> ChannelRow:
        new = edit(row)
        if new.config is not row.config:
            refuse(channel_remarks(new.channel, new.config))
        return new

    return strictly


def _remark(row: ChannelRow) -> None:
    """Any config is taken, and mails before there is a server; but nobody is told until then."""
    remark(channel_remarks(row.channel, row.config))
    if row.channel == "email" and row.enabled and replica().settings.smtp_host is None:
        remark([NO_MAIL_SERVER])


def _status(status: int | None) -> dict[str, Any]:
    return {} if status is None else {"status": status}


async def _channel(project_id: str, channel_id: str) -> ChannelRow:
    """The channel of a path; its id is any text."""
    project = await authorized_project(project_id, "manage")
    row = await replica().config.get_channel(project.id, channel_id)
    if row is None:
        raise NotFound("There is no such notification channel.")
    return row
