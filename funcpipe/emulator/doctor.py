"""What a run on this machine would find: `examine` looks, `Diagnosis` says what it means."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from funcpipe.emulator.capability import Capability, probe_machine
from funcpipe.emulator.ports import free_ports
from funcpipe.emulator.resources import memory_bytes, usable_cpus
from funcpipe.emulator.server import KINDS, find_binary
from funcpipe.errors import ServerError

__all__ = ["Check", "Diagnosis", "StoreFound", "examine"]

_NUM_PORTS = 12  # as many as the most demanding server wants
_LEAST_FREE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class StoreFound:
    """A kind of store server; `path` is its binary, None if this machine has none."""

    kind: str
    path: str | None
    how_to_get: str


@dataclass(frozen=True, kw_only=True)
class Check:
    """Something that runs need. `found` is shown; `problem` is None if it is as it should be."""

    name: str
    found: str
    problem: str | None = None
    remedy: str = ""
    fatal: bool = False
    """No run is possible with this problem."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    cpus: float
    memory_bytes: int
    memory_free_bytes: int
    checks: tuple[Check, ...]
    stores: tuple[StoreFound, ...]
    capabilities: tuple[Capability, ...]

    @property
    def possible(self) -> bool:
        """Whether runs are possible at all, whatever of a platform they would lack."""
        return not any(check.fatal for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "possible": self.possible}


def examine(*, folder: Path | None = None) -> Diagnosis:
    """Look at this machine; `folder` stands for the temporary folder. Takes some seconds."""
    most, free = memory_bytes()
    stores = tuple(_store(kind) for kind in KINDS)
    return Diagnosis(
        cpus=usable_cpus(),
        memory_bytes=most,
        memory_free_bytes=free,
        checks=(_torch(), _temporary_folder(folder), _ports(), store_check(stores)),
        stores=stores,
        capabilities=tuple(probe_machine(folder)),
    )


def store_check(stores: tuple[StoreFound, ...]) -> Check:
    """Without a server, functions can still talk through a directory."""
    found = [store.kind for store in stores if store.path is not None]
    if found:
        return Check(name="store servers", found=", ".join(found))
    return Check(
        name="store servers",
        found="none",
        problem="only a directory (--store FOLDER) or a server of your own (--store s3://...) will "
        "do",
        remedy="pip install 'funcpipe-train[emulator]'",
    )


def _store(kind: str) -> StoreFound:
    how = KINDS[kind].how_to_get
    try:
        return StoreFound(kind=kind, path=find_binary(KINDS[kind]), how_to_get=how)
    except ServerError:
        return StoreFound(kind=kind, path=None, how_to_get=how)


def _temporary_folder(folder: Path | None) -> Check:
    name = "temporary folder"
    try:
        folder = Path(tempfile.gettempdir()) if folder is None else folder
        with tempfile.TemporaryDirectory(prefix="funcpipe-probe-", dir=folder) as place:
            Path(place, "file").write_bytes(b"x")
            free = shutil.disk_usage(place).free
    except OSError as error:
        return Check(
            name=name,
            found="none" if folder is None else str(folder),
            problem=f"cannot be written: {error.strerror or error}",
            remedy="name another one in TMPDIR",
            fatal=True,
        )
    found = f"{folder}, {free / 1e9:.1f} GB free"
    if free < _LEAST_FREE_BYTES:
        return Check(name=name, found=found, problem="a store may fill it in a few steps",
                     remedy="name another one in TMPDIR")  # fmt: skip
    return Check(name=name, found=found)


def _ports() -> Check:
    try:
        free_ports(_NUM_PORTS)
    except OSError as error:
        return Check(
            name="loopback ports",
            found="none",
            problem=f"no store server can be started: {error}",
            remedy="use a directory: --store FOLDER; or bring up the loopback interface: ip link "
            "set lo up",
        )
    return Check(name="loopback ports", found="127.0.0.1")


def _torch() -> Check:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        return Check(
            name="torch",
            found="none",
            problem=f"functions cannot compute: {error}",
            remedy="pip install torch",
            fatal=True,
        )
    python = ".".join(map(str, sys.version_info[:3]))
    threads = torch.get_num_threads()
    return Check(
        name="torch",
        found=f"{torch.__version__} (Python {python}), {threads} thread{'s' * (threads != 1)} by "
        "itself; each function gets its platform's number",
    )
