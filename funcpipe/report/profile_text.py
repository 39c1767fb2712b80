"""A profile as text: how it was measured, and what each layer takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from funcpipe.partitioner.limits import is_count
from funcpipe.report.units import format_bytes, format_number

if TYPE_CHECKING:
    from funcpipe.partitioner.profile import ModelProfile

__all__ = ["profile_parts"]

_NAME = 24
_VCPU = 1.0


def profile_parts(
    profile: ModelProfile, *, said: Sequence[tuple[str, str]] = ()
) -> Iterator[RenderableType]:
    """What it says of the whole model and, under `said`, more; then a table of the layers."""
    row = min(range(len(profile.vcpus)), key=lambda i: abs(profile.vcpus[i] - _VCPU))
    yield _facts([*_whole(profile), *said])
    yield _layers(profile, row)


def _whole(profile: ModelProfile) -> list[tuple[str, str]]:
    points = profile.measured.get("points")
    points = points if isinstance(points, list | tuple) else ()
    sizes = ", ".join(map(str, profile.micro_batch_sizes))
    weights = sum(layer.parameter_bytes for layer in profile.layers)
    facts = [
        ("profile", f"{profile.name}: {profile.num_layers} layers, {format_bytes(weights)}"),
        ("source", profile.source),
        ("vCPU", ", ".join(_point(vcpu, i, points) for i, vcpu in enumerate(profile.vcpus))),
        ("sizes", f"micro-batches of {sizes}; a batch of {profile.batch_size}"),
        ("memory", f"{format_bytes(profile.base_memory_bytes)} before anything of the model, "
                   f"{format_bytes(profile.data_bytes)} of data at its ends"),
        ("transfers", f"{_ms(profile.put_cpu_s)} of a CPU to send an object, "
                      f"{_ms(profile.get_cpu_s)} to receive one"),
        ("spread", f"{profile.spread:.1%} between the quartiles of repeated passes"),
    ]  # fmt: skip
    return [(name, text) for name, text in facts if text]


def _point(vcpu: float, index: int, points: Sequence[object]) -> str:
    told = points[index] if index < len(points) else None
    memory = told.get("memory_mb") if isinstance(told, Mapping) else None
    return f"{vcpu:.2f}" + (f" ({memory:,} MB)" if is_count(memory) else "")


def _facts(facts: Sequence[tuple[str, str]]) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=10, style="bold")
    grid.add_column(overflow="fold")
    for name, text in facts:
        grid.add_row(Text(name), Text(text))
    return grid


def _layers(profile: ModelProfile, row: int) -> RenderableType:
    size = profile.micro_batch_sizes[-1]
    table = Table(
        title=f"seconds of a micro-batch of {size} at {profile.vcpus[row]:.2f} vCPU, bytes of a "
        "sample",
        title_justify="left",
        box=None,
        padding=(0, 1),
    )
    table.add_column("layer", no_wrap=True, max_width=_NAME, overflow="ellipsis")
    for name in ("forward", "backward", "step", "weights", "kept", "output", "workspace"):
        table.add_column(name, justify="right", no_wrap=True)
    for layer in profile.layers:
        table.add_row(
            Text(layer.name),
            _ms(layer.forward_s[row][-1]),
            _ms(layer.backward_s[row][-1]),
            _ms(layer.step_s[row]) if layer.step_s else "-",
            format_bytes(layer.parameter_bytes),
            format_bytes(layer.activation_bytes),
            format_bytes(layer.output_bytes),
            format_bytes(layer.workspace_bytes),
        )
    return table


def _ms(seconds: float) -> str:
    return f"{format_number(seconds * 1000)} ms"
