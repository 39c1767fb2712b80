"""The outcome of a run as data, and as the JSON file in its folder."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from funcpipe.errors import FuncpipeError
from funcpipe.files import mode_of, replacing
from funcpipe.partitioner.pricing import Bill
from funcpipe.report.plain import jsonable

__all__ = ["STATUSES", "VERSION", "FunctionSummary", "Summary", "read_summary", "write_summary"]

VERSION = 2
_READABLE = (1, VERSION)
STATUSES = ("done", "failed", "stopped")


@dataclass(frozen=True, kw_only=True)
class FunctionSummary:
    """What one function did.

    layers      first and last layer, such as "0-3"
    seconds     from its start to its end; of these, those in user compute, waiting for objects
                that were not there yet, and moving bytes are the three that follow (transfers
                run beside compute, so they may add up to more)
    peak_bytes  most memory held; base_bytes of it before the model was loaded
    data_s, data_bytes  loading the data set: seconds, and growth of memory
    start_s     from its process's start until its stage was ready to run
    memory_mb   of its function, where the platform has such sizes
    cold_starts environments that were made for it, where the platform tells
    dollars     of all its deliveries and their requests, where the platform has prices
    """

    stage: int
    replica: int
    layers: str
    seconds: float
    compute_s: float
    waiting_s: float
    transfer_s: float
    peak_bytes: int
    base_bytes: int
    data_s: float = 0.0
    data_bytes: int = 0
    start_s: float = 0.0
    requests: int = 0
    memory_mb: int | None = None
    cold_starts: int | None = None
    dollars: float | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run did. `requests`, `requests_by_kind` and `bytes` are those of its functions.

    status      "done", "failed" or "stopped"
    error       what `funcpipe.errors.describe` gives, of a failed run
    if_absent   whether the store honours conditional writes
    seconds     setup, training (from the functions' start), export, total; step: of a step, as
                the mean from the first to the last one
    losses      of each step, in order
    requests    operation -> number, such as {"PUT": 96}; by kind: {"PUT act": 48}
    bytes       {"up": ..., "down": ...}
    environment what the bits of a result depend on: threads, CPU capability, torch version
    emulation   of an emulated platform: its name as platform, title, dilation (a platform second
                took so many real ones; all times here are platform seconds) and why, missing
                (texts: limits that the machine did not enforce), unverified (paths of those
                figures of the price that no public source was found for)
    bill        what `funcpipe.partitioner.pricing.Bill.to_dict` gives: total and charges

    measured    of steady steps, on a platform: what `funcpipe.calibration.observed.Observed.
                to_dict` gives (step_s, dollars, and seconds and memory of each stage), to be held
                beside plan["predicted"]

    Version 1 had neither emulation nor bill.
    """

    version: int = VERSION
    run_id: str
    status: str
    error: Mapping[str, Any] | None = None
    job: str
    plan: Mapping[str, Any]
    platform: str
    store: str
    if_absent: bool
    notes: tuple[str, ...] = ()
    steps: int
    epochs: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    requests_by_kind: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    driver_requests: Mapping[str, int] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    functions: tuple[FunctionSummary, ...] = ()
    model_path: str | None = None
    emulation: Mapping[str, Any] | None = None
    bill: Mapping[str, Any] | None = None
    measured: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version must be {VERSION}, not {self.version}")
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {STATUSES}, not {self.status!r}")
        if self.bill is not None:
            Bill.from_dict(self.bill)
        if not isinstance(self.measured, Mapping | None):
            raise ValueError(f"measured must be a mapping or None, not {self.measured!r}")
        if not isinstance(self.emulation, Mapping | None):
            raise ValueError(f"emulation must be a mapping or None, not {self.emulation!r}")
        if (self.error is not None) != (self.status == "failed"):
            raise ValueError("a failed run has an error, and only a failed run")

    def to_dict(self, *, secrets: Iterable[str] = ()) -> dict[str, Any]:
        """JSON-ready: NaN and infinities as None, `secrets` replaced by ``***``."""
        data = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        data["functions"] = [dataclasses.asdict(function) for function in self.functions]
        plain: dict[str, Any] = jsonable(data, secrets=secrets)
        return plain

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Summary:
        """The inverse of `to_dict`; a summary of version 1 is read as one of this version.

        Raises FuncpipeError for what is neither.
        """
        found = data.get("version")
        if found not in _READABLE:
            raise FuncpipeError(
                f"this summary has version {found!r}, but this funcpipe reads the versions 1 to "
                f"{VERSION}: read it with the funcpipe that wrote it"
            )
        try:
            return Summary(
                **{
                    **data,
                    "version": VERSION,
                    "notes": tuple(data.get("notes", ())),
                    "losses": tuple(_number(loss) for loss in data.get("losses", ())),
                    "metrics": {k: _number(v) for k, v in data.get("metrics", {}).items()},
                    "functions": tuple(FunctionSummary(**f) for f in data.get("functions", ())),
                }
            )
        except (TypeError, ValueError, AttributeError) as error:
            raise FuncpipeError(f"not a summary of a run: {error}") from error


def write_summary(summary: Summary, path: Path, *, secrets: Iterable[str] = ()) -> None:
    """Write the file whole or not at all."""
    text = json.dumps(summary.to_dict(secrets=secrets), allow_nan=False, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, mode=mode_of(path)) as partial:
        partial.write_text(f"{text}\n", encoding="utf-8")


def read_summary(path: Path) -> Summary:
    """The summary in the file at `path`; raises FuncpipeError if it holds none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FuncpipeError(
            f"cannot read the summary of a run from {path}: {error.strerror}; a run writes it when "
            "it ends"
        ) from error
    except ValueError as error:
        raise FuncpipeError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise FuncpipeError(f"{path} holds a JSON {type(data).__name__}, expected a run's summary")
    return Summary.from_dict(data)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
