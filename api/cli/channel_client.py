"""A client for the notification channels of one project of a running service."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from api.cli.project_client import ProjectClient, heeded


class ChannelClient(ProjectClient):
    """Speaks about the notification channels of one project. Secrets in their configs are masked in every answer."""

    def channels(self) -> list[dict[str, Any]]:
        """All channels of the project."""
        return self._items("channels", self._listed())

    def listed_channels(self) -> list[dict[str, Any]]:
        """The same; what keeps some from being told is said on stderr."""
        return self._items("channels", heeded(self._listed()))

    def find_channel(self, wanted: str) -> dict[str, Any]:
        """The channel of this name or id. Raises Invalid for none and for several."""
        return self._one("channel", wanted, self.channels())

    def create_channel(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Makes a channel; what became of it."""
        return self._single(heeded(self._ask("POST", self.path("notification-channels"), fields)), "channel")

    def change_channel(self, channel_id: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Changes fields of a channel; what became of it."""
        return self._single(heeded(self._ask("PATCH", self._at(channel_id), fields)), "channel")

    def delete_channel(self, channel_id: str) -> None:
        self._ask("DELETE", self._at(channel_id))

    def test_channel(self, channel_id: str) -> str:
        """Sends a test at once; what is said of it. Raises Invalid where it could not be sent."""
        return str(self._ask("POST", f"{self._at(channel_id)}/test", {})["message"])

    def _listed(self) -> dict[str, Any]:
        return self._ask("GET", self.path("notification-channels"))

    def _at(self, channel_id: str) -> str:
        return self.path(f"notification-channels/{quote(channel_id, '')}")
