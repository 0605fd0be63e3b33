"""What senders of remote-write 1.0 and 2.0 put into a request, spelled by the reference implementation of protobuf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cramjam
import msgspec

from tests.support.open_protocols import NOW_MS, Request2, WriteRequest

V1_HEADERS = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
V2_HEADERS = {
    "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "2.0.0",
}
WRITTEN = "X-Prometheus-Remote-Write-{}-Written"
KINDS = ("Samples", "Histograms", "Exemplars")


class Sent(msgspec.Struct, kw_only=True):
    """One time series: labels, and of the rest what is given. `exemplars`: (labels, ts_ms) of each."""

    labels: dict[str, str]
    value: float | None = None
    ts_ms: int = NOW_MS
    start_ms: int = 0
    histogram: dict[str, Any] | None = None
    exemplars: Sequence[tuple[dict[str, str], int]] = ()
    kind: int = 0
    help: str = ""
    unit: str = ""


def snapped(body: bytes) -> bytes:
    """The body as a snappy block."""
    return bytes(cramjam.snappy.compress_raw(body))


def request2(series: Sequence[Sent]) -> Any:
    """A request of 2.0."""
    symbols: dict[str, int] = {"": 0}

    def ref(text: str) -> int:
        return symbols.setdefault(text, len(symbols))

    def refs(labels: dict[str, str]) -> list[int]:
        return [ref(text) for pair in labels.items() for text in pair]

    request = Request2()
    for sent in series:
        made = request.timeseries.add(labels_refs=refs(sent.labels))
        if sent.value is not None:
            made.samples.add(value=sent.value, timestamp=sent.ts_ms, start_timestamp=sent.start_ms)
        if sent.histogram is not None:
            fill_histogram(made.histograms.add(timestamp=sent.ts_ms, start_timestamp=sent.start_ms), sent.histogram)
        for labels, ts_ms in sent.exemplars:
            made.exemplars.add(labels_refs=refs(labels), value=sent.value or 0.0, timestamp=ts_ms)
        made.metadata.type, made.metadata.help_ref, made.metadata.unit_ref = sent.kind, ref(sent.help), ref(sent.unit)
    request.symbols.extend(symbols)
    return request


def request1(series: Sequence[Sent]) -> Any:
    """A request of 1.0."""
    request = WriteRequest()
    for sent in series:
        made = request.timeseries.add()
        for name, value in sent.labels.items():
            made.labels.add(name=name, value=value)
        if sent.value is not None:
            made.samples.add(value=sent.value, timestamp=sent.ts_ms)
        if sent.histogram is not None:
            fill_histogram(made.histograms.add(timestamp=sent.ts_ms), sent.histogram)
    return request


def fill_histogram(made: Any, fields: dict[str, Any]) -> None:
    """Fields of a native histogram; `positive_spans` and `negative_spans` as pairs of offset and length."""
    for name, value in fields.items():
        if name.endswith("_spans"):
            for offset, length in value:
                getattr(made, name).add(offset=offset, length=length)
        elif isinstance(value, (list, tuple)):
            getattr(made, name).extend(value)
        else:
            setattr(made, name, value)


def body2(*series: Sent) -> bytes:
    """The body of a request of 2.0 as it goes over the wire."""
    return snapped(request2(series).SerializeToString())


def body1(*series: Sent) -> bytes:
    """The same of 1.0."""
    return snapped(request1(series).SerializeToString())
