"""A client for the mappings of one project of a running service."""

from __future__ import annotations

from typing import Any

from api.cli.project_client import ProjectClient, heeded


class MappingClient(ProjectClient):
    """Speaks about the mappings of one project."""

    def mappings(self) -> list[dict[str, Any]]:
        """The project's own mappings, in their order."""
        return self._items("mappings", self._ask("GET", self.path("mappings")))

    def find_mapping(self, wanted: str) -> dict[str, Any]:
        """The mapping of this name or id. Raises Invalid for none."""
        return self._one("mapping", wanted, self.mappings())

    def create_mapping(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Makes a mapping; what became of it."""
        return self._single(heeded(self._ask("POST", self.path("mappings"), fields)), "mapping")

    def change_mapping(self, mapping_id: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Changes fields of a mapping; what became of it."""
        return self._single(heeded(self._ask("PATCH", self.path(f"mappings/{mapping_id}"), fields)), "mapping")

    def delete_mapping(self, mapping_id: str) -> None:
        self._ask("DELETE", self.path(f"mappings/{mapping_id}"))

    def replace_mappings(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Makes a list the whole list; whether anything was changed, and how many there are."""
        return heeded(self._ask("PUT", self.path("mappings"), fields))

    def preview_mappings(self, fields: dict[str, Any]) -> dict[str, Any]:
        """What series would become."""
        answer = heeded(self._ask("POST", self.path("mappings:preview"), fields))
        self._items("series", answer)
        return answer

    def preview_payload(self, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        """What is in a request of another protocol would become; `headers` say which one."""
        answer = heeded(self._send("POST", self.path("mappings:preview"), content=body, headers=headers))
        self._items("series", answer)
        return answer
