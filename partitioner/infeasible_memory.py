"""Which layer is too large for every memory size that may be chosen, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.reach import fewest_from
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.table import make_table

__all__ = ["too_large"]

MB, GB = 2**20, 2**30
ENOUGH_MB = 1 << 62
"""Any stage fits in it; what a stage needs depends on no memory size."""


def too_large(problem: Problem) -> str:
    """For a problem no plan of which fits in memory, however many stages and functions it has."""
    largest = max(problem.space.tiers(problem.setting)) * MB
    profile = problem.setting.profile
    for num_bytes, what in (
        (profile.base_memory_bytes, "a function needs {} before it holds anything of the model "
         "(base_memory_bytes)"),
        (profile.base_memory_bytes + profile.data_bytes, "the first and the last stage need {} "
         "before they hold anything of the model (base_memory_bytes and data_bytes)"),
    ):  # fmt: skip
        if num_bytes > largest:
            need, limit = _two_sizes(num_bytes, largest)
            return f"{what.format(need)}; the largest tier is {limit}"
    worst = max(_needs(problem), key=lambda one: one.num_bytes)
    if worst.num_bytes <= largest:
        return _no_chain(problem)
    need, limit = _two_sizes(worst.num_bytes, largest)
    return f"{_who(problem, worst)} {need} {_how(worst)}; the largest tier is {limit}"


@dataclass(frozen=True, kw_only=True)
class _Need:
    """The least that any stage with a certain layer needs, and which stage that is."""

    layer: int
    num_bytes: float
    start: int
    stop: int
    combination: Combination
    degree: int
    recompute: bool


def _needs(problem: Problem) -> list[_Need]:
    found = [_needs_of(problem, combination) for combination in problem.combinations()]
    return [min(ones, key=lambda one: one.num_bytes) for ones in zip(*found, strict=True)]


def _needs_of(problem: Problem, combination: Combination) -> list[_Need]:
    table = make_table(
        problem.setting, combination, tiers_mb=(ENOUGH_MB,), recompute=problem.space.recompute
    )
    held = -(-table.num_micro_batches // table.degree)
    if combination.schedule == "1f1b":
        # The last stage holds the fewest micro-batches, the one before it the fewest of the others.
        place = np.where(table.stop == table.num_layers, 1, 2)
        held = np.minimum(held, -(-combination.depth * place // table.degree))
    need, length = table.need(held), table.stop - table.start
    least = []
    for layer in range(table.num_layers):
        rows = np.flatnonzero((table.start <= layer) & (layer < table.stop))
        equal = rows[need[rows] == need[rows].min()]
        row = equal[length[equal].argmin()]
        least.append(
            _Need(
                layer=layer, num_bytes=float(need[row]), start=int(table.start[row]),
                stop=int(table.stop[row]), combination=combination,
                degree=int(table.degree[row]), recompute=bool(table.recompute[row]),
            )
        )  # fmt: skip
    return least


def _who(problem: Problem, need: _Need) -> str:
    name = f"layer {need.layer} ({problem.setting.profile.layers[need.layer].name})"
    if need.stop - need.start == 1:
        return f"{name} alone needs"
    return f"{name} needs at least, in a stage of layers {need.start} to {need.stop - 1},"


def _how(need: _Need) -> str:
    parts = [f"at micro-batches of {need.combination.micro_batch_size}"]
    if need.degree > 1:
        parts.append(f"with {need.degree} replicas")
    if need.combination.schedule != "gpipe":
        parts.append(f"under {need.combination.schedule}")
    if need.recompute:
        parts.append("with recomputation")
    return " ".join(parts)


def _two_sizes(need: float, limit: float) -> tuple[str, str]:
    """In GB of 1,024 MB, with so many digits that the first is seen to be larger."""
    texts = ("", "")
    for digits in range(1, 10):
        texts = f"{need / GB:.{digits}f}", f"{limit / GB:.{digits}f}"
        if float(texts[0]) > float(texts[1]):
            break
    return f"{texts[0]} GB", f"{texts[1]} GB"


def _no_chain(problem: Problem) -> str:
    """Each layer fits in some stage, but these stages do not join."""
    places = []
    for number, combination in enumerate(problem.combinations()):
        reached = np.isfinite(fewest_from(problem, combination)).any(axis=0)
        places.append((int(reached.argmax()), number, combination))
    begin, _, chosen = min(places)
    layers = problem.setting.profile.layers
    degrees = f"a degree of {' or '.join(map(str, chosen.degrees))}"
    where = "none of them ends with the last layer"
    if begin < len(layers):
        where = f"from layer {begin} ({layers[begin].name}) on they do, but none ends before it"
    return (
        "each layer fits in some stage, but the stages that fit do not join to a plan: at best, "
        f"with micro-batches of {chosen.micro_batch_size} and {degrees}, {where}"
    )
