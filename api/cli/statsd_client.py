"""A client that sends OTLP to one project with an ingest token, and reads the answers by OTLP's rules."""

from __future__ import annotations

import gzip
from datetime import UTC
from email.utils import parsedate_to_datetime

import httpx

from api.cli.admin_client import ServiceClient
from api.protocols.protobuf import Reader
from api.statsd.outbox import Answer
from breaker_actors.clock import Clock, unix_ms
from breaker_actors.errors import BreakersError

PROTOBUF = "application/x-protobuf"
AGAIN = (429, 502, 503, 504)
UNFIT = (400, 413, 422)
"""Something in the body can't be taken, and nothing of it was."""
ANSWER_S = 10.0
GZIP_BYTES = 1024
"""Larger bodies are compressed."""
SHOWN_CHARS = 300


class MetricsClient(ServiceClient):
    """Posts metrics of one project. `token`: an ingest token."""

    def __init__(self, base_url: str, project_id: str, token: str, clock: Clock, insecure: bool = False) -> None:
        super().__init__(base_url, token, insecure)
        self._path, self._clock = f"/v1/projects/{project_id}/otlp/v1/metrics", clock

    def post(self, body: bytes) -> Answer:
        """What becomes of a body."""
        headers = {"Content-Type": PROTOBUF}
        if len(body) > GZIP_BYTES:
            body, headers["Content-Encoding"] = gzip.compress(body, 1, mtime=0), "gzip"
        try:
            self.check()
            answer = self._client.post(self._path, content=body, headers=headers, timeout=ANSWER_S)
        except httpx.HTTPError as error:
            return Answer("again", str(self.unanswered(error)))
        except BreakersError as error:  # nobody listens, or somebody who gets no token
            return Answer("again", str(error))
        return answer_of(answer, self._clock.now_ms())


def answer_of(answer: httpx.Response, now_ms: int) -> Answer:
    """What an HTTP answer says."""
    if answer.status_code == 200:
        rejected, message = _partial(answer.content)
        return Answer("taken", message[:SHOWN_CHARS], rejected)
    message = f"{answer.request.url.copy_with(path='/')} answers {answer.status_code}: {_status(answer.content)}"
    if answer.status_code in AGAIN:
        return Answer("again", message[:SHOWN_CHARS], after_s=_after_s(answer.headers.get("Retry-After"), now_ms))
    return Answer("unfit" if answer.status_code in UNFIT else "refused", message[:SHOWN_CHARS])


def _after_s(text: str | None, now_ms: int) -> float | None:
    """Retry-After, in seconds or as a date; None where there is none that can be read."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (unix_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now_ms) / 1000)


def _partial(body: bytes) -> tuple[int, str]:
    """Rejected points and message of an ExportMetricsServiceResponse."""
    rejected, message = 0, ""
    try:
        reader = Reader(body)
        for tag, begin, end in reader.fields(0, len(body)):
            if tag == 0x0A:
                for inner, a, b in reader.fields(begin, end):
                    if inner == 0x08:
                        rejected = a
                    elif inner == 0x12:
                        message = body[a:b].decode(errors="replace")
    except BreakersError:
        return 0, "the answer can't be read"
    return rejected, message


def _status(body: bytes) -> str:
    """The message of a google.rpc.Status, "" where it is none."""
    try:
        found = [body[a:b] for tag, a, b in Reader(body).fields(0, len(body)) if tag == 0x12]
    except BreakersError:
        return ""
    return found[-1].decode(errors="replace") if found else ""
