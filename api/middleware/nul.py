"""U+0000 in an address: no PostgreSQL keeps it in a text, and what a path or query string says may be stored long after
the answer. Refused here for all handlers; bodies are looked at as they are read (`api.wire.requests.decode_object`)."""

from __future__ import annotations

from quart import Quart, request

from breaker_actors.errors import BadRequest, NotFound


def install(app: Quart) -> None:
    """Puts the look before every handler."""
    app.before_request(refuse)


async def refuse() -> None:
    """Raises NotFound for such a path, which is nothing's, and BadRequest for such a query string."""
    if "\0" in request.path:
        raise NotFound
    if b"%00" not in request.query_string and b"\0" not in request.query_string:
        return
    named = [name for name, value in request.args.items(multi=True) if "\0" in value and "\0" not in name]
    field = named[0] if named else "query"
    message = "must not contain the character U+0000"
    raise BadRequest(f"{field}: {message}", {field: message})
