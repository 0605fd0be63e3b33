"""Bodies of answers to OTLP: `ExportMetricsServiceResponse` and `google.rpc.Status`, in protobuf or JSON as asked.

https://opentelemetry.io/docs/specs/otlp/#otlphttp-response .
"""

from __future__ import annotations

from typing import Any

import msgspec

from api.protocols.protobuf import encode_block, encode_varint


def response(rejected: int, message: str, json: bool) -> bytes:
    """The body of a 200. Partial success is left out where nothing was rejected and there is nothing to say."""
    if json:
        partial: dict[str, Any] = {"rejectedDataPoints": str(rejected)} if rejected else {}
        partial |= {"errorMessage": message} if message else {}
        return msgspec.json.encode({"partialSuccess": partial} if partial else {})
    text = message.encode()
    content = (b"\x08" + encode_varint(rejected) if rejected else b"") + (encode_block(0x12, text) if text else b"")
    return encode_block(0x0A, content) if content else b""


def status(code: int, message: str, json: bool) -> bytes:
    """The body of an error. `code`: a gRPC status code, google.rpc.Code."""
    if json:
        return msgspec.json.encode({"code": code, "message": message})
    text = message.encode()
    return (b"\x08" + encode_varint(code) if code else b"") + (encode_block(0x12, text) if text else b"")
