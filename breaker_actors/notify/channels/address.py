"""What an address has to be before anybody reads it as one of some kind."""

from __future__ import annotations

URL_MAX = 2048


def address_text(given: object) -> str:
    """It, as text. Raises ValueError saying what is wrong with it."""
    if given is None or given == "":
        raise ValueError("is required")
    if not isinstance(given, str):
        raise ValueError("must be a string")
    if len(given) > URL_MAX:
        raise ValueError(f"must be at most {URL_MAX} characters")
    return given
