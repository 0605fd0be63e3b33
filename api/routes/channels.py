"""Notification channels: who is told when a breaker trips or recovers."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from quart import Blueprint, Response

from api import bodies_accounts as bodies
from api.context import acting, raw_body, reach, replica
from api.reply import json_response, no_content
from api.wire import decode_object
from api.wire_accounts import channel_draft, channel_edit
from breaker_actors.errors import NotFound, SendFailed
from breaker_actors.notify.model import Destination, sample
from breaker_actors.stores.base import ChannelRow

blueprint = Blueprint("channels", __name__, url_prefix="/v1/projects/<project_id>/notification-channels")


@blueprint.get("")
async def list_channels(project_id: str) -> Response:
    project = await reach(project_id, "manage")
    return json_response(bodies.channel_list(await replica().store.list_channels(project.id)))


@blueprint.post("")
async def create_channel(project_id: str) -> Response:
    project, parts = await reach(project_id, "manage"), replica()
    draft = channel_draft(decode_object(await raw_body()))
    row = await parts.store.create_channel(project.id, draft, parts.clock.now_ms(), by=acting())
    return json_response(bodies.channel_single(row), 201)


@blueprint.get("/<channel_id>")
async def get_channel(project_id: str, channel_id: str) -> Response:
    # Bare, unlike the others: the document leaves it open, and typed clients read it so.
    return json_response(bodies.channel(await _channel(project_id, channel_id)))


@blueprint.patch("/<channel_id>")
async def update_channel(project_id: str, channel_id: str) -> Response:
    row, parts = await _channel(project_id, channel_id), replica()
    edit = channel_edit(decode_object(await raw_body()))
    changed = await parts.store.update_channel(row.project_id, row.id, edit, parts.clock.now_ms(), by=acting())
    return json_response(bodies.channel_single(changed))


@blueprint.delete("/<channel_id>")
async def delete_channel(project_id: str, channel_id: str) -> Response:
    row, parts = await _channel(project_id, channel_id), replica()
    await parts.store.delete_channel(row.project_id, row.id, parts.clock.now_ms(), by=acting())
    return no_content()


@blueprint.post("/<channel_id>/test")
async def test_channel(project_id: str, channel_id: str) -> Response:
    """Sends at once, whatever `enabled` and `events` say, and says what came of it."""
    project, parts = await reach(project_id, "manage"), replica()
    row = await _channel(project_id, channel_id)
    to = Destination(channel_id=row.id, kind=row.channel, config=row.config)
    message = sample(project.id, project.name, parts.clock.now_ms(), str(uuid4()))
    attempt = await parts.sender.send(to, message)
    if attempt.result != "sent":
        raise SendFailed(f"The test notification could not be sent: {attempt.error}", _status(attempt.status))
    return json_response({"status": "sent", "message": "The test notification was sent."})


def _status(status: int | None) -> dict[str, Any]:
    return {} if status is None else {"status": status}


async def _channel(project_id: str, channel_id: str) -> ChannelRow:
    """The channel of a path; its id is any text."""
    project = await reach(project_id, "manage")
    row = await replica().store.get_channel(project.id, channel_id)
    if row is None:
        raise NotFound("There is no such notification channel.")
    return row
