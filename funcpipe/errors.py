"""The errors that funcpipe raises, and how they cross a process.

::

    FuncpipeError
    ├── JobError                 the job file or its fields are wrong
    │   ├── JobImportError       the job file does not import
    │   └── BundleError          the job's code or files cannot be packed, checked or found
    ├── ModelError               the model cannot be split, or its parts do not fit together
    ├── PlanError                a plan is malformed or does not fit the job
    │   ├── ProfileError         a model's profile is malformed, or none that is known
    │   ├── Infeasible           no plan keeps to every bound
    │   └── SolverError          a solver is missing, refused or gave a wrong answer
    ├── ScheduleError            a schedule is out of order or would deadlock
    ├── TrainingError            training itself went wrong, with stage, replica and step
    │   ├── UserCodeError        the user's model, loss, data or optimiser raised
    │   └── LossError            the loss is not a finite scalar
    ├── StoreError               the object store failed
    │   ├── ObjectMissing        no object under that key
    │   ├── ObjectExists         put(if_absent=True) found one
    │   ├── ObjectCorrupt        checksum or framing is wrong
    │   ├── WaitTimeout          an object did not appear before its deadline
    │   ├── StoreDenied          the credentials were refused
    │   ├── BucketMissing        no such bucket
    │   ├── StoreFull            no space left where the store keeps its bytes
    │   └── StoreUnavailable     unreachable, throttled or failing after bounded retries
    ├── PlatformError            the platform refused or lost a function, or is not known
    │   ├── FunctionLost         a function ended without a result
    │   ├── OutOfMemory          a function exceeded its memory
    │   ├── TimeLimitExceeded    a function ran longer than the platform allows
    │   ├── Throttled            too many functions at once: the platform answered 429
    │   └── PayloadTooLarge      what a function is told exceeds what the platform takes
    ├── ServerError              a local store server could not be started
    └── Stopped                  the run was stopped on purpose
        └── Superseded           another attempt or a duplicate owns this worker's place

Every class can be written as plain data (`describe`) and made again from it (`revive`), so that
an error raised inside a function reaches the user with its kind, its place and the user's own line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = [
    "BucketMissing",
    "BundleError",
    "FuncpipeError",
    "FunctionLost",
    "Infeasible",
    "JobError",
    "JobImportError",
    "LossError",
    "ModelError",
    "ObjectCorrupt",
    "ObjectExists",
    "ObjectMissing",
    "OutOfMemory",
    "PayloadTooLarge",
    "PlanError",
    "PlatformError",
    "ProfileError",
    "ScheduleError",
    "ServerError",
    "SolverError",
    "Stopped",
    "StoreDenied",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Superseded",
    "Throttled",
    "TimeLimitExceeded",
    "TrainingError",
    "UserCodeError",
    "WaitTimeout",
    "describe",
    "from_log",
    "revive",
    "to_log",
]

_LOG_MARK = "funcpipe error: "
_LOG_LETTERS = 500
_PLACE_FIELDS = ("stage", "replica", "step", "micro_batch", "where")


class FuncpipeError(Exception):
    """Root of the tree.

    `message` is one readable text: what was found, what was expected, what to do. The keyword
    fields say where in the run it happened, as far as it is known: stages, replicas and
    micro-batches are numbered from 0, steps counted from 1 as the progress display does. `where`
    is the user's own line as ``file:line in function: source``.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: int | None = None,
        replica: int | None = None,
        step: int | None = None,
        micro_batch: int | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage
        self.replica = replica
        self.step = step
        self.micro_batch = micro_batch
        self.where = where

    def at(self, **place: Any) -> FuncpipeError:
        """Fill in the place fields that are not known yet; returns self."""
        for name, value in place.items():
            if name not in _PLACE_FIELDS:
                raise TypeError(f"unknown place field {name!r}")
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def __str__(self) -> str:
        place = ", ".join(
            f"{label} {value}"
            for label, value in (
                ("stage", self.stage),
                ("replica", self.replica),
                ("step", self.step),
                ("micro-batch", self.micro_batch),
            )
            if value is not None
        )
        text = f"{self.message} [{place}]" if place else self.message
        return f"{text}\n  at {self.where}" if self.where else text


class JobError(FuncpipeError):
    pass


class JobImportError(JobError):
    pass


class BundleError(JobError):
    pass


class ModelError(FuncpipeError):
    pass


class PlanError(FuncpipeError):
    pass


class ProfileError(PlanError):
    pass


class Infeasible(PlanError):
    pass


class SolverError(PlanError):
    pass


class ScheduleError(FuncpipeError):
    pass


class TrainingError(FuncpipeError):
    pass


class UserCodeError(TrainingError):
    pass


class LossError(TrainingError):
    pass


class StoreError(FuncpipeError):
    pass


class ObjectMissing(StoreError):
    pass


class ObjectExists(StoreError):
    pass


class ObjectCorrupt(StoreError):
    pass


class WaitTimeout(StoreError):
    pass


class StoreDenied(StoreError):
    pass


class BucketMissing(StoreError):
    pass


class StoreFull(StoreError):
    pass


class StoreUnavailable(StoreError):
    pass


class PlatformError(FuncpipeError):
    pass


class FunctionLost(PlatformError):
    pass


class OutOfMemory(PlatformError):
    pass


class TimeLimitExceeded(PlatformError):
    pass


class Throttled(PlatformError):
    pass


class PayloadTooLarge(PlatformError):
    pass


class ServerError(FuncpipeError):
    pass


class Stopped(FuncpipeError):
    pass


class Superseded(Stopped):
    pass


def _tree(root: type[FuncpipeError]) -> dict[str, type[FuncpipeError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def describe(error: BaseException) -> dict[str, Any]:
    """`error` as JSON-ready data: ``{"type", "message", place fields that are known}``."""
    if not isinstance(error, FuncpipeError):
        return {"type": "FuncpipeError", "message": f"{type(error).__name__}: {error}"}
    known = {name: getattr(error, name) for name in _PLACE_FIELDS}
    return {
        "type": type(error).__name__,
        "message": error.message,
        **{name: value for name, value in known.items() if value is not None},
    }


def to_log(error: BaseException) -> str:
    """One line, and not a long one, for a function's log: the error cannot go anywhere else."""
    told = describe(error)
    return _LOG_MARK + json.dumps(told | {"message": told["message"][:_LOG_LETTERS]})


def from_log(text: str) -> FuncpipeError | None:
    """The error of the last such line in `text`, or None."""
    for line in reversed(text.splitlines()):
        if line.startswith(_LOG_MARK):
            try:
                return revive(json.loads(line.removeprefix(_LOG_MARK)))
            except ValueError:
                return None
    return None


def revive(data: Mapping[str, Any]) -> FuncpipeError:
    """The inverse of `describe`; an unknown type becomes a plain `FuncpipeError`."""
    kind = _tree(FuncpipeError).get(str(data.get("type")), FuncpipeError)
    place = {name: data[name] for name in _PLACE_FIELDS if name in data}
    return kind(str(data.get("message", "no message")), **place)
