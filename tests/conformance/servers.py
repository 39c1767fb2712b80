"""Real S3 servers for the suite: each is started once, on loopback, and gone at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from funcpipe.emulator.server import KINDS, find_binary, start_server
from funcpipe.errors import ServerError
from funcpipe.store.credentials import Credentials
from funcpipe.store.s3 import ensure_bucket

BUCKET = "funcpipe"
ENDPOINT_VARIABLE = "FUNCPIPE_TEST_S3_ENDPOINT"


@dataclass(frozen=True, kw_only=True)
class Server:
    kind: str
    endpoint: str
    credentials: Credentials
    url: str = f"s3://{BUCKET}"


def why_not(kind: str) -> str | None:
    """Why a server of that kind cannot be had here; None if it can."""
    if kind == "endpoint" and ENDPOINT_VARIABLE not in os.environ:
        return f"{ENDPOINT_VARIABLE} names no server"
    if kind in KINDS:
        try:
            find_binary(KINDS[kind])
        except ServerError as error:
            return str(error)
    return None


@contextmanager
def running(kind: str, folder: Path) -> Iterator[Server]:
    if kind == "endpoint":
        yield _given_endpoint()
        return
    with start_server(kind, folder=folder, bucket=BUCKET) as server:
        yield Server(kind=kind, endpoint=server.endpoint, credentials=server.credentials)


def _given_endpoint() -> Server:
    credentials = Credentials(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        session_token=os.environ.get("AWS_SESSION_TOKEN"),
    )
    endpoint = os.environ[ENDPOINT_VARIABLE]
    ensure_bucket(BUCKET, endpoint=endpoint, credentials=credentials)
    return Server(kind="endpoint", endpoint=endpoint, credentials=credentials)
