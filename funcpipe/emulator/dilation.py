"""How much slower than real time a platform must run, so that this machine can be all of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "STORE_COSTS",
    "Demand",
    "Dilation",
    "Machine",
    "StoreCost",
    "choose_dilation",
    "store_cost",
    "sustained",
]

# Room for rounding in sums of shares such as 0.6 + 0.6 + 0.6; far below what can be measured.
_FUZZ = 1e-9
_LEAST_REQUEST_S = 0.001  # no client makes more than so many requests


def _check_amounts(owner: Demand | StoreCost) -> None:
    for name, value in vars(owner).items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a number of at least 0, found {value}")


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one function may use at most, in the platform's own seconds."""

    vcpu: float
    up_bytes_per_s: float
    down_bytes_per_s: float
    requests_per_s: float = 0.0

    def __post_init__(self) -> None:
        _check_amounts(self)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """`share` of its cores may be planned for; the rest is for the driver and the system."""

    cores: float
    share: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.cores < math.inf or not 0 < self.share <= 1:
            raise ValueError(
                f"a machine has cores above 0 and a share above 0 and up to 1; found {self.cores} "
                f"cores and a share of {self.share}"
            )


@dataclass(frozen=True, kw_only=True)
class StoreCost:
    """CPU seconds that the store's own processes on this machine take, for a byte of a body and
    for a request.
    """

    put_cpu_s_per_byte: float
    get_cpu_s_per_byte: float
    request_cpu_s: float = 0.0

    def __post_init__(self) -> None:
        _check_amounts(self)


# By kind of store. Measured in 2026-11 on two cores, bytes with objects of 8 MiB. MinIO's is taken
# to be that of JuiceFS, whose gateway is the same code. A remote store costs this machine nothing.
_REMOTE = StoreCost(put_cpu_s_per_byte=0.0, get_cpu_s_per_byte=0.0)
_GATEWAY = StoreCost(put_cpu_s_per_byte=3.5e-9, get_cpu_s_per_byte=1.1e-9, request_cpu_s=0.0025)
STORE_COSTS: Mapping[str, StoreCost] = {
    "seaweedfs": StoreCost(
        put_cpu_s_per_byte=13.4e-9, get_cpu_s_per_byte=1.4e-9, request_cpu_s=0.0025
    ),
    "juicefs": _GATEWAY,
    "minio": _GATEWAY,
    "directory": StoreCost(
        put_cpu_s_per_byte=0.5e-9, get_cpu_s_per_byte=0.3e-9, request_cpu_s=0.0002
    ),
}


def store_cost(kind: str) -> StoreCost:
    """The cost of a store by its kind; one that is not known here is somewhere else."""
    return STORE_COSTS.get(kind, _REMOTE)


@dataclass(frozen=True, kw_only=True)
class Dilation:
    """A platform second takes `factor` seconds of this machine; `why` says what forced it."""

    factor: float
    why: str

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"a dilation is at least 1, found {self.factor}")


def sustained(num_bytes: float, bytes_per_s: float, latency_s: float) -> tuple[float, float]:
    """Bytes and requests per second of objects of at most `num_bytes`, one after another.

    Every object takes the latency and then its bytes, so that small ones never fill a link.
    """
    if num_bytes <= 0:
        return 0.0, 0.0
    object_s = max(latency_s + num_bytes / bytes_per_s, _LEAST_REQUEST_S)
    return min(num_bytes / object_s, bytes_per_s), 1 / object_s


def choose_dilation(demands: Sequence[Demand], machine: Machine, store: StoreCost) -> Dilation:
    """The least factor, to two digits, with which everything at once fits on the machine.

    The worst case is joint: every function computes on all of its vCPU while it moves all that it
    can in both directions and the store serves all of that. With a share of at most 1 this also
    covers a single function with more vCPU than the machine has cores.
    """
    serving = math.fsum(
        one.up_bytes_per_s * store.put_cpu_s_per_byte
        + one.down_bytes_per_s * store.get_cpu_s_per_byte
        + one.requests_per_s * store.request_cpu_s
        for one in demands
    )
    needed = math.fsum(one.vcpu for one in demands) + serving
    factor = _rounded_up(needed / (machine.cores * machine.share))
    return Dilation(factor=factor, why=_why(demands, machine, serving, needed))


def _rounded_up(ratio: float) -> float:
    """To two significant digits; 1.0 for everything up to 1."""
    if ratio <= 1 + _FUZZ:
        return 1.0
    digits = math.floor(math.log10(ratio)) - 1
    # A negative power as a divisor: 47 / 10 is the float 4.7, 47 * 0.1 is not.
    scale = 10.0 ** abs(digits)
    if digits < 0:
        return math.ceil(ratio * scale * (1 - _FUZZ)) / scale
    return math.ceil(ratio / scale * (1 - _FUZZ)) * scale


def _why(demands: Sequence[Demand], machine: Machine, serving: float, needed: float) -> str:
    sizes = Counter(one.vcpu for one in demands)
    parts = [_functions(count, vcpu) for vcpu, count in sorted(sizes.items(), reverse=True)]
    if serving:
        parts.append(f"the store's share of {serving:.2f} cores")
    what = " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "no functions"
    verb = "needs" if len(demands) == 1 and not serving else "need"
    usable = "" if machine.share == 1 else f", of which {machine.share:.0%} may be used"
    return f"{what} {verb} {needed:.2f} of {machine.cores:g} cores{usable}"


def _functions(count: int, vcpu: float) -> str:
    return f"{count} function{'' if count == 1 else 's'} of {vcpu:.2f} vCPU"
