"""Sessions of the console, and the one-time links that begin one. Each is a key's, and may do what the key may.

Only a SHA-256 of a token is stored. A session ends at its time, when somebody signs out, and with its key: it is looked
up with that, though its row may stay until upkeep finds that its time has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Select, delete, insert, select

from breaker_actors.errors import NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.config.audit_log import COUNTED, Note, Place, repeated_name, write_down
from breaker_actors.store.rows import KeyRow, SessionRow
from breaker_actors.store.secrets import hash_api_key
from breaker_actors.store.section import IDS, SESSIONS, StorePart, bump, by_ids
from breaker_actors.store.steps import Who

SESSIONS_MAX = 100
"""Sessions and links of one key; of more the oldest end."""

_S, _K = t.console_sessions.c, t.api_keys.c
KEY_COLUMNS = [_K[f] for f in KeyRow.__struct_fields__]
_FOUND = select(*KEY_COLUMNS, _S.ends_ms).join(t.console_sessions, _S.key_id == _K.id)

Grant = Literal["link", "session"]


class Sessions(StorePart):
    async def create_link(self, key_id: str, token: str, now_ms: int, ends_ms: int) -> None:
        who = await self._whose(_K.id == key_id)
        if who is None:
            raise _no_key(key_id)
        await self._steps.write_small(who, lambda c: _grant(c, "link", key_id, token, now_ms, ends_ms))

    async def create_session(self, key_id: str, token: str, now_ms: int, ends_ms: int) -> SessionRow:
        who = await self._whose(_K.id == key_id)
        if who is None:
            raise _no_key(key_id)
        return await self._steps.write_small(who, lambda c: _sign_in(c, key_id, token, now_ms, ends_ms))

    async def redeem_link(self, link: str, token: str, now_ms: int, ends_ms: int) -> SessionRow | None:
        mine = _is("link", link, now_ms)

        def work(c: Connection) -> SessionRow | None:
            key_id = c.execute(select(_S.key_id).where(mine)).scalar()
            # Of two who come with one link at the same time one deletes it.
            if key_id is None or not c.execute(delete(t.console_sessions).where(mine)).rowcount:
                return None
            return _sign_in(c, key_id, token, now_ms, ends_ms)

        who = await self._whose(mine)
        return None if who is None else await self._steps.write_small(who, work)

    async def find_session(self, token: str, now_ms: int) -> SessionRow | None:
        return await self._db.look_up(lambda c: _found(c, _FOUND.where(_is("session", token, now_ms))))

    async def end_session(self, token: str, now_ms: int) -> None:
        mine = _is("session", token, now_ms)

        def work(c: Connection) -> None:
            row = _found(c, _FOUND.where(mine))
            if row is not None:
                c.execute(delete(t.console_sessions).where(mine))
                bump(c, SESSIONS)
                _write_down(c, "console.sign_out", row.key, now_ms)

        if (who := await self._whose(mine)) is not None:
            await self._steps.write_small(who, work)

    async def live_sessions(self, tokens: Sequence[str], now_ms: int) -> set[str]:
        query = select(_S.token_sha256).join(t.api_keys, _S.key_id == _K.id)
        query = query.where(_S.token_sha256.in_(IDS), _S.kind == "session", _S.ends_ms > now_ms)
        by_hash = {hash_api_key(token): token for token in tokens}
        rows = await self._db.look_up(lambda c: by_ids(c, query, sorted(by_hash)))
        return {by_hash[row.token_sha256] for row in rows}

    async def _whose(self, mine: ColumnElement[bool]) -> Who | None:
        """In whose turn a session of the key that this is true of is written."""
        query = select(_K.org_id, _K.project_id).outerjoin(t.console_sessions, _S.key_id == _K.id).where(mine).limit(1)
        found = await self._db.look_up(lambda c: c.execute(query).first())
        return None if found is None else Who(found.org_id, found.project_id or "")


def end_sessions(c: Connection, key_id: str) -> None:
    """Ends those of a key that is about to go."""
    c.execute(delete(t.console_sessions).where(_S.key_id == key_id))
    forget_counted(c, _K.id == key_id)


def forget_counted(c: Connection, keys: ColumnElement[bool]) -> None:
    """Drops what is counted of keys that are about to go."""
    for action in COUNTED:
        counters = select(repeated_name(action, _K.id)).where(keys)
        c.execute(delete(t.counters).where(t.counters.c.name.in_(counters)))


def _no_key(key_id: str) -> NotFound:
    return NotFound("There is no such key.", {"key_id": key_id})


def _is(kind: Grant, token: str, now_ms: int) -> ColumnElement[bool]:
    return (_S.token_sha256 == hash_api_key(token)) & (_S.kind == kind) & (_S.ends_ms > now_ms)


def _found(c: Connection, query: Select[Any]) -> SessionRow | None:
    found = c.execute(query).first()
    if found is None:
        return None
    values = dict(found._mapping)
    return SessionRow(ends_ms=values.pop("ends_ms"), key=KeyRow(**values))


def _sign_in(c: Connection, key_id: str, token: str, now_ms: int, ends_ms: int) -> SessionRow:
    _grant(c, "session", key_id, token, now_ms, ends_ms)
    row = _found(c, _FOUND.where(_is("session", token, now_ms)))
    assert row is not None, "it was just written"
    _write_down(c, "console.sign_in", row.key, now_ms)
    return row


def _grant(c: Connection, kind: Grant, key_id: str, token: str, now_ms: int, ends_ms: int) -> None:
    """Raises NotFound where the key is gone. Of the key's own what has ended goes, and of too many the oldest."""
    if c.execute(select(_K.id).where(_K.id == key_id).with_for_update()).first() is None:
        raise _no_key(key_id)
    c.execute(delete(t.console_sessions).where(_S.key_id == key_id, _S.ends_ms <= now_ms))
    newest = select(_S.token_sha256).where(_S.key_id == key_id).order_by(_S.inserted_ms.desc(), _S.token_sha256)
    if too_many := c.execute(newest.offset(SESSIONS_MAX - 1)).scalars().all():
        c.execute(delete(t.console_sessions).where(_S.token_sha256.in_(too_many)))
        bump(c, SESSIONS)
    values = {"token_sha256": hash_api_key(token), "kind": kind, "key_id": key_id}
    c.execute(insert(t.console_sessions).values(values | {"inserted_ms": now_ms, "ends_ms": ends_ms}))


def _write_down(c: Connection, action: str, key: KeyRow, now_ms: int) -> None:
    write_down(c, Place(key.id, now_ms, key.project_id, key.org_id), [Note(action, key.id)])
