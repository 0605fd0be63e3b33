"""A client for one project of a running service: how it is found, and what operators set in it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import quote

from api.cli.admin_client import ServiceClient
from api.cli.named import NAMED_MAX, is_id, named_project, one_of
from api.cli.output import note
from breaker_actors.errors import BreakersError, ConfirmationNeeded, Invalid
from breaker_actors.text.counting import counted

AT_FAULT = (400, 404, 409, 412, 413, 422)


class ProjectClient(ServiceClient):
    """Speaks to one service about one project. `project` is a name or an id; it is looked up at the first use."""

    def __init__(self, base_url: str, key: str, project: str, insecure: bool = False) -> None:
        super().__init__(base_url, key, insecure)
        self._wanted, self._project_id = project, ""

    def refusal(self, status: int, body: Any) -> BreakersError:
        message = body.get("message") if isinstance(body, dict) else None
        if status not in AT_FAULT or not isinstance(message, str):
            return super().refusal(status, body)
        details = body.get("details")
        fields = details.get("fields", details) if isinstance(details, dict) else {}
        if body.get("code") == ConfirmationNeeded.code:
            return ConfirmationNeeded(message, {"machine_state": fields.get("machine_state", "not closed")})
        more = [f"{name}: {text}" for name, text in fields.items() if isinstance(text, str) and text not in message]
        return Invalid(" ".join([message, "; ".join(more)]).strip(), fields)

    def path(self, rest: str) -> str:
        """The path of something of the project."""
        return f"/v1/projects/{self.project_id()}/{rest}"

    def project_id(self) -> str:
        """The id of the project, looked up once where a name was given."""
        self._project_id = self._project_id or self._find_project()
        return self._project_id

    def _find_project(self) -> str:
        if is_id(self._wanted):
            return self._wanted.lower()
        rows = self._items("projects", self._ask("GET", "/v1/projects"))
        return str(self._one("project", self._wanted, rows)["id"])

    def create_project(self, name: str, workspace: str | None) -> dict[str, Any]:
        """Makes a project in a workspace, by its name or id, or in the only one; what became of it. Raises Invalid."""
        rows = self._items("workspaces", self._ask("GET", "/v1/workspaces"))
        if workspace is None and len(rows) != 1:
            names = ", ".join(str(row.get("name")) for row in rows[:NAMED_MAX])
            raise Invalid(f"name the workspace with --workspace: there are {counted(len(rows), 'workspace')}: {names}")
        row = rows[0] if workspace is None else self._one("workspace", workspace, rows)
        return heeded(self._ask("POST", "/v1/projects", {"workspace_id": row.get("id"), "name": name}))

    def change_project(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Changes fields of the project; what became of it."""
        return heeded(self._ask("PATCH", f"/v1/projects/{self.project_id()}", fields))

    def overrides(self) -> list[dict[str, Any]]:
        """The overrides in force, the one that ends first first."""
        return self._items("overrides", self._ask("GET", self.path("overrides")))

    def is_overridden(self, breaker_id: str) -> bool:
        """Whether one is in force for the breaker."""
        return any(row.get("breaker_id") == breaker_id for row in self.overrides())

    def set_override(self, breaker_id: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Puts an override in force; what became of it."""
        return heeded(self._ask("PUT", self.path(f"breakers/{breaker_id}/override"), fields))

    def end_override(self, breaker_id: str, reason: str | None) -> None:
        query: dict[str, Any] = {} if reason is None else {"reason": reason}
        self._ask("DELETE", self.path(f"breakers/{breaker_id}/override"), **query)

    def preview_overrides(self, fields: dict[str, Any]) -> dict[str, Any]:
        """How many breakers matchers match, and how many of them are open."""
        return self._ask("POST", self.path("overrides:preview"), fields)

    def set_overrides(self, fields: dict[str, Any], destructive: bool) -> dict[str, Any]:
        """Puts one override in force for all breakers that match; how many."""
        query: dict[str, Any] = {"allow_destructive": "true"} if destructive else {}
        return heeded(self._ask("POST", self.path("overrides"), fields, **query))

    def end_overrides(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Ends the overrides of all breakers that match; how many."""
        return heeded(self._ask("POST", self.path("overrides:end"), fields))

    def mutes(self) -> list[dict[str, Any]]:
        """All mutes of the project, those that have ended included."""
        return self._items("mutes", self._ask("GET", self.path("mutes")))

    def mute(self, mute_id: str) -> dict[str, Any]:
        """A mute, with how many breakers it matches now."""
        return self._single(self._ask("GET", self.path(f"mutes/{quote(mute_id, '')}")), "mute")

    def preview_mute(self, fields: dict[str, Any]) -> dict[str, Any]:
        """How many breakers matchers match, and how many of them are open."""
        return self._ask("POST", self.path("mutes:preview"), fields)

    def create_mute(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Makes a mute; what became of it."""
        return self._single(heeded(self._ask("POST", self.path("mutes"), fields)), "mute")

    def change_mute(self, mute_id: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Changes fields of a mute; what became of it."""
        return self._single(heeded(self._ask("PATCH", self.path(f"mutes/{quote(mute_id, '')}"), fields)), "mute")

    def end_mute(self, mute_id: str) -> None:
        self._ask("DELETE", self.path(f"mutes/{quote(mute_id, '')}"))

    def note_none(self, what: str) -> None:
        """Says beside an empty list of which project it is."""
        note(f"breakers: no {what} in {self.place()}")

    def _single(self, answer: dict[str, Any], what: str = "breaker") -> dict[str, Any]:
        found = answer.get(what)
        if not isinstance(found, dict):
            raise self.odd()
        return found

    def _items(self, key: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
        found = answer.get(key)
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise self.odd()
        return found

    def _one(self, noun: str, wanted: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The row of this id, or else of this name."""
        try:
            by_id = {str(row["id"]): row for row in rows}
            names = [(id_, str(row["name"])) for id_, row in by_id.items()]
        except KeyError:
            raise self.odd() from None
        return by_id[one_of(noun, wanted, names, str if noun in ("project", "workspace") else self.place)]

    def place(self) -> str:
        """The project that is asked about, by its name where that can be found out."""
        id_, name = self._project_id, None
        with suppress(BreakersError):
            name = self._ask("GET", f"/v1/projects/{id_}").get("name")
        return named_project(id_, name if isinstance(name, str) else None)


def heeded(answer: dict[str, Any]) -> dict[str, Any]:
    """The same; its warnings are said on stderr."""
    warnings = answer.get("warnings")
    for each in warnings if isinstance(warnings, list) else ():
        if isinstance(each, dict):
            note(f"breakers: {each.get('field')}: {each.get('message')}")
    return answer
