"""Samples of code for each operation, as the page of the description shows them: curl, Python, TypeScript."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]


def code_samples(method: str, path: str, operation: Json) -> list[Json]:
    """The `x-codeSamples` of an operation. Names in braces are to be filled in; the key is the caller's."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = content.get("examples", {}).get("example", {}).get("value")
    keyed = {} not in operation["security"]
    makers = (("Shell", "curl", _curl), ("Python", "Python", _python), ("TypeScript", "TypeScript", _typescript))
    return [{"lang": lang, "label": label, "source": make(method, path, body, keyed)} for lang, label, make in makers]


def _curl(method: str, path: str, body: Any, keyed: bool) -> str:
    lines = [f'curl {"--head" if method == "HEAD" else f"-X {method}"} "$BASE_URL{path}"']
    if keyed:
        lines.append('-H "Authorization: Bearer $KEY"')
    if body is not None:
        lines += ['-H "Content-Type: application/json"', f"-d '{json.dumps(body)}'"]
    return " \\\n  ".join(lines)


def _python(method: str, path: str, body: Any, keyed: bool) -> str:
    more = ', headers={"Authorization": f"Bearer {KEY}"}' if keyed else ""
    sent = f"import json\n\nbody = json.loads({json.dumps(body)!r})\n" if body is not None else ""
    more += ", json=body" if body is not None else ""
    call = f'answer = httpx.request("{method}", BASE_URL + "{path}"{more})'
    return f"import httpx\n{sent}\n{call}\nanswer.raise_for_status()\nprint(answer.text)"


def _typescript(method: str, path: str, body: Any, keyed: bool) -> str:
    headers = ["Authorization: `Bearer ${KEY}`"] if keyed else []
    headers += ['"Content-Type": "application/json"'] if body is not None else []
    parts = [f'method: "{method}"', *([f"headers: {{ {', '.join(headers)} }}"] if headers else [])]
    parts += [f"body: JSON.stringify({json.dumps(body)})"] if body is not None else []
    inner = "".join(f"  {part},\n" for part in parts)
    return f'const answer = await fetch(BASE_URL + "{path}", {{\n{inner}}});\nconsole.log(await answer.text());'
