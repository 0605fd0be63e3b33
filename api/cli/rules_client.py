"""A client for the rules of one project that files declare."""

from __future__ import annotations

from typing import Any

from api.cli.project_client import ProjectClient, heeded


class RulesClient(ProjectClient):
    """Speaks about what files declare of one project."""

    def plan_rules(self, document: dict[str, Any]) -> dict[str, Any]:
        """What a document would change, and `address`, which was told of it."""
        return self._planned(heeded(self._ask("POST", self.path("rules:plan"), document))) | {"address": self.address}

    def apply_rules(self, document: dict[str, Any], version: str, destructive: bool) -> dict[str, Any]:
        """Carries out a plan of this version; what was done, and `address`, which was told of it."""
        headers = {"If-Match": f'"{version}"'}
        params = {"allow_destructive": "true"} if destructive else {}
        answer = self._send("POST", self.path("rules:apply"), json=document, params=params, headers=headers)
        return self._planned(heeded(answer)) | {"address": self.address}

    def adopt_rules(self, document: dict[str, Any], from_owner: str | None) -> list[str]:
        """Takes over what a document names; what was taken over, as kind.name."""
        query: dict[str, Any] = {} if from_owner is None else {"from": from_owner}
        found = heeded(self._ask("POST", self.path("rules:adopt"), document, **query))
        return [str(one) for one in found.get("adopted", [])]

    def drift_rules(self, owner: str) -> dict[str, Any]:
        """What was changed since the owner applied."""
        return self._planned(self._ask("GET", self.path("rules:drift"), owner=owner))

    def export_rules(self, owner: str | None) -> dict[str, Any]:
        """What an owner declares, or everything, as a document."""
        query: dict[str, Any] = {} if owner is None else {"owner": owner}
        return self._ask("GET", self.path("rules"), **query)

    def _planned(self, answer: dict[str, Any]) -> dict[str, Any]:
        self._items("changes", answer)
        return answer
