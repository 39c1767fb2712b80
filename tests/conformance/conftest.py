from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from funcpipe.store.base import PacedStore
from funcpipe.store.directory import DirectoryStore
from funcpipe.store.faulty import Fault, Faulty
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import Metered
from funcpipe.store.retry import Retrying, RetryPolicy
from funcpipe.store.s3 import S3Store
from funcpipe.store.shape import Link, Shaped

from .backends import BACKENDS, S3_KINDS, Backend
from .servers import BUCKET, Server, running, why_not

PAGE_KEYS = 5


@pytest.fixture(scope="session")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """Gives the running server of a kind; each is started at its first use."""
    started: dict[str, Server] = {}
    with ExitStack() as stack:

        def get(kind: str) -> Server:
            if kind not in started:
                started[kind] = stack.enter_context(running(kind, tmp_path_factory.mktemp(kind)))
            return started[kind]

        yield get


@pytest.fixture(scope="session")
def s3_of(server_of: Callable[[str], Server]) -> Iterator[Callable[[str], PacedStore]]:
    """Gives the store on the server of a kind."""
    opened: dict[str, PacedStore] = {}

    def get(kind: str) -> PacedStore:
        server = server_of(kind)
        if kind not in opened:
            opened[kind] = Retrying(
                S3Store(
                    BUCKET,
                    prefix="suite",
                    endpoint=server.endpoint,
                    credentials=server.credentials,
                    page_keys=PAGE_KEYS,
                ),
                RetryPolicy(first_s=0.02),
            )
        return opened[kind]

    yield get
    for store in opened.values():
        store.close()


def _params(names: Iterable[str]) -> list[Any]:
    """Kinds of server that cannot be had here are left out; test_servers.py says why."""
    return [
        pytest.param(name, marks=[pytest.mark.server] if name in S3_KINDS else [])
        for name in names
        if why_not(name) is None
    ]


@pytest.fixture(params=_params(BACKENDS))
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


@pytest.fixture(params=_params(S3_KINDS))
def server(request: pytest.FixtureRequest, server_of: Callable[[str], Server]) -> Server:
    return server_of(request.param)


@pytest.fixture
def store(
    backend: Backend, tmp_path: Path, s3_of: Callable[[str], PacedStore]
) -> Iterator[PacedStore]:
    """An empty store of the back-end."""
    made = s3_of(backend.name) if backend.is_s3 else _local(backend.name, tmp_path)
    yield made
    made.delete(made.list(""))
    made.close()


def _local(name: str, folder: Path) -> PacedStore:
    if name == "directory":
        return DirectoryStore(folder / "objects")
    memory = MemoryStore()
    link = Link(up_bytes_per_s=1e9, down_bytes_per_s=1e9, latency_s=1e-4, burst_bytes=1 << 20)
    return {
        "memory": lambda: memory,
        "metered": lambda: Metered(memory),
        "shaped": lambda: Shaped(memory, link),
        "retrying": lambda: Retrying(memory),
        "faulty": lambda: Faulty(memory, lambda operation, key: None),
        "composed": lambda: Metered(Shaped(_lossy(memory), link)),
    }[name]()


def _lossy(store: PacedStore) -> PacedStore:
    """Two of five requests of a thread fail, one before and one after it is carried out."""
    mine = threading.local()

    def choose(operation: str, key: str) -> Fault | None:
        mine.turn = (getattr(mine, "turn", -1) + 1) % 5
        return (None, Fault.BEFORE, None, Fault.AFTER, None)[mine.turn]

    return Retrying(Faulty(store, choose), sleep=lambda seconds: None)
