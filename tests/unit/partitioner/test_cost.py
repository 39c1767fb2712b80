"""What a plan takes: against the simulation, the programs' requests and the platform's bill."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from funcpipe.errors import PlanError
from funcpipe.partitioner.cost import BOUND, EXACT, SIMULATED, evaluate
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.pricing import Bill, Use, bill
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.simulate import dollars_of_step, simulate_plan
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.table import make_table
from funcpipe.schedule.action import Action, Kind, Lane
from funcpipe.schedule.count import DELETE_BATCH, requests_per_step
from funcpipe.schedule.program import Shape, training_program
from funcpipe.sync.plan import part_bounds
from tests.unit.partitioner.random_profiles import MIB, random_plan, random_profile

PLATFORMS = ["aws-lambda", "aws-lambda-s3express", "aliyun-fc"]
SEEDS = range(12)
MISSED_PER_GET = 2


def setting_of(
    platform: str = "aws-lambda", *, seed: int = 0, batch_size: int = 30, num_steps: int | None = 1
) -> Setting:
    return Setting(
        profile=random_profile(seed),
        platform=load_platform(platform),
        batch_size=batch_size,
        num_steps=num_steps,
        missed_per_get=MISSED_PER_GET,
    )


def plan_of(seed: int, setting: Setting, **options: object) -> Plan:
    return random_plan(
        seed, setting.profile, degrees=(1, 2, 3, 4), tiers_mb=setting.tiers_mb, **options
    )


# -- dollars: what the programs do, billed -----------------------------------------------------


def shape_of(setting: Setting, plan: Plan) -> Shape:
    trained = [
        sum(layer.trained for layer in setting.profile.layers[s.first_layer : s.stop_layer])
        for s in plan.stages
    ]
    return Shape(
        degrees=plan.degrees,
        trains=tuple(size > 0 for size in trained),
        schedule=plan.schedule,
        in_flight=plan.in_flight,
        sync=plan.sync,
    )


def bytes_of(action: Action, setting: Setting, stage: StagePlan, *, size: int, num: int) -> int:
    """Of the message that an action sends or receives."""
    profile = setting.profile
    if action.kind in (Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B):
        samples = size if action.index != num - 1 else setting.batch_size - (num - 1) * size
        behind = action.kind in (Kind.SEND_F, Kind.RECV_B)
        layer = profile.layers[(stage.stop_layer if behind else stage.first_layer) - 1]
        is_forward = action.kind in (Kind.SEND_F, Kind.RECV_F)
        return samples * int(layer.output_bytes if is_forward else layer.output_gradient)
    return 0


def uses_of(setting: Setting, plan: Plan, *, step_s: float, num_steps: int) -> list[Use]:
    """What every function is billed for over a run, from the programs' actions one by one."""
    shape, num = shape_of(setting, plan), setting.num_micro_batches(plan.micro_batch_size)
    uses = []
    for s, r in shape.workers():
        stage = plan.stages[s]
        trained = int(sum(one.trained for one in setting.profile.layers[
            stage.first_layer : stage.stop_layer
        ]))  # fmt: skip
        requests: Counter[str] = Counter()
        moved = {Lane.UP: 0, Lane.DOWN: 0}
        garbage = 0
        for task in training_program(shape, stage=s, replica=r, num_micro_batches=num).tasks:
            action = task.action
            if action.kind is Kind.REPORT:
                requests["PUT"] += 1
            if action.lane not in moved:
                continue
            requests["PUT" if action.lane is Lane.UP else "GET"] += 1
            garbage += action.kind in (Kind.RECV_F, Kind.RECV_B, Kind.RECV_P, Kind.SEND_S)
            size = bytes_of(action, setting, stage, size=plan.micro_batch_size, num=num)
            if action.kind in (Kind.SEND_P, Kind.SEND_S, Kind.RECV_P, Kind.RECV_S):
                owner = r if action.kind is Kind.RECV_P else action.index or 0
                start, stop = part_bounds(trained, stage.replicas, owner)
                size = stop - start
            moved[action.lane] += size
        requests["DELETE"] = -(-garbage // DELETE_BATCH)
        requests["GET_MISSED"] = MISSED_PER_GET * requests["GET"]
        uses.append(
            Use(
                name=f"stage{s}-replica{r}",
                memory_mb=stage.memory_mb or setting.platform.memory.default_mb,
                init_ms=round(1000 * setting.platform.time.cold_start_s),
                run_ms=round(1000 * num_steps * step_s),
                requests={name: num_steps * count for name, count in requests.items()},
                bytes_up=num_steps * moved[Lane.UP],
                bytes_down=num_steps * moved[Lane.DOWN],
            )
        )
    return uses


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("seed", SEEDS)
def test_dollars_are_those_of_the_bill_for_what_the_programs_do(platform: str, seed: int) -> None:
    # Given a run that is so long that rounding up to billed milliseconds does not matter.
    num_steps = 10_000
    setting = setting_of(platform, seed=seed, num_steps=num_steps)
    plan = plan_of(seed, setting, sync=["pipelined", "three-phase"][seed % 2])

    told = evaluate(setting, plan)

    whole: Bill = bill(
        setting.platform, uses_of(setting, plan, step_s=told.step_s, num_steps=num_steps)
    )
    causes = Counter(whole.by_cause())
    parts = told.to_dict()["dollars_by_cause"]
    requests = sum(causes[name] for name in ("PUT", "GET", "missed GET", "DELETE"))
    assert parts["requests"] * num_steps == pytest.approx(requests, rel=1e-9)
    assert parts["transfer"] * num_steps == pytest.approx(causes["transfer"], rel=1e-9)
    starts = causes["invocations"] + causes["initialisation"]
    assert parts["starts"] * num_steps == pytest.approx(starts, rel=1e-9)
    assert parts["compute"] * num_steps == pytest.approx(causes["compute"], rel=1e-5)
    assert told.dollars == pytest.approx(math.fsum(parts.values()), rel=1e-12)
    assert told.dollars == pytest.approx(sum(s.dollars for s in told.stages), rel=1e-12)
    assert told.dollars * num_steps == pytest.approx(whole.total, rel=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_are_those_of_a_step(seed: int) -> None:
    setting = setting_of(seed=seed)
    plan = plan_of(seed, setting)
    price = setting.platform.price
    counts = requests_per_step(
        shape_of(setting, plan),
        num_micro_batches=setting.num_micro_batches(plan.micro_batch_size),
    )

    told = sum(stage.fees.requests for stage in evaluate(setting, plan).stages)

    expected = counts["PUT"] * price.put + counts["DELETE"] * price.delete
    expected += counts["GET"] * (price.get + MISSED_PER_GET * price.missed_get)
    assert told == pytest.approx(expected * price.dollars, rel=1e-12)


# -- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency_on_lane", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_takes_as_long_as_its_simulation_or_no_longer(
    seed: int, latency_on_lane: bool
) -> None:
    setting = replace(setting_of(seed=seed, batch_size=29), latency_on_lane=latency_on_lane)
    plan = plan_of(seed, setting)

    told, found = evaluate(setting, plan), simulate_plan(setting, plan)

    assert told.time.how == BOUND
    assert told.step_s >= found.step_s * (1 - 1e-9)
    dollars = dollars_of_step(found.step_s, [stage.fees for stage in told.stages])
    assert dollars <= told.dollars * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_micro_batches_of_one_size_are_exact_whatever_the_degrees(seed: int) -> None:
    setting = setting_of(seed=seed, batch_size=28)
    plan = plan_of(seed, setting)

    told, found = evaluate(setting, plan), simulate_plan(setting, plan)

    assert told.time.how == EXACT
    assert told.step_s == pytest.approx(found.step_s, rel=1e-9)
    dollars = dollars_of_step(found.step_s, [stage.fees for stage in told.stages])
    assert dollars == pytest.approx(told.dollars, rel=1e-9)


def test_the_time_of_a_step_is_the_sum_of_its_parts() -> None:
    setting = setting_of(batch_size=48)

    time = evaluate(setting, plan_of(3, setting)).time

    assert time.total_s == pytest.approx(time.forward_s + time.backward_s + time.tail_s, rel=1e-12)
    assert min(time.forward_s, time.backward_s) > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_one_forward_one_backward_is_simulated(seed: int) -> None:
    setting = setting_of(seed=seed, batch_size=48)
    plan = plan_of(seed, setting, schedule="1f1b")

    told = evaluate(setting, plan)

    assert told.step_s == pytest.approx(simulate_plan(setting, plan).step_s, rel=1e-12)
    if len(plan.stages) > 1:
        assert told.time.how == SIMULATED
        # Forward and backward share the time
        parts = told.to_dict()["time"]
        assert (parts["forward_s"], parts["backward_s"], parts["tail_s"]) == (None, None, None)


@pytest.mark.parametrize("latency_on_lane", [True, False])
@pytest.mark.parametrize("in_flight", [None, 1, 3])
def test_a_single_stage_takes_equally_long_under_all_schedules(
    in_flight: int | None, latency_on_lane: bool
) -> None:
    for seed, degree in product(range(4), (1, 2, 3)):
        setting = replace(setting_of(seed=seed, batch_size=48), latency_on_lane=latency_on_lane)
        plan = plan_of(seed, setting, schedule="1f1b")
        whole = replace(plan.stages[0], stop_layer=plan.num_layers, replicas=degree)
        plan = replace(plan, stages=(whole,), in_flight=in_flight)

        told = evaluate(setting, plan)

        assert told.time == evaluate(setting, replace(plan, schedule="gpipe", in_flight=None)).time
        assert told.time.how == EXACT
        assert told.step_s == pytest.approx(simulate_plan(setting, plan).step_s, rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_forward_one_backward_with_a_smaller_last_micro_batch_is_a_bound(seed: int) -> None:
    setting = setting_of(seed=seed, batch_size=47)
    plan = plan_of(seed, setting, schedule="1f1b")
    assert setting.batch_size % plan.micro_batch_size

    told = evaluate(setting, plan)

    assert told.time.how == BOUND
    assert told.step_s >= simulate_plan(setting, plan).step_s * (1 - 1e-9)


def test_a_micro_batch_larger_than_the_batch_takes_what_the_batch_does() -> None:
    setting = setting_of(batch_size=2)
    plan = plan_of(1, setting, micro_batch_size=2)

    larger = evaluate(setting, replace(plan, micro_batch_size=4))

    assert larger == evaluate(setting, plan)


# -- one plan by hand ----------------------------------------------------------------------------


def by_hand(
    *, model_fields: dict[str, float] | None = None, **changes: str
) -> tuple[Setting, Plan]:
    """Two layers of 1 s and 2 s a sample, 1 MB a sample between them, links of 1 MB/s."""
    megabyte = 10**6
    layers = tuple(
        LayerProfile(
            name=name,
            forward_s=((forward,),),
            backward_s=((2 * forward,),),
            parameter_bytes=4 * megabyte,
            activation_bytes=10 * MIB,
            output_bytes=megabyte,
            step_s=(0.5,),
        )
        for name, forward in (("first", 1.0), ("second", 2.0))
    )
    platform = load_platform(
        "aws-lambda",
        changes={
            "network.latency_s": "0",
            "network.up_bytes_per_s": "1e6",
            "network.down_bytes_per_s": "1e6",
            **changes,
        },
    )
    memory_mb = next(m for m in platform.memory.tiers_mb if platform.vcpu(m) >= 1)
    stages = tuple(
        StagePlan(first_layer=n, stop_layer=n + 1, replicas=2, memory_mb=memory_mb)
        for n in range(2)
    )
    profile = ModelProfile(name="two", layers=layers, **(model_fields or {}))
    setting = Setting(profile=profile, platform=platform, batch_size=4)
    return setting, Plan(stages=stages, micro_batch_size=1)


def test_a_plan_that_was_worked_out_by_hand() -> None:
    setting, plan = by_hand()

    told = evaluate(setting, plan)

    # Forward: 1 + 1 up, 1 down + 2, and the second micro-batch of each replica 2 later.
    assert told.time.forward_s == 7
    # Backward of the first stage: 4 + 1 up, 1 down + 2, the second one 4 later.
    # 2 MB parts: a share up and down, a sum up and down; then the optimiser.
    assert told.step_s == 7 + 12 + 8 + 0.5
    assert [stage.limit for stage in told.stages] == ["synchronise", "compute"]
    assert [stage.busy_s for stage in told.stages] == [8, 12.5]
    assert told.time.how == EXACT
    assert told.num_micro_batches == 4
    assert told.fits


def test_transfers_take_their_cpu_time_from_the_computation() -> None:
    # 1 s for each object sent and 0.25 s more for its MB; half as much for each received.
    cpu = {"put_cpu_s": 1, "put_byte_cpu_s": 0.25e-6, "get_cpu_s": 0.5, "get_byte_cpu_s": 0.125e-6}
    setting, plan = by_hand(model_fields=cpu)

    first, second = (stage.times for stage in evaluate(setting, plan).stages)

    assert (first.compute_f, first.compute_b) == (1 + 1.25, 2 + 0.625)
    assert (second.compute_f, second.compute_b) == (2 + 0.625, 4 + 1.25)
    assert (first.up_f, first.down_b) == (1, 1)
    # Parts of 2 MB: nothing else is computed meanwhile.
    assert (first.part_up_s, first.part_down_s) == (2 + 1.5, 2 + 0.75)


def test_less_than_a_vcpu_stretches_transfers_and_more_makes_them_no_faster() -> None:
    setting, plan = by_hand(model_fields={"put_cpu_s": 1.0})
    free, _ = by_hand()
    for memory_mb in setting.tiers_mb:
        stages = tuple(replace(stage, memory_mb=memory_mb) for stage in plan.stages)
        tried = replace(plan, stages=stages)
        more = [evaluate(one, tried).stages[0].times.compute_f for one in (setting, free)]
        vcpu = setting.platform.vcpu(memory_mb)
        assert more[0] - more[1] == pytest.approx(1 / min(vcpu, 1.0))
    assert setting.platform.vcpu(setting.tiers_mb[0]) < 1 < vcpu


def test_recomputation_repeats_the_layers_and_no_transfer() -> None:
    setting, plan = by_hand(model_fields={"put_cpu_s": 1.0, "get_cpu_s": 3.0})
    again = replace(plan, stages=tuple(replace(one, recompute=True) for one in plan.stages))

    first, second = (stage.times for stage in evaluate(setting, again).stages)

    assert (first.compute_b, second.compute_b) == (1 + 2 + 3, 2 + 4 + 1)


def test_a_message_that_is_noticed_late_is_late_once() -> None:
    setting, plan = by_hand(model_fields={"late_s": 0.5})

    told = evaluate(setting, plan)

    # Once forward and once backward; shares are, and so are sums.
    assert told.time.forward_s == 7 + 0.5
    assert told.step_s == 7 + 12 + 8 + 0.5 + 2 * 0.5 + 2 * 0.5
    assert told.step_s == pytest.approx(simulate_plan(setting, plan).step_s, rel=1e-12)


def test_a_function_that_is_alone_waits_for_the_report_of_a_step() -> None:
    # Given a latency of 40 s, and 1 s to send anything, which a function with a vCPU does in 1 s
    setting, plan = by_hand(model_fields={"put_cpu_s": 1.0})
    slow, _ = by_hand(model_fields={"put_cpu_s": 1.0}, **{"network.latency_s": "40"})
    one = replace(plan.stages[0], stop_layer=2, replicas=1)
    whole = replace(plan, stages=(one,))
    # Then 4 micro-batches of 9 s and the optimiser's second hide it, or not
    assert evaluate(setting, whole).step_s == 4 * 9 + 1
    assert evaluate(slow, whole).step_s == pytest.approx(41, rel=1e-12)
    assert simulate_plan(slow, whole, num_steps=3).step_s == pytest.approx(41, rel=1e-12)
    # and so does the table that solvers look at
    table = make_table(
        slow, Combination(micro_batch_size=1, degrees=(1, 2)), tiers_mb=(one.memory_mb or 0,)
    )
    rows = [n for n in range(len(table)) if table.stop[n] - table.start[n] == 2]
    assert [table.degree[n] for n in rows] == [1, 2]
    lone, replicated = (table.tail[n] for n in rows)
    assert lone == pytest.approx(41 - 4 * 9)
    # Replicas exchange gradients, which takes longer than that
    both = replace(whole, stages=(replace(one, replicas=2),))
    assert replicated == evaluate(slow, both).time.tail_s
    assert evaluate(slow, both).stages[0].times.step_s == 1


def test_a_plan_for_another_model_is_refused() -> None:
    setting, plan = by_hand()
    shorter = Plan(stages=plan.stages[:1], micro_batch_size=1)

    with pytest.raises(PlanError, match="covers 1 layers"):
        evaluate(setting, shorter)
