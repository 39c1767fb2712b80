"""Store servers for local runs: started, made ready, and gone when the driver is.

Loopback only, with credentials made anew for each. What answers a caller without credentials is
`OPEN_DOORS` and nothing else; a test probes every port.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from funcpipe.emulator.credentials import Credentials, generate
from funcpipe.emulator.guarded import Guarded, base_environment
from funcpipe.emulator.juicefs import JUICEFS
from funcpipe.emulator.minio import MINIO
from funcpipe.emulator.ports import PAIR_OFFSET, all_free, free_ports
from funcpipe.emulator.recipe import Kind, OpenDoor
from funcpipe.emulator.seaweedfs import SEAWEEDFS
from funcpipe.errors import ServerError, StoreError, StoreFull, StoreUnavailable

__all__ = ["KINDS", "OPEN_DOORS", "RunningServer", "start_server"]

KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (MINIO, SEAWEEDFS, JUICEFS)}
OPEN_DOORS: Mapping[str, tuple[OpenDoor, ...]] = {
    name: kind.open_doors for name, kind in KINDS.items()
}
REGION = "us-east-1"
_MINIO_VARIABLE = "FUNCPIPE_MINIO"
_ATTEMPTS = 3
_LOW_SPACE_BYTES = 16 << 20
_LOG_LINES = 10
_PROBE_KEY = "funcpipe-ready"
_BUCKET_IS_OURS = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}


class RunningServer:
    """A store server that runs until `stop`, the end of the ``with`` block, or our own end."""

    def __init__(
        self,
        *,
        kind: str,
        bucket: str,
        ports: Mapping[str, int],
        credentials: Credentials,
        guarded: Guarded,
    ) -> None:
        self.kind = kind
        self.endpoint = f"http://127.0.0.1:{ports['s3']}"
        self.region = REGION
        self.url = f"s3://{bucket}"
        self.credentials = credentials
        self.ports = dict(ports)
        """Every port it listens on, by purpose; "s3" is the clients'."""
        self.folder = guarded.folder
        self._guarded = guarded
        self._end_code: int | None = None

    def __repr__(self) -> str:
        return f"RunningServer({self.kind} at {self.endpoint})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Process, ports and data are gone on return; stopping twice is no error."""
        self._guarded.stop()

    def log_tail(self) -> str:
        return self._guarded.log_tail()

    def free_bytes(self) -> int:
        """Space left where the server keeps its bytes."""
        try:
            return shutil.disk_usage(self.folder).free
        except FileNotFoundError:
            return 0

    def trouble(self, *, failing: bool = False) -> StoreError | None:
        """Why the server must be failing its clients, as far as can be seen from outside.

        These servers answer a full disk with a plain 500, or not at all, so whoever sees such an
        error asks here. `failing`: it is known to fail, so that less than it takes to be sure is
        enough for an explanation: some refuse to write long before the disk is full.
        """
        if not self._guarded.alive() or not self.folder.exists():
            return StoreUnavailable(f"the {self.kind} server has been stopped")
        if (code := self.ended()) is not None:
            lines = self.log_tail().splitlines()[-_LOG_LINES:]
            said = "; the end of its log:\n" + "\n".join(lines) if lines else ""
            return StoreUnavailable(f"the {self.kind} server ended by itself (code {code}){said}")
        least = KINDS[self.kind].least_free_bytes if failing else _LOW_SPACE_BYTES
        if (free := self.free_bytes()) < least:
            return StoreFull(
                f"no space left for the {self.kind} server: {free >> 20} MB free at {self.folder}; "
                "free some space there, or put the temporary folder (TMPDIR) on a larger disk"
            )
        return None

    def ended(self, *, within_s: float = 0.0) -> int | None:
        """The exit code of a server that ended by itself, else None after so long."""
        self._hear(within_s=within_s, until="ended")
        return self._end_code

    def reclaim(self, *, timeout_s: float = 60.0) -> bool:
        """Give the bytes of deleted objects back to the disk, where the server does not by itself.

        SeaweedFS notices deletions some 10 s late and only compacts when told to; its guard also
        does so each time the data has grown by half a gigabyte. True if it ran and succeeded.
        """
        self._guarded.tell("upkeep")
        return self._hear(within_s=timeout_s, until="upkeep") in {0, "none"}

    def _hear(self, *, within_s: float, until: str) -> int | str | None:
        """Read the guard's messages up to one of that name; its code ("none": nothing to do)."""
        deadline = time.monotonic() + within_s
        while True:
            event = self._guarded.event(timeout_s=max(0.0, deadline - time.monotonic()))
            if event is None:
                return None
            code: int | None = event.get("code")
            if event["event"] == "ended":
                self._end_code = code
            if event["event"] in {until, "ended"}:
                return "none" if code is None else code


def find_binary(kind: Kind) -> str:
    """The absolute path of the kind's binary; `ServerError` says how to get it."""
    if kind is MINIO and (named := os.environ.get(_MINIO_VARIABLE)):
        found = shutil.which(named)
        if found is None:
            raise ServerError(
                f"{_MINIO_VARIABLE} names {named!r}, which is not a program that can be run"
            )
        return os.path.abspath(found)
    beside = shutil.which(kind.binary, path=sysconfig.get_path("scripts"))
    found = beside or shutil.which(kind.binary)
    if found is None:
        raise ServerError(f"no {kind.binary!r} was found, on PATH or beside Python; get it with: "
                          f"{kind.how_to_get}")  # fmt: skip
    return os.path.abspath(found)


def choose_kind(name: str) -> Kind:
    """The kind by that name; "auto" is MinIO where the user has one, else SeaweedFS."""
    if name == "auto":
        has_minio = os.environ.get(_MINIO_VARIABLE) or shutil.which(MINIO.binary)
        return MINIO if has_minio else SEAWEEDFS
    if name not in KINDS:
        raise ServerError(f"unknown store server {name!r}; there are: auto, {', '.join(KINDS)}")
    return KINDS[name]


def _choose_ports(kind: Kind) -> dict[str, int]:
    single = [role for role in kind.roles if not role.endswith("+")]
    ports = dict(zip(single, free_ports(len(single)), strict=True))
    paired = {role: ports[role[:-1]] + PAIR_OFFSET for role in kind.roles if role.endswith("+")}
    return ports | paired


def start_server(
    kind: str = "auto",
    *,
    folder: Path | None = None,
    bucket: str = "funcpipe",
    timeout_s: float = 30.0,
) -> RunningServer:
    """Start a server of `kind`, wait until a signed request works, and make the bucket.

    Its data lies in a new folder inside `folder` (default: the temporary folder), which is removed
    with the server. Raises `ServerError`, with the end of the server's own log, if it is missing
    or not ready within `timeout_s`.
    """
    chosen = choose_kind(kind)
    binary = find_binary(chosen)
    for attempt in range(1, _ATTEMPTS + 1):
        ports = _choose_ports(chosen)
        credentials = generate()
        recipe = chosen.recipe(binary, ports, credentials)
        guarded = Guarded(
            purpose="store",
            parent=folder,
            environment={**base_environment(), **recipe.environment},
            files=recipe.files,
            setup=recipe.setup,
            server=recipe.server,
            sockets=recipe.sockets,
            upkeep=recipe.upkeep,
        )
        server = RunningServer(
            kind=chosen.name, bucket=bucket, ports=ports, credentials=credentials, guarded=guarded
        )
        try:
            _await_ready(server, bucket, timeout_s)
        except BaseException as error:
            server.stop()
            taken = isinstance(error, ServerError) and not all_free(list(ports.values()))
            if not taken or attempt == _ATTEMPTS:
                raise
        else:
            return server
    raise AssertionError("unreachable: the last attempt returns or raises")


@contextlib.contextmanager
def _client(server: RunningServer) -> Iterator[Any]:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.credentials.access_key,
        aws_secret_access_key=server.credentials.secret_key,
        region_name=server.region,
        config=Config(
            retries={"total_max_attempts": 1},
            connect_timeout=2,
            read_timeout=5,
            proxies={},  # never through HTTP_PROXY: it is on this machine
            s3={"addressing_style": "path"},
        ),
    )
    try:
        yield client
    finally:
        client.close()


def _await_ready(server: RunningServer, bucket: str, timeout_s: float) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    deadline = time.monotonic() + timeout_s
    last, has_bucket = "no answer", False
    with _client(server) as client:
        while time.monotonic() < deadline:
            try:
                if not has_bucket:
                    client.create_bucket(Bucket=bucket)
                    has_bucket = True
                # Some servers make buckets before they can take an object's bytes.
                client.put_object(Bucket=bucket, Key=_PROBE_KEY, Body=b"ready")
                client.delete_object(Bucket=bucket, Key=_PROBE_KEY)
                return
            except ClientError as error:
                last = str(error)
                has_bucket |= error.response.get("Error", {}).get("Code") in _BUCKET_IS_OURS
            except BotoCoreError as error:
                last = str(error)
            if (code := server.ended(within_s=0.03)) is not None:
                raise ServerError(
                    f"the {server.kind} server ended with code {code} before it was ready; the "
                    f"end of its log:\n{server.log_tail()}"
                )
    raise ServerError(
        f"the {server.kind} server was not ready within {timeout_s:g} s ({last}); the end of its "
        f"log:\n{server.log_tail()}"
    )
