"""Where a run keeps its objects: opened, watched while it runs, asked when something failed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from funcpipe.driver.options import SERVERS, RunOptions
from funcpipe.emulator.server import RunningServer, start_server
from funcpipe.errors import FuncpipeError, FunctionLost, StoreError
from funcpipe.store.base import ObjectStore
from funcpipe.store.credentials import Credentials
from funcpipe.store.open import StoreSpec

__all__ = ["Place", "known_secrets", "open_place", "sweep"]


_PROFILE_FILES = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A store, and what functions need to get there. `server` is one that the run has started."""

    spec: StoreSpec
    kind: str
    server: RunningServer | None = None
    watch: ServerWatch | None = None

    @property
    def own(self) -> bool:
        """Whether the store goes with the run."""
        return self.server is not None

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where functions must be able to write on this machine."""
        if self.kind != "directory":
            return ()
        return (
            Path(
                unquote(urlsplit(self.spec.url).path) if "://" in self.spec.url else self.spec.url
            ),
        )

    @property
    def credentials(self) -> Credentials | None:
        return None if self.server is None else self.server.credentials

    @property
    def function_environment(self) -> dict[str, str]:
        """What the AWS chain of the user's shell says; functions see nothing else of it."""
        if self.own:
            return {}
        given = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        # A function's home is its own folder, so it is told where the user's profiles are.
        for name, default in _PROFILE_FILES.items():
            path = Path(given.get(name, default)).expanduser().absolute()
            if path.is_file():
                given[name] = str(path)
        return given

    def explain(self, error: FuncpipeError) -> FuncpipeError:
        """`error`, or what the server's own state says about it, at the same place.

        Local servers answer a full disk with a plain 500, or not at all.
        """
        if self.watch is None or not isinstance(error, StoreError | FunctionLost):
            return error
        trouble = self.watch.trouble(failing=isinstance(error, StoreError))
        if trouble is None:
            return error
        return trouble.at(stage=error.stage, replica=error.replica, step=error.step)


class ServerWatch:
    """Looks after a server from a thread of its own, in the ``with`` block.

    One that cannot go on may leave its clients waiting, ourselves among them: it is stopped, so
    that they all hear so at once.
    """

    def __init__(self, server: RunningServer, *, every_s: float = 1.0) -> None:
        self._server = server
        self._every_s = every_s
        self._found: StoreError | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="funcpipe-server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def trouble(self, *, failing: bool) -> StoreError | None:
        """What was found, or is found now; `failing` as in `RunningServer.trouble`."""
        with self._lock:
            self._found = self._found or self._server.trouble(failing=failing)
            return self._found

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            if self.trouble(failing=False) is not None:
                self._server.stop()
                return


def open_place(options: RunOptions, stack: ExitStack) -> Place:
    """The store that the user named; a server is started, and stopped with the `stack`."""
    name = options.store
    if name in SERVERS:
        server = stack.enter_context(start_server(name))
        spec = StoreSpec(url=server.url, endpoint=server.endpoint, region=server.region)
        watch = stack.enter_context(ServerWatch(server))
        return Place(spec=spec, kind=server.kind, server=server, watch=watch)
    kind = "s3" if name.startswith("s3://") else "directory"
    if kind == "directory" and "://" not in name:
        name = str(Path(name).absolute())
    spec = StoreSpec(url=name, endpoint=options.endpoint, region=options.region)
    return Place(spec=spec, kind=kind)


def sweep(store: ObjectStore, root: str, tell: Callable[[str, Mapping[str, Any]], None]) -> None:
    """Remove all that a run put into a store that goes on living."""
    try:
        store.delete(list(store.list(f"{root}/")))
    except StoreError as error:
        tell("note", {"text": f"objects may be left under {root}/: {error}", "level": "warning"})


def known_secrets() -> list[str]:
    """What must never be written down, should an error text of somebody else's contain it."""
    names = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    return [os.environ[name] for name in names if os.environ.get(name)]
