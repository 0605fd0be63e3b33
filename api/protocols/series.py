"""Labels to series: what a series may be called, its type by name and metadata, and its identity."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from xxhash import xxh3_64_digest, xxh3_128_digest

from api.protocols.bounds import LABELS_BYTES_MAX, LABELS_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX, VALUE_BYTES_MAX
from api.protocols.points import Series, SeriesType, Temporality
from breaker_actors.errors import PayloadTooLarge

UNKNOWN, COUNTER, GAUGE, HISTOGRAM, GAUGE_HISTOGRAM, SUMMARY, INFO, STATE_SET = range(8)
"""Types of metadata in remote-write 1.0 and 2.0."""
RISING = ("_total", "_count", "_sum", "_bucket")
"""Endings of names whose values only rise, where no metadata says more."""
_FAMILY_ENDINGS = (*RISING, "_created", "_info", "_gcount", "_gsum")


class Flaw(msgspec.Struct, frozen=True):
    """Why a series or a point can't be taken: a machine word and a sentence."""

    code: str
    message: str


NOT_UTF8 = Flaw("invalid_utf8", "A name or value is not valid UTF-8.")
NO_LABEL_NAME = Flaw("empty_label_name", "A label has no name.")
TWICE = Flaw("duplicate_label", "Two labels of the series have the same name.")
NO_NAME = Flaw("missing_name", "The series has no name.")
TOO_MANY = Flaw("too_many_labels", f"A series has at most {LABELS_MAX} labels, and so has its resource.")
LONG_NAME = Flaw("name_too_long", f"Names have at most {NAME_BYTES_MAX} bytes.")
LONG_LABELS = Flaw("labels_too_long", "The labels of a series, or of its resource and scope, are too long together.")
LONG_VALUE = Flaw("value_too_long", "The value of a label is too long.")


class Text:
    """What is left of a request's TEXT_BYTES_MAX."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = TEXT_BYTES_MAX

    def spend(self, size: int) -> None:
        """Raises PayloadTooLarge where there is not so much left."""
        self._left -= size
        if self._left < 0:
            raise PayloadTooLarge(
                f"The body makes more than {TEXT_BYTES_MAX} bytes of labels, where each series says its own.",
                {"where": "body"},
            )


def labels_of(
    pairs: Iterable[tuple[bytes, bytes]],
    text: Text,
    value_max: int = VALUE_BYTES_MAX,
    bytes_max: int = LABELS_BYTES_MAX,
) -> dict[str, str] | Flaw:
    """Labels by name, without those of an empty value (which say nothing, as in Prometheus), or what is wrong. `text`:
    the budget that they come off. Raises PayloadTooLarge beyond it."""
    labels: dict[str, str] = {}
    size = 0
    for name, value in pairs:
        size += len(name) + len(value)
        if size > bytes_max:
            text.spend(size)
            return LONG_LABELS
        if not name:
            return NO_LABEL_NAME
        if len(name) > NAME_BYTES_MAX:
            return LONG_NAME
        if len(value) > value_max:
            return LONG_VALUE
        try:
            named = name.decode()
            if named in labels:
                return TWICE
            labels[named] = value.decode()
        except UnicodeDecodeError:
            return NOT_UTF8
        if len(labels) > LABELS_MAX:
            return TOO_MANY
    text.spend(size)
    return {name: value for name, value in labels.items() if value} if "" in labels.values() else labels


def name_of(spelled: bytes) -> str | Flaw:
    """A metric's name."""
    if not spelled:
        return NO_NAME
    if len(spelled) > NAME_BYTES_MAX:
        return LONG_NAME
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return NOT_UTF8


def unit_of(spelled: bytes) -> str | Flaw:
    """A metric's unit; empty where nobody said."""
    return name_of(spelled) if spelled else ""


def encode_labels(labels: dict[str, str]) -> bytes:
    """Labels sorted by name, each text with its length before it: no two sets of labels give the same bytes."""
    parts = [len(labels).to_bytes(4, "little")]
    for name in sorted(labels):
        for text in (name.encode(), labels[name].encode()):
            parts += (len(text).to_bytes(4, "little"), text)
    return b"".join(parts)


NO_RESOURCE = encode_labels({})


def stream_of(unit: str, kind: str) -> bytes:
    """What tells OTLP streams apart beside name, labels, resource and type, to end their identities: 8 bytes made of
    the unit and a `kind` of histogram that is not the explicit one; b"" where there is neither. Metadata of
    remote-write come and go, and are no part of an identity."""
    return xxh3_64_digest(encode_labels({unit: kind})) if unit or kind else b""


def make_series(
    name: str,
    labels: dict[str, str],
    kind: SeriesType,
    temporality: Temporality | None = None,
    monotonic: bool = False,
    unit: str = "",
    resource: dict[str, str] | None = None,
    encoded_resource: bytes = NO_RESOURCE,
    stream: bytes = b"",
) -> Series:
    """A series with its identity. `encoded_resource`: `encode_labels` of the resource; `stream`: see `stream_of`."""
    head = encode_labels({name: kind})
    return Series(
        name=name,
        labels=labels,
        resource=resource or {},
        type=kind,
        temporality=temporality,
        monotonic=monotonic,
        unit=unit,
        identity=xxh3_128_digest(head + encode_labels(labels) + encoded_resource) + stream,
    )


def prometheus_series(labels: dict[str, str], metadata: int, histogram: str, unit: str = "") -> Series | Flaw:
    """The series of Prometheus labels with `__name__`. `metadata`: its family's type. `histogram`: "" where its points
    are numbers, "cumulative", or "gauge" where they are histograms that may fall (of no temporality)."""
    name = labels.get("__name__")
    if not name:
        return NO_NAME
    if len(name.encode()) > NAME_BYTES_MAX:
        return LONG_NAME
    others = {label: value for label, value in labels.items() if label != "__name__"}
    if histogram:
        return make_series(name, others, "histogram", "cumulative" if histogram == "cumulative" else None, unit=unit)
    kind = type_of(name, metadata)
    if kind == "sum":
        return make_series(name, others, kind, "cumulative", True, unit)
    return make_series(name, others, kind, unit=unit)


def type_of(name: str, metadata: int) -> SeriesType:
    """The type of a series of numbers by its family's metadata. Without, or by a type that no number has: by the ending
    of its name a sum that rises, else unknown."""
    if metadata in (GAUGE, GAUGE_HISTOGRAM, INFO, STATE_SET):
        return "gauge"
    if metadata in (COUNTER, HISTOGRAM, SUMMARY) and name.endswith("_created"):
        return "gauge"
    if metadata == COUNTER or name.endswith(RISING):
        return "sum"
    return "gauge" if metadata == SUMMARY else "unknown"


def families_of(name: str) -> list[str]:
    """Names of the family that a series may belong to: its own, and that without an ending."""
    return [name, *(name[: -len(ending)] for ending in _FAMILY_ENDINGS if name.endswith(ending))]
