"""Programs that send one sample, with the real ids in them, for people to copy. Pure.

Where a project asks for signatures they sign; the secret itself comes out of the environment and is in none of them.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import NamedTuple

SECRET = "BREAKERS_INGEST_SECRET"  # nosec B105 # the name of a variable
ANOTHER = "$(od -An -N16 -tx1 /dev/urandom | tr -dc 0-9a-f)"
"""Another text at each call, in any POSIX shell: some have no $RANDOM, some systems no uuidgen and no date +%N."""


class Snippet(NamedTuple):
    id: str
    title: str
    text: str


def address_for_programs(host_url: str) -> str:
    """The service's address out of that of a page. A name below localhost is one session's own, and few programs know
    such names."""
    return re.sub(r"\A(http://)[^/:]+\.localhost(?=[:/])", r"\g<1>127.0.0.1", host_url).rstrip("/")


class Target(NamedTuple):
    """Where samples go. `base_url`: of the service; `breaker`: a name that a gate asks for, "" for none."""

    base_url: str
    project_id: str
    router_id: str
    metric: str
    breaker: str
    signed: bool

    @property
    def url(self) -> str:
        return f"{self.base_url}/v1/projects/{self.project_id}/ingest"


def snippets(target: Target) -> list[Snippet]:
    """One for each language."""
    return [
        Snippet("curl", "curl", _curl(target)),
        Snippet("python", "Python", _python(target)),
        Snippet("sdk", "Python with tripswitch-py", _sdk(target)),
        Snippet("typescript", "TypeScript", _typescript(target)),
        Snippet("go", "Go", _go(target)),
    ]


def js_text(text: str) -> str:
    """A string of JavaScript, ASCII alone."""
    return json.dumps(text)


def go_text(text: str) -> str:
    """A string of Go, ASCII alone: it has no halves of characters."""
    parts = [
        json.dumps(c)[1:-1] if ord(c) < 0x10000 else f"\\U{ord(c):08x}" for c in text if not 0xD800 <= ord(c) < 0xE000
    ]
    return '"' + "".join(parts) + '"'


def _sample(target: Target) -> str:
    return json.dumps([{"router_id": target.router_id, "metric": target.metric, "value": 12.5, "ok": True}])


def _curl(target: Target) -> str:
    body, url = shlex.quote(_sample(target)), shlex.quote(target.url)
    if not target.signed:
        return f"""\
# The key is another one at each call: without it the same sample twice within a second counts once.
curl {url} \\
  -H 'Content-Type: application/json' -H "X-EB-Timestamp: $(date +%s000)" \\
  -H "Idempotency-Key: {ANOTHER}" \\
  -d {body}
"""
    return f"""\
# {SECRET}: the project's ingest secret, in the environment
body={body}
# to the millisecond: the same sample with the same time counts once
now=$(python3 -c 'import time; print(time.time_ns() // 1000000)')
sign() {{ python3 -c 'import hashlib, hmac, os, sys
print("X-EB-Signature: v1=" + hmac.new(bytes.fromhex(os.environ["{SECRET}"]), ".".join(sys.argv[1:]).encode(),
      hashlib.sha256).hexdigest())' "$now" "$body"; }}
curl {url} \\
  -H 'Content-Type: application/json' -H "X-EB-Timestamp: $now" -H "$(sign)" -d "$body"
"""


def _python(target: Target) -> str:
    metric = ascii(target.metric)
    imports = "hashlib, hmac, json, os, time" if target.signed else "json, time"
    sign = f"""\
secret = bytes.fromhex(os.environ["{SECRET}"])
mac = hmac.new(secret, f"{{now}}.".encode() + body, hashlib.sha256).hexdigest()
headers["X-EB-Signature"] = f"v1={{mac}}"
"""
    return f"""\
import {imports}
import urllib.request

now = int(time.time() * 1000)
sample = {{"router_id": "{target.router_id}", "metric": {metric}, "value": 12.5, "ok": True, "ts_ms": now}}
body = json.dumps([sample]).encode()
headers = {{"Content-Type": "application/json", "X-EB-Timestamp": str(now)}}
{sign if target.signed else ""}request = urllib.request.Request({target.url!a}, body, headers)
with urllib.request.urlopen(request, timeout=10) as answer:
    print(answer.status, answer.read().decode())
"""


def _sdk(target: Target) -> str:
    gate = f", breakers=[{target.breaker!a}]" if target.breaker else ""
    secret = f"""    ingest_secret=os.environ["{SECRET}"],\n""" if target.signed else ""
    return f"""\
# pip install tripswitch-py; it sends at 500 samples, or after 15 seconds without one
import os
import tripswitch

with tripswitch.Client(
    "{target.project_id}",
    api_key=os.environ["BREAKERS_PROJECT_KEY"],
{secret}    base_url={target.base_url!a},
) as client:
    result = client.execute(
        lambda: "your call"{gate},
        router="{target.router_id}", metrics={{{target.metric!a}: tripswitch.Latency}},
    )
"""


def _typescript(target: Target) -> str:
    begin = 'import { createHmac } from "node:crypto";\n\n' if target.signed else ""
    sign = f"""\
const secret = Buffer.from(process.env.{SECRET}!, "hex");
headers["X-EB-Signature"] = "v1=" + createHmac("sha256", secret).update(`${{now}}.${{body}}`).digest("hex");
"""
    return f"""\
{begin}const now = Date.now();
const metric = {js_text(target.metric)};
const sample = {{ router_id: "{target.router_id}", metric, value: 12.5, ok: true, ts_ms: now }};
const body = JSON.stringify([sample]);
const headers: Record<string, string> = {{ "Content-Type": "application/json", "X-EB-Timestamp": String(now) }};
{sign if target.signed else ""}const answer = await fetch({js_text(target.url)}, {{ method: "POST", headers, body }});
console.log(answer.status, await answer.text());
"""


def _go(target: Target) -> str:
    signing = ["crypto/hmac", "crypto/sha256", "encoding/hex", "os"] if target.signed else []
    imports = "\n".join(
        f'\t"{name}"' for name in sorted(["bytes", "encoding/json", "fmt", "net/http", "time", *signing])
    )
    sign = f"""\
	secret, _ := hex.DecodeString(os.Getenv("{SECRET}"))
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%d.%s", now, body)
	request.Header.Set("X-EB-Signature", fmt.Sprintf("v1=%x", mac.Sum(nil)))
"""
    return f"""\
package main

import (
{imports}
)

func main() {{
	now := time.Now().UnixMilli()
	body, _ := json.Marshal([]map[string]any{{{{
		"router_id": "{target.router_id}", "metric": {go_text(target.metric)}, "value": 12.5, "ok": true, "ts_ms": now,
	}}}})
	request, _ := http.NewRequest("POST", {go_text(target.url)}, bytes.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-EB-Timestamp", fmt.Sprint(now))
{sign if target.signed else ""}	answer, err := http.DefaultClient.Do(request)
	if err != nil {{
		panic(err)
	}}
	fmt.Println(answer.Status)
}}
"""
