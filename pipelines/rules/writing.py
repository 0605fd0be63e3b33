"""A document of rules as the text of a file, in its only form."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from breaker_actors.text.escaping import for_terminal
from pipelines.rules.model import SECTIONS
from pipelines.rules.yaml_text import add_scalars

yaml: Any = importlib.import_module("yaml")


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes each text that YAML 1.1 or 1.2 would read as something else, and escapes what a terminal does not show as
    it is."""

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        self.allow_unicode = for_terminal(text) == text
        super().write_double_quoted(text, split)
        self.allow_unicode = True


add_scalars(_Dumper)


def _text(dumper: Any, text: str) -> Any:
    style = None if for_terminal(text.replace("\n", "")) == text.replace("\n", "") else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def text_of(document: Mapping[str, Any]) -> str:
    """YAML that `files.read` reads as this document; empty sections are left out."""
    told = {key: document[key] for key in ("owner", "labels", *SECTIONS) if document.get(key)}
    return str(yaml.dump(told, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)) if told else ""
