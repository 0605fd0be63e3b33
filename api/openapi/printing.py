"""`breakers openapi`: the description on standard output."""

from __future__ import annotations

import json


def print_document() -> None:
    """The OpenAPI document, indented."""
    from api.openapi.document import document

    print(json.dumps(document(), indent=2))
