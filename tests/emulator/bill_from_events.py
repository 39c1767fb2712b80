"""A run's bill worked out from its event log and the platform's JSON file, in exact fractions.

It shares no code with the package, so that it can hold the package's own bill to account.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

# Operation in the log -> (cause on the bill, figure with the price of one).
REQUESTS = {
    "PUT": ("PUT", "price.put"),
    "GET": ("GET", "price.get"),
    "GET_MISSED": ("missed GET", "price.missed_get"),
    "LIST": ("LIST", "price.list"),
    "DELETE": ("DELETE", "price.delete"),
}


@dataclass
class Recomputed:
    """Dollars by cause and by name, only where something was counted; requests by operation."""

    by_cause: dict[str, Fraction] = field(default_factory=dict)
    by_name: dict[str, Fraction] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    deliveries: int = 0

    @property
    def total(self) -> Fraction:
        return sum(self.by_cause.values(), Fraction())

    def pay(self, cause: str, name: str, count: int | Fraction, dollars: Fraction) -> None:
        if count:
            self.by_cause[cause] = self.by_cause.get(cause, Fraction()) + dollars
            self.by_name[name] = self.by_name.get(name, Fraction()) + dollars


def bill_from_files(events: Path, platform: Path) -> Recomputed:
    """From the files in a run's folder: decimals are read as the exact numbers they spell."""
    lines = events.read_text(encoding="utf-8").splitlines()
    log = [json.loads(line, parse_float=Fraction) for line in lines]
    return recompute(log, json.loads(platform.read_text(encoding="utf-8"), parse_float=Fraction))


def recompute(events: Iterable[Mapping[str, Any]], platform: Mapping[str, Any]) -> Recomputed:
    """From events and a platform's JSON that were read with ``parse_float=Fraction``."""
    done = Recomputed()
    last_bill: Mapping[str, Any] = {}
    for event in events:
        if event["kind"] == "delivery":
            _add_delivery(done, platform, event)
        elif event["kind"] == "bill":
            last_bill = event
    _add_rest(done, platform, last_bill)
    return done


def _figure(platform: Mapping[str, Any], path: str) -> Any:
    return platform["figures"][path]["value"]


def _price(platform: Mapping[str, Any], name: str) -> Fraction:
    """In dollars."""
    amount = Fraction(_figure(platform, name) or 0)
    return amount * Fraction(_figure(platform, "price.dollars"))


def _vcpu(platform: Mapping[str, Any], memory_mb: int) -> Fraction:
    figure = platform["figures"]["cpu.vcpu"]
    points = [(Fraction(x), Fraction(y)) for x, y in figure["value"]]
    below = [point for point in points if point[0] <= memory_mb]
    above = [point for point in points if point[0] > memory_mb]
    if not below:
        return above[0][1]
    if not above or figure.get("between", "linear") == "step":
        return below[-1][1]
    (x0, y0), (x1, y1) = below[-1], above[0]
    return (y0 * (x1 - memory_mb) + y1 * (memory_mb - x0)) / (x1 - x0)


def _per_s(platform: Mapping[str, Any], memory_mb: int) -> Fraction:
    disk_mb = _figure(platform, "tmp.default_mb") - _figure(platform, "price.disk_free_mb")
    return (
        _price(platform, "price.gb_s") * Fraction(memory_mb, 1024)
        + _price(platform, "price.vcpu_s") * _vcpu(platform, memory_mb)
        + _price(platform, "price.disk_gb_s") * Fraction(max(0, disk_mb), 1024)
        + _price(platform, "price.gpu_gb_s")
        * Fraction(_figure(platform, "gpu.memory_mb") or 0, 1024)
    )


def _add_delivery(done: Recomputed, platform: Mapping[str, Any], event: Mapping[str, Any]) -> None:
    name, per_s = event["name"], _per_s(platform, event["memory_mb"])
    init_ms = event["init_ms"] if _figure(platform, "price.bills_initialisation") else 0
    unit_ms = _figure(platform, "price.granularity_ms")
    both_ms = init_ms + event["run_ms"]
    while both_ms % unit_ms:
        both_ms += 1
    done.deliveries += 1
    done.pay("initialisation", name, init_ms, Fraction(init_ms, 1000) * per_s)
    done.pay("compute", name, both_ms - init_ms, Fraction(both_ms - init_ms, 1000) * per_s)
    done.pay("invocations", name, 1, _price(platform, "price.invocation"))
    _add_requests(done, platform, name, event["requests"])
    for way, fee in (("bytes_up", "price.put_gb"), ("bytes_down", "price.get_gb")):
        dollars = Fraction(event[way], 10**9) * _price(platform, fee)
        done.pay("transfer", name, event[way], dollars)


def _add_requests(
    done: Recomputed, platform: Mapping[str, Any], name: str, requests: Mapping[str, int]
) -> None:
    done.requests.update(requests)
    for operation, count in requests.items():
        cause, price = REQUESTS[operation]
        done.pay(cause, name, count, count * _price(platform, price))


def _add_rest(done: Recomputed, platform: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    """What the last `bill` event tells of the driver and of what lies in the store."""
    _add_requests(done, platform, "driver", last.get("driver_requests", {}))
    down, up = last.get("driver_bytes_down", 0), last.get("driver_bytes_up", 0)
    each_down = _price(platform, "price.get_gb")
    done.pay("transfer", "driver", down, Fraction(down, 10**9) * each_down)
    leaving = _price(platform, "price.internet_out_gb")
    done.pay("internet", "driver", down, Fraction(down, 10**9) * leaving)
    each_up = _price(platform, "price.put_gb")
    done.pay("transfer", "driver", up, Fraction(up, 10**9) * each_up)
    stored = Fraction(last.get("stored_byte_s", 0))
    month = stored / 10**9 / (730 * 3600)
    done.pay("storage", "store", stored, month * _price(platform, "price.stored_gb_month"))
