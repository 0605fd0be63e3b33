"""Projects: settings, the ingest secret, deletion. A project marked as deleted is invisible here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, Select, delete, insert, select, update

from breaker_actors.errors import Invalid, NotFound
from breaker_actors.stores import tables as t
from breaker_actors.stores.audits import Note, Place, write_down
from breaker_actors.stores.configuration import end_routers
from breaker_actors.stores.part import ACCESS, StorePart, bump, lock_project, must_exist, new_id
from breaker_actors.stores.placement import remove_deleted_projects
from breaker_actors.stores.plan import Plan, carry_out
from breaker_actors.stores.rows import SYSTEM, ProjectRow
from breaker_actors.stores.secrets import new_ingest_secret

_PROJECT_FIELDS = {"name", "enable_signed_ingest", "slack_webhook_url", "trace_id_url_template"}


def live_projects(org_id: str | None = None) -> Select[Any]:
    """The projects of an organisation, or of all, that are not deleted."""
    columns = [t.workspaces.c.org_id if f == "org_id" else t.projects.c[f] for f in ProjectRow.__struct_fields__]
    query = select(*columns).join(t.workspaces, t.workspaces.c.id == t.projects.c.workspace_id)
    query = query.where(t.projects.c.deleted_ms.is_(None))
    return query if org_id is None else query.where(t.workspaces.c.org_id == org_id)


class Projects(StorePart):
    async def create_project(
        self, org_id: str, workspace_id: str, name: str | None, now_ms: int, by: str = SYSTEM
    ) -> ProjectRow:
        project_id, secret = new_id(), new_ingest_secret()
        values = {
            "id": project_id,
            "workspace_id": workspace_id,
            "name": name,
            "enable_signed_ingest": False,
            "ingest_secret": self._box.seal(secret, secret_place(project_id)),
            "shard": UUID(project_id).int % self._shards,
            "inserted_ms": now_ms,
            "breakers_updated_ms": now_ms,
        }

        def work(c: Connection) -> ProjectRow:
            mine = select(t.workspaces.c.id).where(t.workspaces.c.id == workspace_id, t.workspaces.c.org_id == org_id)
            must_exist(c, mine.with_for_update(), "workspace")
            c.execute(insert(t.projects).values(values))
            row = self._load_project(c, project_id)
            write_down(c, Place(by, now_ms, project_id, org_id), [Note("project.create", project_id, after=row)])
            return row

        return await self._db.write(work)

    async def list_projects(self, org_id: str, workspace_id: str | None = None) -> list[ProjectRow]:
        query = live_projects(org_id).order_by(t.projects.c.number)
        if workspace_id is not None:
            query = query.where(t.projects.c.workspace_id == workspace_id)
        found = await self._db.read(lambda c: c.execute(query).all())
        return [self._project(row) for row in found]

    async def get_project(self, project_id: str) -> ProjectRow | None:
        query = live_projects().where(t.projects.c.id == project_id)
        found = await self._db.read(lambda c: c.execute(query).first())
        return None if found is None else self._project(found)

    async def update_project(
        self, project_id: str, fields: Mapping[str, Any], now_ms: int, by: str = SYSTEM
    ) -> ProjectRow:
        unknown = sorted(set(fields) - _PROJECT_FIELDS)
        if unknown:
            raise Invalid(f"a project has no changeable field {unknown[0]}", {"field": unknown[0]})
        values = dict(fields)
        if values.get("slack_webhook_url") is not None:
            values["slack_webhook_url"] = self._box.seal(values["slack_webhook_url"], slack_place(project_id))
        return await self._change_project(project_id, values, "project.update", now_ms, by)

    async def rotate_secret(self, project_id: str, now_ms: int, overlap_ms: int = 0, by: str = SYSTEM) -> ProjectRow:
        sealed = self._box.seal(new_ingest_secret(), secret_place(project_id))
        kept = t.projects.c.ingest_secret if overlap_ms else None
        values = {
            "ingest_secret": sealed,
            "previous_secret": kept,
            "previous_until_ms": now_ms + overlap_ms if overlap_ms else None,
        }
        return await self._change_project(project_id, values, "project.rotate_secret", now_ms, by)

    async def delete_project(self, project_id: str, now_ms: int, by: str = SYSTEM) -> list[int]:
        def work(c: Connection) -> list[int]:
            lock_project(c, project_id)
            row = self._load_project(c, project_id)
            place = Place(by, now_ms, project_id, row.org_id)
            change_ids = carry_out(c, place, Plan.removal_of_all(c, project_id))
            change_ids += end_routers(c, project_id, now_ms)
            for table in (t.api_keys, t.channels, t.gone_names):
                c.execute(delete(table).where(table.c.project_id == project_id))
            c.execute(update(t.projects).where(t.projects.c.id == project_id).values(deleted_ms=now_ms))
            remove_deleted_projects(c, [project_id])
            bump(c, ACCESS)
            write_down(c, place, [Note("project.delete", project_id, before=row)])
            return change_ids

        return await self._db.write(work)

    async def _change_project(
        self, project_id: str, values: Mapping[str, Any], action: str, now_ms: int, by: str
    ) -> ProjectRow:
        def work(c: Connection) -> ProjectRow:
            lock_project(c, project_id)
            row = self._load_project(c, project_id)
            if not values:
                return row
            c.execute(update(t.projects).where(t.projects.c.id == project_id).values(**values))
            new = self._load_project(c, project_id)
            if new != row:
                bump(c, ACCESS)
                write_down(c, Place(by, now_ms, project_id, row.org_id), [Note(action, project_id, row, new)])
            return new

        return await self._db.write(work)

    def _load_project(self, c: Connection, project_id: str) -> ProjectRow:
        found = c.execute(live_projects().where(t.projects.c.id == project_id)).first()
        if found is None:
            raise NotFound("There is no such project.", {"project_id": project_id})
        return self._project(found)

    def _project(self, row: Row[Any]) -> ProjectRow:
        values = dict(row._mapping)
        for name in ("ingest_secret", "previous_secret"):
            if values[name] is not None:
                values[name] = self._box.unseal(values[name], secret_place(row.id))
        if row.slack_webhook_url is not None:
            values["slack_webhook_url"] = self._box.unseal(row.slack_webhook_url, slack_place(row.id))
        return ProjectRow(**values)


def secret_place(project_id: str) -> str:
    return f"ingest secret:{project_id}"


def slack_place(project_id: str) -> str:
    """What a project's slack_webhook_url is sealed for."""
    return f"slack webhook address:{project_id}"
