"""Pages of a list by their numbers, as an address asks for them."""

from __future__ import annotations

from urllib.parse import urlencode

from quart import request


def asked_page() -> int:
    """The number of the page that the address asks for, from 1 on."""
    text = request.args.get("page", "1")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def pages_of(total: int, rows: int) -> int:
    """How many pages of so many rows there are; one where there is nothing."""
    return max(1, -(-total // rows))


def address_of_page(number: int) -> str:
    """The current address with another page's number."""
    asked = {name: value for name, value in request.args.items() if name != "page"} | {"page": str(number)}
    return f"{request.path}?{urlencode(asked)}"
