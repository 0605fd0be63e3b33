"""A document of rules as the text of a file, in its only form."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from pipelines.rules.model import SECTIONS

yaml: Any = importlib.import_module("yaml")


def text_of(document: Mapping[str, Any]) -> str:
    """YAML that `files.read` reads as this document; empty sections are left out."""
    told = {key: document[key] for key in ("owner", "labels", *SECTIONS) if document.get(key)}
    return str(yaml.safe_dump(told, sort_keys=False, allow_unicode=True, width=120)) if told else ""
