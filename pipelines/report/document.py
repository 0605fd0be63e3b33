"""The HTML around a page's content: styles, uPlot and our script in one file, under a policy that allows no request and
no other script, and tables and pictures for browsers that run none."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from pipelines.report.still import still_of

HERE = Path(__file__).parent
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def document_of(content: dict[str, Any], encoded: str) -> str:
    """The page. `encoded`: the content as JSON that can't end its element."""
    licence = _read("uplot/LICENSE").strip()
    chart = f"\n/*\n{licence}\n*/\n{_read('uplot/uPlot.iife.min.js')}"
    script = f"\n{_read('page.js')}"
    parts = {
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src {_hash(chart)} {_hash(script)}",
        "style": _read("uplot/uPlot.min.css") + "\n" + _read("page.css"),
        "still": still_of(content),
        "content": encoded,
        "chart": chart,
        "script": script,
    }
    return _PLACE.sub(lambda place: parts[place[1]], _read("page.html"))


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """The source of a content security policy that allows exactly this script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
