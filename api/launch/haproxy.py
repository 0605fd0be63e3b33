"""Starts HAProxy in Ray Serve's place, with the configuration that Serve wrote made safe for strangers.

Run as a program in front of the real one (RAY_SERVE_HAPROXY_BINARY_PATH points to a two-line script that calls this):
1. Listeners: metrics on loopback, no page of statistics; the service's port where BREAKERS_HOST says, with TLS if
   wanted. The admin socket obeys this user alone. No access log to UDP port 514 of this machine.
2. Connections: a time for a request's head, for silence and between requests, a share of all connections for one source
   address, and with TLS a rate of new ones; each other listener (metrics) has OTHERS_MAX for all sources together, so
   it can't take the service's. An answer to who proved nothing ends its connection, and above half of its share so does
   each answer that is no stream.
3. Requests: a path has one spelling, methods are those of the API, Serve's own `/-/` pages are closed or ask for the
   health token, headers by which callers would steer Serve are taken out, a caller's X-Request-ID that is long, odd or
   not the only one is replaced. A replica sees the address that a request came from, not what a caller makes up, and a
   proof that HAProxy of this cluster sends it (api/launch/replica_port.py). What only reads is asked of another replica
   when one dies over it; else the caller's connection would end without an answer.
4. Rates: what shows no key, and what shows one that opened nothing yet, is bounded by source before a replica learns of
   it: each such request that its caller cuts off would cost a connection to a replica.
5. What HAProxy answers by itself is the Error object of the API.
6. HAProxy dies with the actor that started it; a service that was killed would leave it, and its port, behind.
Imports the standard library only: it runs without site-packages, to cost no time.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import ipaddress
import json
import os
import re
import signal
import subprocess  # nosec B404 # for this program's own file
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "BRK_DOOR"
"""Environment variable that holds the Door as JSON."""
PEM_FILE = "tls.pem"
WATCH = Path(__file__).with_name("certificate_watch.py")
_PR_SET_PDEATHSIG = 1
PROOF = "x-breakers-proof"
"""Header by which a replica knows that HAProxy of its cluster sends a request."""
LOOPBACK = ("127.0.0.0/8", "::1")
HERE = "127.0.0.1"
"""What stands for every address of this machine."""
HEAD_BYTES_MAX = 16_384
"""Of a request's line and headers together; beyond it 431. HAProxy reads up to twice as much to be able to say so."""

OTHERS_MAX = 16
"""Connections of each listener beside the service's port; what is beyond waits with the system, and costs nothing."""
OTHERS_S = 2
"""Seconds that these have for a head, and for silence; a connection is one request."""
SESSION = "breakers_session"
"""The cookie of the console (api/console/guard.py)."""
IDLE_S = 25
"""Seconds that a connection is kept between requests: longer than SDKs pause between batches of samples, and no period
that pollers have, whose next request would meet the end."""
OPEN_PAGES = (
    "/api/health",
    "/api/healthz",
    "/api/readyz",
    "/docs",
    "/docs/rapidoc.js",
    "/openapi.json",
    "/metrics",
    "/-/healthz",
)
"""What may be answered 200 without a key: such an answer says nothing for the caller, and ends its connection."""
CONSOLE_PAGES = ("/", "/console/sign-in", "/console/enter")
"""The same of the console, whose scripts and styles are alike: what is under CONSOLE_FILES."""
CONSOLE_FILES = "/console/static/"
KEYLESS_PER_S = 50
"""Requests of one source a second that show no key and no session: probes, the pages above, OPTIONS, and what will be
401."""
UNKNOWN_PART = 5
"""HAProxy of a node lets one of so many through of what BREAKERS_RATE_UNKNOWN_PER_S allows: replicas can't bear as many
that are cut off as they can refuse."""
KNOWN_S = 600
"""Seconds for which a key, or a project's ingest, is known after it opened something."""
REQUEST_ID = "[A-Za-z0-9._:/@+=,-]{1,128}"
SERVES_OWN = r"^(x-request-(timeout-seconds|disconnect-disabled)|serve[-_]multiplexed[-_]model[-_]id|x[-_]session[-_]id"
SERVES_OWN += r"|x-serve-router-.*|traceparent|tracestate)$"
"""Headers that Serve reads before the app does: it obeys them without a key, and fails on bytes that are no UTF-8."""


@dataclass(frozen=True)
class Door:
    """How strangers are received. `host`: where the service's port listens, None: where Serve says. `connections`: how
    many one source address may have, None: half of all, 0: no bound. `asks_token`: health probes need a token.
    `certificate`, `key`: paths of PEM files. `log`: where a certificate that can't be used is reported; None: stderr.
    `head_s`, `silence_s`, `idle_s`: seconds for a request's head, without a byte in either direction, and between two
    requests of a connection. `unknown_per_s`: requests a second of one source with a key, or to a project's ingest,
    that opened nothing yet; 0: no bound, also on those that show nothing, of which `keyless_per_s` are let through.
    `handshakes_per_s`: new connections a second of one source with TLS; 0: no bound.
    `here`: addresses and networks that are one source together; None: loopback and all addresses of this machine when
    HAProxy starts, since whoever is on it may take any of them."""

    host: str | None = None
    connections: int | None = None
    asks_token: bool = False
    certificate: str | None = None
    key: str | None = None
    log: str | None = None
    head_s: float = 10
    silence_s: float = 60
    idle_s: float = IDLE_S
    unknown_per_s: int = 0
    keyless_per_s: int = KEYLESS_PER_S
    handshakes_per_s: int = 0
    here: list[str] | None = None


ANSWERS = {
    400: ("bad_request", "This is not a request, or not a whole one."),
    404: ("not_found", "There is nothing here."),
    405: ("method_not_allowed", "Method Not Allowed"),
    408: ("bad_request", "The request did not arrive in time."),
    429: ("rate_limited", "Too many requests of this address show no key that is known; try again later."),
    431: ("bad_request", f"The request's line and headers are longer than {HEAD_BYTES_MAX} bytes."),
    500: ("internal_error", "Something went wrong in the service."),
    503: ("not_ready", "The service does not answer now; send the request again."),
}
"""What HAProxy says itself: the Error object's word and message by status."""
OWN_ERRORS = {400: 400, 408: 408, 500: 500, 502: 503, 503: 503, 504: 503}
"""Statuses HAProxy has texts of its own for, and which answer they get. 502 and 504 become 503 on the way out."""
_METHODS = "GET HEAD POST PUT PATCH DELETE OPTIONS"
_ID = "%[var(txn.request_id)]"  # a variable: errors are made where the request's headers are gone
# A slash, backslash, dot, control character or anything that needs no encoding, encoded; a dot segment. What is in
# front of the service (path rules of a proxy) and what is behind must not read one path in two ways.
_ALIAS = r"%([01][0-9a-f]|2[def]|3[0-9]|[46][1-9a-f]|5[0-9acf]|7[0-9aef])|\\|/\.{1,2}(/|$)"

_BIND_ALL = re.compile(r"(?<!^frontend http_frontend\n)^(\s*bind) \*?:(\d+)", re.MULTILINE)
_ERROR_FILE = re.compile(r"^\s*errorfile \d+ .*\n", re.MULTILINE)
_FRONTEND = re.compile(r"^(frontend http_frontend\n)\s*bind (\S+):(\d+)\n", re.MULTILINE)
_OTHER_FRONTEND = re.compile(r"^frontend (?!http_frontend\n)\S+\n", re.MULTILINE)
_NO_ROUTE = re.compile(r"^(backend default_backend\n)\s*http-request return status 404 .*\n", re.MULTILINE)
_ADMIN_SOCKET = re.compile(r"^(\s*stats socket \S+) mode 666 ", re.MULTILINE)
_STATISTICS = re.compile(r"^listen stats\n(?:[ \t]+.*\n?|\n)*", re.MULTILINE)
_ACCESS_LOG = re.compile(r"^\s*log 127\.0\.0\.1:514 .*\n", re.MULTILINE)
_TIMES = re.compile(r"^\s*timeout (?:client|http-request|http-keep-alive) .*\n", re.MULTILINE)
_DEFAULTS = re.compile(r"^defaults\n(\s*mode http\n)?", re.MULTILINE)
_BUFFER = re.compile(r"^(\s*tune\.bufsize) \d+\n", re.MULTILINE)
_MAX_CONNECTIONS = re.compile(r"^\s*maxconn (\d+)\n", re.MULTILINE)
_GLOBAL = re.compile(r"^global\n", re.MULTILINE)
_RETRY = re.compile(r"^(\s*retry-on) .*\n", re.MULTILINE)
_HEALTH_CHECK = re.compile(r"^\s*option httpchk .*\n", re.MULTILINE)


def proof(environ: Mapping[str, str]) -> str | None:
    """What PROOF has to say, hexadecimal: made from Ray's token, which all nodes of a cluster have in common and nobody
    else, so it is the same in every replica and every HAProxy, needs no place of its own, and tells nothing about the
    token. None where Ray asks for no token. Raises OSError when there should be one and can't be read."""
    if environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return None
    return hmac.new(ray_token(environ).encode(), b"breakers: HAProxy to replicas", hashlib.sha256).hexdigest()


def ray_token(environ: Mapping[str, str]) -> str:
    """The token that Ray takes in a process with this environment, found as Ray finds it. Raises OSError or ValueError
    when there is none."""
    path = Path(environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    token = environ.get("RAY_AUTH_TOKEN") or path.read_text(encoding="ascii").strip()
    if not token:
        raise ValueError(f"{path} is empty")
    return token


def rewrite(config: str, door: Door, pem: Path | None = None, proof: str | None = None) -> str:
    """Serve's configuration as it has to be. `pem`: certificate and key in one file, for TLS. `proof`: what replicas
    ask for, if they do."""
    config = _for_its_user(_on_loopback(_ACCESS_LOG.sub("", config)))
    config = _with_bounds(config, door)
    config = _RETRY.sub(r"\1 conn-failure empty-response\n", _ERROR_FILE.sub("", config))
    bound = _connections(config, door)
    rules = _from_here(door) + _by_source(bound) + _ends() + _named() + _own_errors() + _refusals(door)
    if bound and door.unknown_per_s:
        rules += _by_what_is_shown(door)
        config = f"{config.rstrip()}\n{_KNOWN}"
    if pem and bound and door.handshakes_per_s:
        rules += _by_handshakes(door.handshakes_per_s)
        config = f"{config.rstrip()}\n{_HANDSHAKES}"
    # Last: a proof is no part of the head that a caller sent.
    rules += f"    http-request set-header {PROOF} {proof}\n" if proof else f"    http-request del-header {PROOF}\n"
    if proof:
        config = _HEALTH_CHECK.sub(lambda found: f"{found[0]}    http-check send hdr {PROOF} {proof}\n", config)
    config = _FRONTEND.sub(lambda found: f"{found[1]}{_bind(found[2], found[3], door, pem)}{rules}", config)
    config = _NO_ROUTE.sub(lambda found: f"{found[1]}    http-request return {_answer(503)}", config)
    return _GLOBAL.sub(lambda found: f"{found[0]}{_TLS}", config) if pem else config


# With these every client since 2014 connects. Tickets would be sealed with keys that live as long as the process.
_TLS = """    ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets
    ssl-default-bind-ciphers ECDHE+AESGCM:ECDHE+CHACHA20
"""


def _on_loopback(config: str) -> str:
    """Moves every listener that names no address to 127.0.0.1, the service's own port excepted."""
    return _BIND_ALL.sub(r"\1 127.0.0.1:\2", config)


def _for_its_user(config: str) -> str:
    """The configuration with an admin socket for this user alone, and without the page of statistics."""
    return _STATISTICS.sub("", _ADMIN_SOCKET.sub(r"\1 mode 600 ", config))


def _bind(host: str, port: str, door: Door, pem: Path | None) -> str:
    """The service's port. HTTP/1.1 only: state streams are made for it, and a connection then is one request a time."""
    address = host if door.host is None else {"0.0.0.0": "*", "::": "::"}.get(door.host, door.host)  # nosec B104 # asked for
    family = " v4v6" if address == "::" else ""
    tls = f" ssl crt {pem} alpn http/1.1" if pem else ""
    return f"    bind {address}:{port} proto h1{family}{tls}\n"


def _with_bounds(config: str, door: Door) -> str:
    """Times for a head, for silence and between requests, buffers that a head of HEAD_BYTES_MAX fits in twice, and
    bounds of the other listeners."""
    times = f"    timeout http-request {door.head_s * 1000:.0f}ms\n    timeout client {door.silence_s * 1000:.0f}ms\n"
    times += f"    timeout http-keep-alive {door.idle_s * 1000:.0f}ms\n"
    config = _DEFAULTS.sub(lambda found: f"{found[0]}{times}", _TIMES.sub("", config))
    others = f"    maxconn {OTHERS_MAX}\n    timeout http-request {OTHERS_S}s\n    timeout client {OTHERS_S}s\n"
    config = _OTHER_FRONTEND.sub(lambda found: f"{found[0]}{others}    option httpclose\n", config)
    return _BUFFER.sub(rf"\1 {2 * HEAD_BYTES_MAX}\n", config)


def _from_here(door: Door) -> str:
    """The condition `from_here`, of a source that is on this machine."""
    found = [*LOOPBACK, *own_addresses(Path("/proc/net"))] if door.here is None else door.here
    here = list(dict.fromkeys(found))
    return "".join(f"    acl from_here src {' '.join(here[at : at + 32])}\n" for at in range(0, len(here), 32))


def own_addresses(net: Path) -> Iterator[str]:
    """The networks whose addresses are this machine's own, loopback among them. `net`: /proc/net, if there is one."""
    leaf = ""
    for name in ("fib_trie", "if_inet6"):
        for line in (net / name).read_text().splitlines() if (net / name).exists() else ():
            words = line.split()
            if name == "if_inet6":
                yield str(ipaddress.IPv6Address(int(words[0], 16)))
            elif words[0] == "|--":
                leaf = words[1]
            elif words[1:] == ["host", "LOCAL"]:
                yield leaf + words[0]


def _connections(config: str, door: Door) -> int:
    """How many one source may have; 0: any number, and sources are not told apart."""
    found = _MAX_CONNECTIONS.search(config)
    return door.connections if door.connections is not None else int(found[1]) // 2 if found else 0


def _by_source(bound: int) -> str:
    """The bound on connections of one source: an IPv4 address, a /64 of IPv6, which is what one machine is given, or
    all of this machine. What is beyond it is closed at once and counted as a denied connection of the frontend. Above
    half of it no connection is kept for another request: those that wait for one leave room to those that have one."""
    if not bound:
        return ""
    return f"""    acl is_stream res.hdr(content-type) -m beg text/event-stream
    stick-table type ipv6 size 100k expire 10m store conn_cur,gpc0,gpc0_rate(1s),gpc1,gpc1_rate(1s)
    tcp-request connection track-sc0 ipv4({HERE}) if from_here
    tcp-request connection track-sc0 src,ipmask(32,64) unless from_here
    tcp-request connection reject if {{ sc0_conn_cur gt {bound} }}
    http-after-response set-header connection close if {{ sc0_conn_cur gt {bound // 2} }} !is_stream
"""


_HANDSHAKES = """backend breakers_handshakes
    stick-table type ipv6 size 100k expire 10s store gpc0,gpc0_rate(1s)
"""


def _by_handshakes(per_s: int) -> str:
    """The rate of TLS handshakes of one source: each costs a signature before the caller has shown anything. Only those
    that are let through count, so a flood leaves a bound's worth of room each second; connections that are there go
    on. What is beyond it is closed at once and counted as a denied connection."""
    return f"""    tcp-request connection track-sc1 ipv4({HERE}) table breakers_handshakes if from_here
    tcp-request connection track-sc1 src,ipmask(32,64) table breakers_handshakes unless from_here
    tcp-request connection reject if {{ sc1_gpc0_rate ge {per_s} }}
    tcp-request connection sc-inc-gpc0(1)
"""


_KNOWN = f"""backend breakers_known
    stick-table type binary len 32 size 100k expire {KNOWN_S}s
"""


def _by_what_is_shown(door: Door) -> str:
    """The bounds on requests of one source that show nothing, and that show what opened nothing yet: a key, a session
    of the console, or the path of a project's ingest, which has no key. Only what is let through counts, so a flood
    leaves a bound's worth of room each second; what is known is never counted. Kept are hashes, of what got an answer
    that nobody gets without. The page that HAProxy answers by itself costs no replica anything."""
    keyed = "^/+(v1|api|console/p)/" if door.asks_token else "^/+(v1|console/p)/"
    nothing, unknown = "keyless_per_s", "BREAKERS_RATE_UNKNOWN_PER_S"
    return f"""    acl is_ingest path_reg -i ^/+v1/+projects/+[^/]+/+ingest$
    acl in_console path_reg ^/+console(/|$)
    acl shows var(txn.shown) -m found
    acl is_known var(txn.shown),in_table(breakers_known) -m bool
    acl is_own_page path -i /-/healthz
    http-request set-var(txn.shown) req.fhdr(authorization),sha2(256) if {{ req.fhdr(authorization) -m found }}
    http-request set-var(txn.shown) path,lower,sha2(256) if is_ingest METH_POST
    http-request set-var(txn.shown) req.cook({SESSION}),sha2(256) if in_console {{ req.cook({SESSION}) -m found }}
    http-request set-var(txn.teaches) bool(true) if shows !METH_OPTIONS {{ path_reg {keyed} }}
    http-request deny {_limited(nothing)} if !shows !is_own_page {{ sc0_gpc0_rate ge {door.keyless_per_s} }}
    http-request deny {_limited(unknown)} if shows !is_known {{ sc0_gpc1_rate ge {door.unknown_per_s} }}
    http-request sc-inc-gpc0(0) if !shows !is_own_page
    http-request sc-inc-gpc1(0) if shows !is_known
    acl teaches var(txn.teaches) -m bool
    http-response track-sc2 var(txn.shown) table breakers_known if teaches {{ status 200:299 304 }}
"""


def _ends() -> str:
    """The connection ends with an answer to who proved nothing: else one probe of health, or one request that is
    refused, would buy a place for `idle_s`. Who has a key connects anew after an error."""
    pages = " ".join(f"^{_slashes(page)}$" for page in (*OPEN_PAGES, *CONSOLE_PAGES))
    return f"""    http-request set-var(txn.open) bool(true) if {{ path_reg -i {pages} }} || METH_OPTIONS
    http-request set-var(txn.open) bool(true) if {{ path_reg -i ^{_slashes(CONSOLE_FILES)} }}
    http-after-response set-header connection close if {{ status ge 400 }} || {{ var(txn.open) -m bool }}
"""


def _slashes(path: str) -> str:
    """A pattern of the ways to write a path that lead to one page: behind HAProxy many slashes are as good as one."""
    return path.replace(".", "[.]").replace("/", "/+")


def _named() -> str:
    """Every request has an id, with the bounds that api/wire/http.py has, and the address it came from: for the bounds
    of a replica, too, this machine is one."""
    return f"""    unique-id-format %[uuid,regsub(-,,g)]
    acl is_named req.fhdr(x-request-id) -m reg ^{REQUEST_ID}$
    acl is_named_once req.fhdr_cnt(x-request-id) eq 1
    tcp-request content set-var(txn.request_id) unique-id
    http-request set-header x-request-id %[unique-id] unless is_named is_named_once
    http-request set-var(txn.request_id) req.fhdr(x-request-id)
    http-request set-header x-forwarded-for %[src] unless from_here
    http-request set-header x-forwarded-for {HERE} if from_here
    http-after-response set-status 503 if {{ status 502 504 }}
"""


def _own_errors() -> str:
    """HAProxy's own errors as Error objects, wherever it makes them after a request's head."""
    return "".join(f"    http-error {_answer(kind, status)}" for status, kind in OWN_ERRORS.items())


def _refusals(door: Door) -> str:
    """What no replica is asked about. Serve's page of health is the service's own where that asks for a token."""
    health = "    http-request set-path /api/healthz if { path -i /-/healthz }\n" if door.asks_token else ""
    return (
        "    http-request set-var(txn.target) url,length\n"
        f"    http-request return {_answer(431)[:-1]}"
        f" if {{ req.hdrs,length,add(txn.target) gt {HEAD_BYTES_MAX} }}\n"
        f'    http-request return {_answer(405)[:-1]} hdr Allow "{_METHODS.replace(" ", ", ")}"'
        f" unless {{ method {_METHODS} }}\n"
        f"    http-request return {_answer(400)[:-1]} unless {{ path_beg / }}\n"
        f"    http-request return {_answer(404)[:-1]} if {{ path -m reg -i '{_ALIAS}' }}\n"
        f"    http-request return {_answer(404)[:-1]} if {{ path -i /-/routes }}\n"
        "    http-request disable-l7-retry unless METH_GET\n"  # which HAProxy says of HEAD, too
        f"    http-request del-header upgrade\n    http-request del-header {SERVES_OWN} -m reg\n{health}"
    )


def _limited(limit: str) -> str:
    """429, with the limit that was met."""
    return f"{_answer(429, details={'limit': limit, 'retry_after_s': 1})[:-1]} hdr Retry-After 1"


def _answer(kind: int, status: int | None = None, **more: object) -> str:
    """Status, type, body and id of one of ANSWERS, as HAProxy's directives take them. `more`: of the body."""
    code, message = ANSWERS[kind]
    body = json.dumps({"error": code, "code": code, "message": message, "request_id": _ID} | more)
    text = body.replace('"', '\\"')
    return f'status {status or kind} content-type application/json lf-string "{text}" hdr X-Request-ID "{_ID}"\n'


def main(arguments: list[str]) -> None:
    """Rewrites the file after `-f` and becomes the program that the arguments are."""
    door = Door(**json.loads(os.environ.get(VARIABLE, "{}")))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        pem = _watch(path, door) if door.certificate else None
        path.chmod(0o600)
        path.write_text(rewrite(path.read_text(), door, pem, proof(os.environ)))
    # The same process goes on as HAProxy: Serve knows it by its pid and command line.
    os.execv(arguments[0], arguments)  # nosec B606 # no shell; the arguments are ours


def _watch(config: Path, door: Door) -> Path:
    """Starts the program that keeps the running HAProxy's certificate that of the files; the file for the start."""
    pem = config.with_name(PEM_FILE)
    socket = re.search(r"^\s*stats socket (\S+)", config.read_text(), re.MULTILINE)
    options = [str(door.certificate), str(door.key), str(pem), socket[1] if socket else "", door.log or ""]
    command = [sys.executable, "-I", "-S", str(WATCH), *options]
    subprocess.run([*command, "0"], check=False)  # nosec B603 # no shell; the paths are the operator's
    subprocess.Popen([*command, str(os.getpid())])  # nosec B603 # as above
    return pem


if __name__ == "__main__":
    main(sys.argv[1:])
