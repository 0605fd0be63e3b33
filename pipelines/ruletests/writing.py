"""Writes what a breaker got and did as a file of tests, in YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import polars as pl

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.model import BY_HAND, Control, Record, Rule, Transition
from pipelines.candidates import RULE_FIELDS
from pipelines.ruletests.expectations import told
from pipelines.ruletests.slicing import Slice
from pipelines.ruletests.times import written
from pipelines.sources.files import Born, ControlSet, InForce

INLINE_MAX = 60
"""So many samples stand in the file itself; of more there is a Parquet file beside it."""
PLAIN = re.compile(r"[A-Za-z][\w-]*")
WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
COLUMNS = ("received_ms", "ts_ms", "value", "ok", "count", "record")


@dataclass(frozen=True, slots=True)
class Part:
    """What one breaker got and did, up to `until_ms`."""

    name: str
    breaker_id: str
    slice: Slice
    moves: Sequence[Transition]
    until_ms: int


def document(parts: Sequence[Part], stem: str) -> tuple[str, dict[str, pl.DataFrame]]:
    """The text of a file of tests, and the samples that lie beside it by the names of their files."""
    lines, files = ["# Recorded from a service. The rule is as it was in force at the start.", "breakers:"], {}
    keys = _distinct([part.name for part in parts])
    for key, part in zip(keys, parts, strict=True):
        lines += [f"  {text(key)}:", *_rule(part.slice.rule)]
    lines.append("tests:")
    for number, (key, part) in enumerate(zip(keys, parts, strict=True), 1):
        file = f"{stem}.samples.parquet" if len(parts) == 1 else f"{stem}.{number}.samples.parquet"
        inline = _inline(part.slice.samples)
        if inline is None:
            files[file] = part.slice.samples.select(COLUMNS)
        lines += _test(key, part, [f"      file: {text(file)}"] if inline is None else inline)
    return "\n".join(lines) + "\n", files


def _distinct(names: Sequence[str]) -> list[str]:
    found = list[str]()
    for name in names:
        found.append(name if name not in found else f"{name} ({len(found) + 1})")
    return found


def _rule(rule: Rule) -> Iterator[str]:
    for name in RULE_FIELDS:
        value = getattr(rule, name)
        if value is not None:
            yield f"    {name}: {text(value)}"


def _test(key: str, part: Part, samples: Sequence[str]) -> Iterator[str]:
    yield f"  - name: {text(f'{key}, {written(part.slice.start_ms)}')}"
    yield f"    breaker: {text(key)}"
    yield f"    start: {written(part.slice.start_ms)}"
    yield f"    until: {written(part.until_ms)}"
    if (begin := _begin(part.slice)) != "{}":
        yield f"    begin: {begin}"
    yield "    samples:" if len(part.slice.samples) else "    samples: []"
    yield from samples if len(part.slice.samples) else ()
    happenings = list(_happenings(part.slice, part.until_ms))
    yield from ["    meanwhile:", *(f"      - {flow(one)}" for one in happenings)] if happenings else []
    yield "    expect:" if part.moves else "    expect: []"
    for move in part.moves:
        yield f"      - {_line(move)}"


def _line(move: Transition) -> str:
    """A move as a line of expectations."""
    (got,) = told([move])
    hand = move.reason in BY_HAND
    rate = f" {move.allow_rate:g}" if move.curr == "half_open" else ""
    words, by, reason = got.words.partition(" by hand ")
    figures = [f"value={move.value:.10g}"] if move.value is not None else []
    figures += [] if hand else [f"count={move.agg.count}"]
    figures += [f"reason={move.reason}"] if move.curr == "open" and not hand else []
    return " ".join([f"{written(move.ts_ms)} {words}{rate}{by}{reason}", *figures])


def _begin(found: Slice) -> str:
    """How the breaker stood, but for what is so in any new one."""
    if found.begin is None:
        return "{}"
    at = found.start_ms
    plain = Record(created_ms=at, now_ms=at, grid_ms=at, state_since_ms=at)
    fields = msgspec.to_builtins(found.begin)
    return flow({name: value for name, value in fields.items() if value != getattr(plain, name)})


def _happenings(found: Slice, until_ms: int) -> Iterator[dict[str, Any]]:
    records, last = found.samples["record"], len(found.samples)
    behind = records[-1] + 1 if last else 0
    for row, item in found.happenings:
        at_ms = item.from_ms if isinstance(item, Gap) else item.at_ms
        if at_ms > until_ms:
            continue
        place = {"at": written(at_ms), "record": records[row] if row < last else behind}
        yield place | _what(item)


def _what(item: Born | ControlSet | Gap | InForce) -> dict[str, Any]:
    if isinstance(item, Gap):
        return {"gap_until": written(item.to_ms)}
    if isinstance(item, InForce):
        return {"rule": {name: getattr(item.rule, name) for name in RULE_FIELDS}}
    return _control(item.control or Control())


def _control(control: Control) -> dict[str, Any]:
    override = None if control.override is None else msgspec.to_builtins(control.override)
    if override is not None:
        override["until"] = override.pop("until_ms")
        override = {name: value for name, value in override.items() if value is not None}
        override["until"] = written(override["until"])
    fields = {"mode": control.mode, "override": override, "by": control.by, "comment": control.comment}
    return {name: value for name, value in fields.items() if value is not None or name == "override"}


def _inline(samples: pl.DataFrame) -> list[str] | None:
    """Few samples, none of them late, in the notation; None for others."""
    late = samples.filter(pl.col("ts_ms") < pl.col("received_ms"))
    if len(samples) > INLINE_MAX or len(late):
        return None
    if not len(samples):
        return []
    first_ms, batches = int(samples["received_ms"][0]), []
    for (_,), rows in samples.group_by("record", maintain_order=True):
        inside = " ".join(_sample(*row) for row in rows.select("value", "ok", "count").iter_rows())
        offset = int(rows["received_ms"][0]) - first_ms
        batches.append(f"@{offset} {f'({inside})' if len(rows) > 1 else inside}")
    return [f"      from: {written(first_ms)}", f"      series: {text(' '.join(batches))}"]


def _sample(value: float, ok: bool, count: int) -> str:
    number = repr(float(value)).replace("e+", "e")
    return f"{number}{'' if ok else '!'}{f'*{count}' if count != 1 else ''}"


def text(value: object) -> str:
    """A value as YAML on one line, which reads as the same again."""
    if isinstance(value, str):
        plain = PLAIN.fullmatch(value) and value.lower() not in WORDS
        return value if plain else _quoted(value)
    return flow(value) if isinstance(value, Mapping) else json.dumps(value)


def _quoted(value: str) -> str:
    quoted = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[^\x20-\x7e\u00a1-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd]", _escaped, quoted)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def flow(value: object) -> str:
    """A value in braces and brackets."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{text(str(name))}: {flow(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    return text(value) if isinstance(value, str) else json.dumps(value)
