"""What a function is told that measures layers instead of training them: small, plain JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from funcpipe.errors import FuncpipeError
from funcpipe.keys import Run
from funcpipe.store.open import StoreSpec

__all__ = ["TASK", "ProfileTask"]

FORMAT = 1
TASK = "profile"


@dataclass(frozen=True, kw_only=True)
class ProfileTask:
    """Measure layers ``first_layer:stop_layer`` of a job's model of `num_layers`.

    root: prefix of the run's keys, where bundle, manifest and layers lie. entry, digest: the
    bundle and the Job in it. sizes: micro-batch sizes, growing. warmup, repeats: passes before
    and while it is measured, for each size. least_s: seconds of the platform that measuring a size
    lasts at least, so that quotas of CPU time average out. memory: whether bytes are measured too.
    transport: whether requests are. token: names the result; one of its own for each function.
    """

    root: str
    entry: str
    digest: str
    store: StoreSpec
    first_layer: int
    stop_layer: int
    num_layers: int
    sizes: tuple[int, ...]
    warmup: int = 2
    repeats: int = 5
    least_s: float = 2.0
    memory: bool = True
    transport: bool = True
    token: str

    def __post_init__(self) -> None:
        if not 0 <= self.first_layer < self.stop_layer <= self.num_layers:
            raise FuncpipeError(
                f"no layers {self.first_layer}:{self.stop_layer} in a model of {self.num_layers} "
                "layers; expected 0 <= first < stop <= layers"
            )
        grow = all(a < b for a, b in pairwise(self.sizes))
        if not self.sizes or min(self.sizes) < 1 or not grow:
            raise FuncpipeError(
                f"the micro-batch sizes are {list(self.sizes)}; expected whole numbers above 0 "
                "that grow"
            )
        if self.warmup < 0 or self.repeats < 1 or not 0 <= self.least_s < math.inf:
            raise FuncpipeError(
                f"warmup is {self.warmup}, repeats {self.repeats} and least_s {self.least_s:g}; "
                "expected 0 or more, 1 or more, and seconds from 0"
            )
        if not self.token or "/" in self.token:
            raise FuncpipeError(f"the token is {self.token!r}; expected a name without slashes")

    @property
    def run(self) -> Run:
        return Run(self.root)

    @property
    def is_first(self) -> bool:
        return self.first_layer == 0

    @property
    def is_last(self) -> bool:
        return self.stop_layer == self.num_layers

    def encode(self) -> bytes:
        told = {"format": FORMAT, "task": TASK, **asdict(self), "store": self.store.to_dict()}
        return json.dumps(told).encode()

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> ProfileTask:
        """The inverse of `encode`, after JSON. `FuncpipeError` if it is of another format."""
        told = dict(data)
        found = (told.pop("task", None), told.pop("format", None))
        if found != (TASK, FORMAT):
            raise FuncpipeError(
                f"the payload is of task {found[0]!r} and format {found[1]!r}, this function "
                f"knows {TASK!r} and {FORMAT}: driver and functions must be of one version; "
                "deploy again"
            )
        fields = set(ProfileTask.__dataclass_fields__)
        if set(told) != fields:
            raise FuncpipeError(
                f"a payload to profile lacks {sorted(fields - set(told))} and has "
                f"{sorted(set(told) - fields)} too much; driver and functions must be of one "
                "version: deploy again"
            )
        told["store"] = StoreSpec.from_dict(told["store"])
        told["sizes"] = tuple(told["sizes"])
        return ProfileTask(**told)
