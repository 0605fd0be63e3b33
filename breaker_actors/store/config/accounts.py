"""Organisations, API keys and workspaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, delete, insert, select, update

from breaker_actors.errors import NotFound, WorkspaceHasProjects
from breaker_actors.store import tables as t
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.idempotency import Onces
from breaker_actors.store.config.projects import live_projects
from breaker_actors.store.config.sessions import KEY_COLUMNS, end_sessions
from breaker_actors.store.quotas import add, add_one, reweighed, within_share
from breaker_actors.store.rows import SYSTEM, AccessVersion, KeyKind, KeyRow, Once, OrgRow, WorkspaceRow
from breaker_actors.store.secrets import hash_api_key, new_api_key, shown_beginning
from breaker_actors.store.section import ACCESS, IDS, SESSIONS, bump, by_ids, must_exist, new_id
from breaker_actors.store.steps import Who

USE_NOTED_MS = 60_000
"""How often the use of a key is written down."""

OPERATOR = "operator "
"""The counter with this name and an organisation's id says which one is the operator's. Written when the next one is
made at the latest: until then there is no other."""

_ORGS = select(t.orgs).order_by(t.orgs.c.inserted_ms, t.orgs.c.id)


class Accounts(Onces):
    async def create_org(self, name: str, now_ms: int) -> str:
        org_id = new_id()

        def work(c: Connection) -> None:
            c.execute(select(t.identity.c.id).with_for_update())  # one organisation at a time
            if _noted_operator(c) is None:
                first = c.execute(_ORGS.limit(1)).first()
                values = {"name": OPERATOR + (org_id if first is None else first.id), "value": 1}
                c.execute(insert(t.counters).values(values))
            c.execute(insert(t.orgs).values(id=org_id, name=name, inserted_ms=now_ms))

        await self._db.write(work)
        return org_id

    async def has_org(self) -> bool:
        return await self._db.read(lambda c: c.execute(select(t.orgs.c.id).limit(1)).first() is not None)

    async def list_orgs(self) -> list[OrgRow]:
        return [OrgRow(**row._mapping) for row in await self._db.read(lambda c: c.execute(_ORGS).all())]

    async def operator_org(self) -> str:
        """The id of the organisation that was made first, whatever clocks said since; "" while there is none."""

        def read(c: Connection) -> str:
            first = _noted_operator(c) or c.execute(_ORGS.limit(1)).scalar()
            return first or ""

        return await self._db.read(read)

    # keys

    async def create_key(
        self,
        org_id: str,
        kind: KeyKind,
        name: str,
        now_ms: int,
        project_id: str | None = None,
        by: str = SYSTEM,
        once: Once | None = None,
        key: str | None = None,
    ) -> tuple[KeyRow, str]:
        key = key or new_api_key(kind)
        row = KeyRow(
            id=new_id(),
            org_id=org_id,
            project_id=project_id,
            kind=kind,
            name=name,
            key_prefix=shown_beginning(key, kind),
            inserted_ms=now_ms,
        )

        def work(c: Connection) -> tuple[KeyRow, str]:
            must_exist(c, select(t.orgs.c.id).where(t.orgs.c.id == org_id), "organisation")
            if project_id is not None:
                must_exist(c, live_projects(org_id).where(t.projects.c.id == project_id), "project")
            add_one(c, org_id, "keys")
            values = {f: getattr(row, f) for f in row.__struct_fields__}
            stored = insert(t.api_keys).values(values | {"key_sha256": hash_api_key(key)})
            if project_id is None:
                c.execute(stored)
            else:
                with within_share(c, project_id), reweighed(c, project_id, t.api_keys, [row.id]):
                    c.execute(stored)
            write_down(c, Place(by, now_ms, project_id, org_id), [Note("key.create", row.id, after=_shown(row))])
            return row, key

        return await self.write_once(Who(org_id, project_id or ""), once, work)

    async def find_key(self, key: str) -> KeyRow | None:
        query = select(*KEY_COLUMNS).where(t.api_keys.c.key_sha256 == hash_api_key(key))
        found = await self._db.look_up(lambda c: c.execute(query).first())
        return None if found is None else KeyRow(**found._mapping)

    async def list_keys(self, org_id: str, project_id: str | None = None) -> list[KeyRow]:
        query = select(*KEY_COLUMNS).where(t.api_keys.c.org_id == org_id)
        if project_id is not None:
            query = query.where(t.api_keys.c.project_id == project_id)
        query = query.order_by(t.api_keys.c.inserted_ms, t.api_keys.c.id)
        return await self._db.read(lambda c: [KeyRow(**row._mapping) for row in c.execute(query)])

    async def live_keys(self, key_ids: Sequence[str]) -> set[str]:
        query = select(t.api_keys.c.id).where(t.api_keys.c.id.in_(IDS))
        return {row.id for row in await self._db.look_up(lambda c: by_ids(c, query, key_ids))}

    async def revoke_key(
        self, org_id: str, key_id: str, now_ms: int, project_id: str | None = None, by: str = SYSTEM
    ) -> None:
        mine = (t.api_keys.c.id == key_id) & (t.api_keys.c.org_id == org_id)
        if project_id is not None:
            mine &= t.api_keys.c.project_id == project_id

        def work(c: Connection) -> None:
            found = c.execute(select(*KEY_COLUMNS).where(mine)).first()
            if found is None:
                raise NotFound("There is no such key.", {"key_id": key_id})
            row = KeyRow(**found._mapping)
            end_sessions(c, key_id)
            with reweighed(c, row.project_id or "", t.api_keys, [key_id] if row.project_id else []):
                c.execute(delete(t.api_keys).where(t.api_keys.c.id == key_id))
            add(c, org_id, "keys", -1)
            bump(c, ACCESS)
            write_down(c, Place(by, now_ms, row.project_id, org_id), [Note("key.revoke", key_id, before=_shown(row))])

        await self._steps.write_small(Who(org_id, project_id or ""), work)

    async def touch_keys(self, uses: Mapping[str, int]) -> None:
        k = t.api_keys.c
        stale = k.last_used_ms.is_(None) | (k.last_used_ms <= bindparam("before"))
        statement = update(t.api_keys).where(k.id == bindparam("which"), stale).values(last_used_ms=bindparam("at"))
        rows = [{"which": id_, "at": at_ms, "before": at_ms - USE_NOTED_MS} for id_, at_ms in sorted(uses.items())]
        if rows:
            await self._db.write_rows(lambda c: c.execute(statement, rows))

    async def access_version(self) -> AccessVersion:
        name = t.counters.c.name
        query = select(name, t.counters.c.value).where(name.in_((ACCESS, SESSIONS)))
        found = {row.name: row.value for row in await self._db.read(lambda c: c.execute(query).all())}
        return AccessVersion(found.get(ACCESS, 0), found.get(SESSIONS, 0))

    # workspaces

    async def create_workspace(
        self, org_id: str, name: str, slug: str, now_ms: int, by: str = SYSTEM, once: Once | None = None
    ) -> WorkspaceRow:
        row = WorkspaceRow(id=new_id(), org_id=org_id, name=name, slug=slug, inserted_ms=now_ms)

        def work(c: Connection) -> WorkspaceRow:
            must_exist(c, select(t.orgs.c.id).where(t.orgs.c.id == org_id), "organisation")
            add_one(c, org_id, "workspaces")
            c.execute(insert(t.workspaces).values({f: getattr(row, f) for f in row.__struct_fields__}))
            write_down(c, Place(by, now_ms, org_id=org_id), [Note("workspace.create", row.id, after=row)])
            return row

        return await self.write_once(Who(org_id), once, work)

    async def list_workspaces(self, org_id: str) -> list[WorkspaceRow]:
        w = t.workspaces.c
        query = select(t.workspaces).where(w.org_id == org_id).order_by(w.inserted_ms, w.id)
        return await self._db.read(lambda c: [WorkspaceRow(**row._mapping) for row in c.execute(query)])

    async def get_workspace(self, workspace_id: str) -> WorkspaceRow | None:
        found = await self._db.read(lambda c: c.execute(_workspace(workspace_id)).first())
        return None if found is None else WorkspaceRow(**found._mapping)

    async def update_workspace(
        self, workspace_id: str, fields: Mapping[str, str], now_ms: int, by: str = SYSTEM
    ) -> WorkspaceRow:
        def work(c: Connection) -> WorkspaceRow:
            row = _existing(c, workspace_id)
            new = msgspec.structs.replace(row, **fields)
            if new != row:
                values = {"name": new.name, "slug": new.slug}
                c.execute(update(t.workspaces).where(t.workspaces.c.id == workspace_id).values(values))
                note = Note("workspace.update", workspace_id, row, new)
                write_down(c, Place(by, now_ms, org_id=row.org_id), [note])
            return new

        return await self._steps.write_small(await self._whose_workspace(workspace_id), work)

    async def delete_workspace(self, workspace_id: str, now_ms: int, by: str = SYSTEM) -> None:
        def work(c: Connection) -> None:
            row = _existing(c, workspace_id)
            # A deleted project that still waits for its last changes holds its workspace, too: it refers to it.
            if c.execute(select(t.projects.c.id).where(t.projects.c.workspace_id == workspace_id)).first():
                raise WorkspaceHasProjects
            c.execute(delete(t.workspaces).where(t.workspaces.c.id == workspace_id))
            add(c, row.org_id, "workspaces", -1)
            note = Note("workspace.delete", workspace_id, before=row)
            write_down(c, Place(by, now_ms, org_id=row.org_id), [note])

        await self._steps.write_small(await self._whose_workspace(workspace_id), work)

    async def _whose_workspace(self, workspace_id: str) -> Who:
        row = await self.get_workspace(workspace_id)
        if row is None:
            raise NotFound("There is no such workspace.", {"workspace_id": workspace_id})
        return Who(row.org_id)


def _noted_operator(c: Connection) -> str | None:
    name = c.execute(select(t.counters.c.name).where(t.counters.c.name.startswith(OPERATOR))).scalar()
    return None if name is None else str(name).removeprefix(OPERATOR)


def _workspace(workspace_id: str) -> Select[Any]:
    return select(t.workspaces).where(t.workspaces.c.id == workspace_id)


def _existing(c: Connection, workspace_id: str) -> WorkspaceRow:
    found = c.execute(_workspace(workspace_id).with_for_update()).first()
    if found is None:
        raise NotFound("There is no such workspace.", {"workspace_id": workspace_id})
    return WorkspaceRow(**found._mapping)


def _shown(row: KeyRow) -> dict[str, Any]:
    """What the audit log shows of a key."""
    return {"kind": row.kind, "name": row.name, "prefix": row.key_prefix}
