"""How long one micro-batch keeps each lane of a stage's function busy.

A function computes, downloads and uploads at the same time: three lanes. Everything that the
performance model and the simulator say of time follows from these figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from funcpipe.errors import PlanError
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.transport import Amount, get_s, put_s, thread_share
from funcpipe.schedule.program import PREFETCH

__all__ = ["StageTimes", "plan_times", "report_s", "stage_times", "tier_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTimes:
    """Seconds. down, compute, up: of one micro-batch on each lane, forward (_f) and backward (_b).

    compute has the CPU time of the micro-batch's transfers too. The first stage downloads no
    activation and uploads no gradient, the last one the other way round: those are None. hop_s:
    what each transfer takes besides occupying its lane. part_up_s, part_down_s: one part (1/degree)
    of the stage's gradient on its way, with its CPU time; both 0 where nothing is synchronised.
    step_s: of the optimiser; of a function that is alone, up to when its report is stored.
    """

    degree: int
    down_f: float | None
    compute_f: float
    up_f: float | None
    down_b: float | None
    compute_b: float
    up_b: float | None
    hop_s: float = 0.0
    synchronises: bool = False
    part_up_s: float = 0.0
    part_down_s: float = 0.0
    step_s: float = 0.0

    @property
    def fill_f(self) -> float:
        """From the upstream object's appearance to that of this stage's own, nothing waiting."""
        return self.compute_f + self._transfers((self.down_f, self.up_f))

    @property
    def fill_b(self) -> float:
        return self.compute_b + self._transfers((self.down_b, self.up_b))

    @property
    def lane_f(self) -> float:
        """The busiest lane: what each further micro-batch takes.

        Or, where a hop is longer than that: at most `PREFETCH` messages wait for the compute lane,
        so as many micro-batches take as long as one from its download to its computation.
        """
        return self._busiest(self.down_f, self.compute_f, self.up_f)

    @property
    def lane_b(self) -> float:
        return self._busiest(self.down_b, self.compute_b, self.up_b)

    def _busiest(self, down: float | None, compute: float, up: float | None) -> float:
        window = 0.0 if down is None else (down + self.hop_s + compute) / PREFETCH
        return max(down or 0.0, compute, up or 0.0, window)

    def _transfers(self, lanes: tuple[float | None, ...]) -> float:
        return sum(lane + self.hop_s for lane in lanes if lane is not None)


def tier_of(setting: Setting, stage: StagePlan) -> int:
    """MB of a stage's functions."""
    return stage.memory_mb or setting.platform.memory.default_mb


def stage_times(
    setting: Setting, stage: StagePlan, *, num_samples: int, is_last: bool
) -> StageTimes:
    """For micro-batches of `num_samples`, with the stage's tier, degree and recomputation."""
    profile, platform = setting.profile, setting.platform
    memory_mb = tier_of(setting, stage)
    vcpu = platform.vcpu(memory_mb)
    share = thread_share(vcpu)
    layers = range(stage.first_layer, stage.stop_layer)
    compute_f = sum(profile.forward_s(i, vcpu=vcpu, micro_batch_size=num_samples) for i in layers)
    compute_b = sum(profile.backward_s(i, vcpu=vcpu, micro_batch_size=num_samples) for i in layers)
    compute_b += compute_f if stage.recompute else 0.0
    trained = sum(profile.layers[i].trained for i in layers)
    synchronises = stage.replicas > 1 and trained > 0
    part = trained / stage.replicas

    def up(num_bytes: float) -> float:
        return setting.lane_latency_s + num_bytes / platform.up_bytes_per_s(memory_mb)

    def down(num_bytes: float) -> float:
        return setting.lane_latency_s + num_bytes / platform.down_bytes_per_s(memory_mb)

    down_f = up_f = down_b = up_b = None
    if stage.first_layer:
        before = profile.layers[stage.first_layer - 1]
        q_in, g_out = before.output_bytes * num_samples, before.output_gradient * num_samples
        down_f, up_b = down(q_in), up(g_out)
        compute_f += get_s(profile, q_in, share)
        compute_b += put_s(profile, g_out, share)
    if not is_last:
        behind = profile.layers[stage.stop_layer - 1]
        q_out, g_in = behind.output_bytes * num_samples, behind.output_gradient * num_samples
        up_f, down_b = up(q_out), down(g_in)
        compute_f += put_s(profile, q_out, share)
        compute_b += get_s(profile, g_in, share)
    step_s = sum(profile.step_s(i, vcpu=vcpu) for i in layers)
    if stage.first_layer == 0 and is_last and stage.replicas == 1:
        passes_s = setting.num_micro_batches(num_samples) * (compute_f + compute_b)
        step_s = max(step_s, report_s(setting, share) - passes_s)
    return StageTimes(
        degree=stage.replicas,
        down_f=down_f,
        compute_f=compute_f,
        up_f=up_f,
        down_b=down_b,
        compute_b=compute_b,
        up_b=up_b,
        hop_s=setting.hop_s,
        synchronises=synchronises,
        part_up_s=up(part) + put_s(profile, part, share) if synchronises else 0.0,
        part_down_s=down(part) + get_s(profile, part, share) if synchronises else 0.0,
        step_s=step_s,
    )


def report_s(setting: Setting, share: Amount) -> Amount:
    """What the report of a step takes. share: `thread_share`.

    One is on its way at a time. Steps of several functions last longer, for their messages do.
    """
    return setting.platform.network.latency_s + put_s(setting.profile, 0.0 * share, share)


def plan_times(setting: Setting, plan: Plan, *, num_samples: int | None = None) -> list[StageTimes]:
    """Of all stages. num_samples: of the micro-batch, the plan's size unless said."""
    check_layers(setting, plan)
    size = plan.micro_batch_size if num_samples is None else num_samples
    last = plan.stages[-1]
    return [
        stage_times(setting, stage, num_samples=size, is_last=stage is last)
        for stage in plan.stages
    ]


def check_layers(setting: Setting, plan: Plan) -> None:
    if plan.num_layers != setting.profile.num_layers:
        raise PlanError(
            f"the plan covers {plan.num_layers} layers, the profile {setting.profile.name} has "
            f"{setting.profile.num_layers}; plan again for this profile"
        )
