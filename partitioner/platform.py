"""Platforms: what a provider's functions get, may do and cost, read from files of dated figures.

The files lie in ``platforms/`` beside this module; a user's own file has the same format. See
``docs/platforms.md``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from funcpipe.errors import PlanError, PlatformError
from funcpipe.partitioner.curve import Curve
from funcpipe.partitioner.figures import BY_THE_USER, KINDS, Figure, near, read_figure
from funcpipe.partitioner.jsonfile import read_json
from funcpipe.partitioner.limits import is_version, shown

__all__ = [
    "BYTES_PER_STORE_GB",
    "MB_PER_MEMORY_GB",
    "SECONDS_PER_MONTH",
    "PlatformSpec",
    "known_platforms",
    "load_platform",
]

FORMAT = 1
MB_PER_MEMORY_GB = 1024
BYTES_PER_STORE_GB = 10**9
SECONDS_PER_MONTH = 730 * 3600

_FOLDER = Path(__file__).parent / "platforms"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Sizes that a function may have. tiers_mb: those that a planner considers."""

    least_mb: int
    most_mb: int
    step_mb: int
    default_mb: int
    tiers_mb: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.least_mb > self.most_mb:
            raise PlatformError(
                f"memory.least_mb is {self.least_mb} and memory.most_mb {self.most_mb}; expected "
                "the least to be the smaller one"
            )
        if list(self.tiers_mb) != sorted(set(self.tiers_mb)) or not self.tiers_mb:
            raise PlatformError(
                f"memory.tiers_mb is {list(self.tiers_mb)}; expected sizes that grow, at least one"
            )
        sizes = {"default_mb": (self.default_mb,), "tiers_mb": self.tiers_mb}
        for name, values in sizes.items():
            for size in values:
                if not self.allows(size):
                    raise PlatformError(f"memory.{name}: {size} MB is none of {self.rule}")

    def allows(self, memory_mb: int) -> bool:
        inside = self.least_mb <= memory_mb <= self.most_mb
        return inside and (memory_mb - self.least_mb) % self.step_mb == 0

    @property
    def rule(self) -> str:
        """The sizes there are, in words."""
        span = f"the sizes from {self.least_mb} to {self.most_mb} MB"
        return span if self.step_mb == 1 else f"{span} in steps of {self.step_mb} MB"

    def nearest(self, memory_mb: float) -> tuple[int, ...]:
        """The allowed size, or the two allowed sizes, around one that is not allowed."""
        steps = (memory_mb - self.least_mb) / self.step_mb
        last = (self.most_mb - self.least_mb) // self.step_mb
        found = {min(max(n, 0), last) for n in (math.floor(steps), math.ceil(steps))}
        return tuple(self.least_mb + n * self.step_mb for n in sorted(found))


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """By memory: vcpu is the share of CPU time, cores how many a function sees."""

    vcpu: Curve
    cores: Curve

    def __post_init__(self) -> None:
        points = self.cores.points
        whole = all(cores == int(cores) for _, cores in points)
        if not whole or (len(points) > 1 and self.cores.between != "step"):
            raise PlatformError(
                "cpu.cores: cores come whole; expected whole numbers, `step` between the points"
            )


@dataclass(frozen=True, kw_only=True)
class Network:
    """Between a function and the store. burst_bytes_per_s: None lets a burst pass at once."""

    up_bytes_per_s: Curve
    down_bytes_per_s: Curve
    latency_s: float
    burst_bytes: int
    burst_bytes_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class Times:
    """limit_s: how long an invocation may take; keep_warm_s: how long an idle environment lives."""

    limit_s: float | None
    cold_start_s: float
    warm_start_s: float
    keep_warm_s: float


@dataclass(frozen=True, kw_only=True)
class Invocations:
    """How functions are invoked. retries: further attempts after an asynchronous one has failed."""

    concurrency: int | None
    sync_payload_bytes: int | None
    async_payload_bytes: int | None
    retries: int
    retry_delays_s: tuple[float, ...]
    duplicate_rate: float

    def __post_init__(self) -> None:
        if self.retries and not self.retry_delays_s:
            raise PlatformError(
                f"invocation.retries is {self.retries} and invocation.retry_delays_s is empty; "
                "expected at least one delay (the last one is used again)"
            )


@dataclass(frozen=True, kw_only=True)
class Tmp:
    """Sizes of /tmp. shared_memory_mb: of /dev/shm; 0 means that there is none."""

    least_mb: int
    default_mb: int
    most_mb: int
    shared_memory_mb: int

    def __post_init__(self) -> None:
        if not self.least_mb <= self.default_mb <= self.most_mb:
            raise PlatformError(
                f"tmp.least_mb, default_mb and most_mb are {self.least_mb}, {self.default_mb} and "
                f"{self.most_mb}; expected them in growing order"
            )


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """None twice where functions have no GPU."""

    kind: str | None
    memory_mb: int | None

    def __post_init__(self) -> None:
        if (self.kind is None) != (self.memory_mb is None):
            raise PlatformError(
                f"gpu.kind is {shown(self.kind)} and gpu.memory_mb {self.memory_mb!r}; expected "
                "both or neither"
            )


@dataclass(frozen=True, kw_only=True)
class Prices:
    """In units of `currency`, each worth `dollars` US dollars.

    gb_s, disk_gb_s, gpu_gb_s: a GB is 1,024 MB. ..._gb and stored_gb_month: a GB is 1e9 bytes, a
    month 730 hours. put, get, missed_get, list, delete, invocation: for one.
    """

    currency: str
    dollars: float
    gb_s: float
    vcpu_s: float
    disk_gb_s: float
    disk_free_mb: int
    gpu_gb_s: float
    invocation: float
    granularity_ms: int
    bills_initialisation: bool
    put: float
    get: float
    missed_get: float
    list: float
    delete: float
    stored_gb_month: float
    put_gb: float
    get_gb: float
    internet_out_gb: float


_Group = TypeVar("_Group")


@dataclass(frozen=True, kw_only=True)
class PlatformSpec:
    """What a platform's functions get, may do and cost.

    figures: every figure with its source; the groups after it hold the same values by name.
    Durations and rates are the platform's own, in its seconds.
    """

    name: str
    title: str
    figures: tuple[Figure, ...]
    memory: Memory = field(init=False, repr=False)
    cpu: Cpu = field(init=False, repr=False)
    network: Network = field(init=False, repr=False)
    time: Times = field(init=False, repr=False)
    invocation: Invocations = field(init=False, repr=False)
    tmp: Tmp = field(init=False, repr=False)
    gpu: Gpu = field(init=False, repr=False)
    price: Prices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise PlatformError(
                f"the name is {shown(self.name)}; expected small letters, digits, dots and dashes"
            )
        if not isinstance(self.title, str) or not 0 < len(self.title.strip()) <= 200:
            raise PlatformError(f"the title is {shown(self.title)}; expected a text, not too long")
        if not self.title.isprintable():
            raise PlatformError(f"the title is {shown(self.title)}; expected printable letters")
        given = [figure.path for figure in self.figures]
        missing = [path for path in KINDS if path not in given]
        if missing or len(given) != len(KINDS):
            raise PlatformError(
                f"{self.name}: {_some(missing)} missing" if missing else "a figure is there twice"
            )
        for name, group in _GROUPS.items():
            object.__setattr__(self, name, self._group(name, group))

    def _group(self, name: str, group: type[_Group]) -> _Group:
        values = {
            figure.path.partition(".")[2]: figure.value
            for figure in self.figures
            if figure.path.partition(".")[0] == name
        }
        return group(**values)

    def figure(self, path: str) -> Figure:
        for figure in self.figures:
            if figure.path == path:
                return figure
        raise PlatformError(f"there is no figure {shown(path)}{near(path, KINDS)}")

    @property
    def limited(self) -> bool:
        """Whether this is a platform at all: `none` stands for a machine as it is."""
        return self.name != "none"

    def vcpu(self, memory_mb: int) -> float:
        return self.cpu.vcpu.at(memory_mb)

    def cores(self, memory_mb: int) -> int:
        return int(self.cpu.cores.at(memory_mb))

    def threads(self, memory_mb: int) -> int:
        """How many the numerical libraries may use: no more than there is CPU time for."""
        useful = math.ceil(self.vcpu(memory_mb) - 1e-6)  # 2.0000001 is 2 written in decimals
        return max(1, min(self.cores(memory_mb), useful))

    def up_bytes_per_s(self, memory_mb: int) -> float:
        return self.network.up_bytes_per_s.at(memory_mb)

    def down_bytes_per_s(self, memory_mb: int) -> float:
        return self.network.down_bytes_per_s.at(memory_mb)

    def check_memory(self, memory_mb: int, owner: str) -> None:
        """`PlanError` unless functions may have this size. owner: who asks, such as "stage 0"."""
        if self.memory.allows(memory_mb):
            return
        hint = " or ".join(str(size) for size in self.memory.nearest(memory_mb))
        raise PlanError(
            f"{owner}: {memory_mb} MB is no memory size of {self.name}; it has {self.memory.rule}; "
            f"use {hint}"
        )

    def changed(self, changes: Mapping[str, str]) -> PlatformSpec:
        """With figures set by the user, from texts: ``{"network.latency_s": "0.05"}``."""
        return _with_changes(self, changes) if changes else self

    def to_dict(self) -> dict[str, Any]:
        """The file format again."""
        figures = {figure.path: figure.to_dict() for figure in self.figures}
        return {"format": FORMAT, "name": self.name, "title": self.title, "figures": figures}

    @staticmethod
    def from_dict(data: object) -> PlatformSpec:
        """The inverse of `to_dict`; `PlatformError` that names what is wrong."""
        if not isinstance(data, Mapping):
            raise PlatformError(f"a platform is a JSON object; found {type(data).__name__}")
        if not is_version(data.get("format"), FORMAT):
            raise PlatformError(f"`format` is {shown(data.get('format'))}; expected {FORMAT}")
        fields = ("format", "name", "title", "figures")
        for name in data:
            if name not in fields:
                raise PlatformError(f"unknown field {shown(name)}{near(str(name), fields)}")
        figures = data.get("figures")
        if not isinstance(figures, Mapping):
            raise PlatformError("a platform needs `figures`, an object of figures by their paths")
        first = figures.get("price.currency")
        currency = first.get("value") if isinstance(first, Mapping) else None
        read = {p: read_figure(p, figure, currency=str(currency)) for p, figure in figures.items()}
        return PlatformSpec(
            name=data.get("name", ""),
            title=data.get("title", ""),
            figures=tuple(read[path] for path in KINDS if path in read),
        )


_GROUPS: Mapping[str, type] = {
    "memory": Memory,
    "cpu": Cpu,
    "network": Network,
    "time": Times,
    "invocation": Invocations,
    "tmp": Tmp,
    "gpu": Gpu,
    "price": Prices,
}


def _some(paths: list[str]) -> str:
    shown = ", ".join(paths[:3])
    return f"{shown} and {len(paths) - 3} more figures are" if len(paths) > 3 else f"{shown}:"


def _with_changes(spec: PlatformSpec, changes: Mapping[str, str]) -> PlatformSpec:
    figures = {figure.path: figure for figure in spec.figures}
    for path, text in changes.items():
        if path not in KINDS:
            raise PlatformError(f"there is no figure {shown(path)} to set{near(path, KINDS)}")
        old, kind = figures[path], KINDS[path]
        try:
            value = kind.parse(text, old.value)
        except (ValueError, RecursionError):
            raise PlatformError(
                f"{path} was set to {shown(text)}; expected {kind.expected}"
            ) from None
        except PlatformError as error:
            raise PlatformError(f"{path} was set to {shown(text)}: {error.message}") from None
        figures[path] = Figure(path=path, value=value, unit=old.unit, source=BY_THE_USER)
    currency = str(figures["price.currency"].value)
    named = (replace(f, unit=KINDS[f.path].unit_in(currency)) for f in figures.values())
    return replace(spec, figures=tuple(named))


def known_platforms() -> list[str]:
    """The names that `load_platform` knows without a file."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_platform(
    name_or_path: str | Path, *, changes: Mapping[str, str] | None = None
) -> PlatformSpec:
    """A platform by its name, or from a user's own file.

    changes: figures to set instead of the file's, each as a text. `PlatformError` for an unknown
    name, with what it may have been meant for, and for a file or figure that is not right.
    """
    own = isinstance(name_or_path, Path) or name_or_path.endswith(".json") or "/" in name_or_path
    name_or_path = str(name_or_path)
    if not own and name_or_path not in known_platforms():
        raise PlatformError(
            f"there is no platform {shown(name_or_path)}{near(name_or_path, known_platforms())} "
            "(a file of one's own ends in .json)"
        )
    path = Path(name_or_path) if own else _FOLDER / f"{name_or_path}.json"
    try:
        spec = PlatformSpec.from_dict(read_json(path)).changed(changes or {})
        if own and not spec.limited:
            raise PlatformError("the name `none` stands for no platform at all; choose another")
        return spec
    except PlatformError as error:
        place = str(path) if own else name_or_path
        raise PlatformError(f"platform {place}: {error.message}") from error
