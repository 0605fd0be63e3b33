"""Organisations, workspaces, API keys and projects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, Select, insert, select, update

from breaker_actors.errors import Invalid, NotFound
from breaker_actors.stores import tables as t
from breaker_actors.stores.base import KeyKind, KeyRow, ProjectRow, WorkspaceRow
from breaker_actors.stores.part import StorePart, new_id
from breaker_actors.stores.secrets import KEY_PREFIX_LEN, hash_api_key, new_api_key, new_ingest_secret

_PROJECT_FIELDS = {"name", "enable_signed_ingest", "slack_webhook_url", "trace_id_url_template"}


class Accounts(StorePart):
    async def create_org(self, name: str, now_ms: int) -> str:
        org_id = new_id()
        await self._db.write(lambda c: c.execute(insert(t.orgs).values(id=org_id, name=name, inserted_ms=now_ms)))
        return org_id

    async def has_org(self) -> bool:
        return await self._db.read(lambda c: c.execute(select(t.orgs.c.id).limit(1)).first() is not None)

    async def create_workspace(self, org_id: str, name: str, slug: str, now_ms: int) -> WorkspaceRow:
        row = WorkspaceRow(id=new_id(), org_id=org_id, name=name, slug=slug, inserted_ms=now_ms)

        def work(c: Connection) -> None:
            _must_exist(c, select(t.orgs.c.id).where(t.orgs.c.id == org_id), "organisation")
            c.execute(insert(t.workspaces).values({f: getattr(row, f) for f in row.__struct_fields__}))

        await self._db.write(work)
        return row

    async def get_workspace(self, workspace_id: str) -> WorkspaceRow | None:
        found = await self._db.read(
            lambda c: c.execute(select(t.workspaces).where(t.workspaces.c.id == workspace_id)).first()
        )
        return None if found is None else WorkspaceRow(**found._mapping)

    async def create_key(
        self, org_id: str, kind: KeyKind, name: str, now_ms: int, project_id: str | None = None
    ) -> tuple[KeyRow, str]:
        key = new_api_key(kind)
        row = KeyRow(
            id=new_id(),
            org_id=org_id,
            project_id=project_id,
            kind=kind,
            name=name,
            key_prefix=key[:KEY_PREFIX_LEN],
            inserted_ms=now_ms,
        )

        def work(c: Connection) -> None:
            _must_exist(c, select(t.orgs.c.id).where(t.orgs.c.id == org_id), "organisation")
            if project_id is not None:
                _must_exist(c, _projects(org_id).where(t.projects.c.id == project_id), "project")
            values = {f: getattr(row, f) for f in row.__struct_fields__}
            c.execute(insert(t.api_keys).values(values | {"key_sha256": hash_api_key(key)}))

        await self._db.write(work)
        return row, key

    async def find_key(self, key: str) -> KeyRow | None:
        columns = [t.api_keys.c[f] for f in KeyRow.__struct_fields__]
        query = select(*columns).where(t.api_keys.c.key_sha256 == hash_api_key(key))
        found = await self._db.read(lambda c: c.execute(query).first())
        return None if found is None else KeyRow(**found._mapping)

    async def create_project(self, org_id: str, workspace_id: str, name: str | None, now_ms: int) -> ProjectRow:
        project_id, secret = new_id(), new_ingest_secret()
        values = {
            "id": project_id,
            "workspace_id": workspace_id,
            "name": name,
            "enable_signed_ingest": False,
            "ingest_secret": self._box.seal(secret, _secret_place(project_id)),
            "shard": UUID(project_id).int % self._shards,
            "inserted_ms": now_ms,
            "breakers_updated_ms": now_ms,
        }

        def work(c: Connection) -> ProjectRow:
            mine = select(t.workspaces.c.id).where(t.workspaces.c.id == workspace_id, t.workspaces.c.org_id == org_id)
            _must_exist(c, mine, "workspace")
            c.execute(insert(t.projects).values(values))
            return self._load_project(c, project_id)

        return await self._db.write(work)

    async def list_projects(self, org_id: str, workspace_id: str | None = None) -> list[ProjectRow]:
        query = _projects(org_id).order_by(t.projects.c.number)
        if workspace_id is not None:
            query = query.where(t.projects.c.workspace_id == workspace_id)
        found = await self._db.read(lambda c: c.execute(query).all())
        return [self._project(row) for row in found]

    async def get_project(self, project_id: str) -> ProjectRow | None:
        query = _projects().where(t.projects.c.id == project_id)
        found = await self._db.read(lambda c: c.execute(query).first())
        return None if found is None else self._project(found)

    async def update_project(self, project_id: str, fields: Mapping[str, Any], now_ms: int) -> ProjectRow:
        unknown = sorted(set(fields) - _PROJECT_FIELDS)
        if unknown:
            raise Invalid(f"a project has no changeable field {unknown[0]}", {"field": unknown[0]})
        values = dict(fields)
        if values.get("slack_webhook_url") is not None:
            values["slack_webhook_url"] = self._box.seal(values["slack_webhook_url"], _slack_place(project_id))
        return await self._change_project(project_id, values)

    async def rotate_secret(self, project_id: str, now_ms: int) -> ProjectRow:
        sealed = self._box.seal(new_ingest_secret(), _secret_place(project_id))
        return await self._change_project(project_id, {"ingest_secret": sealed})

    async def _change_project(self, project_id: str, values: Mapping[str, Any]) -> ProjectRow:
        def work(c: Connection) -> ProjectRow:
            if values:
                c.execute(update(t.projects).where(t.projects.c.id == project_id).values(**values))
            return self._load_project(c, project_id)

        return await self._db.write(work)

    def _load_project(self, c: Connection, project_id: str) -> ProjectRow:
        found = c.execute(_projects().where(t.projects.c.id == project_id)).first()
        if found is None:
            raise NotFound("no such project", {"project_id": project_id})
        return self._project(found)

    def _project(self, row: Row[Any]) -> ProjectRow:
        values = dict(row._mapping)
        values["ingest_secret"] = self._box.unseal(row.ingest_secret, _secret_place(row.id))
        if row.slack_webhook_url is not None:
            values["slack_webhook_url"] = self._box.unseal(row.slack_webhook_url, _slack_place(row.id))
        return ProjectRow(**values)


def _projects(org_id: str | None = None) -> Select[Any]:
    columns = [t.workspaces.c.org_id if f == "org_id" else t.projects.c[f] for f in ProjectRow.__struct_fields__]
    query = select(*columns).join(t.workspaces, t.workspaces.c.id == t.projects.c.workspace_id)
    return query if org_id is None else query.where(t.workspaces.c.org_id == org_id)


def _must_exist(c: Connection, query: Select[Any], what: str) -> None:
    if c.execute(query).first() is None:
        raise NotFound(f"no such {what}")


def _secret_place(project_id: str) -> str:
    return f"ingest secret:{project_id}"


def _slack_place(project_id: str) -> str:
    return f"slack webhook address:{project_id}"
