"""Plain histograms are what each is when it is read field by field, and those that only look plain are noticed."""

from __future__ import annotations

from struct import pack, unpack
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint

from api.protocols import otlp_protobuf
from api.protocols.filling import SHAPES_MAX, Filling, Histograms, Shape
from api.protocols.histograms import COUNT_MAX
from api.protocols.memory import Memory
from api.protocols.points import Points
from tests.support.open_protocols import NOW_MS, mutilated, outcome, rows

TINY = 5e-324
NS = NOW_MS * 1_000_000
BOUND = st.floats(-9, 9) | st.sampled_from((0.0, -0.0, TINY, -TINY, 1.7e308, -1.7e308))
RISING = st.lists(BOUND, min_size=1, max_size=18, unique_by=lambda bound: bound + 0.0).map(sorted)
BOUNDS = RISING | RISING.filter(lambda bounds: len(bounds) > 14) | st.sampled_from(([], [2.0, 1.0], [float("nan")]))
LIMIT = BOUND | st.sampled_from((float("nan"), float("inf"), float("-inf"))) | st.none()
LIKE_A_TAIL = "Y" + "." * 8 + "a" + "." * 8
POINT = st.fixed_dictionaries(
    {
        "bounds": st.integers(0, 2),
        "counts": st.lists(st.sampled_from((0, 0, 1, 7, COUNT_MAX)), min_size=19, max_size=19),
        "more": st.sampled_from((0, 0, 0, 0, 0, 0, -1, 1)),
        "min": LIMIT,
        "max": LIMIT,
        "sum": st.sampled_from((1.5, 1.5, 1.5, None)),
        "start": st.sampled_from((NS, NS, 0)),
        "labels": st.sampled_from((("a",), ("a",), ("b",), ("a", "bb"), (), (LIKE_A_TAIL,), ("x" * 200,))),
        "trace": st.sampled_from((b"", b"", b"", bytes(range(16)))),
        "flags": st.sampled_from((0, 0, 0, 1)),
    }
)
METRICS = st.lists(st.lists(POINT, max_size=6), min_size=1, max_size=3)


def message(which: list[list[float]], fields: dict[str, Any]) -> HistogramDataPoint:
    bounds = which[fields["bounds"]]
    made = HistogramDataPoint(
        start_time_unix_nano=fields["start"], time_unix_nano=NS + 7, count=3, sum=fields["sum"], flags=fields["flags"],
        explicit_bounds=bounds, bucket_counts=fields["counts"][: max(0, len(bounds) + 1 + fields["more"])],
        min=fields["min"], max=fields["max"],
    )  # fmt: skip
    for number, text in enumerate(fields["labels"]):
        made.attributes.add(key=f"label.{number}").value.string_value = text
    if fields["trace"]:
        made.exemplars.add(time_unix_nano=NS, trace_id=fields["trace"], as_double=1.0)
    return made


def request(*metrics: list[HistogramDataPoint]) -> bytes:
    made = ExportMetricsServiceRequest()
    scope = made.resource_metrics.add().scope_metrics.add()
    for number, points in enumerate(metrics):
        found = scope.metrics.add(name=f"latency.{number}", unit="s").histogram
        found.aggregation_temporality = 2
        found.data_points.extend(points)
    return made.SerializeToString()


def decode(body: bytes, memory: Memory, shortcut: bool = True) -> Points:
    return otlp_protobuf.decode(body, memory, shortcut)


@settings(deadline=None)
@given(st.lists(BOUNDS, min_size=3, max_size=3), METRICS, st.randoms(use_true_random=False))
def test_both_ways_give_the_same(bounds: list[list[float]], metrics: list[list[dict[str, Any]]], rnd: Any) -> None:
    body = request(*([message(bounds, fields) for fields in points] for points in metrics))
    memory = Memory()
    for sent in (body, body, *(mutilated(rnd, body) for _ in range(4)), body):
        careful = outcome(lambda sent=sent: decode(sent, Memory(), shortcut=False))
        short = outcome(lambda sent=sent: decode(sent, memory))
        assert short == careful or short[0] == careful[0] == "BadRequest"  # another of its flaws is seen first


def plain(number: int = 0, bounds: tuple[float, ...] = (0.1, 1.0, 5.0), **fields: Any) -> HistogramDataPoint:
    given = {"min": 0.5, "max": 2.0, "sum": 9.0, **fields}
    counts = [number, *range(len(bounds))]
    made = HistogramDataPoint(
        start_time_unix_nano=NS,
        time_unix_nano=NS + number,
        count=8,
        explicit_bounds=bounds,
        bucket_counts=counts,
        **given,
    )
    made.attributes.add(key="host").value.string_value = f"host-{number}"
    return made


def of_plain_ones(points: Points) -> int:
    """How many histograms are not made before somebody asks for them."""
    made = points.histograms
    return len(made) - len(made._made) if isinstance(made, Histograms) else 0


def test_series_that_are_known_wait_until_somebody_asks() -> None:
    """Whatever their neighbours are: other bounds, more than a block, min and max or none, a flaw."""
    many = tuple(float(bound) for bound in range(1000))
    points = [
        *(plain(number) for number in range(5)), *(plain(number, many) for number in range(20)), plain(20),
        plain(21, min=None, max=None), plain(22, (3.0, 2.0)), *(plain(23, tuple(many[:n])) for n in range(1, 20)),
    ]  # fmt: skip
    body, memory = request(points, points[::-1]), Memory()
    careful = decode(body, memory, shortcut=False)
    assert (of_plain_ones(careful), len(careful.bad)) == (0, 2)
    found = decode(body, memory)
    rows = 2 * (len(points) - 1)
    assert (of_plain_ones(found), len(found.histograms), list(found.histograms)) == (rows, rows, list(range(rows)))
    assert found.histograms[rows - 1] == careful.histograms[rows - 1]
    assert 0 < of_plain_ones(found) < rows
    assert found.histograms.get(rows) is None
    assert dict(found.histograms) == careful.histograms
    assert of_plain_ones(found) == 0


def test_shapes_take_turns_and_have_a_bound() -> None:
    """Each point has bounds of its own, or those of the point before the last; beyond so many shapes the points are
    read one by one."""
    for shapes, waiting in ((2, 400), (SHAPES_MAX + 50, 2 * SHAPES_MAX)):
        points = [plain(n % 7, (0.5 + n % shapes, 400.0), min=None, max=None) for n in range(400 // shapes * shapes)]
        body, memory = request(points), Memory()
        careful = decode(body, memory, shortcut=False)
        found = decode(body, memory)
        assert of_plain_ones(found) == waiting
        assert rows(found) == rows(careful)


def test_other_fields_of_the_same_size_are_noticed() -> None:
    """Each byte that says what a field is stands for another one; count and sum with 2**53 + 1 and a stale marker."""
    memory, points = Memory(), [plain(number) for number in range(3)]
    decode(request(points), memory)
    last = points[-1].SerializeToString()
    changes = {at: bytes([last[at] ^ 3]) for at in (0, 9, 18, 27, 36, 37, len(last) - 18, len(last) - 9)}
    changes |= {38: pack("<Q", COUNT_MAX + 1), 19: pack("<Q", 0x7FF0_0000_0000_0002)}
    for at, bytes_ in changes.items():
        body = request(points).replace(last, last[:at] + bytes_ + last[at + len(bytes_) :])
        careful = outcome(lambda body=body: decode(body, Memory(), shortcut=False))
        assert outcome(lambda body=body: decode(body, memory)) == careful


def test_a_point_ends_where_it_says() -> None:
    """Its last bound is behind it, and looks like two other fields there."""
    like_fields = unpack("<d", b"\x2d" + bytes(4) + b"\x20\x81\x01")[0]
    point = plain(1, (0.0, like_fields), min=None, max=None)
    del point.attributes[:]
    spelled, memory = point.SerializeToString(), Memory()
    body = request([point, point])
    decode(body, memory)
    head, _, rest = body.rpartition(bytes([len(spelled)]) + spelled)
    body = head + bytes([len(spelled) - 8]) + spelled + rest
    assert outcome(lambda: decode(body, Memory(), shortcut=False))[0] == "BadRequest"
    assert outcome(lambda: decode(body, memory))[0] == "BadRequest"


@given(st.binary(max_size=120), st.integers(0, 120))
@example(b"\x11" + bytes(8) + b"\x19" + bytes(8) + b"\x21" + bytes(8) + b"\x29" + bytes(8) + b"\x32\xff\x7f", 70)
def test_a_shape_is_found_within_its_point(body: bytes, end: int) -> None:
    shape = Filling(body + bytes(200)).shape(0, end)
    assert not isinstance(shape, Shape) or shape.size + shape.tail <= end
