"""What a run on a platform costs: the platform's prices applied to what its functions did.

A bill is made of charges, each with one of the `CAUSES` and a name (a function such as
``stage0-replica1``, `DRIVER` or `STORE`):

    compute, initialisation   seconds of functions, as they are billed
    invocations               one for every delivery of an invocation
    PUT ... DELETE            requests to the store, by kind; a missed GET found no object
    storage                   bytes that lie in the store, by the time that they lie there
    transfer                  the store's own fee for bytes, by those that were moved
    internet                  bytes that leave the cloud: what the driver downloads

A charge of no dollars is listed all the same: what is free is seen to have been counted.
GB of memory, disk and GPU are 1024 MB, GB of storage and transfer 10^9 bytes, as in platform
files; a month of storage has 730 hours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from funcpipe.errors import FuncpipeError
from funcpipe.partitioner.platform import (
    BYTES_PER_STORE_GB,
    MB_PER_MEMORY_GB,
    SECONDS_PER_MONTH,
    PlatformSpec,
)

__all__ = [
    "CAUSES",
    "DRIVER",
    "STORE",
    "Bill",
    "Charge",
    "Use",
    "bill",
    "dollars_per_s",
    "unverified_prices",
]

COMPUTE, INITIALISATION, INVOCATIONS = "compute", "initialisation", "invocations"
STORAGE, TRANSFER, INTERNET = "storage", "transfer", "internet"
# By the operations that a metered store counts.
REQUESTS = {
    "PUT": "PUT",
    "GET": "GET",
    "GET_MISSED": "missed GET",
    "LIST": "LIST",
    "DELETE": "DELETE",
}
_TO_THE_STORE = frozenset(REQUESTS.values())
CAUSES = (COMPUTE, INITIALISATION, INVOCATIONS, *REQUESTS.values(), STORAGE, TRANSFER, INTERNET)
DRIVER, STORE = "driver", "store"


@dataclass(frozen=True, kw_only=True)
class Use:
    """One delivery of an invocation, ended or so far. `requests`: operation -> number."""

    name: str
    memory_mb: int
    init_ms: int = 0
    run_ms: int = 0
    requests: Mapping[str, int] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0

    def __post_init__(self) -> None:
        _check_count(f"{self.name}: memory_mb", self.memory_mb, least=1)
        for name in ("init_ms", "run_ms", "bytes_up", "bytes_down"):
            _check_count(f"{self.name}: {name}", getattr(self, name))
        _check_requests(self.name, self.requests)


@dataclass(frozen=True, kw_only=True)
class Charge:
    """`quantity` of `unit` ("s", "requests", "invocations", "bytes" or "byte-s"), and its price."""

    cause: str
    name: str
    quantity: float
    unit: str
    dollars: float

    def __post_init__(self) -> None:
        if self.cause not in CAUSES:
            raise ValueError(f"the cause of a charge is one of {CAUSES}, not {self.cause!r}")
        for value in (self.quantity, self.dollars):
            if not 0 <= value < math.inf:
                raise ValueError(f"a charge for {self.cause} of {self.name} cannot be {value}")


@dataclass(frozen=True, kw_only=True)
class Bill:
    """At most one charge for a cause and name; causes in the order of `CAUSES`."""

    charges: tuple[Charge, ...] = ()

    @property
    def total(self) -> float:
        """Dollars."""
        return math.fsum(charge.dollars for charge in self.charges)

    @property
    def num_requests(self) -> int:
        """To the store, by all."""
        return round(math.fsum(c.quantity for c in self.charges if c.cause in _TO_THE_STORE))

    def by_cause(self) -> dict[str, float]:
        """Dollars of the causes that occur, in the order of `CAUSES`."""
        sums = _sums((charge.cause, charge.dollars) for charge in self.charges)
        return {cause: sums[cause] for cause in CAUSES if cause in sums}

    def by_name(self) -> dict[str, float]:
        """Dollars of the functions, ordered by name, then of the driver and the store."""
        sums = _sums((charge.name, charge.dollars) for charge in self.charges)
        return {name: sums[name] for name in sorted(sums, key=_name_order)}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"total": self.total, "charges": [vars(charge).copy() for charge in self.charges]}

    @staticmethod
    def from_dict(data: object) -> Bill:
        """The inverse of `to_dict`; FuncpipeError for what is no bill."""
        try:
            charges = data["charges"]  # type: ignore[index]
            return Bill(charges=tuple(Charge(**charge) for charge in charges))
        except (TypeError, ValueError, KeyError) as error:
            raise FuncpipeError(f"not a bill: {type(error).__name__}: {error}") from error


def bill(
    platform: PlatformSpec,
    uses: Iterable[Use],
    *,
    driver_requests: Mapping[str, int] | None = None,
    driver_bytes_up: int = 0,
    driver_bytes_down: int = 0,
    stored_byte_s: float = 0.0,
) -> Bill:
    """The bill for `uses`, and for what the driver asked of the store and keeps there.

    stored_byte_s: bytes in the store, summed over the seconds that they lay there.
    The driver is outside of the platform: what it downloads crosses the internet. What it uploads
    costs the store's own fee, if there is one.
    """
    entries = [entry for use in uses for entry in _use_charges(platform, use)]
    _check_requests(DRIVER, driver_requests or {})
    entries += _request_charges(platform, DRIVER, driver_requests or {})
    price = platform.price
    _check_count("driver_bytes_up", driver_bytes_up)
    _check_count("driver_bytes_down", driver_bytes_down)
    entries += _transfer_charges(
        platform,
        DRIVER,
        (driver_bytes_up, price.put_gb),
        (driver_bytes_down, price.get_gb),
    )
    leaving = driver_bytes_down / BYTES_PER_STORE_GB * price.internet_out_gb
    entries.append(_charge(platform, INTERNET, DRIVER, (driver_bytes_down, "bytes"), leaving))
    entries.append(
        _charge(
            platform,
            STORAGE,
            STORE,
            (stored_byte_s, "byte-s"),
            stored_byte_s / BYTES_PER_STORE_GB / SECONDS_PER_MONTH * price.stored_gb_month,
        )
    )
    return Bill(charges=tuple(_merged(entries)))


def dollars_per_s(platform: PlatformSpec, memory_mb: int) -> float:
    """Dollars for a second of a function of that memory, with the default scratch space."""
    price = platform.price
    disk_mb = max(0, platform.tmp.default_mb - price.disk_free_mb)
    return price.dollars * math.fsum(
        (
            price.gb_s * memory_mb / MB_PER_MEMORY_GB,
            price.vcpu_s * platform.vcpu(memory_mb),
            price.disk_gb_s * disk_mb / MB_PER_MEMORY_GB,
            price.gpu_gb_s * (platform.gpu.memory_mb or 0) / MB_PER_MEMORY_GB,
        )
    )


def unverified_prices(platform: PlatformSpec) -> list[str]:
    """Paths of the figures of a bill that no public source was found for."""
    return [f.path for f in platform.figures if f.path.startswith("price.") and f.unverified]


def _use_charges(platform: PlatformSpec, use: Use) -> Iterator[Charge]:
    price = platform.price
    per_s = dollars_per_s(platform, use.memory_mb)
    init_ms = use.init_ms if price.bills_initialisation else 0
    # Start and run are billed as one duration, so what rounding adds is compute's.
    billed_ms = _rounded_up(init_ms + use.run_ms, price.granularity_ms)
    for cause, ms in ((INITIALISATION, init_ms), (COMPUTE, billed_ms - init_ms)):
        yield Charge(
            cause=cause, name=use.name, quantity=ms / 1000, unit="s", dollars=ms / 1000 * per_s
        )
    yield _charge(platform, INVOCATIONS, use.name, (1, "invocations"), price.invocation)
    yield from _request_charges(platform, use.name, use.requests)
    yield from _transfer_charges(
        platform,
        use.name,
        (use.bytes_up, price.put_gb),
        (use.bytes_down, price.get_gb),
    )


def _request_charges(
    platform: PlatformSpec, name: str, requests: Mapping[str, int]
) -> Iterator[Charge]:
    price = platform.price
    each = {
        "PUT": price.put,
        "GET": price.get,
        "GET_MISSED": price.missed_get,
        "LIST": price.list,
        "DELETE": price.delete,
    }
    for operation, count in requests.items():
        cost = count * each[operation]
        yield _charge(platform, REQUESTS[operation], name, (count, "requests"), cost)


def _transfer_charges(
    platform: PlatformSpec, name: str, *ways: tuple[int, float]
) -> Iterator[Charge]:
    """`ways`: bytes and what a GB of them costs, in the platform's currency."""
    for num_bytes, per_gb in ways:
        cost = num_bytes / BYTES_PER_STORE_GB * per_gb
        yield _charge(platform, TRANSFER, name, (num_bytes, "bytes"), cost)


def _charge(
    platform: PlatformSpec, cause: str, name: str, amount: tuple[float, str], cost: float
) -> Charge:
    """`cost` is in the platform's currency."""
    quantity, unit = amount
    return Charge(
        cause=cause,
        name=name,
        quantity=quantity,
        unit=unit,
        dollars=cost * platform.price.dollars,
    )


def _merged(entries: Iterable[Charge]) -> Iterator[Charge]:
    """One charge for each cause and name that has any quantity."""
    groups: dict[tuple[str, str], list[Charge]] = {}
    for entry in entries:
        if entry.quantity:
            groups.setdefault((entry.cause, entry.name), []).append(entry)
    for cause, name in sorted(groups, key=lambda key: (CAUSES.index(key[0]), _name_order(key[1]))):
        group = groups[cause, name]
        yield Charge(
            cause=cause,
            name=name,
            quantity=sum(one.quantity for one in group),
            unit=group[0].unit,
            dollars=math.fsum(one.dollars for one in group),
        )


def _name_order(name: str) -> tuple[int, tuple[tuple[int, str], ...]]:
    """Functions first, stage 2 before stage 10; then the driver and the store."""
    if name in (DRIVER, STORE):
        return 1 if name == DRIVER else 2, ()
    parts = "".join(c if c.isdigit() else f" {c} " for c in name).split()
    return 0, tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def _sums(entries: Iterable[tuple[str, float]]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for key, value in entries:
        groups.setdefault(key, []).append(value)
    return {key: math.fsum(values) for key, values in groups.items()}


def _rounded_up(ms: int, granularity_ms: int) -> int:
    return -(-ms // granularity_ms) * granularity_ms


def _check_count(what: str, value: object, *, least: int = 0) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{what} is {value!r}; a whole number of at least {least} is needed")


def _check_requests(owner: str, requests: Mapping[str, int]) -> None:
    for operation, count in requests.items():
        if operation not in REQUESTS:
            known = ", ".join(REQUESTS)
            raise ValueError(f"{owner}: no request is called {operation!r}; known: {known}")
        _check_count(f"{owner}: {operation} requests", count)
