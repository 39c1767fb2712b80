from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from funcpipe.model.sampling import batch_ids
from funcpipe.passes import Pass, distinct_sizes, passes, program_of, total_steps
from funcpipe.schedule.action import Kind
from funcpipe.schedule.program import Shape


def make_job(**changes: Any) -> Any:
    fields = {"batch_size": 8, "epochs": 3, "seed": 5, "shuffle": True, "eval_every": None}
    return SimpleNamespace(**(fields | changes))


def passes_of(job: Any, *, num_train: int = 20, num_eval: int = 5, **changes: Any) -> list[Pass]:
    fields = {
        "num_train": num_train,
        "num_eval": num_eval,
        "num_steps": total_steps(job, num_train=num_train),
        "micro_batch_size": 3,
    }
    return list(passes(job, **(fields | changes)))


def text(stream: list[Pass]) -> str:
    """As in ``t0 t1 e1``: a training step or an evaluation, after which step."""
    return " ".join(f"{'t' if one.trains else 'e'}{one.step}" for one in stream)


def test_all_epochs_or_as_many_steps_as_were_asked_for() -> None:
    job = make_job()
    assert total_steps(job, num_train=20) == 9
    assert total_steps(job, num_train=16) == 6
    assert total_steps(job, num_train=20, steps=4) == 4
    assert total_steps(job, num_train=20, steps=100) == 9


def test_passes_are_numbered_in_order_and_hold_the_samples_of_their_step() -> None:
    job = make_job()
    stream = passes_of(job)
    assert [one.index for one in stream] == list(range(10))
    for one in stream[:-1]:
        ids = batch_ids(seed=5, num_samples=20, batch_size=8, step=one.step, shuffle=True)
        assert [i for part in one.micro_batches for i in part] == ids
        assert one.num_samples == len(ids)
    assert [len(one.micro_batches) for one in stream[:3]] == [3, 3, 2]
    assert [len(part) for part in stream[0].micro_batches] == [3, 3, 2]
    # an evaluation goes through all samples in their own order
    assert stream[-1].micro_batches == ((0, 1, 2), (3, 4))


@pytest.mark.parametrize(
    ("eval_every", "num_eval", "num_steps", "expected"),
    [
        (None, 5, 4, "t0 t1 t2 t3 e3"),
        (None, 0, 4, "t0 t1 t2 t3"),
        (1, 5, 6, "t0 t1 t2 e2 t3 t4 t5 e5"),  # the last one is not evaluated twice
        (2, 5, 9, "t0 t1 t2 t3 t4 t5 e5 t6 t7 t8 e8"),
        (1, 5, 4, "t0 t1 t2 e2 t3 e3"),
        (5, 5, 3, "t0 t1 t2 e2"),
    ],
)
def test_evaluations_come_when_they_are_due_and_at_the_end(
    eval_every: int | None, num_eval: int, num_steps: int, expected: str
) -> None:
    job = make_job(eval_every=eval_every)
    assert text(passes_of(job, num_eval=num_eval, num_steps=num_steps)) == expected


def test_steps_are_reported_every_so_often_and_at_the_end() -> None:
    stream = passes_of(make_job(), num_steps=8, report_every=3)
    assert [one.step for one in stream if one.trains and one.report] == [2, 5, 7]
    assert all(one.report for one in stream if not one.trains)


def test_programs_follow_what_a_pass_is() -> None:
    shape = Shape(degrees=(1, 2), trains=(True, True))
    stream = passes_of(make_job(), num_steps=2, report_every=2)
    kinds = [
        {t.action.kind for t in program_of(shape, one, stage=1, replica=0).tasks} for one in stream
    ]
    assert [Kind.STEP in found for found in kinds] == [True, True, False]
    assert [Kind.REPORT in found for found in kinds] == [False, True, True]
    assert [Kind.E in found for found in kinds] == [False, False, True]


counts = st.integers(1, 12)


@given(
    num_train=st.integers(1, 60),
    batch_size=counts,
    micro_batch_size=counts,
    epochs=st.integers(1, 3),
    steps=st.none() | st.integers(1, 40),
    num_eval=st.integers(0, 9),
    eval_every=st.none() | st.integers(1, 3),
    report_every=st.integers(1, 4),
)
def test_the_sizes_that_are_validated_are_those_that_come(
    *,
    num_train: int,
    batch_size: int,
    micro_batch_size: int,
    epochs: int,
    steps: int | None,
    num_eval: int,
    eval_every: int | None,
    report_every: int,
) -> None:
    job = make_job(batch_size=batch_size, epochs=epochs, eval_every=eval_every)
    num_steps = total_steps(job, num_train=num_train, steps=steps)
    stream = passes_of(
        job,
        num_train=num_train,
        num_eval=num_eval,
        num_steps=num_steps,
        micro_batch_size=micro_batch_size,
        report_every=report_every,
    )
    trained = [one for one in stream if one.trains]
    sizes = distinct_sizes(
        job, num_train=num_train, num_steps=num_steps, micro_batch_size=micro_batch_size
    )
    assert sizes == sorted({len(one.micro_batches) for one in trained})
    assert [one.step for one in trained] == list(range(num_steps))
    evaluated = [one.step for one in stream if not one.trains]
    assert len(evaluated) == len(set(evaluated))
    assert (num_steps - 1 in evaluated) == (num_eval > 0)
    assert trained[-1].report
