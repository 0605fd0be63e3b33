"""Keeps the certificate of a running HAProxy that of the operator's files, without touching its connections.

A program of its own, started by api/launch/haproxy.py for each HAProxy and ended with it: the only process on every
node of a cluster that lives as long as the listener. Imports the standard library and the clock only, to stay small.

A pair that can't be used (half replaced, not of one another, out of its dates, of a kind that clients don't know)
changes nothing: the last good one stays, and one line in the log says what is wrong, once for each content of the
files.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

EVERY_S = 2.0
HANDSHAKE_STEPS = 8
ANSWER_S = 5.0
ANSWER_BYTES_MAX = 4_096
PEM_BYTES_MAX = 30 << 10
"""Of certificate, chain and key together: a command to HAProxy has to fit in its buffer of 32 KiB."""
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""What HAProxy offers below TLS 1.3."""
_PR_SET_PDEATHSIG = 1

Stamp = tuple[tuple[int, int, int], ...]


class Unusable(Exception):
    """A pair of files, or HAProxy's answer to it."""


class HAProxyAway(Exception):
    """It is starting, or ending."""


class Certificate:
    """A pair of PEM files and the one file that HAProxy reads, `pem`, which holds both and is for its owner alone.
    `admin`: HAProxy's socket."""

    def __init__(self, certificate: Path, key: Path, pem: Path, admin: Path) -> None:
        self._files = (certificate, key)
        self._pem = pem
        self._admin = admin
        self._good: Stamp | None = None
        self._bad: Stamp | None = None
        self._doubted: Stamp | None = None

    def stamp(self) -> Stamp:
        """What tells one content of the files from another; empty while one of them is away."""
        with contextlib.suppress(OSError):
            found = [path.stat() for path in self._files]
            return tuple((entry.st_ino, entry.st_size, entry.st_mtime_ns) for entry in found)
        return ()

    def look(self) -> str | None:
        """Takes the files over if they are others than at the last look; says why when they can't be used. Files are
        replaced one after the other, so only what is the same at a second look is complained of, and only once. While
        HAProxy does not answer the files are looked at again and again."""
        stamp = self.stamp()
        if stamp in (self._good, self._bad):
            return None
        try:
            self.write(self._hand_over)
        except HAProxyAway:
            return None
        except Unusable as error:
            if stamp == self._doubted:
                self._bad = stamp
                return str(error)
            self._doubted = stamp
            return None
        self._good = stamp
        return None

    def write(self, hand_over: Callable[[bytes], None] = lambda content: None) -> None:
        """Makes `pem` of the files, once `hand_over` has taken their content. Raises Unusable, or what that raises, and
        leaves it as it is when they can't be used."""
        draft = self._pem.with_name(f"{self._pem.name}.{os.getpid()}")
        try:
            content = joined(*self._files)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            check(draft)
            hand_over(content)
            draft.replace(self._pem)
        except OSError as error:
            raise Unusable(f"{error.filename or self._pem}: {error.strerror}") from None
        finally:
            draft.unlink(missing_ok=True)

    def _hand_over(self, content: bytes) -> None:
        """Gives it to the running HAProxy as what is in `pem`: new connections get it, those that are there go on."""
        self._ask(f"set ssl cert {self._pem} <<\n{content.decode('ascii', 'replace')}\n", "Transaction")
        self._ask(f"commit ssl cert {self._pem}\n", "Success")

    def _ask(self, command: str, wanted: str) -> None:
        answer = b""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_S)
                connection.connect(str(self._admin))
                connection.sendall(command.encode())
                while len(answer) < ANSWER_BYTES_MAX and (part := connection.recv(ANSWER_BYTES_MAX)):
                    answer += part
        except OSError as error:
            raise HAProxyAway(str(error)) from None
        text = " ".join(answer.decode(errors="replace").split())
        if wanted not in text:
            raise Unusable(f"HAProxy refuses the certificate: {text[:200]}")


def joined(certificate: Path, key: Path) -> bytes:
    """The content of both files, without empty lines, which would end a command. Raises Unusable or OSError."""
    lines = [line for path in (certificate, key) for line in _read(path).splitlines() if line.strip()]
    content = b"\n".join(lines) + b"\n"
    if len(content) > PEM_BYTES_MAX:
        raise Unusable(f"{certificate} and {key} are larger than {PEM_BYTES_MAX} bytes together")
    return content


def _read(path: Path) -> bytes:
    """What is in a file. Raises Unusable for what is none (a FIFO would be waited for) or larger than a certificate."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unusable(f"{path} is no regular file")
        content = file.read(PEM_BYTES_MAX + 1)
    if len(content) > PEM_BYTES_MAX:
        raise Unusable(f"{path} is larger than {PEM_BYTES_MAX} bytes")
    return content


def check(certificate: Path, key: Path | None = None) -> None:
    """Raises Unusable unless the file, or both, hold a certificate and its key, without a passphrase, with which a
    usual client can connect now: its dates hold, and its key is of a kind that clients know. Whom the client would
    trust is not looked at."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        server.load_cert_chain(certificate, key, password=_no_passphrase)
        client.load_verify_locations(cadata=_leaf(certificate))
    except ssl.SSLError as error:
        reason = "the key does not belong to the certificate" if error.reason == "KEY_VALUES_MISMATCH" else error.reason
        raise Unusable(str(reason or "no certificate, or no key, in PEM form")) from None
    server.set_ciphers(CIPHERS)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    _shake_hands(server, client)


def _leaf(pem: Path) -> str:
    """The first certificate of a file that holds one."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    _, _, rest = pem.read_text("ascii", "replace").partition(begin)
    return f"{begin}{rest.partition(end)[0]}{end}\n"


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Raises Unusable, with the reason, when the two don't come together. In memory."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)]
    for _ in range(HANDSHAKE_STEPS):
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise Unusable(f"clients would refuse it: {error.verify_message}") from None
            except ssl.SSLError as error:
                raise Unusable(f"clients could not connect with it: {error.reason}") from None
    if ends:
        raise Unusable("clients could not connect with it")


def _no_passphrase() -> str:
    raise Unusable("the key is encrypted: one without a passphrase is needed")


def _tell(log: str, message: str) -> None:
    """One line like those of the other processes, on stderr or at the end of a file."""
    from breaker_actors.clock import SystemClock

    stamp = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
    event = {
        "ts": stamp.replace("+00:00", "Z"),
        "level": "error",
        "event": "certificate_unusable",
        "process": "certificate_watch",
        "message": f"{message}; the last good one stays",
    }
    line = f"{json.dumps(event)}\n"
    with contextlib.suppress(OSError):
        if not log:
            sys.stderr.write(line)
            sys.stderr.flush()
            return
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as file:
            file.write(line)


def main(certificate: str, key: str, pem: str, admin: str, log: str, parent: str) -> None:
    """Watches until `parent` has ended, which is HAProxy; with parent 0 makes `pem` once."""
    pair = Certificate(Path(certificate), Path(key), Path(pem), Path(admin))
    if parent == "0":
        try:
            pair.write()
        except Unusable as error:
            _tell(log, f"{certificate} and {key}: {error}")
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    while os.getppid() == int(parent):
        time.sleep(EVERY_S)
        if message := pair.look():
            _tell(log, f"{certificate} and {key}: {message}")


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))
    main(*sys.argv[1:])
