"""What a request of an open protocol may hold. Beyond a bound the request is refused with PayloadTooLarge, or the
points it concerns are bad; each decoder says which."""

from __future__ import annotations

POINTS_MAX = 20_000
"""Points of one request, good and bad. Prometheus sends 2,000 by default, OpenTelemetry 8,192."""
ENTRIES_MAX = 20_000
"""Containers of one request: time series, metadata, resources, scopes, metrics; also such without a point."""
FIELDS_MAX = 1_000_000
"""Protobuf fields, packed numbers and unusual labels that one request makes us read one by one: about 0.3 s at most."""
SYMBOLS_MAX = 200_000
"""Strings in the symbol table of one remote-write 2.0 request."""
JSON_OBJECTS_MAX = 1_000_000
"""Opening brackets in one OTLP/JSON body."""
JSON_COMMAS_MAX = 1_000_000
JSON_EXPONENTS_MAX = 50_000
"""Numbers with large exponents in one OTLP/JSON body: each takes the JSON decoder up to ten microseconds."""
LABELS_MAX = 128
"""Labels of a series, and of its resource: what OpenTelemetry allows by default. Beyond it the points are bad."""
NAME_BYTES_MAX = 1024
"""Bytes of a metric's, unit's or label's name. Beyond it the points are bad."""
VALUE_BYTES_MAX = 2048
"""Bytes of a label's value. Beyond it the points are bad."""
RESOURCE_VALUE_BYTES_MAX = 16_384
"""The same of a resource: a command line with its class path is long."""
BUCKETS_MAX = 1024
"""Buckets of one histogram, empty ones too, and bounds. Beyond it the point is bad."""
BUCKETS_TOTAL_MAX = 100_000
"""Buckets of all histograms of a request, each a sample: 8,192 points of OpenTelemetry's twelve have room."""
NATIVE_BUCKETS_MAX = 320_000
"""Buckets of all native histograms of a request that are read, empty ones and those that nobody takes too: Prometheus'
2,000 of 160 have room."""
SCALES = range(-11, 21)
"""Scales of exponential histograms: base 2 ** 2 ** -scale. Others make the point bad."""
LABELS_BYTES_MAX, RESOURCE_BYTES_MAX = 16_384, 65_536
"""Bytes of all labels of a series, and of its resource and scope, together. Beyond it the points are bad."""
TEXT_BYTES_MAX = 1 << 24
"""Bytes of names and values that one request makes us keep as text: labels of series that are not remembered, of each
series anew, and resources of each scope anew. Text of other alphabets takes up to four times as much."""
NESTING_MAX = 16
"""Lists within lists in the value of an attribute. Beyond it the points are bad."""
TRACE_LENGTH_MAX = 1024
"""Characters of an exemplar's trace id in remote-write; longer ones are passed over."""
SNAPPY_RATIO_MAX = 32
"""A snappy block that says it holds more than so many times its own bytes is broken: three bytes give at most 64."""
REMEMBERED_MAX = 20_000
"""Series that a generation of a memory holds, see memory.py."""
REMEMBERED_BYTES_MAX = 1 << 24
"""Bytes that a generation of a memory holds: keys, and the text of values."""
REMEMBERED_KEY_MAX = 1 << 14
"""Longer keys are not remembered."""
