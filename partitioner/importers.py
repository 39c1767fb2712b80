"""Profiles from files: funcpipe's own, and those that other projects published, scaled to vCPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from funcpipe.errors import PlatformError, ProfileError
from funcpipe.partitioner.graph import Graph, Segment, chain
from funcpipe.partitioner.jsonfile import read_text
from funcpipe.partitioner.limits import (
    LEAST_VCPUS,
    MOST_SAMPLES,
    MOST_VCPUS,
    is_count,
    is_number,
    shown,
)
from funcpipe.partitioner.merge import merge as merged
from funcpipe.partitioner.profile import FORMAT, LayerProfile, ModelProfile
from funcpipe.partitioner.published import FORMATS, Format, Published, recognise

__all__ = ["OWN", "Scale", "format_names", "load_profile"]

OWN = "funcpipe"
LEAST_BATCH = 64
MOST_SLOWDOWN = 10**9
_NAME_LENGTH = 80


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How times of a batch on a GPU become times of a sample on vCPUs. None: by format.

    samples: of the batch that the file's times and bytes are for; both are divided by it.

    slowdown: how many times longer one vCPU takes than the measured device. An assumption, not a
    measurement. 100, for the GPUs of PipeDream and dnn-partitioning: a V100 has 15.7 TFLOP/s in 32
    bits and reaches about 7 in PipeDream's ResNet-50; a vCPU is half of a core of 2.5 GHz with
    32 operations a cycle, so 40 to 80 GFLOP/s, say 70 reached. 1000, for Piper: its A100 reaches
    about 70 TFLOP/s in 16 bits.

    parallel: the part of the work that is spread over all vCPUs (Amdahl's law), an assumption too:
    with v of them a layer takes (1 - parallel) + parallel / v of its time on one. vcpus: for
    which times are tabulated. optimizer_factor: bytes of optimiser state for each byte of
    parameters: 0 for SGD, 1 with momentum (PipeDream, dnn-partitioning), 2 for Adam (Piper).
    batch_size: of a step (None: samples, at least 64).
    """

    samples: int | None = None
    slowdown: float | None = None
    parallel: float = 0.95
    vcpus: tuple[float, ...] = (1.0, 2.0, 4.0, 6.0, 16.0)
    optimizer_factor: float | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("samples", "batch_size"):
            value = getattr(self, name)
            if value is not None and not is_count(value, most=MOST_SAMPLES):
                raise ProfileError(
                    f"{name} is {shown(value)}; expected a whole number from 1 to {MOST_SAMPLES:,}"
                )
        slowdown = self.slowdown
        if slowdown is not None and not (is_number(slowdown) and 0 < slowdown <= MOST_SLOWDOWN):
            raise ProfileError(
                f"slowdown is {shown(slowdown)}; expected a number above 0, at most "
                f"{MOST_SLOWDOWN:,}"
            )
        if not is_number(self.parallel) or not 0 <= self.parallel <= 1:
            raise ProfileError(f"parallel is {shown(self.parallel)}; expected a number from 0 to 1")
        factor = self.optimizer_factor
        if factor is not None and not (is_number(factor) and 0 <= factor <= 100):
            raise ProfileError(
                f"optimizer_factor is {shown(factor)}; expected a number from 0 to 100"
            )
        rising = (
            isinstance(self.vcpus, list | tuple)
            and all(is_number(one) and LEAST_VCPUS <= one <= MOST_VCPUS for one in self.vcpus)
            and all(low < high for low, high in pairwise(self.vcpus))
        )
        if not self.vcpus or not rising:
            raise ProfileError(
                f"vcpus is {shown(self.vcpus)}; expected numbers above 0 that grow, from "
                f"{LEAST_VCPUS} to {MOST_VCPUS:,}, at least one"
            )

    def share(self, vcpu: float) -> float:
        """Of the time that one vCPU takes, what `vcpu` of them take. Below one: a quota."""
        if vcpu < 1:
            return 1 / vcpu
        return (1 - self.parallel) + self.parallel / vcpu


def format_names() -> tuple[str, ...]:
    """What `load_profile` takes as `format`."""
    return ("auto", OWN, *FORMATS)


def load_profile(
    path: Path, *, format: str = "auto", scale: Scale | None = None, merge: int | None = None
) -> ModelProfile:
    """A profile from a file of any known format; ProfileError, with the file's name, otherwise.

    format: one of `format_names`; `auto` tells by what the file holds. scale: for what others
    published; a profile of funcpipe's own is what it is. merge: to that many layers at most, see
    `funcpipe.partitioner.merge`.
    """
    if format not in format_names():
        raise ProfileError(f"unknown format {shown(format)}; known: {', '.join(format_names())}")
    try:
        text = _read(path)
        chosen = _recognised(text) if format == "auto" else format
        if chosen == OWN:
            if scale is not None:
                raise ProfileError(
                    "a scale was given, but this is a profile of funcpipe's own, whose figures "
                    "hold as they are; leave the scale out"
                )
        else:
            published = FORMATS[chosen].read(text)
            _check(published.graph)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error.message}") from error
    if chosen == OWN:
        profile = ModelProfile.load(path)
    else:
        try:
            profile = _scaled(path, published, FORMATS[chosen], scale or Scale())
        except ProfileError as error:
            raise ProfileError(f"{path}: {error.message}") from error
    return profile if merge is None else merged(profile, merge).profile


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except PlatformError as error:
        raise ProfileError(error.message) from error
    except UnicodeDecodeError as error:
        raise ProfileError(f"it is not text: {error.reason}; {_known()}") from error


def _recognised(text: str) -> str:
    if text.lstrip().startswith("{") and f'"{FORMAT}"' in text:
        return OWN
    found = recognise(text)
    if found is None:
        raise ProfileError(f"it is none of the profiles that are known; {_known()}")
    return found


def _known() -> str:
    titles = [f"funcpipe's own (JSON with format {FORMAT!r})"]
    return "known: " + ", ".join([*titles, *(one.title for one in FORMATS.values())])


def _check(graph: Graph) -> None:
    """What a graph may be that a profile of a model is not."""
    if all(graph.is_input(node) for node in graph.nodes):
        raise ProfileError("it has inputs only; expected nodes with times or parameters")
    if pair := graph.apart():
        one, other = pair
        raise ProfileError(
            f"{one.title} and {other.title} are not connected; expected edges that make one graph "
            "of all nodes, each from an operation to one that uses its output"
        )


def _scaled(path: Path, published: Published, form: Format, scale: Scale) -> ModelProfile:
    samples = scale.samples or published.samples
    how = "as told" if scale.samples else published.samples_how
    batch = f"{samples} sample{'' if samples == 1 else 's'} a batch ({how})"
    slowdown = form.slowdown if scale.slowdown is None else scale.slowdown
    factor = form.optimizer_factor if scale.optimizer_factor is None else scale.optimizer_factor
    graph = published.graph
    layers = tuple(
        _layer(segment, scale, slowdown / samples, samples, factor) for segment in chain(graph)
    )
    inputs = math.fsum(node.output_bytes for node in graph.nodes if graph.is_input(node))
    return ModelProfile(
        name=path.name.partition(".")[0] or path.name,
        layers=layers,
        vcpus=scale.vcpus,
        micro_batch_sizes=(1,),
        batch_size=scale.batch_size or max(samples, LEAST_BATCH),
        input_bytes=inputs / samples,
        source=(
            f"{path.name}, {form.title}: {batch}; one vCPU takes "
            f"{slowdown:g} times as long as the measured device, {scale.parallel:.0%} of the work "
            "is spread over vCPUs (not measured)"
        ),
    )


def _layer(
    segment: Segment, scale: Scale, seconds: float, samples: int, factor: float
) -> LayerProfile:
    forward, backward = (segment.total(name) * seconds for name in ("forward_s", "backward_s"))
    shares = [scale.share(vcpu) for vcpu in scale.vcpus]
    name = "".join(letter for letter in segment.name if letter.isprintable())
    return LayerProfile(
        name=_shortened(name),
        forward_s=tuple((forward * share,) for share in shares),
        backward_s=tuple((backward * share,) for share in shares),
        parameter_bytes=segment.total("parameter_bytes"),
        optimizer_factor=factor,
        activation_bytes=segment.total("kept_bytes") / samples,
        output_bytes=segment.output_bytes / samples,
        output_gradient_bytes=segment.gradient_bytes / samples,
    )


def _shortened(name: str) -> str:
    """Cut in the middle: both ends of a layer's description tell more than its options."""
    if len(name) <= _NAME_LENGTH:
        return name
    kept = _NAME_LENGTH - 3
    return f"{name[: kept - kept // 2]}...{name[-(kept // 2) :]}"
