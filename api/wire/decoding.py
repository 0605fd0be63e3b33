"""Bytes of an ingest request to its samples, with work bound by SAMPLES_MAX and by the bytes, never by what they spell.

Samples are counted while they are decoded: both ways below decode into structs of SAMPLES_MAX places, so the decoder
itself ends at the first sample too many. What is no field of a sample is passed over and never built; a look at the
beginning of the body (`strange_fields`) names it.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from api.wire.places import not_json
from api.wire.types import Uuid
from breaker_actors.core.model import COUNT_MAX
from breaker_actors.errors import BadRequest, PayloadTooLarge

SAMPLES_MAX = 1000
METRIC_LENGTH_MAX = 128
TAGS_MAX = 32
TRACE_LENGTH_MAX = 1024
ABSENT = Raw(b"")


QUOTES_MAX = 100_000
"""Bodies with more of them (25,000 tags) go the slow way at once, so that no tag is read twice."""
TYPED_LENGTH_MAX = 1 << 14
"""The same for the text of one sample."""
DISGUISES_MAX = 10 * SAMPLES_MAX
"""NaN, Infinity and escapes of surrogates in a body that is no JSON for their sake."""
Tags = Annotated[dict[str, str], msgspec.Meta(max_length=TAGS_MAX)]


class MetricSample(msgspec.Struct, gc=False):
    # Tags are checked and not kept, a trace_id only where a router splits by it.
    router_id: Uuid
    metric: Annotated[str, msgspec.Meta(min_length=1, max_length=METRIC_LENGTH_MAX)]
    value: float
    ts_ms: int | None = None
    ok: bool = True
    tags: Tags | None = None
    trace_id: Annotated[str, msgspec.Meta(max_length=TRACE_LENGTH_MAX)] | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)] | None = None


class Samples(msgspec.Struct):
    """Each sample stands alone: the good ones are taken, the others named in the answer."""

    # Read sample by sample, see _Lists.
    samples: Annotated[list[MetricSample], msgspec.Meta(max_length=SAMPLES_MAX)]


class Loose(msgspec.Struct, gc=False):
    """The JSON text of a sample's fields, b"" for what is absent."""

    router_id: Raw = ABSENT
    metric: Raw = ABSENT
    value: Raw = ABSENT
    ts_ms: Raw = ABSENT
    ok: Raw = ABSENT
    tags: Raw = ABSENT
    trace_id: Raw = ABSENT
    count: Raw = ABSENT


LOOKED_BYTES = 1 << 11
"""Of a body of up to so many bytes all samples are looked at for unknown fields, of a larger one the first. All samples
of a sender are mostly made alike, and to look at each would cost as much as to decode it."""
UNKNOWN_MAX = 20
"""Unknown fields of a body that are found."""
_KNOWN = frozenset(Loose.__struct_fields__)
_FIRST = re.compile(r"""\s*(?:\{\s*"samples"\s*:\s*)?\[\s*""")
_NEXT = re.compile(r"\s*,\s*")
_object_at = json.JSONDecoder().raw_decode


def strange_fields(body: bytes) -> dict[str, tuple[int, bool]]:
    """Fields of the first samples that no sample has: in which sample each is first, and whether that says its `ok`.
    At most UNKNOWN_MAX; whatever can't be read ends the look."""
    found: dict[str, tuple[int, bool]] = {}
    text = body[:LOOKED_BYTES].decode(errors="replace")
    place, index = _FIRST.match(text), 0
    while place and len(found) < UNKNOWN_MAX:
        try:
            sample, end = _object_at(text, place.end())
        except (ValueError, RecursionError):
            break
        if not isinstance(sample, dict):
            break
        for name in () if sample.keys() <= _KNOWN else [name for name in sample if name not in _KNOWN]:
            found.setdefault(name.encode(errors="replace").decode(), (index, "ok" in sample))  # halves of characters
        place, index = _NEXT.match(text, end) if len(body) <= LOOKED_BYTES else None, index + 1
    return dict(list(found.items())[:UNKNOWN_MAX])


def places(element: Any, empty: Any, most: int) -> Any:
    """A kind of list of at most `most` elements: places that stay `empty` behind the last one. Decoding ends at the
    first element too many, with an error that begins with TOO_LONG."""
    fields = [(f"at_{n}", element, empty) for n in range(most)]
    return msgspec.defstruct("Places", fields, array_like=True, forbid_unknown_fields=True, gc=False)


def taken(found: Any, empty: Any) -> tuple[Any, ...]:
    """The elements of such a list."""
    elements = msgspec.structs.astuple(found)
    return elements[: bisect_left(elements, True, key=lambda place: place is empty)]


class _Lists:
    """Decoders of a list of at most SAMPLES_MAX elements, bare or in an envelope."""

    def __init__(self, element: Any, empty: Any) -> None:
        self._empty = empty
        kind = places(element | UnsetType if empty is UNSET else element, empty, SAMPLES_MAX)
        envelope: Any = msgspec.defstruct("Envelope", [("samples", kind)], gc=False)
        self._bare, self._envelope = msgspec.json.Decoder(kind), msgspec.json.Decoder(envelope)

    def decode(self, body: bytes) -> tuple[Any, ...]:
        """The elements. Raises msgspec's errors, PayloadTooLarge at the first element too many."""
        try:
            if _is_list(body):
                found = self._bare.decode(body)
            else:
                found = self._envelope.decode(body).samples
        except msgspec.ValidationError as error:
            if str(error).startswith(TOO_LONG):
                raise PayloadTooLarge(f"A request may hold at most {SAMPLES_MAX} samples.") from None
            raise
        return taken(found, self._empty)


TOO_LONG = "Expected `array` of at most length"
_LEADING = re.compile(rb"[ \t\n\r]*\[")


def _is_list(body: bytes) -> bool:
    return _LEADING.match(body) is not None


_samples, _texts = _Lists(MetricSample, UNSET), _Lists(Raw, ABSENT)
_sample = msgspec.json.Decoder(MetricSample)
_loose = msgspec.json.Decoder(Loose)
_exact = msgspec.json.Decoder(
    msgspec.defstruct("Exact", [(n, Raw, ABSENT) for n in Loose.__struct_fields__], forbid_unknown_fields=True)
)
_STRANGE = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_string = msgspec.json.Decoder(str)
_tags = msgspec.json.Decoder(Tags | None)


def may_repeat(body: bytes) -> bool:
    """Whether samples may have more than one `value`, however it is spelled. A decoder of typed samples reads each of
    them, and numbers with large exponents take it ten microseconds; in the slow way only the last one is read."""
    # most bodies have no backslash at all, and to look for one byte costs a fortieth of looking for five
    has_escapes = b"\\" in body and (b"\\u006" in body or b"\\u007" in body)
    return has_escapes or body.count(b'"value"') > SAMPLES_MAX


def decode_typed(body: bytes) -> tuple[MetricSample, ...] | None:
    """The fast way: all samples, or None as soon as one isn't of the right shape."""
    if len(body) > QUOTES_MAX and body.count(b'"') > QUOTES_MAX:
        return None
    if may_repeat(body):
        return None
    try:
        body.decode()
        return _samples.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class Texts:
    """The slow way: the JSON text of each sample, split without being read.

    NaN, Infinity and halves of characters (as \\ud800) are no JSON, but spoil one sample and not the request; for the
    split they stand as words that occur nowhere in the body.
    """

    def __init__(self, body: bytes) -> None:
        self._words: tuple[tuple[bytes, bytes], ...] = ()
        self._may_repeat = may_repeat(body)
        first: Exception | None = None
        try:
            body.decode()
            try:
                self.samples: tuple[Raw, ...] = _texts.decode(body)
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError as error:
                disguised = self._disguise(body)
                first = None if self._words else error  # places in a disguised body are not the caller's
                self.samples = _texts.decode(disguised)
        except msgspec.ValidationError:
            raise BadRequest("The body must be a list of samples or an object with a list `samples`.") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise not_json(body, error if isinstance(error, UnicodeDecodeError) else first) from None

    def _disguise(self, body: bytes) -> bytes:
        """The body with JSON in the place of what is none: numbers for NaN and Infinity, plain text (that may follow a
        backslash) for the beginning of what may be half a character."""
        digits = str(int.from_bytes(hashlib.blake2b(body, digest_size=8).digest()) | 1 << 63).encode()
        kinds = ((b"NaN", b"1%b"), (b"Infinity", b"2%b"), (b"\\ud", b"n3%b"), (b"\\uD", b"n4%b"))
        self._words = tuple((text, word % digits) for text, word in kinds if text in body)
        if sum(body.count(text) for text, _ in self._words) > DISGUISES_MAX:
            raise BadRequest("The body is not valid JSON, in too many places.")
        for text, word in self._words:
            body = body.replace(text, word)
        return body

    def typed(self, index: int) -> MetricSample | None:
        """A sample of the right shape, or None."""
        text = self.samples[index]
        if self._may_repeat or len(memoryview(text)) > TYPED_LENGTH_MAX:
            return None
        if self._words and self._revealed(text) != text:
            return None
        try:
            return _sample.decode(text)
        except msgspec.DecodeError:
            return None

    def loose(self, index: int) -> Loose | None:
        """The texts of a sample's fields, as they were sent, or None when it is no object."""
        try:
            fields = _loose.decode(self.samples[index])
        except msgspec.DecodeError:
            return None
        return Loose(*map(self._revealed, msgspec.structs.astuple(fields))) if self._words else fields

    def unknown(self, index: int) -> str | None:
        """The first field of a sample that no sample has; None where there is none, or the sample is no object."""
        try:
            _exact.decode(self.samples[index])
        except msgspec.DecodeError as error:
            found = _STRANGE.match(str(error))
            return None if found is None else bytes(self._revealed(Raw(found[1].encode()))).decode()
        return None

    def _revealed(self, text: Raw) -> Raw:
        plain = bytes(text)
        for original, word in self._words:
            plain = plain.replace(word, original)
        return Raw(plain)


def text_of(raw: Raw) -> str | None:
    """A string that can be written as UTF-8 (JSON escapes can spell half a character), else None."""
    try:
        return _string.decode(raw)
    except msgspec.DecodeError:
        return None


def are_tags(text: bytes) -> bool:
    """Whether the text is absent, null, or an object of at most TAGS_MAX strings."""
    try:
        return text == b"" or _tags.decode(text) is not UNSET
    except msgspec.DecodeError:
        return False
