"""Stop 14 of a sample's life: one state as the bytes of one server-sent event. Pure.

The form is what the strictest public client reads: `event: state`, one `data: ` line, LF ends, no `id:` line.
"""

from __future__ import annotations

import msgspec

from breaker_actors.core.model import StateWord
from breaker_actors.text.escaping import for_sse

HEARTBEAT = b": heartbeat\n\n"


class StateMessage(msgspec.Struct, frozen=True):
    """Payload of a message: `breaker` is the stream name, `allow_rate` a number in half_open and null elsewhere."""

    breaker: str
    state: StateWord
    allow_rate: float | None


class StreamTiming(msgspec.Struct, frozen=True):
    """Pauses of a stream in seconds.

    `snapshot_s`: one public client waits for ever when the first message comes before it has built all it needs; it
    says no User-Agent. `prompt_s`: the same for clients that are known to have no such race. `heartbeat_s`: another
    gives up after 10 s of silence. `refusal_s`: a third asks again without pause when it is refused.
    """

    snapshot_s: float = 0.3
    prompt_s: float = 0.05
    heartbeat_s: float = 5.0
    refusal_s: float = 1.0


PROMPT_AGENTS = ("curl/", "python-httpx/", "Go-http-client/", "okhttp/", "req/", "mint/", "node", "Mozilla/")
"""What the User-Agent of clients begins with that may get their first message at once."""


def first_pause_s(timing: StreamTiming, agent: str | None) -> float:
    """How long a client waits for its first message behind the headers; who is not known waits longer."""
    return timing.prompt_s if agent and agent.startswith(PROMPT_AGENTS) else timing.snapshot_s


_encoder = msgspec.json.Encoder()


def encode_state(name: str, state: StateWord, allow_rate: float) -> bytes:
    """One message; a name can't break the framing."""
    rate = allow_rate if state == "half_open" else None
    return b"event: state\ndata: " + for_sse(_encoder.encode(StateMessage(name, state, rate))) + b"\n\n"
