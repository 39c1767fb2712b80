"""Making a chain shorter: neighbouring layers become one, so that planning has less to choose from.

Every plan of the merged chain is a plan of the original one with the same time and dollars, and no
more memory (`Merged.expand`): a merged layer's figures are the sums of its layers', its workspaces
are their largest, for they run one after the other, and what crosses a cut behind it is what
crosses there.
So merging loses plans and invents none. What that can cost is bounded by planning once more, for
`Merged.relaxed`; see there.

Times are sums for micro-batch sizes within those of the profile. Beyond them, where times are kept
from growing too slowly layer by layer, the original may be slower than the merged chain says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from funcpipe.errors import PlanError, ProfileError
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.profile import LayerProfile, ModelProfile

__all__ = ["METHODS", "Merged", "loss_at_most", "merge"]

METHODS = ("balanced",)
SLACK = 0.1


@dataclass(frozen=True, kw_only=True)
class Merged:
    """profile: the shorter chain. original: the one it came from. bounds: merged layer g is the
    original's layers bounds[g] to bounds[g + 1] - 1.
    """

    profile: ModelProfile
    original: ModelProfile
    bounds: tuple[int, ...]

    @property
    def time_share(self) -> float:
        """Of all layers' time, as in `layer_times`, what the slowest merged layer takes."""
        times = layer_times(self.profile)
        return max(times) / sum(times) if sum(times) > 0 else 1.0

    @property
    def memory_share(self) -> float:
        """Of all layers' weights, gradients, optimiser state and activations of one sample, what
        the largest merged layer has.
        """
        sizes = [_memory(layer) for layer in self.profile.layers]
        return max(sizes) / sum(sizes) if sum(sizes) > 0 else 1.0

    def expand(self, plan: Plan) -> Plan:
        """The same plan for the original chain; PlanError if it is none for the merged one."""
        if plan.num_layers != self.profile.num_layers:
            raise PlanError(
                f"the plan covers {plan.num_layers} layers, the merged profile has "
                f"{self.profile.num_layers}; give a plan of the merged profile"
            )
        stages = tuple(
            replace(
                stage,
                first_layer=self.bounds[stage.first_layer],
                stop_layer=self.bounds[stage.stop_layer],
            )
            for stage in plan.stages
        )
        return replace(plan, stages=stages)

    @property
    def relaxed(self) -> ModelProfile:
        """A chain as long as the merged one, whose best plan is no worse than any of the original.

        Of each merged layer it has only the slowest original layer: the anchor. What crosses the
        cut behind it is the least that crosses any original cut between its anchor and the next
        one; likewise input_bytes before the first anchor. It has data_bytes only if the first and
        the last layer are anchors: else the stage that held them may be one that is dropped below.

        Take a plan of the original chain. Give each merged layer to the stage that holds its
        anchor, and drop the stages that hold none. Anchors are in order, so this is a plan of the
        relaxed chain. Each stage that remains computes, holds and synchronises a part of what it
        did. Between two that are neighbours now there was at least one cut, and it lay between
        their anchors, so no more crosses than did. Dropped stages take time, dollars, requests
        and functions with them, and under `gpipe` no formula of `funcpipe.partitioner.cost` grows
        when one of these shrinks. Hence: least value here <= least value of the original chain
        <= least value of the merged chain.

        That holds for `gpipe` (under `1f1b` fewer stages may mean fewer micro-batches in flight),
        for a goal with the same weights and bounds on both chains, for degrees up to the number
        of micro-batches, and where no least number of stages above 1 is asked for. It is loose
        where a merged layer has several original ones of equal weight.
        """
        anchors = self._anchors()
        layers = self.original.layers
        last = len(anchors) - 1
        chosen = []
        for group, anchor in enumerate(anchors):
            stop = anchors[group + 1] if group < last else len(layers)
            between = layers[anchor:stop]
            chosen.append(
                replace(
                    layers[anchor],
                    output_bytes=min(layer.output_bytes for layer in between),
                    output_gradient_bytes=min(layer.output_gradient for layer in between),
                )
            )
        before = [layer.output_bytes for layer in layers[: anchors[0]]]
        whole = (anchors[0], anchors[-1]) == (0, len(layers) - 1)
        return replace(
            self.original,
            name=f"{self.original.name}, relaxed",
            layers=tuple(chosen),
            input_bytes=min([self.original.input_bytes, *before]),
            data_bytes=self.original.data_bytes if whole else 0.0,
            source=f"a bound for merging {len(layers)} layers to {len(anchors)}; no model has it",
        )

    def _anchors(self) -> list[int]:
        times = layer_times(self.original)
        return [
            max(range(start, stop), key=lambda layer: times[layer])
            for start, stop in pairwise(self.bounds)
        ]


def loss_at_most(value: float, relaxed_bound: float) -> float:
    """By what part of its value a plan could be improved at most, had nothing been merged.

    value: of the plan, as `Merged.expand` gives it. relaxed_bound: no plan of `Merged.relaxed` has
    less (a solver's `Outcome.bound`). 0.05: no plan of the original chain has less than 95 % of
    value. A bound where the conditions of `Merged.relaxed` hold.
    """
    return min(1.0, max(0.0, 1 - relaxed_bound / value)) if value > 0 else 0.0


def merge(
    profile: ModelProfile, target: int, *, how: str = "balanced", slack: float = SLACK
) -> Merged:
    """At most `target` layers; a profile that has no more stays as it is.

    `balanced`: the slowest merged layer takes at most 1 + slack times what it must take with so
    many layers; among all such choices those cuts are kept which the fewest bytes cross, forward
    and backward together. Some slack pays: a stage is made of several merged layers, so that
    balance can be restored, while a cheap cut that is gone is gone.
    """
    if not isinstance(target, int) or isinstance(target, bool) or target < 1:
        raise ProfileError(
            f"layers to merge to: {target!r:.60}; expected a whole number of at least 1"
        )
    if how not in METHODS:
        raise ProfileError(f"unknown way to merge {how!r:.60}; known: {', '.join(METHODS)}")
    if not isinstance(slack, int | float) or not 0 <= slack <= 100:
        raise ProfileError(f"slack is {slack!r:.60}; expected a number from 0 to 100")
    layers = profile.layers
    if target >= len(layers):
        bounds = list(range(len(layers) + 1))
    else:
        crossing = [layer.output_bytes + layer.output_gradient for layer in layers]
        bounds = _balanced(layer_times(profile), crossing, target, slack)
    parts = tuple(_joined(layers[start:stop]) for start, stop in pairwise(bounds))
    source = profile.source
    if len(parts) < len(layers):
        source = f"{source}; {len(layers)} layers merged to {len(parts)}".removeprefix("; ")
    return Merged(
        profile=replace(profile, layers=parts, source=source),
        original=profile,
        bounds=tuple(bounds),
    )


def layer_times(profile: ModelProfile) -> list[float]:
    """Seconds of each layer, forward and backward, with the fewest vCPUs and smallest batch."""
    return [layer.forward_s[0][0] + layer.backward_s[0][0] for layer in profile.layers]


def _balanced(
    times: Sequence[float], crossing: Sequence[float], count: int, slack: float
) -> list[int]:
    """Bounds of `count` groups, by dynamic programming over (groups, end of the last): first the
    least time of the slowest one, then the fewest bytes within that.
    """
    total = np.concatenate([[0.0], np.cumsum(times)])
    spans = total[None, :] - total[:, None]  # [start, stop]
    spans[np.tril_indices(len(total))] = np.inf
    heaviest, _ = _passes(np.maximum, spans, count)
    fits = spans <= heaviest[-1] * (1 + slack)
    behind = np.array([0.0, *crossing])
    costs = np.where(fits, behind[:, None], np.inf)  # a group pays for the cut before it
    costs[0, fits[0]] = 0.0
    _, came_from = _passes(np.add, costs, count)
    bounds = [len(times)]
    for choices in reversed(came_from):
        bounds.append(int(choices[bounds[-1]]))
    return bounds[::-1]


def _passes(
    combine: np.ufunc, step: NDArray[np.float64], count: int
) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
    """Least value of each end after `count` steps, and where the last step to it came from."""
    best = np.full(len(step), np.inf)
    best[0] = 0.0
    came_from = []
    for _ in range(count):
        reached = combine(best[:, None], step)
        came_from.append(reached.argmin(axis=0))
        best = reached.min(axis=0)
    return best, came_from


def _joined(layers: Sequence[LayerProfile]) -> LayerProfile:
    if len(layers) == 1:
        return layers[0]

    def total(name: str) -> float:
        return math.fsum(getattr(layer, name) for layer in layers)

    trained = total("trained")
    state = math.fsum(layer.trained * layer.optimizer_factor for layer in layers)
    steps = [layer.step_s for layer in layers if layer.step_s]
    return LayerProfile(
        name=f"{layers[0].name} .. {layers[-1].name}",
        forward_s=_summed([layer.forward_s for layer in layers]),
        backward_s=_summed([layer.backward_s for layer in layers]),
        parameter_bytes=max(trained, total("parameter_bytes")),
        trained_bytes=trained,
        optimizer_factor=state / trained if trained else 0.0,
        activation_bytes=total("activation_bytes"),
        output_bytes=layers[-1].output_bytes,
        output_gradient_bytes=layers[-1].output_gradient,
        step_s=tuple(math.fsum(column) for column in zip(*steps, strict=True)),
        workspace_bytes=max(layer.workspace_bytes for layer in layers),
        fixed_workspace_bytes=max(layer.fixed_workspace_bytes for layer in layers),
        step_workspace_bytes=max(layer.step_workspace_bytes for layer in layers),
    )


def _summed(grids: Sequence[tuple[tuple[float, ...], ...]]) -> tuple[tuple[float, ...], ...]:
    return tuple(
        tuple(math.fsum(cell) for cell in zip(*rows, strict=True))
        for rows in zip(*grids, strict=True)
    )


def _memory(layer: LayerProfile) -> float:
    state = layer.parameter_bytes + layer.trained * (1 + layer.optimizer_factor)
    return state + layer.activation_bytes
