"""The figures of a platform: which there are, their units, and how each is read and written.

A figure is a value with where it comes from: a source and the date at which it was seen there, or
the reason why it is unverified.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from funcpipe.errors import PlatformError
from funcpipe.partitioner.curve import BETWEEN, Curve
from funcpipe.partitioner.limits import (
    LEAST_VCPUS,
    MOST_BYTES,
    MOST_COUNT,
    MOST_PRICE,
    MOST_SECONDS,
    MOST_VCPUS,
    shown,
    written,
)

__all__ = ["BY_THE_USER", "KINDS", "Figure", "Kind", "Value", "as_text", "near", "read_figure"]

Value: TypeAlias = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | Curve | None
BY_THE_USER = "set by the user"
_FIELDS = ("value", "between", "unit", "source", "date", "unverified", "note")
_MOST_LETTERS = 100  # of a text
_MOST_TYPED = 2000  # letters, for a figure that is set; a curve may be long
_DATE = re.compile(r"20\d\d(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a figure may be.

    form: `count` (a whole number), `number`, `text`, `bool`, `counts`, `numbers` (lists) or `curve`
    (numbers by memory). least, most: bounds of each number; `above` excludes least itself.
    nullable: whether None may stand for "does not exist" or "no limit".
    """

    form: str
    unit: str
    least: float = 0
    most: float = MOST_COUNT
    above: bool = False
    nullable: bool = False

    def unit_in(self, currency: str) -> str:
        return self.unit.replace("CURRENCY", currency)

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        bounds = f"{'above' if self.above else 'of at least'} {written(self.least)}"
        bounds += f" and at most {written(self.most)}"
        words = {
            "count": f"a whole number {bounds}",
            "number": f"a number {bounds}",
            "text": f"a text of at most {_MOST_LETTERS} letters",
            "bool": "true or false",
            "counts": f"a list of whole numbers {bounds}",
            "numbers": f"a list of numbers {bounds}",
            "curve": f"a list of points [memory_mb, number {bounds}]",
        }[self.form]
        return f"{words}, or null" if self.nullable else words

    def read(self, raw: object, *, between: str = "linear") -> Value:
        """The value that JSON's `raw` stands for; ValueError if it is none of this kind."""
        if raw is None:
            if not self.nullable:
                raise ValueError
            return None
        match self.form:
            case "text" if isinstance(raw, str) and 0 < len(raw.strip()) <= _MOST_LETTERS:
                return raw
            case "bool" if isinstance(raw, bool):
                return raw
            case "count" | "number":
                return self._number(raw)
            case "counts" | "numbers" if isinstance(raw, list):
                return tuple(self._number(one) for one in raw)
            case "curve" if isinstance(raw, list):
                return Curve(points=tuple(map(self._point, raw)), between=between)
        raise ValueError

    def parse(self, text: str, old: Value) -> Value:
        """The value that a command line's `text` stands for; ValueError if it is none.

        A curve given as one number has that value everywhere; a list needs no brackets.
        """
        if self.form == "text" and text.lower() not in ("null", "none"):
            return self.read(text.strip())
        text = text.strip()
        if not text.isascii() or len(text) > _MOST_TYPED:
            raise ValueError
        if self.form in ("counts", "numbers") and not text.startswith("["):
            text = f"[{text}]"
        raw = json.loads({"none": "null"}.get(text.lower(), text.lower()), parse_int=_whole)
        if self.form == "curve" and isinstance(raw, int | float):
            return Curve.flat(self._number(raw))
        return self.read(raw, between=old.between if isinstance(old, Curve) else "linear")

    def _number(self, raw: object) -> int | float:
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise ValueError
        whole = self.form in ("count", "counts")
        if not self.least <= raw <= self.most or (self.above and raw == self.least):
            raise ValueError  # not a number is here too: no comparison with it holds
        if whole and raw != int(raw):
            raise ValueError
        return int(raw) if whole else float(raw)

    def _point(self, raw: object) -> tuple[float, float]:
        if not isinstance(raw, list) or len(raw) != 2:
            raise ValueError
        size = Kind(form="number", unit="MB")._number(raw[0])
        return float(size), float(self._number(raw[1]))


def _count(unit: str, least: int = 0, *, nullable: bool = False, most: float = MOST_COUNT) -> Kind:
    return Kind(form="count", unit=unit, least=least, nullable=nullable, most=most)


def _seconds(unit: str, *, above: bool = False, nullable: bool = False) -> Kind:
    return Kind(form="number", unit=unit, most=MOST_SECONDS, above=above, nullable=nullable)


def _price(unit: str, *, above: bool = False) -> Kind:
    return Kind(form="number", unit=unit, most=MOST_PRICE, above=above)


def _bytes(least: int = 0, *, nullable: bool = False) -> Kind:
    return _count("bytes", least, nullable=nullable, most=MOST_BYTES)


def _curve(unit: str, *, least: float, most: float) -> Kind:
    return Kind(form="curve", unit=unit, least=least, most=most)


_MEMORY_GB = "(1 GB = 1,024 MB)"
_STORE_GB = "(1 GB = 1e9 bytes)"
_REQUEST = "CURRENCY per request"

KINDS: Mapping[str, Kind] = {
    "memory.least_mb": _count("MB", 1),
    "memory.most_mb": _count("MB", 1),
    "memory.step_mb": _count("MB", 1),
    "memory.default_mb": _count("MB", 1),
    "memory.tiers_mb": Kind(form="counts", unit="MB", least=1),
    "cpu.vcpu": _curve("vCPU", least=LEAST_VCPUS, most=MOST_VCPUS),
    "cpu.cores": _curve("visible cores", least=1, most=MOST_VCPUS),
    "network.up_bytes_per_s": _curve("bytes/s", least=1, most=MOST_BYTES),
    "network.down_bytes_per_s": _curve("bytes/s", least=1, most=MOST_BYTES),
    "network.latency_s": _seconds("s per request"),
    "network.burst_bytes": _bytes(),
    "network.burst_bytes_per_s": Kind(
        form="number", unit="bytes/s", least=1, most=MOST_BYTES, nullable=True
    ),
    "time.limit_s": _seconds("s", above=True, nullable=True),
    "time.cold_start_s": _seconds("s"),
    "time.warm_start_s": _seconds("s"),
    "time.keep_warm_s": _seconds("s"),
    "invocation.concurrency": _count("functions at once", 1, nullable=True),
    "invocation.sync_payload_bytes": _bytes(1, nullable=True),
    "invocation.async_payload_bytes": _bytes(1, nullable=True),
    "invocation.retries": _count("further attempts"),
    "invocation.retry_delays_s": Kind(form="numbers", unit="s", most=MOST_SECONDS),
    "invocation.duplicate_rate": Kind(form="number", unit="of invocations", most=1),
    "tmp.least_mb": _count("MB"),
    "tmp.default_mb": _count("MB"),
    "tmp.most_mb": _count("MB"),
    "tmp.shared_memory_mb": _count("MB"),
    "gpu.kind": Kind(form="text", unit="", nullable=True),
    "gpu.memory_mb": _count("MB", 1, nullable=True),
    "price.currency": Kind(form="text", unit=""),
    "price.dollars": _price("USD per CURRENCY", above=True),
    "price.gb_s": _price(f"CURRENCY per GB-s of memory {_MEMORY_GB}"),
    "price.vcpu_s": _price("CURRENCY per vCPU-s"),
    "price.disk_gb_s": _price(f"CURRENCY per GB-s of /tmp {_MEMORY_GB}"),
    "price.disk_free_mb": _count("MB of /tmp without a price"),
    "price.gpu_gb_s": _price(f"CURRENCY per GB-s of GPU memory {_MEMORY_GB}"),
    "price.invocation": _price("CURRENCY per invocation"),
    "price.granularity_ms": _count("ms", 1),
    "price.bills_initialisation": Kind(form="bool", unit=""),
    "price.put": _price(_REQUEST),
    "price.get": _price(_REQUEST),
    "price.missed_get": _price(_REQUEST),
    "price.list": _price(_REQUEST),
    "price.delete": _price(_REQUEST),
    "price.stored_gb_month": _price(f"CURRENCY per GB-month {_STORE_GB}"),
    "price.put_gb": _price(f"CURRENCY per GB uploaded {_STORE_GB}"),
    "price.get_gb": _price(f"CURRENCY per GB downloaded {_STORE_GB}"),
    "price.internet_out_gb": _price(f"CURRENCY per GB to the internet {_STORE_GB}"),
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: its dotted path, value and unit, and either source and date or `unverified`."""

    path: str
    value: Value
    unit: str
    source: str | None = None
    date: str | None = None
    unverified: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.path not in KINDS:
            raise PlatformError(f"there is no figure {self.path!r}{near(self.path, KINDS)}")
        if (self.source is None) == (self.unverified is None):
            raise PlatformError(
                f"{self.path}: expected either `source` and `date`, or `unverified` with the reason"
            )
        if self.source is None or self.source == BY_THE_USER:
            if self.date is not None:
                raise PlatformError(f"{self.path}: a `date` belongs to a `source`")
        elif self.date is None or not _DATE.fullmatch(self.date):
            raise PlatformError(
                f"{self.path}: the date of the source is {shown(self.date)}; expected the day, "
                "month or year when it said so, such as 2026-11-30"
            )

    @property
    def is_verified(self) -> bool:
        return self.unverified is None

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {"value": self.value}
        if isinstance(self.value, Curve):
            told = {"value": [_short(p) for p in self.value.points], "between": self.value.between}
        elif isinstance(self.value, tuple):
            told["value"] = _short(self.value)
        elif isinstance(self.value, float):
            (told["value"],) = _short((self.value,))
        texts = {name: getattr(self, name) for name in _FIELDS[2:]}
        return told | {name: text for name, text in texts.items() if text is not None}


def _short(numbers: Iterable[float]) -> list[float]:
    """Whole numbers without the ``.0`` that JSON would give them."""
    return [int(n) if n == int(n) else n for n in numbers]


def read_figure(path: str, data: object, *, currency: str) -> Figure:
    """The figure that JSON's `data` describes, in a file whose prices are in `currency`."""
    if path not in KINDS:
        raise PlatformError(f"there is no figure {shown(path)}{near(path, KINDS)}")
    if not isinstance(data, Mapping):
        raise PlatformError(f"{path}: expected an object with a `value`; found {_found(data)}")
    for name in data:
        if name not in _FIELDS:
            raise PlatformError(f"{path}: unknown field {shown(name)}{near(str(name), _FIELDS)}")
    unit = KINDS[path].unit_in(currency)
    if data.get("unit", unit) != unit:
        raise PlatformError(f"{path}: the unit is {_found(data['unit'])}; expected {unit!r}")
    texts = {name: data.get(name) for name in ("source", "date", "unverified", "note")}
    for name, text in texts.items():
        if text is not None and not (isinstance(text, str) and text.strip()):
            raise PlatformError(f"{path}: `{name}` is {_found(text)}; expected a text")
    return Figure(path=path, value=_read_value(path, data), unit=unit, **texts)


def _read_value(path: str, data: Mapping[str, object]) -> Value:
    kind, between = KINDS[path], data.get("between", "linear")
    if "value" not in data:
        raise PlatformError(f"{path}: `value` is missing")
    if "between" in data and kind.form != "curve":
        raise PlatformError(f"{path}: `between` belongs to curves, and this is none")
    if not isinstance(between, str) or between not in BETWEEN:
        raise PlatformError(f"{path}: `between` is {shown(between)}; known: {', '.join(BETWEEN)}")
    try:
        return kind.read(data["value"], between=between)
    except ValueError:
        found = _found(data["value"])
        raise PlatformError(f"{path} is {found}; expected {kind.expected}") from None
    except PlatformError as error:
        raise PlatformError(f"{path}: {error.message}") from None


def as_text(value: object) -> object:
    """A figure given as what it is, as the command line would give it; anything else as it is."""
    if value is None or isinstance(value, bool | int | float | list | tuple):
        try:
            return json.dumps(value)
        except (ValueError, TypeError, RecursionError):
            return shown(value)  # which is refused, by its name, where the figure is set
    return value


def near(text: str, known: Iterable[str]) -> str:
    """A hint for an error: what `text` may have been meant for."""
    known = list(known)
    found = difflib.get_close_matches(text, known, n=1)
    if found:
        return f"; did you mean {found[0]}?"
    ends = [name for name in known if name.rpartition(".")[2] == text.rpartition(".")[2]]
    if ends:
        return f"; did you mean {' or '.join(ends[:3])}?"
    return f"; known: {', '.join(known)}"


def _whole(digits: str) -> int:
    if len(digits) > _MOST_TYPED:
        raise ValueError
    return int(digits)


def _found(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
