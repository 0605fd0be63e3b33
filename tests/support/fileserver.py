"""A web server on loopback that serves the files of a folder, whole or by range, as object stores do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of the folder; other paths are 404."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            path = folder / self.path.partition("?")[0].lstrip("/")
            whole = path.read_bytes() if path.is_file() else b""
            first, last = _span(self.headers.get("Range"), len(whole))
            body = whole[first:last]
            self.send_response(404 if not path.is_file() else 206 if "Range" in self.headers else 200)
            if "Range" in self.headers:
                self.send_header("Content-Range", f"bytes {first}-{last - 1}/{len(whole)}")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _span(asked: str | None, size: int) -> tuple[int, int]:
    """The bytes that a Range header asks for, from and up to."""
    if asked is None:
        return 0, size
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size
