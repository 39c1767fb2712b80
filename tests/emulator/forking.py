"""Makes templates and functions for tests."""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from funcpipe.emulator.forks import ForkRequest, Isolation, Template

from .helpers import eventually

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON_PATH = os.pathsep.join(map(str, (ROOT, HERE)))


def make_template(
    isolation: Isolation,
    *,
    entry: str = "forked",
    imports: Sequence[str] = ("torch",),
    python_path: Path | None = None,
) -> Template:
    path = PYTHON_PATH if python_path is None else f"{PYTHON_PATH}{os.pathsep}{python_path}"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"):
        environment[f"{library}_NUM_THREADS"] = "1"
    return Template(environment=environment, isolation=isolation, entry=entry, imports=imports)


class Forked:
    """A function that does `tasks`, with the pipes that a host would hold."""

    _ends: ClassVar[dict[int, int]] = {}

    def __init__(
        self,
        template: Template,
        folder: Path,
        tasks: Sequence[Mapping[str, Any]] | None,
        *,
        environment: Mapping[str, str] | None = None,
        meter: int | None = None,
        **request: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.template = template
        frames, self._frames = os.pipe()
        self._output, output = os.pipe()
        self._status, status = os.pipe()
        self._said = b""
        self.said_status = ""
        asked = ForkRequest(
            id=folder.name,
            environment={"HOME": str(folder), "PYTHONPATH": PYTHON_PATH, **(environment or {})},
            folder=str(folder),
            **request,
        )
        try:
            self.pid = template.fork(
                asked, frames=frames, output=output, status=status, meter=meter
            )
        except BaseException:
            self.close()
            raise
        finally:
            for one in (frames, output, status):
                os.close(one)
        if tasks is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                os.write(self._frames, json.dumps(list(tasks)).encode() + b"\n")

    def send(self, payload: Mapping[str, Any], surroundings: Mapping[str, Any]) -> None:
        """One frame, as `funcpipe.functions.local` reads them."""
        frame = json.dumps({"surroundings": surroundings, "payload": payload}).encode()
        os.write(self._frames, b"%d\n%b" % (len(frame), frame))

    def wait_for_status(self) -> dict[str, Any]:
        line = b""
        while not line.endswith(b"\n"):
            assert select.select([self._status], [], [], 60)[0], "it tells no status"
            data = os.read(self._status, 1)
            assert data, "it has ended: " + self.output()
            line += data
        status: dict[str, Any] = json.loads(line)
        return status

    def hang_up(self) -> None:
        """Close the pipe of frames, as the kernel does when the driver dies."""
        os.close(self._frames)
        self._frames = os.open(os.devnull, os.O_RDONLY)

    def end(self, code: int) -> list[Any]:
        """Wait until it has ended with that code; what it answered to its tasks."""

        def ended() -> bool:
            self._ends.update(self.template.exits())
            return self.pid in self._ends

        assert eventually(ended, within_s=60)
        self.template.reap(self.pid)
        while self._read():
            pass
        found = self._ends.pop(self.pid)
        assert found == code, self.output()
        self.said_status = self._read_status()
        self.close()
        return [json.loads(line) for line in self._said.splitlines() if line[:1] in (b"{", b"[")]

    def _read(self) -> bool:
        """Read more of its output; False at the end, which is there when all writers are gone."""
        assert select.select([self._output], [], [], 30)[0], "its output does not end"
        data = os.read(self._output, 1 << 16)
        self._said += data
        return bool(data)

    def _read_status(self) -> str:
        data = b""
        while part := os.read(self._status, 1 << 16):
            data += part
        return data.decode()

    def wait_for_output(self) -> None:
        while b"\n" not in self._said:
            assert self._read()

    def read_now(self) -> bytes:
        """What can be read without waiting, and all before it."""
        while select.select([self._output], [], [], 0)[0] and self._read():
            pass
        return self._said

    def output(self) -> str:
        return self._said.decode()

    def close(self) -> None:
        for one in (self._frames, self._output, self._status):
            os.close(one)
