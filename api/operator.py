"""A client for the operator's part of the interface: how the service is doing, and evening out."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import httpx

from api.credentials import FILE_NAME, read
from breaker_actors.errors import BreakersError, Invalid, Unavailable
from breaker_actors.settings import Settings

TIMEOUT_S = 60.0
STATUS = "/v1/admin/status"
REBALANCE = "/v1/admin/rebalance"


class Operator:
    """Speaks to one service with an admin key. A context manager."""

    def __init__(self, base_url: str, admin_key: str) -> None:
        headers = {"Authorization": f"Bearer {admin_key}"}
        self._client = httpx.Client(base_url=base_url, headers=headers, timeout=TIMEOUT_S)

    @classmethod
    def of(cls, settings: Settings, base_url: str | None = None) -> Operator:
        """With what credentials.json of the data dir says. Raises Invalid when there is none."""
        path = settings.data_dir / FILE_NAME
        known = read(path)
        if known is None:
            raise Invalid(f"there is no {path}: name the data directory of the service with --data-dir")
        return cls(base_url or known.base_url, known.admin_key)

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def status(self) -> dict[str, Any]:
        return self._ask("GET", STATUS)

    def rebalance(self, most: int) -> dict[str, Any]:
        """One step; to be repeated while anything is `left`."""
        return self._ask("POST", REBALANCE, {"max": most})

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            answer = self._client.request(method, path, json=body)
            found = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            text = str(error) or type(error).__name__
            raise Unavailable(f"no answer from {self._client.base_url}: {text}") from None
        if answer.status_code != 200:
            told = found.get("message", "") if isinstance(found, dict) else ""
            raise BreakersError(f"{self._client.base_url} answers {answer.status_code}: {told}")
        return dict(found)
