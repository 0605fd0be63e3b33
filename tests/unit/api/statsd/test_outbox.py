"""Requests on their way: repeated until they are taken, in order, within bounds; and how answers are read."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx
import pytest

from api.cli.statsd_client import answer_of
from api.protocols import otlp_protobuf
from api.protocols.memory import Memory
from api.protocols.otlp_answers import response, status
from api.statsd import outbox as module
from api.statsd.aggregation import Aggregate
from api.statsd.encoding import Encoder, Request
from api.statsd.outbox import Answer, Outbox
from breaker_actors.clock import SystemClock

TAKEN, AGAIN = Answer("taken"), Answer("again", "away", after_s=0.0)
NOW_MS = 1_795_242_600_000


class Far:
    """A service that answers by a script, then takes all."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []
        self.events: list[tuple[str, str]] = []
        self.asked = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def post(self, body: bytes) -> Answer:
        self.asked.set()
        assert self.open.wait(10)
        self.bodies.append(body)
        return self.answers.pop(0) if self.answers else TAKEN

    def tell(self, event: str, message: str) -> None:
        self.events.append((event, message))

    def outbox(self) -> Outbox:
        return Outbox(self.post, SystemClock(), lambda: 0.0, self.tell)


def test_requests_are_repeated_until_they_are_taken_in_their_order() -> None:
    far = Far(AGAIN, AGAIN, TAKEN, AGAIN, Answer("taken", "2 points were rejected", 2))
    box = far.outbox()
    box.put(Request(b"a", 10))
    box.put(Request(b"b", 5))
    box.start()
    box.close(10)
    assert far.bodies == [b"a", b"a", b"a", b"b", b"b"]
    assert (box.sent, box.rejected, box.dropped, box.waiting) == (13, 2, {}, 0)
    assert [event for event, _ in far.events] == ["unsent", "sent_again", "unsent", "rejected", "sent_again"]


def test_what_is_refused_for_good_is_dropped_counted_and_told_once() -> None:
    far = Far(Answer("refused", "no 1"), Answer("refused", "no 2"))
    box = far.outbox()
    for body in (b"a", b"b", b"c"):
        box.put(Request(body, 4))
    box.start()
    box.close(10)
    assert (box.sent, box.dropped, box.newest_trouble) == (4, {"refused": 8}, "no 2")
    assert far.events == [("refused", "no 1")]


@pytest.mark.parametrize(("bound", "most"), [("REQUESTS_MAX", 3), ("BYTES_MAX", 30)])
def test_the_oldest_give_way_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch, bound: str, most: int) -> None:
    """What is on its way is not dropped."""
    monkeypatch.setattr(module, bound, most)
    far = Far()
    far.open.clear()
    box = far.outbox()
    box.start()
    box.put(Request(b"first     ", 1))
    assert far.asked.wait(10)
    for n in range(5):
        box.put(Request(b"request %d " % n, 1))
    assert (box.dropped, box.waiting) == ({"unsent": 2}, 4)
    far.open.set()
    box.close(10)
    assert far.bodies == [b"first     ", *(b"request %d " % n for n in (2, 3, 4))]
    assert box.sent == 4


def test_what_heavy_series_made_gives_way_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 30)
    box = Far().outbox()
    for n in range(3):
        for weight in range(3):
            box.put(Request(b"%d %d" % (weight, n) * 2, 10**weight, weight))
    assert box.dropped == {"unsent": 100 * 3 + 10}
    assert [one.body[:3] for one in box._waiting] == [b"0 0", b"0 1", b"1 1", b"0 2", b"1 2"]
    for n in (3, 4, 5):
        box.put(Request(b"0 %d" % n * 2, 1))
    assert box.dropped == {"unsent": 100 * 3 + 10 * 3 + 1}
    assert [one.body[:3] for one in box._waiting] == [b"0 %d" % n for n in range(1, 6)]


def test_what_light_series_made_is_sent_before_others() -> None:
    far = Far()
    box = far.outbox()
    for n in range(2):
        for weight in (3, 0, 1):
            box.put(Request(b"%d %d" % (weight, n), 1, weight))
    box.start()
    box.close(10)
    assert far.bodies == [b"0 0", b"0 1", b"1 0", b"1 1", b"3 0", b"3 1"]


def test_who_is_to_be_repeated_keeps_no_lighter_one_waiting() -> None:
    """The service may have room for small ones alone."""
    far = Far(AGAIN, AGAIN)
    box = far.outbox()
    box.put(Request(b"heavy", 1, 4))
    far.open.clear()
    box.start()
    assert far.asked.wait(10)
    box.put(Request(b"light", 1))
    far.open.set()
    box.close(10)
    assert far.bodies == [b"heavy", b"light", b"light", b"heavy"]
    assert (box.sent, box.dropped, box.waiting) == (2, {}, 0)
    assert [event for event, _ in far.events] == ["unsent", "sent_again"]


# what is refused for a part of it


def of_lines(*lines: bytes) -> Request:
    """The request that lines come to."""
    aggregate = Aggregate()
    aggregate.take(b"\n".join(lines))
    (request,) = (one for one in aggregate.flush(Encoder(NOW_MS - 1000, NOW_MS, (1, 2))) if one is not None)
    return request


class Picky(Far):
    """A service that refuses whatever has a bad name in it."""

    def post(self, body: bytes) -> Answer:
        super().post(body)
        return Answer("unfit", "no") if b"bad" in body else TAKEN

    def taken(self) -> list[str]:
        """Names of the points that it took, in their order."""
        found = []
        for body in self.bodies:
            if b"bad" not in body:
                points = otlp_protobuf.decode(body, Memory())
                found += [points.series[number].name for number in points.of.tolist()]
        return found


@pytest.mark.parametrize("bad", [{0}, {99}, {41}, {7, 60}])
def test_what_cant_be_taken_is_dropped_alone(bad: set[int]) -> None:
    """A request is halved until it has one series; others come whole and once, and in order."""
    far = Picky()
    box = far.outbox()
    names = [f"bad{n}" if n in bad else f"good{n}" for n in range(100)]
    box.put(of_lines(*(f"{name}:1:2|ms".encode() for name in names)))
    box.put(of_lines(b"last:1|c"))
    box.start()
    box.close(20)
    good = [name for n, name in enumerate(names) if n not in bad]
    assert far.taken() == [name for name in good for _ in range(2)] + ["last"]
    assert (box.sent, box.dropped, box.waiting) == (2 * len(good) + 1, {"refused": 2 * len(bad)}, 0)
    assert len(far.bodies) <= 1 + 2 * 7 * len(bad) + 1
    assert far.events == [("refused", "no")]


def test_halving_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request has so many of its own."""
    monkeypatch.setattr(module, "HALVED_MAX", 3)
    far = Picky()
    box = far.outbox()
    for kind in (b"c", b"g"):
        box.put(of_lines(*(b"bad%d:1|%s" % (n, kind) for n in range(50)), b"good:1|%s" % kind))
    box.start()
    box.close(20)
    assert len(far.bodies) == 2 * (1 + 2 * 3)
    assert (box.sent + box.dropped["refused"], box.waiting, box._bytes) == (102, 0, 0)


def test_a_wrong_token_is_wrong_for_all_of_it() -> None:
    far = Far(Answer("refused", "no"))
    box = far.outbox()
    box.put(of_lines(b"a:1|c", b"b:1|c"))
    box.start()
    box.close(20)
    assert (len(far.bodies), box.dropped) == (1, {"refused": 2})


def test_at_the_end_what_nobody_takes_is_counted() -> None:
    far = Far(*[Answer("again", "away", after_s=60.0)] * 3)
    box = far.outbox()
    box.put(Request(b"a", 3))
    box.put(Request(b"b", 4))
    box.start()
    box.close(5)
    assert far.bodies in ([b"a"], [b"a", b"a"])  # a last attempt where the end came in a pause
    assert (box.sent, box.dropped) == (0, {"at_end": 7})


def test_an_attempt_that_breaks_is_one_that_failed() -> None:
    attempts: list[bytes] = []

    def post(body: bytes) -> Answer:
        attempts.append(body)
        if len(attempts) == 1:
            raise RuntimeError("odd")
        return TAKEN

    box = Outbox(post, SystemClock(), lambda: 0.0)
    box.put(Request(b"a", 3))
    box.start()
    box.close(10)
    assert (attempts, box.sent, box.newest_trouble) == ([b"a", b"a"], 3, "RuntimeError: odd")


def test_a_pause_grows_and_what_the_service_says_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    box = Far().outbox()

    class Clock(SystemClock):
        now_s = 0.0

        def monotonic(self) -> float:
            return self.now_s

    clock = box._clock = Clock()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.now_s += seconds

    monkeypatch.setattr(box._changed, "wait", wait)
    for attempt in (0, 1, 2, 9, 5000):
        assert box._pause(None, attempt)
    for after_s in (3.0, 900.0):
        assert box._pause(after_s, 0)
    assert waits == [0.125, 0.25, 0.5, 5.0, 5.0, 3.0, 60.0]


def answer(code: int, body: bytes = b"", **headers: str) -> Answer:
    request = httpx.Request("POST", "http://127.0.0.1:7117/v1/projects/p/otlp/v1/metrics")
    return answer_of(httpx.Response(code, content=body, headers=headers, request=request), NOW_MS)


ANSWERS: dict[str, tuple[Callable[[], Answer], Answer]] = {
    "taken": (lambda: answer(200), TAKEN),
    "a part": (lambda: answer(200, response(3, "because", False)), Answer("taken", "because", 3)),
    "a warning": (lambda: answer(200, response(0, "nobody's", False)), Answer("taken", "nobody's", 0)),
    "no OTLP": (lambda: answer(200, b"\xff"), Answer("taken", "the answer can't be read", 0)),
    "overload": (
        lambda: answer(429, status(8, "slowly", False), **{"Retry-After": "7"}),
        Answer("again", "http://127.0.0.1:7117/ answers 429: slowly", after_s=7.0),
    ),
    "a date": (
        lambda: answer(503, **{"Retry-After": "Sun, 21 Nov 2026 06:00:00 GMT"}),
        Answer("again", "http://127.0.0.1:7117/ answers 503: ", after_s=0.0),
    ),
    "no date": (
        lambda: answer(503, **{"Retry-After": "soon"}),
        Answer("again", "http://127.0.0.1:7117/ answers 503: "),
    ),
    "a proxy": (lambda: answer(502, b"<html>"), Answer("again", "http://127.0.0.1:7117/ answers 502: ")),
    "no key": (
        lambda: answer(401, status(16, "no key", False)),
        Answer("refused", "http://127.0.0.1:7117/ answers 401: no key"),
    ),
    "too large": (
        lambda: answer(413, status(8, "too large", False)),
        Answer("unfit", "http://127.0.0.1:7117/ answers 413: too large"),
    ),
    "a bad point": (lambda: answer(400), Answer("unfit", "http://127.0.0.1:7117/ answers 400: ")),
    "likewise": (lambda: answer(422), Answer("unfit", "http://127.0.0.1:7117/ answers 422: ")),
    "a bug": (lambda: answer(500), Answer("refused", "http://127.0.0.1:7117/ answers 500: ")),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_means(case: str) -> None:
    given, meant = ANSWERS[case]
    assert given() == meant
