"""Another user of the machine, who tries everything he can at a service: `python -m tests.support.stranger` as root.

Gets {"paths", "ports", "urls"} on stdin, becomes the user 65534 and answers what came of it: {"reached": [what could
be done to which path], "answers": {port: [[what was asked, what came back]]}, "secured": [ports with
TLS], "spoke": [ports that took his gRPC connection], "obeyed": [calls that were carried out]}.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  # see _import_all
import http.client
import json
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import trustme

NOBODY = 65534
WITHIN_S = 4.0
# One that tells and one that does, of each part of Ray; requests without fields are valid for all of them.
CALLS = (
    "ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "ray.rpc.NodeInfoGcsService/GetClusterId",
    "ray.rpc.ActorInfoGcsService/GetAllActorInfo",
    "ray.rpc.ActorInfoGcsService/KillActorViaGcs",
    "ray.rpc.InternalKVGcsService/InternalKVKeys",
    "ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "ray.rpc.NodeManagerService/GetNodeStats",
    "ray.rpc.NodeManagerService/ShutdownRaylet",
    "ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "ray.rpc.CoreWorkerService/KillActor",
    "ray.rpc.ObjectManagerService/FreeObjects",
    "ray.rpc.ReporterService/GetTraceback",
    "ray.rpc.RuntimeEnvService/DeleteRuntimeEnvIfPossible",
    "ray.serve.RayServeAPIService/ListApplications",
    "ray.rpc.syncer.RaySyncer/StartSync",  # without the id of a node: Ray 2.60.0 aborts before it looks at the token
)
MINE = trustme.CA().issue_cert("127.0.0.1", "localhost")
WRONG_TOKEN = (("authorization", "Bearer " + "0" * 64),)


def ask(paths: list[Path], ports: list[int], urls: list[str]) -> dict[str, Any]:
    """What the stranger found, run in a process of its own."""
    asked = json.dumps({"paths": [str(path) for path in paths], "ports": ports, "urls": urls})
    command = [sys.executable, "-m", "tests.support.stranger"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, cwd=root, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    asked = json.load(sys.stdin)
    _import_all()
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.chdir("/")
    ports: list[int] = asked["ports"]
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda port: _http(port, asked["urls"]), ports))
        certificates = list(pool.map(_certificate_of, ports))
        called = list(pool.map(_grpc, ports, certificates))
    json.dump(
        {
            "uid": os.geteuid(),
            "reached": [done for path in asked["paths"] for done in _try_path(path)],
            "answers": dict(zip(ports, said, strict=True)),
            "secured": [port for port, certificate in zip(ports, certificates, strict=True) if certificate],
            "spoke": [port for port, calls in zip(ports, called, strict=True) if any(code for _, code in calls)],
            "obeyed": [
                [port, call] for port, calls in zip(ports, called, strict=True) for call, code in calls if code == "OK"
            ],
        },
        sys.stdout,
    )
    sys.stdout.flush()
    os._exit(0)  # threads of gRPC may still wait for somebody


def _import_all() -> None:
    """Afterwards he may not read where Python's modules lie."""
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        grpc.channel_ready_future(channel).cancel()


def _try_path(path: str) -> list[str]:
    tries: dict[str, Callable[[], object]] = {
        "see": lambda: os.lstat(path),
        "read": lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)),
        "write": lambda: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)),
        "list": lambda: os.listdir(path),
        "put into": lambda: os.close(os.open(f"{path}/mine", os.O_CREAT | os.O_WRONLY)),
        "speak to": lambda: _connect(path),
        "replace": lambda: os.rename(path, f"{path}.mine"),
    }
    done = []
    for name, attempt in tries.items():
        with contextlib.suppress(OSError):
            attempt()
            done.append(f"{name} {path}")
    return done


def _connect(path: str) -> None:
    if stat.S_ISSOCK(os.stat(path).st_mode):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as end:
                end.connect(path)
                return
    raise PermissionError


def _http(port: int, urls: list[str]) -> list[tuple[str, str]]:
    found = []
    for url in urls:
        method, _, path = url.partition(" ")
        answer = "nothing"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request(method, path, body=b"{}" if method != "GET" else None)
            got = connection.getresponse()
            answer = f"{got.status} "
            answer += got.read(4 << 20).decode(errors="replace")
        connection.close()
        found.append((url, answer))
        if answer == "nothing":
            break  # no HTTP there
    return found


def _certificate_of(port: int) -> str | None:
    """What the server at the port shows to everybody; None where nobody speaks TLS."""
    try:
        return ssl.get_server_certificate(("127.0.0.1", port), timeout=WITHIN_S)
    except OSError:
        return None


def _grpc(port: int, certificate: str | None) -> list[tuple[str, str]]:
    """Each call without a token and with a wrong one, over every connection that he can have: OK, or the code of the
    refusal; nothing where nobody takes his connection."""
    found = []
    for channel in _channels(f"127.0.0.1:{port}", certificate):
        with channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=WITHIN_S)
            except grpc.FutureTimeoutError:
                continue
            for call in CALLS:
                for token in ((), WRONG_TOKEN):
                    try:
                        channel.unary_unary(f"/{call}")(b"", timeout=WITHIN_S, metadata=token)
                        code = "OK"
                    except grpc.RpcError as error:
                        code = error.code().name
                    found.append((call, code))
    return found


def _channels(address: str, certificate: str | None) -> Iterator[grpc.Channel]:
    """In the clear; where TLS is spoken also with it: without a certificate, and with one he made himself."""
    yield grpc.insecure_channel(address)
    if certificate is not None:
        root = certificate.encode()
        yield grpc.secure_channel(address, grpc.ssl_channel_credentials(root))
        chain, key = MINE.cert_chain_pems[0].bytes(), MINE.private_key_pem.bytes()
        yield grpc.secure_channel(address, grpc.ssl_channel_credentials(root, key, chain))


if __name__ == "__main__":
    threading.excepthook = lambda args: None
    main()
