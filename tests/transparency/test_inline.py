"""The supreme test: whatever the plan, training equals plain PyTorch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jobs
import pytest
import torch
from cluster import Trained, make_spec, plan_of, train_inline
from compare import assert_equal_tensors

from funcpipe.errors import TrainingError
from funcpipe.job import Job
from funcpipe.model.reference import Reference, reference
from funcpipe.passes import Pass
from funcpipe.schedule.action import Action, Kind
from funcpipe.schedule.count import requests_per_evaluation, requests_per_step
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import DELETE, GET, LIST, PUT, Metered
from funcpipe.worker.inline import run_inline

SGD_TOLERANCE, ADAM_TOLERANCE = 1e-12, 1e-10
DEGREES = [
    *[(d,) * s for s in (1, 2, 3, 4) for d in (1, 2, 3)],
    (2, 1),
    (1, 2),
    (3, 2),
    (2, 3),
    (1, 3, 2),
    (2, 1, 2, 3),
]
LOSSES: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"loss": jobs.sum_loss, "loss_reduction": "sum"},
}


@cache
def whole(job: Job, micro_batch_size: int | None, steps: int) -> Reference:
    return reference(job, micro_batch_size, steps=steps)


def check(got: Trained, want: Reference, tolerance: float) -> None:
    assert got.replicas_differ == []
    assert_equal_tensors(got.gradients, want.gradients, SGD_TOLERANCE)
    assert_equal_tensors(got.state_dict, want.state_dict, tolerance)
    assert got.losses == pytest.approx(want.losses, rel=1e-11)


@cache
def grid_job(loss: str, optimizer: str) -> Job:
    return jobs.job(jobs.plain, optimizer=getattr(jobs, optimizer), **LOSSES[loss])


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_every_plan_equals_the_whole_batch(degrees: tuple[int, ...], schedule: str) -> None:
    cases = itertools.product((1, 2, 3, 4, 8), LOSSES, ("sgd", "adam"))
    for number, (micro_batches, loss, optimizer) in enumerate(cases):
        job = grid_job(loss, optimizer)
        plan = plan_of(
            job,
            stages=len(degrees),
            replicas=degrees,
            micro_batches=micro_batches,
            schedule=schedule,
        )
        got = train_inline(job, plan, steps=5, order_seed=number)
        tolerance = ADAM_TOLERANCE if optimizer == "adam" else SGD_TOLERANCE
        check(got, whole(job, None, 5), tolerance)


# Each against the reference over the same micro-batches, and where nothing depends on them,
# against the whole batch as well.
SPECIAL: dict[str, tuple[Callable[[], Job], bool]] = {
    "dropout": (partial(jobs.job, jobs.with_dropout), False),
    "frozen first": (partial(jobs.job, jobs.with_frozen_first), True),
    "frozen between": (partial(jobs.job, jobs.with_frozen_between), True),
    "bare ends": (partial(jobs.job, jobs.with_bare_ends), True),
    "untouched": (partial(jobs.job, jobs.with_untouched), True),
    "rare branch": (partial(jobs.job, jobs.with_rare_branch, shuffle=False), False),
    "nested values": (partial(jobs.job, jobs.with_nested_values), True),
    "uneven last batch": (partial(jobs.job, jobs.plain, train_data=lambda: jobs.data(19)), True),
    "ignored labels": (
        partial(jobs.job, jobs.plain, loss=jobs.ignoring_loss, loss_weight=jobs.counted_labels),
        True,
    ),
    "decaying rate": (
        partial(
            jobs.job,
            jobs.plain,
            lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        ),
        True,
    ),
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("degrees", [(1,), (3,), (1, 2), (3, 2), (2, 2, 2), (1, 3, 1, 2)], ids=str)
def test_what_tends_to_break_pipelines_does_not(name: str, degrees: tuple[int, ...]) -> None:
    make, whole_batch_too = SPECIAL[name]
    job = make()
    for micro_batches, schedule in ((1, "gpipe"), (3, "1f1b"), (4, "gpipe"), (8, "1f1b")):
        plan = plan_of(
            job,
            stages=len(degrees),
            replicas=degrees,
            micro_batches=micro_batches,
            schedule=schedule,
        )
        got = train_inline(job, plan, steps=5)
        check(got, whole(job, plan.micro_batch_size, 5), SGD_TOLERANCE)
        if whole_batch_too:
            check(got, whole(job, None, 5), SGD_TOLERANCE)


def test_both_ways_to_synchronise_give_the_same_bits() -> None:
    job = grid_job("mean", "sgd")
    results = [
        train_inline(
            job, plan_of(job, stages=2, replicas=(4, 3), micro_batches=4, sync=method), steps=3
        ).state_dict
        for method in ("pipelined", "three-phase")
    ]
    assert _bits(results[0]) == _bits(results[1])


def test_the_order_of_arrivals_changes_no_bit() -> None:
    job = jobs.job(jobs.with_dropout)
    plan = plan_of(job, stages=3, replicas=(2, 3, 2), micro_batches=4, schedule="1f1b")
    runs = [train_inline(job, plan, steps=3, order_seed=seed) for seed in range(5)]
    assert len({_bits(run.state_dict) for run in runs}) == 1


def _bits(state: dict[str, torch.Tensor]) -> bytes:
    return b"".join(state[name].numpy().tobytes() for name in sorted(state))


@pytest.mark.parametrize("loss", LOSSES)
def test_evaluation_equals_the_plain_model_s(loss: str) -> None:
    job = jobs.job(
        jobs.with_dropout,
        eval_data=lambda: jobs.data(11),
        metrics={"accuracy": jobs.accuracy},
        **LOSSES[loss],
    )
    plan = plan_of(job, stages=3, replicas=(1, 2, 3), micro_batches=2)
    got = train_inline(job, plan, steps=4)
    want = whole(job, plan.micro_batch_size, 4)
    assert got.metrics == pytest.approx(want.metrics, rel=1e-11)
    assert set(got.metrics) == {"loss", "accuracy"}


@pytest.mark.parametrize("degrees", [(1,), (2, 1), (1, 3, 2), (2, 2, 2, 2)], ids=str)
def test_requests_of_a_run_equal_the_formula(degrees: tuple[int, ...]) -> None:
    job = jobs.job(jobs.plain, eval_data=lambda: jobs.data(5), epochs=2)
    plan = plan_of(job, stages=len(degrees), replicas=degrees, micro_batches=3)
    got = train_inline(job, plan)
    steps = 6
    shape = got.spec.shape
    per_step = requests_per_step(shape, num_micro_batches=3)
    evaluation = requests_per_evaluation(
        shape, num_micro_batches=math.ceil(5 / plan.micro_batch_size)
    )
    usage = got.store.counts()
    num_layers = plan.num_layers
    loading = {"PUT": num_layers + 1, "GET": 0, "DELETE": 0, "LIST": 1}
    for operation in (PUT, DELETE):
        want = steps * per_step[operation] + evaluation[operation] + loading[operation]
        assert usage.total(operation) == want, operation
    kinds = ("act", "grad", "part", "sum")
    gets = sum(usage.requests.get((GET, kind), 0) for kind in kinds)
    assert gets == steps * per_step[GET] + evaluation[GET]
    assert usage.total(LIST) == 1  # the test's own, for the reports


def test_only_the_last_step_s_sums_are_left() -> None:
    job = grid_job("mean", "sgd")
    got = train_inline(job, plan_of(job, stages=2, replicas=(2, 3), micro_batches=4), steps=4)
    left = [key for key in got.store.list("runs/") if "/t0" in key]
    assert sorted(key.split("/", 4)[4] for key in left) == sorted(
        f"sum/{stage}.{owner}.0" for stage, degree in ((0, 2), (1, 3)) for owner in range(degree)
    )


def test_different_samples_at_the_two_ends_are_noticed() -> None:
    # given two stages that have drifted apart: the last one takes the pass with other samples
    job = jobs.job(jobs.plain)
    store = Metered(MemoryStore())
    plan = plan_of(job, stages=2, replicas=(1,), micro_batches=2)
    first, last = run_inline(make_spec(job, plan, store, steps=1), job, store)
    sent = Pass(5, True, 5, ((0, 1, 2, 3), (4, 5, 6, 7)))
    expected = Pass(5, True, 5, ((9, 8, 7, 6), (5, 4, 3, 2)))
    # when the message arrives
    first.tasks.run(sent, Action(0, Kind.F, 0))
    first.tasks.run(sent, Action(0, Kind.SEND_F, 0))
    # then it is refused
    with pytest.raises(TrainingError, match="same samples"):
        last.tasks.run(expected, Action(1, Kind.RECV_F, 0))
