"""Notification channels. Their configuration is sealed at rest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, delete, func, insert, select, update

from breaker_actors.errors import BreakersError, Invalid, NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.base import ChannelEdit
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.idempotency import Onces
from breaker_actors.store.quotas import reweighed, within_share
from breaker_actors.store.rows import SYSTEM, ChannelDraft, ChannelKind, ChannelRow, Once
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.section import lock_project, new_id

CHANNELS_MAX = 100
"""Channels of one project: a trip writes a row for each of them in its own transaction."""

_decode_config = msgspec.json.Decoder(dict[str, Any]).decode
_COLUMNS = [t.channels.c[f] for f in ChannelRow.__struct_fields__]


class Channels(Onces):
    async def create_channel(
        self, project_id: str, draft: ChannelDraft, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> ChannelRow:
        channel_id = new_id()
        row = ChannelRow(
            id=channel_id,
            project_id=project_id,
            name=draft.name or f"{draft.channel}-{channel_id[:8]}",
            channel=draft.channel,
            config=draft.config,
            enabled=draft.enabled,
            events=draft.events,
            inserted_ms=now_ms,
            updated_ms=now_ms,
        )

        def work(c: Connection) -> ChannelRow:
            lock_project(c, project_id)
            return self._put_channel(c, Place(by, now_ms, project_id), row)

        return await self.write_once(await self._steps.whose(project_id), once, work)

    async def list_channels(self, project_id: str) -> list[ChannelRow]:
        return await self._db.read(lambda c: self._channels(c, project_id))

    async def enabled_channels(self, most: int) -> list[tuple[str, str, ChannelKind, dict[str, Any]]]:
        return await self._db.read(lambda c: list(islice(enabled_configs(c, self._box), most)))

    async def get_channel(self, project_id: str, channel_id: str) -> ChannelRow | None:
        return await self._db.read(lambda c: self._find_channel(c, project_id, channel_id))

    async def update_channel(
        self, project_id: str, channel_id: str, edit: ChannelEdit, now_ms: int, by: str = SYSTEM
    ) -> ChannelRow:
        def work(c: Connection) -> ChannelRow:
            row = self._existing_channel(c, project_id, channel_id)
            return self._change_channel(c, Place(by, now_ms, project_id), row, edit(row))

        return await self._write_small(project_id, work)

    async def delete_channel(self, project_id: str, channel_id: str, now_ms: int, by: str = SYSTEM) -> None:
        def work(c: Connection) -> None:
            row = self._existing_channel(c, project_id, channel_id)
            remove_channel(c, Place(by, now_ms, project_id), row)

        await self._write_small(project_id, work)

    def _channels(self, c: Connection, project_id: str) -> list[ChannelRow]:
        """All channels of a project, oldest first."""
        query = select(*_COLUMNS).where(t.channels.c.project_id == project_id).order_by(t.channels.c.number)
        return [self._channel(row) for row in c.execute(query).all()]

    def _put_channel(self, c: Connection, place: Place, row: ChannelRow) -> ChannelRow:
        """Makes a channel of a locked project. Raises Invalid for one too many."""
        _refuse_too_many(c, row.project_id)
        with within_share(c, row.project_id), reweighed(c, row.project_id, t.channels, [row.id]):
            c.execute(insert(t.channels).values(self._channel_values(row)))
        write_down(c, place, [Note("channel.create", row.id, after=row)])
        return row

    def _change_channel(self, c: Connection, place: Place, row: ChannelRow, new: ChannelRow) -> ChannelRow:
        """Changes a channel of a locked project; nothing is written where nothing is wanted."""
        if new == row:
            return row
        if new.config is row.config and self._find_config(c, row.id) is None:
            raise Invalid("The stored config can't be read: give it anew.", {"config": "is required"})
        new = msgspec.structs.replace(
            new, id=row.id, project_id=row.project_id, inserted_ms=row.inserted_ms, updated_ms=place.now_ms
        )
        with within_share(c, row.project_id), reweighed(c, row.project_id, t.channels, [row.id]):
            c.execute(update(t.channels).where(t.channels.c.id == row.id).values(self._channel_values(new)))
        write_down(c, place, [Note("channel.update", row.id, row, new)])
        return new

    def _existing_channel(self, c: Connection, project_id: str, channel_id: str) -> ChannelRow:
        lock_project(c, project_id)
        row = self._find_channel(c, project_id, channel_id)
        if row is None:
            raise NotFound("There is no such notification channel.", {"channel_id": channel_id})
        return row

    def _find_channel(self, c: Connection, project_id: str, channel_id: str) -> ChannelRow | None:
        mine = (t.channels.c.id == channel_id) & (t.channels.c.project_id == project_id)
        found = c.execute(select(*_COLUMNS).where(mine)).first()
        return None if found is None else self._channel(found)

    def _find_config(self, c: Connection, channel_id: str) -> dict[str, Any] | None:
        return self._config_of(c.execute(select(*_COLUMNS).where(t.channels.c.id == channel_id)).one())

    def _channel_values(self, row: ChannelRow) -> dict[str, Any]:
        sealed = self._box.seal(msgspec.json.encode(row.config).decode(), config_place(row.id))
        return msgspec.structs.asdict(row) | {"config": sealed}

    def _channel(self, row: Row[Any]) -> ChannelRow:
        """With an empty configuration where the stored one can't be read: it can be listed, given anew and deleted."""
        config = self._config_of(row)
        return ChannelRow(**{**row._mapping, "config": {} if config is None else config})

    def _config_of(self, row: Row[Any]) -> dict[str, Any] | None:
        """The opened configuration; None when its seal does not open, or what is in there is no configuration."""

        def opened() -> dict[str, Any]:
            return _decode_config(self._box.unseal(row.config, config_place(row.id)))

        return self.asides.attempt(opened, "channel", row.id, row.config, 0, row.project_id)


def remove_channel(c: Connection, place: Place, row: ChannelRow) -> None:
    with reweighed(c, row.project_id, t.channels, [row.id]):
        c.execute(delete(t.channels).where(t.channels.c.id == row.id))
    write_down(c, place, [Note("channel.delete", row.id, before=row)])


def mail_channels(c: Connection) -> int:
    """How many channels of living projects send mails."""
    living = t.projects.c.deleted_ms.is_(None)
    query = select(func.count()).select_from(t.channels).join(t.projects, t.projects.c.id == t.channels.c.project_id)
    wanted = query.where(t.channels.c.channel == "email", t.channels.c.enabled.is_(True), living)
    return int(c.execute(wanted).scalar_one())


def enabled_configs(c: Connection, box: SecretBox) -> Iterator[tuple[str, str, ChannelKind, dict[str, Any]]]:
    """Project id, name, kind and opened config of each enabled channel of living projects; what can't be opened is
    left out."""
    living = t.projects.c.deleted_ms.is_(None)
    query = select(*_COLUMNS).join(t.projects, t.projects.c.id == t.channels.c.project_id)
    for row in c.execute(query.where(living, t.channels.c.enabled.is_(True)).order_by(t.channels.c.number)):
        try:
            config = _decode_config(box.unseal(row.config, config_place(row.id)))
        except (BreakersError, ValueError):
            continue
        yield row.project_id, row.name, row.channel, config


def _refuse_too_many(c: Connection, project_id: str) -> None:
    count = select(func.count()).select_from(t.channels).where(t.channels.c.project_id == project_id)
    if c.execute(count).scalar_one() >= CHANNELS_MAX:
        raise Invalid(f"A project has at most {CHANNELS_MAX} channels.", {"channels": f"at most {CHANNELS_MAX}"})


def config_place(channel_id: str) -> str:
    """What a channel's configuration is sealed for."""
    return f"channel configuration:{channel_id}"
