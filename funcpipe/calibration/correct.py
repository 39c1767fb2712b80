"""A profile corrected by what a run was seen to take.

* Each stage's layer times by measured / predicted seconds of its forwards, backwards and optimiser;
* `late_s` is what was seen, and the CPU time of transfers is what they took longer than the
  platform's network, on average;
* all of these together by one more factor, `fit`, so that the simulated step takes as long as the
  measured one: waits that the model does not know of are in it, too;
* memory only upwards, so that a stage is planned to hold what it was seen to hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from funcpipe.calibration.compare import computation, predicted_step_s
from funcpipe.calibration.memory import with_memory
from funcpipe.calibration.observed import Observed
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.lanes import tier_of
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.schedule.action import Kind

__all__ = ["calibrated"]

LEAST_FIT, MOST_FIT = 0.5, 2.0
_HALVINGS = 30


def calibrated(
    profile: ModelProfile, observed: Observed, plan: Plan, setting: Setting, *, run: str = ""
) -> ModelProfile:
    """The profile with which the plan takes what was seen. `measured["calibrated"]` says from which
    run, by which factors, and how far off the profile was before. setting: the run's platform and
    batch; its profile counts for nothing.
    """
    setting = replace(setting, profile=profile)
    before_s = predicted_step_s(setting, plan)
    before = evaluate(setting, plan)
    factors = [_factors(setting, plan, s, observed) for s in range(len(plan.stages))]
    changed = _with_times(profile, plan, setting, factors)
    changed = _with_transfers(changed, plan, setting, observed)
    changed, fit = _fitted(changed, plan, setting, observed.step_s)
    changed = with_memory(changed, plan, setting, observed)
    after = evaluate(replace(setting, profile=changed), plan)
    told: dict[str, Any] = {
        "run": run,
        "platform": setting.platform.name,
        "steps": observed.num_steps,
        "spread": observed.spread,
        "step_s": observed.step_s,
        "predicted_step_s": before_s,
        "off": before_s / observed.step_s - 1 if observed.step_s else None,
        "step_s_after": predicted_step_s(replace(setting, profile=changed), plan),
        "dollars": observed.dollars,
        "factors": [
            {"layers": f"{stage.first_layer}-{stage.stop_layer - 1}", **one.to_dict()}
            for stage, one in zip(plan.stages, factors, strict=True)
        ],
        "fit": fit,
        "late_s": observed.late_s,
        "missed_per_get": observed.missed_per_get,
        "memory_raised_bytes": [
            new.memory.total - old.memory.total
            for new, old in zip(after.stages, before.stages, strict=True)
        ],
    }
    return replace(changed, measured={**profile.measured, "calibrated": told})


# -- times -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Of one kind of time of a stage: times `factor`, and `surplus_s` where there was nothing."""

    factor: float = 1.0
    surplus_s: float = 0.0

    @staticmethod
    def of(predicted_s: float, measured_s: float | None) -> _Change:
        if measured_s is None:
            return _Change()
        if predicted_s <= 0:
            return _Change(surplus_s=max(0.0, measured_s))
        return _Change(factor=max(0.0, measured_s) / predicted_s)


@dataclass(frozen=True, kw_only=True)
class _Factors:
    forward: _Change
    backward: _Change
    step: _Change

    def to_dict(self) -> dict[str, float]:
        changes = {"forward": self.forward, "backward": self.backward, "step": self.step}
        told = {name: change.factor for name, change in changes.items()}
        more = {f"{name}_surplus_s": c.surplus_s for name, c in changes.items() if c.surplus_s}
        return told | more


def _factors(setting: Setting, plan: Plan, number: int, observed: Observed) -> _Factors:
    seen = observed.stages[number].seconds
    expected = computation(setting, plan, number)
    forward, backward = seen.get(Kind.F.value), seen.get(Kind.B.value)
    if plan.stages[number].recompute and forward is not None and backward is not None:
        # Its backward has computed the forward once more.
        backward -= forward
        expected[Kind.B] -= expected[Kind.F]
    return _Factors(
        forward=_Change.of(expected[Kind.F], forward),
        backward=_Change.of(expected[Kind.B], backward),
        step=_Change.of(expected[Kind.STEP], seen.get(Kind.STEP.value)),
    )


def _with_times(
    profile: ModelProfile, plan: Plan, setting: Setting, factors: Sequence[_Factors]
) -> ModelProfile:
    layers: list[LayerProfile] = []
    for stage, found in zip(plan.stages, factors, strict=True):
        vcpu = setting.platform.vcpu(tier_of(setting, stage))
        num = stage.stop_layer - stage.first_layer
        # What the profile knows nothing of is given to all layers alike, as time of one thread.
        shares = [min(vcpu, 1.0) / min(row, 1.0) / num for row in profile.vcpus]
        for layer in profile.layers[stage.first_layer : stage.stop_layer]:
            layers.append(
                replace(
                    layer,
                    forward_s=_changed(layer.forward_s, found.forward, shares),
                    backward_s=_changed(layer.backward_s, found.backward, shares),
                    step_s=_changed_step(layer.step_s, found.step, shares),
                )
            )
    return replace(profile, layers=tuple(layers))


def _changed(
    grid: Sequence[Sequence[float]], change: _Change, shares: Sequence[float]
) -> tuple[tuple[float, ...], ...]:
    return tuple(
        tuple(time * change.factor + change.surplus_s * share for time in row)
        for row, share in zip(grid, shares, strict=True)
    )


def _changed_step(
    times: Sequence[float], change: _Change, shares: Sequence[float]
) -> tuple[float, ...]:
    if not times and not change.surplus_s:
        return ()
    rows = times or [0.0] * len(shares)
    return tuple(
        time * change.factor + change.surplus_s * share
        for time, share in zip(rows, shares, strict=True)
    )


# -- transfers -------------------------------------------------------------------------------


def _with_transfers(
    profile: ModelProfile, plan: Plan, setting: Setting, observed: Observed
) -> ModelProfile:
    """What transfers took longer than the network is their CPU time: that of one thread."""
    fields: dict[str, float] = {}
    for way in ("put", "get"):
        seen = predicted = number = 0.0
        for stage in range(len(plan.stages)):
            vcpu = min(setting.platform.vcpu(tier_of(setting, plan.stages[stage])), 1.0)
            for kind, num_bytes, network_s in _messages(setting, plan, stage, way):
                measured_s = observed.stages[stage].seconds.get(kind.value)
                if measured_s is not None:
                    number += 1
                    seen += max(0.0, measured_s - network_s) * vcpu
                    predicted += getattr(profile, f"{way}_cpu_s")
                    predicted += getattr(profile, f"{way}_byte_cpu_s") * num_bytes
        if not number:
            continue
        if predicted > 0:
            for name in (f"{way}_cpu_s", f"{way}_byte_cpu_s"):
                fields[name] = getattr(profile, name) * seen / predicted
        else:
            fields[f"{way}_cpu_s"] = seen / number
    if observed.late_s is not None:
        fields["late_s"] = observed.late_s
    return replace(profile, **fields)  # type: ignore[arg-type]


def _messages(
    setting: Setting, plan: Plan, number: int, way: str
) -> Iterator[tuple[Kind, float, float]]:
    """What a stage sends or receives in a step: kind, bytes, and seconds on the network."""
    network, stage = setting.platform.network, plan.stages[number]
    memory_mb = tier_of(setting, stage)
    rate = setting.platform.up_bytes_per_s if way == "put" else setting.platform.down_bytes_per_s
    for kind, num_bytes in _bytes(setting, plan, stage).items():
        if kind.value.startswith("SEND") == (way == "put"):
            yield kind, num_bytes, network.latency_s + num_bytes / rate(memory_mb)


def _bytes(setting: Setting, plan: Plan, stage: StagePlan) -> dict[Kind, float]:
    layers = setting.profile.layers
    size = min(plan.micro_batch_size, setting.batch_size)
    found: dict[Kind, float] = {}
    if stage.first_layer > 0:
        before = layers[stage.first_layer - 1]
        found[Kind.RECV_F] = before.output_bytes * size
        found[Kind.SEND_B] = before.output_gradient * size
    if stage.stop_layer < len(layers):
        behind = layers[stage.stop_layer - 1]
        found[Kind.SEND_F] = behind.output_bytes * size
        found[Kind.RECV_B] = behind.output_gradient * size
    trained = sum(layer.trained for layer in layers[stage.first_layer : stage.stop_layer])
    if stage.replicas > 1 and trained:
        part = trained / stage.replicas
        found |= dict.fromkeys((Kind.SEND_P, Kind.RECV_P, Kind.SEND_S, Kind.RECV_S), part)
    return found


# -- the whole step --------------------------------------------------------------------------

_TIMES = ("put_cpu_s", "get_cpu_s", "put_byte_cpu_s", "get_byte_cpu_s", "late_s")


def _fitted(
    profile: ModelProfile, plan: Plan, setting: Setting, step_s: float
) -> tuple[ModelProfile, float]:
    """With all times multiplied by what makes the simulated step as long as the measured one.

    What the network and its latency take is the platform's, and stays. The factor is kept within
    `LEAST_FIT` and `MOST_FIT`: beyond them it is something else that is wrong.
    """

    def simulated_s(fit: float) -> float:
        return predicted_step_s(replace(setting, profile=_times(profile, fit)), plan)

    low, high = LEAST_FIT, MOST_FIT
    if simulated_s(high) <= step_s:
        return _times(profile, high), high
    if simulated_s(low) >= step_s:
        return _times(profile, low), low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if simulated_s(middle) < step_s else (low, middle)
    return _times(profile, high), high


def _times(profile: ModelProfile, factor: float) -> ModelProfile:
    def grid(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(time * factor for time in row) for row in rows)

    layers = tuple(
        replace(
            layer,
            forward_s=grid(layer.forward_s),
            backward_s=grid(layer.backward_s),
            step_s=tuple(time * factor for time in layer.step_s),
        )
        for layer in profile.layers
    )
    fields: Mapping[str, Any] = {name: getattr(profile, name) * factor for name in _TIMES}
    return replace(profile, layers=layers, **fields)
