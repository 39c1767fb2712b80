"""The contract of what runs functions: processes on this machine, or a cloud's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from funcpipe.partitioner.pricing import Use

__all__ = ["Execution", "Exit", "FunctionHost", "Reason"]

Reason: TypeAlias = Literal[
    "done", "failed", "crashed", "killed", "stopped", "out-of-memory", "time-limit"
]


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How one invocation ended.

    ``done``: code 0. ``failed``: code 1, the worker has written its own error. ``killed``: by
    SIGKILL that was not ours, perhaps for want of memory. ``crashed``: any other signal or code.
    ``stopped``: ended because `FunctionHost.stop` asked. ``out-of-memory`` and ``time-limit``: the
    platform ended it, for holding more memory than its tier has or for running too long. `code`
    is minus the signal's number for a signal and None where the platform tells none; `log_tail`
    is the end of what it printed, `detail` what the platform says of the limit that it broke.
    """

    id: str
    name: str
    code: int | None
    reason: Reason
    log_tail: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One delivery of an invocation, ended, with what is billed for it.

    number: the so many-th of its invocation, from 1. cold: whether an environment was made for
    it. late_s: what its start took longer than the platform's, because this machine was slower;
    not billed.
    """

    invocation: str
    number: int
    environment: str
    cold: bool
    late_s: float
    reason: Reason
    use: Use


class FunctionHost(Protocol):
    """Starts functions and tells how they ended. Safe to use from several threads."""

    def start(self, payload: bytes, *, name: str, memory_mb: int | None) -> str:
        """Invoke one function with a JSON payload; returns the invocation's id at once.

        Raises `Throttled` when the platform runs as many as it may, and `PayloadTooLarge`.
        """

    def exits(self) -> list[Exit]:
        """The invocations that ended since the last call, each told once."""

    def executions(self) -> list[Execution]:
        """The deliveries that ended since the last call, each told once."""

    def uses(self) -> list[Use]:
        """What all deliveries have used up to now, ended or not: what the bill is made of."""

    def stored_bytes(self) -> int:
        """What all deliveries have put into the store and not deleted again."""

    def alive(self) -> int:
        """How many invocations have not ended yet."""

    def stop(self, ids: Iterable[str] | None = None, *, grace_s: float = 2.0) -> None:
        """End these invocations (default: all) and what they started; unknown ids are ignored.

        They are asked, and killed after `grace_s`; on return they have ended, and `exits` tells.
        """

    def close(self) -> None:
        """Stop everything and release what the host holds; closing twice is no error."""
