"""Projects: settings, the ingest secret, deletion. A project marked as deleted is invisible here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from breaker_actors.errors import BreakersError, Invalid, NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.idempotency import Onces, forget_answers
from breaker_actors.store.config.project_end import FINISHED_AT_ONCE, UNFINISHED_MS, end_rest, end_some, has_more
from breaker_actors.store.config.sessions import forget_counted
from breaker_actors.store.quotas import add, add_one, refuse_churn
from breaker_actors.store.rows import SYSTEM, Once, ProjectRow
from breaker_actors.store.secrets import new_ingest_secret
from breaker_actors.store.section import ACCESS, IDS, bump, by_ids, lock_project, must_exist, new_id
from breaker_actors.store.steps import Who
from breaker_actors.telemetry.guard import log_failure
from breaker_actors.text.escaping import link_template

log = structlog.get_logger()
_PROJECT_FIELDS = {"name", "enable_signed_ingest", "slack_webhook_url", "trace_id_url_template", "override_max_ms"}
_ACCESS_FIELDS = ("enable_signed_ingest", "ingest_secret", "previous_secret", "previous_until_ms")
"""What decides who may send samples; the others concern nobody's access."""


def live_projects(org_id: str | None = None) -> Select[Any]:
    """The projects of an organisation, or of all, that are not deleted."""
    columns = [t.workspaces.c.org_id if f == "org_id" else t.projects.c[f] for f in ProjectRow.__struct_fields__]
    query = select(*columns).join(t.workspaces, t.workspaces.c.id == t.projects.c.workspace_id)
    query = query.where(t.projects.c.deleted_ms.is_(None))
    return query if org_id is None else query.where(t.workspaces.c.org_id == org_id)


def signing(c: Connection) -> tuple[int, int]:
    """How many projects there are, and how many of them take unsigned samples."""
    living = select(func.count()).select_from(t.projects).where(t.projects.c.deleted_ms.is_(None))
    unsigned = living.where(t.projects.c.enable_signed_ingest.is_(False))
    return c.execute(living).scalar_one(), c.execute(unsigned).scalar_one()


class Projects(Onces):
    """`_finished`: the project of a deletion that was taken up last."""

    _finished: str

    async def create_project(
        self,
        org_id: str,
        workspace_id: str,
        name: str | None,
        now_ms: int,
        by: str = SYSTEM,
        once: Once | None = None,
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
            add_one(c, org_id, "projects")
            refuse_churn(c, org_id)
            c.execute(insert(t.projects).values(values))
            row = self._load_project(c, project_id)
            write_down(c, Place(by, now_ms, project_id, org_id), [Note("project.create", project_id, after=row)])
            return row

        return await self.write_once(Who(org_id), once, work)

    async def list_projects(self, org_id: str, workspace_id: str | None = None) -> list[ProjectRow]:
        query = live_projects(org_id).order_by(t.projects.c.number)
        if workspace_id is not None:
            query = query.where(t.projects.c.workspace_id == workspace_id)

        def work(c: Connection) -> list[ProjectRow]:
            rows = [
                self.asides.attempt(partial(self._project, row), "row", f"projects:{row.id}", b"", 0, row.id)
                for row in c.execute(query).all()
            ]
            return [row for row in rows if row is not None]

        return await self._db.read(work)

    async def signing(self) -> tuple[int, int]:
        return await self._db.read(signing)

    async def get_project(self, project_id: str) -> ProjectRow | None:
        query = live_projects().where(t.projects.c.id == project_id)
        found = await self._db.look_up(lambda c: c.execute(query).first())
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

    async def rotate_secret(
        self, project_id: str, now_ms: int, overlap_ms: int = 0, by: str = SYSTEM, once: Once | None = None
    ) -> ProjectRow:
        sealed = self._box.seal(new_ingest_secret(), secret_place(project_id))
        kept = t.projects.c.ingest_secret if overlap_ms else None
        values = {
            "ingest_secret": sealed,
            "previous_secret": kept,
            "previous_until_ms": now_ms + overlap_ms if overlap_ms else None,
        }
        return await self._change_project(project_id, values, "project.rotate_secret", now_ms, by, once)

    async def live_projects(self, project_ids: Sequence[str]) -> set[str]:
        query = select(t.projects.c.id).where(t.projects.c.id.in_(IDS), t.projects.c.deleted_ms.is_(None))
        return {row.id for row in await self._db.look_up(lambda c: by_ids(c, query, project_ids))}

    async def delete_project(self, project_id: str, now_ms: int, by: str = SYSTEM) -> list[int]:
        def work(c: Connection) -> tuple[Place, list[int], bool]:
            lock_project(c, project_id)
            row = self._load_project(c, project_id)
            place = Place(by, now_ms, project_id, row.org_id)
            for table in (t.channels, t.mutes, t.mappings, t.declared):
                c.execute(delete(table).where(table.c.project_id == project_id))
            forget_counted(c, t.api_keys.c.project_id == project_id)
            keys = c.execute(delete(t.api_keys).where(t.api_keys.c.project_id == project_id)).rowcount
            add(c, row.org_id, "keys", -keys)
            add(c, row.org_id, "projects", -1)
            forget_answers(c, t.idempotency_keys.c.project_id == project_id)
            c.execute(update(t.projects).where(t.projects.c.id == project_id).values(deleted_ms=now_ms))
            bump(c, ACCESS)
            write_down(c, place, [Note("project.delete", project_id, before=row)])
            return place, *end_some(c, place)

        async def in_steps() -> list[int]:
            place, change_ids, left = await self._steps.write(who, work)
            return change_ids + (await end_rest(self._steps, who, place) if left else [])

        who = await self._steps.turn_of(project_id)
        return await self._steps.whole(who, in_steps)

    async def finish_deletions(self, now_ms: int) -> int:
        behind = self._finished

        def unfinished(c: Connection) -> list[Row[Any]]:
            """Those behind the last ones first: ten that fail keep no other from its turn."""
            query = select(t.projects.c.id, t.workspaces.c.org_id)
            query = query.join(t.workspaces, t.workspaces.c.id == t.projects.c.workspace_id)
            query = query.where(t.projects.c.deleted_ms < now_ms - UNFINISHED_MS, has_more())
            query = query.order_by(t.projects.c.id <= behind, t.projects.c.id)
            return list(c.execute(query.limit(FINISHED_AT_ONCE)))

        projects = await self._db.read(unfinished)
        if projects:
            self._finished = projects[-1].id
        await asyncio.gather(*(self._finish(project, now_ms) for project in projects))
        return len(projects)

    async def _finish(self, project: Row[Any], now_ms: int) -> None:
        """Side by side with others: one may wait long for its organisation's changes to be carried."""
        who, place = Who(project.org_id, project.id, True), Place(SYSTEM, now_ms, project.id, project.org_id)
        try:
            await end_rest(self._steps, who, place)
        except BreakersError as error:
            log.warning("deletion_put_off", project_id=project.id, error=str(error))
        except Exception as error:
            log_failure(f"deletion of {project.id}", error)

    async def _change_project(
        self,
        project_id: str,
        values: Mapping[str, Any],
        action: str,
        now_ms: int,
        by: str,
        once: Once | None = None,
    ) -> ProjectRow:
        def work(c: Connection) -> ProjectRow:
            lock_project(c, project_id)
            row = self._load_project(c, project_id)
            if not values:
                return row
            c.execute(update(t.projects).where(t.projects.c.id == project_id).values(**values))
            new = self._load_project(c, project_id)
            if any(getattr(new, name) != getattr(row, name) for name in _ACCESS_FIELDS):
                bump(c, ACCESS)
            if new != row:
                write_down(c, Place(by, now_ms, project_id, row.org_id), [Note(action, project_id, row, new)])
            return new

        return await self.write_once(await self._steps.whose(project_id), once, work)

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
            sealed, place = row.slack_webhook_url, slack_place(row.id)
            values["slack_webhook_url"] = self.asides.attempt(
                lambda: self._box.unseal(sealed, place), "channel", row.id, sealed, 0, row.id
            )
        # one that is no template of web links may be stored from earlier; nobody is to render it
        values["trace_id_url_template"] = link_template(row.trace_id_url_template)
        return ProjectRow(**values)


def secret_place(project_id: str) -> str:
    return f"ingest secret:{project_id}"


def slack_place(project_id: str) -> str:
    """What a project's slack_webhook_url is sealed for."""
    return f"slack webhook address:{project_id}"
