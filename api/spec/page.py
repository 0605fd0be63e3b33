"""The description as one HTML page that needs nothing else: no script, no font, no request to anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from typing import Any

from api.spec.document import document

Json = dict[str, Any]

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2733;background:#fff}
h2{margin-top:2.5rem;border-bottom:1px solid #d5dde5;text-transform:capitalize}
details{border:1px solid #d5dde5;border-radius:6px;margin:.4rem 0;padding:.4rem .8rem}
summary{cursor:pointer}code,pre{font:13px/1.45 ui-monospace,monospace}
pre{background:#f4f7fa;padding:.6rem;overflow:auto}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0}
th{font-weight:600;color:#56697c}tr+tr td{border-top:1px solid #eef2f6}
.method{display:inline-block;min-width:4.2rem;font-weight:700}.about{color:#56697c;float:right}
@media(prefers-color-scheme:dark){body{color:#d8e1ea;background:#12181f}pre{background:#1b2530}.about,th{color:#93a7ba}
details,h2{border-color:#2c3a48}tr+tr td{border-color:#22303d}a{color:#7ab8ff}}
"""


@cache
def page() -> str:
    """The whole page."""
    spec = document()
    parts = [f"<h1>{escape(spec['info']['title'])}</h1><p>{escape(spec['info']['description'])} "]
    parts.append('The same for programs: <a href="/openapi.json">/openapi.json</a>.</p>')
    for tag in spec["tags"]:
        parts.append(f"<h2>{escape(tag['name'])}</h2>")
        parts += [
            _operation(method, path, operation)
            for path, methods in spec["paths"].items()
            for method, operation in methods.items()
            if tag["name"] in operation["tags"]
        ]
    parts.append("<h2>bodies</h2>")
    parts += [_schema(name, schema) for name, schema in sorted(spec["components"]["schemas"].items())]
    head = f'<meta charset="utf-8"><title>{escape(spec["info"]["title"])}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _operation(method: str, path: str, operation: Json) -> str:
    keys = [" and ".join(way) or "no key" for way in operation["security"]]
    parts = [f"<p>Asks for: {escape(', '.join(keys))}.</p>"]
    if operation["parameters"]:
        rows = [
            (f"{p['name']} ({p['in']})", _type(p["schema"]), p.get("description", "")) for p in operation["parameters"]
        ]
        parts.append(_table(("parameter", "type", ""), rows))
    if body := operation.get("requestBody"):
        parts.append(f"<h4>Body</h4>{_content(body)}")
    answers = [
        (status, _answer_type(answer), answer["description"]) for status, answer in operation["responses"].items()
    ]
    parts.append("<h4>Answers</h4>" + _table(("status", "body", ""), answers))
    parts += [_content(answer) for answer in operation["responses"].values() if _has_example(answer)]
    head = f'<span class="method">{method.upper()}</span><code>{escape(path)}</code>'
    about = f'<span class="about">{escape(operation["summary"])}</span>'
    return f'<details id="{operation["operationId"]}"><summary>{head}{about}</summary>{"".join(parts)}</details>'


def _schema(name: str, schema: Json) -> str:
    required = schema.get("required", [])
    rows = [
        (field, _type(kind), "always" if field in required else "")
        for field, kind in schema.get("properties", {}).items()
    ]
    about = escape(schema.get("description", ""))
    table = _table(("field", "type", ""), rows)
    return f'<details id="schema-{name}"><summary><code>{name}</code></summary><p>{about}</p>{table}</details>'


def _content(holder: Json) -> str:
    parts = []
    for media in holder.get("content", {}).values():
        parts.append(f"<p>{_type(media['schema'])}</p>")
        if "example" in media:
            parts.append(f"<pre>{escape(json.dumps(media['example'], indent=2))}</pre>")
    return "".join(parts)


def _has_example(answer: Json) -> bool:
    return any("example" in media for media in answer.get("content", {}).values())


def _answer_type(answer: Json) -> str:
    return " ".join(f"{_type(media['schema'])}" for media in answer.get("content", {}).values()) or "none"


def _type(schema: Json) -> str:
    """A type in a few words, with its bounds; HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[1])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if schema.get("const") == "":
        return "empty"
    if "enum" in schema:
        return escape(", ".join(map(str, schema["enum"])))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    shown = {"default": "default", "minimum": "from", "maximum": "to", "maxLength": "at most", "description": "·"}
    notes = [f"{word} {schema[key]}" for key, word in shown.items() if schema.get(key) not in (None, "")]
    words = [str(schema.get("type", "anything")), schema.get("format", ""), *notes]
    return escape(" ".join(word for word in words if word))


def _table(head: Sequence[str], rows: Sequence[tuple[str, str, str]]) -> str:
    """Rows of a name (text), a type (HTML) and a remark (text)."""
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{escape(about)}</td></tr>"
        for name, kind, about in rows
    )
    return f"<table><tr>{''.join(f'<th>{word}</th>' for word in head)}</tr>{cells}</table>"
