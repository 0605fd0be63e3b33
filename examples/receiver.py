"""A receiver of webhooks to try channels with: prints what comes, and answers 200.

`python3 examples/receiver.py [port]`. The service has to be started with BREAKERS_ALLOW_PRIVATE_DESTINATIONS=true, for
this one is on your own machine.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Receiver(BaseHTTPRequestHandler):
    """One alert per request; its Idempotency-Key stays the same when it is sent again."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print(self.headers["Idempotency-Key"], body.decode(), flush=True)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The alerts alone are printed."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9099
    with HTTPServer(("127.0.0.1", port), Receiver) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
