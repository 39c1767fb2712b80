"""Nobody without credentials gets anything from a running store server, through any port."""

from __future__ import annotations

import http.client
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from funcpipe.emulator.server import OPEN_DOORS, RunningServer

from .helpers import client_of, eventually, tree_of

pytestmark = pytest.mark.server

METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
PATHS = (
    "/",
    "/funcpipe",
    "/funcpipe?list-type=2",
    "/funcpipe?uploads",
    "/funcpipe?delete",
    "/funcpipe/secret",
    "/funcpipe/secret?uploads",
    "/funcpipe/intruder",
    "/buckets/",
    "/buckets/funcpipe/",
    "/buckets/funcpipe/secret",
    "/buckets/funcpipe/intruder",
    "/etc/iam/",
    "/dir/assign",
    "/dir/lookup?volumeId=1",
    "/dir/lookup?fileId=1,01637037d6&read=yes",
    "/dir/status",
    "/submit",
    "/vol/grow?count=1",
    "/vol/status",
    "/vol/vacuum?garbageThreshold=0.01",
    "/col/delete?collection=funcpipe",
    "/cluster/status",
    "/cluster/healthz",
    "/1,01637037d6",
    "/1/01637037d6",
    "/admin/assign_volume?volume=9",
    "/admin/vacuum/check",
    "/stats/disk",
    "/ui/index.html",
    "/.tus/intruder",
    "/?Action=ListUsers",
    "/?Action=AssumeRole",
    "/login",
    "/api/config",
    "/minio/admin/v3/info",
    "/minio/v2/metrics/cluster",
    "/minio/prometheus/metrics",
    "/minio/health/live",
    "/minio/health/ready",
    "/minio/health/cluster",
    "/minio/health/cluster/read",
    "/debug/pprof/",
    "/metrics",
    "/healthz",
    "/status",
)


@pytest.fixture
def secret(server: RunningServer) -> Iterator[bytes]:
    body = b"nobody's business" * 100
    with client_of(server) as client:
        client.put_object(Bucket="funcpipe", Key="secret", Body=body)
        yield body
        client.delete_object(Bucket="funcpipe", Key="secret")


def listening(server: RunningServer) -> set[tuple[str, int]]:
    return {
        (connection.laddr.ip, connection.laddr.port)
        for process in tree_of(server)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def answer(port: int, method: str, path: str) -> tuple[int, bytes]:
    """Status and body of a request without credentials; status 0 if the connection is refused."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        body = b"intruder" if method in {"PUT", "POST"} else None
        connection.request(method, path, body, {"Tus-Resumable": "1.0.0", "Upload-Length": "8"})
        response = connection.getresponse()
        return response.status, response.read()
    except (http.client.HTTPException, ConnectionError):
        return 0, b""
    finally:
        connection.close()


def test_it_listens_on_the_ports_it_names_on_loopback_only(server: RunningServer) -> None:
    named = {("127.0.0.1", port) for port in server.ports.values()}

    # One of them opens a moment after the server is ready to serve.
    assert eventually(lambda: listening(server) >= named)
    assert listening(server) == named


def test_only_the_documented_pages_answer_without_credentials(
    server: RunningServer, secret: bytes
) -> None:
    documented = {(door.role, door.path) for door in OPEN_DOORS[server.kind]}

    answered = set()
    for role, port in server.ports.items():
        for method in METHODS:
            for path in PATHS:
                status, body = answer(port, method, path)
                assert secret[:17] not in body
                if 0 < status < 400:
                    answered.add((role, path))

    assert answered == documented
    with client_of(server) as client:
        keys = [one["Key"] for one in client.list_objects_v2(Bucket="funcpipe")["Contents"]]
        assert keys == ["secret"]
        assert client.get_object(Bucket="funcpipe", Key="secret")["Body"].read() == secret


@pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
def test_inner_ports_and_sockets_want_a_client_certificate(server: RunningServer) -> None:
    roles = [role for role in server.ports if role in {"master", "admin"} or role.endswith("+")]
    places: list[int | str] = [server.ports[role] for role in roles]
    places += [path for path in unix_sockets(server) if "-grpc-" in path]
    assert len(places) == 12

    for place in places:
        for opening in (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            assert talk_tls(place, opening) == b""


def test_sockets_outside_the_folder_are_for_the_owner_alone(server: RunningServer) -> None:
    for path in unix_sockets(server):
        mode = stat.S_IMODE(Path(path).stat().st_mode)
        assert mode & 0o077 == 0
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700


def unix_sockets(server: RunningServer) -> set[str]:
    return {
        connection.laddr
        for process in tree_of(server)
        for connection in process.net_connections("unix")
        if str(connection.laddr).startswith("/")
    }


def talk_tls(place: int | str, data: bytes) -> bytes:
    """What comes back from a TLS conversation that shows no client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"] if data.startswith(b"PRI") else ["http/1.1"])
    family = socket.AF_INET if isinstance(place, int) else socket.AF_UNIX
    with socket.socket(family, socket.SOCK_STREAM) as plain:
        plain.settimeout(10)
        plain.connect(("127.0.0.1", place) if isinstance(place, int) else place)
        try:
            with context.wrap_socket(plain) as secured:
                secured.sendall(data)
                return secured.recv(100)
        except (ssl.SSLError, ConnectionError):
            return b""
