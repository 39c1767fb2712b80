"""From what functions measured to a model's profile, and whether such a profile still holds. Pure.

The results are plain JSON, as `funcpipe.worker.profiler` leaves them in the store: times by layer
and micro-batch size, bytes by layer, what requests take.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from funcpipe.errors import ProfileError
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.partitioner.profile import LayerProfile, ModelProfile

__all__ = ["Point", "assemble", "differences", "fingerprint", "fingerprint_of", "late_of"]

LATE_SHARE = 0.6
"""Of a request's latency: how much later than it is there a message is noticed by a reader who
polls, before anybody has seen it. See `funcpipe.store.wait`."""

Result = Mapping[str, Any]

_BYTES = ("parameter_bytes", "trained_bytes", "optimizer_bytes", "activation_bytes", "output_bytes",
          "output_gradient_bytes", "workspace_bytes", "fixed_workspace_bytes",
          "step_workspace_bytes")  # fmt: skip
_TRANSPORT = ("put_cpu_s", "get_cpu_s", "put_byte_cpu_s", "get_byte_cpu_s")


@dataclass(frozen=True, kw_only=True)
class Point:
    """What was measured with one memory size.

    sizes: of micro-batches, growing; another point may have more of them. ranges: for each range
    of layers, in order, the results of all functions that measured it at once.
    """

    memory_mb: int
    vcpu: float
    dilation: float
    sizes: tuple[int, ...]
    ranges: tuple[tuple[Result, ...], ...]

    @property
    def results(self) -> list[Result]:
        return [result for copies in self.ranges for result in copies]


def late_of(platform: PlatformSpec) -> float:
    """Seconds by which waiting receives are late, as long as none has been seen."""
    return LATE_SHARE * platform.network.latency_s


def assemble(
    points: Iterable[Point],
    *,
    name: str,
    batch_size: int,
    late_s: float,
    source: str,
    measured: Mapping[str, Any],
) -> ModelProfile:
    """The profile: medians of times over functions, the most bytes that any of them saw.

    Points may lack micro-batch sizes that were too large for their memory: those times are to the
    last ones there as they are at the point that has them. ProfileError unless there is a point,
    and one whose functions measured bytes.
    """
    ordered = sorted(points, key=lambda point: point.vcpu)
    if not ordered:
        raise ProfileError("nothing was measured: a profile needs at least one memory size")
    full = max(ordered, key=lambda point: (len(point.sizes), point.vcpu))
    tables = [_layers_at(point) for point in ordered]
    like = tables[ordered.index(full)]
    results = [result for point in ordered for result in point.results]
    sized = [_bytes_at(point) for point in ordered if _has_bytes(point)]
    if not sized:
        raise ProfileError("no function measured bytes: a profile needs them of every layer")
    layers = []
    for index, table in enumerate(like):
        rows = [(point, one[index]) for point, one in zip(ordered, tables, strict=True)]
        grids: dict[str, Any] = {
            key: tuple(
                _filled(row[key], point.sizes, table[key], full.sizes) for point, row in rows
            )
            for key in ("forward_s", "backward_s")
        }
        steps = tuple(row["step_s"] for _, row in rows)
        figures: dict[str, Any] = {key: max(one[index][key] for one in sized) for key in _BYTES}
        state, trained = figures.pop("optimizer_bytes"), figures["trained_bytes"]
        layers.append(
            LayerProfile(
                name=table["name"],
                step_s=steps if any(steps) else (),
                optimizer_factor=state / trained if trained else 0.0,
                **grids,
                **figures,
            )
        )
    return ModelProfile(
        name=name,
        layers=tuple(layers),
        vcpus=tuple(point.vcpu for point in ordered),
        micro_batch_sizes=full.sizes,
        batch_size=batch_size,
        base_memory_bytes=max(map(_base_of, results)),
        data_bytes=_most(results, "data_bytes"),
        input_bytes=_most(results, "input_bytes"),
        late_s=late_s,
        spread=median(result["spread"] for result in results),
        source=source,
        measured={**measured, "points": [_told(point) for point in ordered]},
        **_transport(results),
    )


def _layers_at(point: Point) -> list[dict[str, Any]]:
    """Each layer's name and times at a point: medians over the functions."""
    layers = []
    for copies in point.ranges:
        for same in zip(*(result["layers"] for result in copies), strict=True):
            times = {
                key: [median(column) for column in zip(*(one[key] for one in same), strict=True)]
                for key in ("forward_s", "backward_s")
            }
            step_s = median(one["step_s"] for one in same)
            layers.append({"name": same[0]["name"], "step_s": step_s, **times})
    return layers


def _has_bytes(point: Point) -> bool:
    return all(
        any(result["layers"][0].get("parameter_bytes") is not None for result in copies)
        for copies in point.ranges
    )


def _bytes_at(point: Point) -> list[dict[str, float]]:
    """Each layer's bytes: the most that a function saw, since memory must never be too little."""
    layers = []
    for copies in point.ranges:
        for same in zip(*(result["layers"] for result in copies), strict=True):
            layers.append({key: _most(same, key) for key in _BYTES})
    return layers


def _most(results: Iterable[Result], key: str) -> float:
    return max((one[key] for one in results if one.get(key) is not None), default=0)


def _base_of(result: Result) -> float:
    """What a function held before the model, and what libraries held once passes had been run."""
    return float(result["base_bytes"] + (result.get("fixed_bytes") or 0))


def _filled(
    times: Sequence[float], have: Sequence[int], like: Sequence[float], sizes: Sequence[int]
) -> tuple[float, ...]:
    """A row for all `sizes` from that for the first ones, growing on as `like` does."""
    last = len(have) - 1
    grown = [
        times[last] * (like[i] / like[last] if like[last] else sizes[i] / sizes[last])
        for i in range(len(have), len(sizes))
    ]
    return (*times, *grown)


def _transport(results: Iterable[Result]) -> dict[str, float]:
    seen = [result["transport"] for result in results if result["transport"] is not None]
    return {key: median(one[key] for one in seen) for key in _TRANSPORT} if seen else {}


def _told(point: Point) -> dict[str, Any]:
    """How a point was measured, as plain JSON."""
    first = point.results[0]
    return {
        "memory_mb": point.memory_mb,
        "vcpu": point.vcpu,
        "threads": first["threads"],
        "dilation": point.dilation,
        "micro_batch_sizes": list(point.sizes),
        "functions": max(len(copies) for copies in point.ranges),
        "layer_ranges": [len(copies[0]["layers"]) for copies in point.ranges],
        "passes": list(first["passes"]),
        "base_bytes": _most(point.results, "base_bytes"),
        "fixed_bytes": _most(point.results, "fixed_bytes"),
        "spread": median(result["spread"] for result in point.results),
    }


# -- whether a profile still holds -----------------------------------------------------------

# In the order in which they are told.
_PARTS = {
    "layers": "the model's layers",
    "code": "the code of the model or the data",
    "loss": "the loss",
    "optimizer": "the optimiser",
    "shapes": "the shapes of the samples",
    "data": "the data",
    "batch": "the batch",
    "sizes": "the micro-batch sizes",
    "tiers": "the memory sizes",
    "how": "how it is measured",
    "platform": "the platform",
    "machine": "this machine",
    "torch": "torch",
    "funcpipe": "funcpipe",
}
_MOST_SHOWN = 80


def fingerprint(**parts: Any) -> dict[str, str]:
    """What a profile was measured for, part by part; what is no text, or no short one, is digested.

    TypeError unless all parts are given, and no others.
    """
    if set(parts) != set(_PARTS):
        raise TypeError(f"the parts are {sorted(parts)}; expected {sorted(_PARTS)}")
    return {name: _short(parts[name]) for name in _PARTS}


def _short(value: Any) -> str:
    if isinstance(value, str) and len(value) <= _MOST_SHOWN:
        return value
    text = json.dumps(value, sort_keys=True, default=repr)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def fingerprint_of(profile: ModelProfile) -> Mapping[str, Any]:
    """What a profile says that it was measured for; empty if it says nothing."""
    told = profile.measured.get("fingerprint")
    return told if isinstance(told, Mapping) else {}


def differences(old: Mapping[str, Any], new: Mapping[str, str]) -> list[str]:
    """In words, why a profile that was measured for `old` says nothing of `new`; empty: it does."""
    if not old:
        return ["it does not say what it was measured for"]
    reasons = []
    for name, words in _PARTS.items():
        was, now = old.get(name), new[name]
        if was == now:
            continue
        verb = "have" if words.endswith(("s", "sizes")) and name != "loss" else "has"
        readable = isinstance(was, str) and not {was[:7], now[:7]} & {"sha256:"}
        reasons.append(
            f"{words} {verb} changed"
            + (f": {was or 'none'} -> {now or 'none'}" if readable else "")
        )
    return reasons
