"""Profiles: what each layer of a model takes in time, memory and bytes, as versioned JSON.

A profile is all that planning knows of a model. `docs/profiles.md` explains the file.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from funcpipe.errors import PlatformError, ProfileError
from funcpipe.partitioner.figures import near
from funcpipe.partitioner.jsonfile import read_json
from funcpipe.partitioner.limits import (
    LEAST_VCPUS,
    MOST_BYTES,
    MOST_SAMPLES,
    MOST_SECONDS,
    MOST_VCPUS,
    is_count,
    is_number,
    is_version,
    shown,
    written,
)

__all__ = ["FORMAT", "UNITS", "VERSION", "LayerProfile", "ModelProfile"]

FORMAT = "funcpipe-profile"
VERSION = 1
UNITS = {"time": "s", "size": "bytes"}

BASE_MEMORY_BYTES = 320 * 2**20
"""A function's memory before it holds anything of a job: Python, torch and funcpipe, measured."""

MOST_SPREAD = 10**6

Grid = tuple[tuple[float, ...], ...]

_LAYER_BYTES = (
    "parameter_bytes", "activation_bytes", "output_bytes", "workspace_bytes",
    "fixed_workspace_bytes", "step_workspace_bytes",
)  # fmt: skip
_MODEL_BYTES = ("base_memory_bytes", "input_bytes", "data_bytes")
_MODEL_SECONDS = ("put_cpu_s", "get_cpu_s", "put_byte_cpu_s", "get_byte_cpu_s", "late_s")


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """One layer of the chain, which a cut may follow.

    forward_s, backward_s: seconds of one micro-batch, by vCPUs (rows) and micro-batch sizes
    (columns) of the profile. step_s: seconds of the optimiser, by vCPUs; empty: none.
    parameter_bytes: all weights and buffers. trained_bytes: those that get gradients (None: all).
    optimizer_factor: bytes of optimiser state for each trained byte (0 for SGD, 1 with momentum,
    2 for Adam). Per sample: activation_bytes, what the layer keeps from its forward to its
    backward, its input included where it needs that; output_bytes, what crosses a cut behind
    it; output_gradient_bytes, what crosses it in the backward (None: as many); workspace_bytes,
    what its forward or backward needs beside these at its fullest; fixed_workspace_bytes, what it
    needs of that whatever the samples. step_workspace_bytes: what the optimiser's step of its
    parameters needs for as long as it lasts.
    """

    name: str
    forward_s: Grid
    backward_s: Grid
    parameter_bytes: float = 0
    trained_bytes: float | None = None
    optimizer_factor: float = 0
    activation_bytes: float = 0
    output_bytes: float = 0
    output_gradient_bytes: float | None = None
    step_s: tuple[float, ...] = ()
    workspace_bytes: float = 0
    fixed_workspace_bytes: float = 0
    step_workspace_bytes: float = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise ProfileError(f"a layer's name is {shown(self.name)}; expected a printable text")
        owner = f"layer {self.name:.80}"
        for name in ("forward_s", "backward_s"):
            _freeze(self, name, _grid(owner, name, getattr(self, name)))
        steps = tuple(_row(owner, "step_s", self.step_s, most=MOST_SECONDS))
        _freeze(self, "step_s", steps)
        for name in _LAYER_BYTES:
            _freeze(self, name, _number(owner, name, getattr(self, name), most=MOST_BYTES))
        _freeze(self, "optimizer_factor", _number(owner, "optimizer_factor",
                                                  self.optimizer_factor, most=100))  # fmt: skip
        for name, default in (
            ("trained_bytes", self.parameter_bytes),
            ("output_gradient_bytes", self.output_bytes),
        ):
            value = getattr(self, name)
            chosen = default if value is None else _number(owner, name, value, most=MOST_BYTES)
            _freeze(self, name, chosen)
        if self.trained > self.parameter_bytes:
            raise ProfileError(
                f"{owner}: trained_bytes is {self.trained:g} and parameter_bytes "
                f"{self.parameter_bytes:g}; expected no more trained ones than there are"
            )

    @property
    def trained(self) -> float:
        """`trained_bytes`, which is never None once the layer is made."""
        return self.parameter_bytes if self.trained_bytes is None else self.trained_bytes

    @property
    def output_gradient(self) -> float:
        """`output_gradient_bytes`, likewise."""
        known = self.output_gradient_bytes
        return self.output_bytes if known is None else known


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """A chain of layers, and where the times were taken.

    vcpus, micro_batch_sizes: what the rows and columns of the layers' times belong to, growing.
    batch_size: samples of a step, unless planning is told another. base_memory_bytes: of a
    function that holds nothing of the model. input_bytes: of a sample at the first layer.
    source: where the figures come from, in words. data_bytes: what the first and the last stage
    hold of the data set. put_cpu_s, get_cpu_s: CPU seconds of sending or receiving an object,
    whatever its size; put_byte_cpu_s, get_byte_cpu_s: more for each byte. late_s: how much later
    than it is there a message is noticed, on average, by who waits for it. Information only:
    spread, the median over layers of interquartile range / median of times; measured, how they
    were, as plain JSON.
    """

    name: str
    layers: tuple[LayerProfile, ...]
    vcpus: tuple[float, ...] = (1.0,)
    micro_batch_sizes: tuple[int, ...] = (1,)
    batch_size: int | None = None
    base_memory_bytes: float = BASE_MEMORY_BYTES
    input_bytes: float = 0
    source: str = ""
    data_bytes: float = 0
    put_cpu_s: float = 0
    get_cpu_s: float = 0
    put_byte_cpu_s: float = 0
    get_byte_cpu_s: float = 0
    late_s: float = 0
    spread: float = 0
    measured: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not self.name.isprintable():
            raise ProfileError(
                f"the profile's name is {shown(self.name)}; expected a printable text"
            )
        if not isinstance(self.source, str):
            raise ProfileError(f"the profile's source is {shown(self.source)}; expected a text")
        if not isinstance(self.layers, list | tuple):
            raise ProfileError(f"`layers` is {shown(self.layers)}; expected a list of layers")
        if not self.layers:
            raise ProfileError("a profile has at least one layer; this one has none")
        if not all(isinstance(layer, LayerProfile) for layer in self.layers):
            raise ProfileError("`layers` is a list of layers")
        _freeze(self, "layers", tuple(self.layers))
        _freeze(self, "vcpus", _axis("vcpus", self.vcpus, whole=False))
        _freeze(self, "micro_batch_sizes", _axis("micro_batch_sizes", self.micro_batch_sizes))
        if self.batch_size is not None:
            _whole("batch_size", self.batch_size)
        for names, most in (
            (_MODEL_BYTES, MOST_BYTES),
            (_MODEL_SECONDS, MOST_SECONDS),
            (("spread",), MOST_SPREAD),
        ):
            for name in names:
                _freeze(self, name, _number("profile", name, getattr(self, name), most=most))
        _freeze(self, "measured", _plain("measured", self.measured))
        for number, layer in enumerate(self.layers):
            self._check_shape(number, layer)

    def _check_shape(self, number: int, layer: LayerProfile) -> None:
        rows, columns = len(self.vcpus), len(self.micro_batch_sizes)
        for name in ("forward_s", "backward_s"):
            grid = getattr(layer, name)
            if len(grid) != rows or any(len(row) != columns for row in grid):
                raise ProfileError(
                    f"layer {number} ({layer.name:.80}): {name} is not {rows} x {columns}; "
                    f"expected a row for each of the {rows} vcpus, and in it a time for each of "
                    f"the {columns} micro_batch_sizes"
                )
        if len(layer.step_s) not in (0, rows):
            raise ProfileError(
                f"layer {number} ({layer.name:.80}): step_s has {len(layer.step_s)} times; "
                f"expected one for each of the {rows} vcpus, or none"
            )

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def forward_s(self, layer: int, *, vcpu: float, micro_batch_size: int) -> float:
        """Seconds of a layer's forward for one micro-batch; see `interpolate`."""
        return self._time(self.layers[layer].forward_s, vcpu, micro_batch_size)

    def backward_s(self, layer: int, *, vcpu: float, micro_batch_size: int) -> float:
        return self._time(self.layers[layer].backward_s, vcpu, micro_batch_size)

    def step_s(self, layer: int, *, vcpu: float) -> float:
        """Seconds of the optimiser for a layer's parameters."""
        times = self.layers[layer].step_s
        return over_vcpus(self.vcpus, times, vcpu) if times else 0.0

    def _time(self, grid: Grid, vcpu: float, size: int) -> float:
        column = [over_sizes(self.micro_batch_sizes, row, size) for row in grid]
        return over_vcpus(self.vcpus, column, vcpu)

    def to_dict(self) -> dict[str, Any]:
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "layers"}
        own["measured"] = _plain("measured", self.measured)
        layers = [asdict(layer) for layer in self.layers]
        return {"format": FORMAT, "version": VERSION, "units": dict(UNITS), **own, "layers": layers}

    @staticmethod
    def from_dict(data: object) -> ModelProfile:
        """The inverse of `to_dict`; `ProfileError` for what is no profile of this version."""
        if not isinstance(data, Mapping):
            raise ProfileError(f"a profile is a JSON object; found {type(data).__name__}")
        if data.get("format") != FORMAT:
            raise ProfileError(
                f"`format` is {shown(data.get('format'))}; expected {FORMAT!r}. A profile that "
                "another project published is imported first: funcpipe plan --help"
            )
        if not is_version(data.get("version"), VERSION):
            raise ProfileError(
                f"profile version {shown(data.get('version'))} is not known; expected {VERSION}"
            )
        if data.get("units", UNITS) != UNITS:
            raise ProfileError(f"the units are {shown(data['units'])}; expected {UNITS}")
        layers = data.get("layers")
        if not isinstance(layers, list):
            raise ProfileError("a profile needs `layers`, a list of layers")
        rest = {k: v for k, v in data.items() if k not in ("format", "version", "units", "layers")}
        for name in ("vcpus", "micro_batch_sizes"):
            if name in rest:
                rest[name] = _listed("the profile", name, rest[name])
        made = tuple(_layer(number, layer) for number, layer in enumerate(layers))
        return _build(ModelProfile, {**rest, "layers": made}, "the profile")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> ModelProfile:
        """From a file; `ProfileError` with its name for whatever is wrong with it."""
        try:
            return ModelProfile.from_dict(read_json(path))
        except (ProfileError, PlatformError) as error:
            raise ProfileError(f"{path}: {error.message}") from error


def over_sizes(sizes: Sequence[int], times: Sequence[float], size: float) -> float:
    """Seconds at a micro-batch size, from those at some sizes.

    Between two sizes, and beyond the ends, along the line through the two nearest; never less
    than in proportion below the first, nor than the last one's above it. One size alone: in
    proportion.
    """
    if len(sizes) == 1:
        return times[0] * size / sizes[0]
    index = min(max(bisect_right(sizes, size), 1), len(sizes) - 1)
    low, high = sizes[index - 1], sizes[index]
    slope = (times[index] - times[index - 1]) / (high - low)
    line = times[index - 1] + slope * (size - low)
    if size < sizes[0]:
        return max(line, times[0] * size / sizes[0])
    return max(line, times[-1]) if size > sizes[-1] else line


def over_vcpus(vcpus: Sequence[float], times: Sequence[float], vcpu: float) -> float:
    """Seconds with a share of CPUs, from those with some shares.

    Between two shares linear in 1/vcpu, which is exact where a fixed part of the work is spread
    over all CPUs (Amdahl's law). Below the first in proportion to 1/vcpu, as a quota stretches
    time; above the last no faster than there: nobody has measured it.
    """
    if vcpu <= vcpus[0]:
        return times[0] * vcpus[0] / vcpu
    if vcpu >= vcpus[-1]:
        return times[-1]
    index = bisect_right(vcpus, vcpu)
    low, high = 1 / vcpus[index - 1], 1 / vcpus[index]
    share = (low - 1 / vcpu) / (low - high)
    return times[index - 1] + (times[index] - times[index - 1]) * share


# -- checking --------------------------------------------------------------------------------


def _freeze(owner: object, name: str, value: object) -> None:
    object.__setattr__(owner, name, value)


def _number(owner: str, name: str, value: object, *, most: float) -> float:
    if not is_number(value) or not 0 <= value <= most:  # type: ignore[operator]
        raise ProfileError(
            f"{owner}: {name} is {shown(value)}; expected a number from 0 to {written(most)}"
        )
    return value  # type: ignore[return-value]


def _row(owner: str, name: str, row: object, *, most: float) -> Sequence[float]:
    if not isinstance(row, list | tuple):
        raise ProfileError(f"{owner}: {name} is {shown(row)}; expected a list of numbers")
    return [_number(owner, name, value, most=most) for value in row]


def _grid(owner: str, name: str, rows: object) -> Grid:
    if not isinstance(rows, list | tuple):
        raise ProfileError(f"{owner}: {name} is {shown(rows)}; expected a list of rows of seconds")
    return tuple(tuple(_row(owner, name, row, most=MOST_SECONDS)) for row in rows)


def _axis(name: str, values: Sequence[float], *, whole: bool = True) -> tuple[float, ...]:
    least, most = (1, MOST_SAMPLES) if whole else (LEAST_VCPUS, MOST_VCPUS)
    good = isinstance(values, list | tuple) and all(
        is_number(v) and least <= v <= most and (not whole or v == int(v)) for v in values
    )
    if not good or not values or any(b <= a for a, b in pairwise(values)):
        kind = "whole numbers" if whole else "numbers"
        found = shown(list(values) if isinstance(values, tuple) else values)
        raise ProfileError(
            f"{name} is {found}; expected {kind} above 0 that grow, from {written(least)} to "
            f"{written(most)}"
        )
    return tuple(int(v) if whole else float(v) for v in values)


def _whole(name: str, value: object) -> None:
    if not is_count(value, most=MOST_SAMPLES):
        raise ProfileError(
            f"{name} is {shown(value)}; expected a whole number from 1 to {MOST_SAMPLES:,}"
        )


def _listed(owner: str, name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ProfileError(f"{owner}: {name} is {shown(value)}; expected a list")
    return tuple(value)


def _plain(name: str, value: object) -> dict[str, Any]:
    """A copy, as JSON would give it back."""
    if not isinstance(value, Mapping):
        raise ProfileError(f"{name} is {shown(value)}; expected a JSON object")
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProfileError(
            f"{name} holds what JSON cannot: {error}; expected texts, finite numbers, true, "
            "false, null, lists and objects"
        ) from error
    return copied


def _layer(number: int, data: object) -> LayerProfile:
    try:
        return _build(LayerProfile, data, "it")
    except ProfileError as error:
        name = data.get("name") if isinstance(data, Mapping) else None
        own = f"layer {name!s:.80}: "
        if error.message.startswith(own):
            told = error.message.removeprefix(own)
            raise ProfileError(f"layer {number} ({name!s:.80}): {told}") from error
        raise ProfileError(f"layer {number}: {error.message}") from error


_Kind = TypeVar("_Kind", LayerProfile, ModelProfile)


def _build(kind: type[_Kind], data: object, owner: str) -> _Kind:
    if not isinstance(data, Mapping):
        raise ProfileError(f"expected a JSON object; found {type(data).__name__}")
    known = {one.name: one for one in fields(kind)}
    for name in data:
        if name not in known:
            raise ProfileError(
                f"{owner} has an unknown field {shown(name)}{near(str(name), known)}"
            )
    for name, one in known.items():
        needed = one.default is MISSING and one.default_factory is MISSING
        if needed and name not in data:
            raise ProfileError(f"{owner} has no {name!r}; it is needed")
    return kind(**data)
