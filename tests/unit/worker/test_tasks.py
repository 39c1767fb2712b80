"""What an action does with messages, above all with those that are not what they should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from funcpipe import wire
from funcpipe.errors import ObjectCorrupt, TrainingError
from funcpipe.invocation import Invocation, RunSpec
from funcpipe.keys import Attempt
from funcpipe.partitioner.plan import even_plan
from funcpipe.passes import Pass
from funcpipe.schedule.action import Action, parse
from funcpipe.schedule.message import Message
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import DELETE, Metered
from funcpipe.store.open import StoreSpec
from funcpipe.store.wait import Arrival
from funcpipe.worker.tasks import Tasks

ROOT = "r/a0001"
ONE = Pass(0, True, 0, ((3, 1), (2, 0)))
OTHER_STEP = Pass(0, True, 1, ONE.micro_batches)
OTHER_SAMPLES = Pass(0, True, 0, ((3, 1), (2, 9)))


class FakeBuilt:
    """Doubles what goes forward, halves what comes back; one buffer of five gradients."""

    def __init__(self) -> None:
        self.buffer = torch.arange(5.0)
        self.stage = SimpleNamespace(gradients=SimpleNamespace(buffers=[self.buffer]))
        self.steps = 0

    def inputs(self, one: Pass, k: int) -> Any:
        return torch.tensor(one.micro_batches[k], dtype=torch.float32)

    targets = inputs

    def forward(self, one: Pass, k: int, value: Any, target: Any) -> Any:
        return float(value.sum()) if target is not None else value * 2

    def backward(self, k: int, gradient: Any) -> Any:
        return torch.ones(2) if gradient is None else gradient / 2

    def evaluate(self, one: Pass, k: int, value: Any, target: Any) -> Any:
        count = len(one.micro_batches[k])
        return SimpleNamespace(loss_sum=1.5, weight=2.0, count=count, metric_sums={"hits": 1.0})

    def step(self, one: Pass) -> None:
        self.steps += 1


Made = tuple[Tasks, FakeBuilt]
Make = Callable[[int, int], Made]


@pytest.fixture
def store() -> Metered:
    return Metered(MemoryStore())


@pytest.fixture
def make(store: Metered) -> Make:
    """The tasks of a stage's replica, in a run of two stages of two replicas."""
    spec = RunSpec(
        root="r",
        attempt=1,
        control_version=1,
        plan=even_plan([1.0, 1.0], num_stages=2, replicas=(2,), micro_batch_size=2),
        trains=(True, True),
        entry="",
        digest="",
        num_train=4,
        num_eval=0,
        num_steps=2,
        store=StoreSpec(url="memory:test"),
        if_absent=True,
    )

    def made(stage: int, replica: int) -> Made:
        built: Any = FakeBuilt()
        place = Invocation(spec=spec, stage=stage, replica=replica, token="t")

        def fetch(key: str, _one: Pass, _action: Action) -> Arrival:
            return Arrival(store.get(key), 0.0, 0.0, 0)

        return Tasks(place, built, store, fetch), built

    return made


def do(tasks: Tasks, tokens: str, one: Pass = ONE) -> None:
    for token in tokens.split():
        tasks.run(one, parse(token))


def test_an_activation_and_its_gradient_travel_and_are_removed_by_their_readers(
    make: Make, store: Metered
) -> None:
    (first, _), (last, _) = make(0, 0), make(1, 0)
    do(first, "0F0 0SEND_F0")
    assert list(store.list("")) == [f"{ROOT}/t00000000/act/0.00000"]
    do(last, "1RECV_F0 1F0 1B0 1SEND_B0 1DEL")
    assert list(store.list("")) == [f"{ROOT}/t00000000/grad/0.00000"]
    do(first, "0RECV_B0 0B0 0DEL")
    assert list(store.list("")) == []
    assert store.counts().total(DELETE) == 2


def test_the_last_stage_reports_losses_by_micro_batch_once(make: Make, store: Metered) -> None:
    (first, _), (last, built) = make(0, 0), make(1, 0)
    do(first, "0F0 0SEND_F0 0F1 0SEND_F1")
    do(last, "1RECV_F0 1F0 1RECV_F1 1F1 1STEP 1REPORT")
    evaluation = Pass(1, False, 0, ((0,),))
    do(last, "1REPORT", evaluation)
    reports = [
        json.loads(bytes(store.get(Attempt(ROOT).report(1, 0, number))))["entries"]
        for number in range(2)
    ]
    assert reports[0] == [{"trains": True, "step": 0, "losses": [[0, 8.0], [1, 4.0]]}]
    assert reports[1] == [{"trains": False, "step": 0, "sums": []}]
    assert built.steps == 1


def test_an_evaluation_s_sums_are_reported(make: Make, store: Metered) -> None:
    (first, _), (last, _) = make(0, 0), make(1, 0)
    evaluation = Pass(0, False, 7, ((0, 1, 2),))
    store.put(
        f"{ROOT}/e00000007/act/0.00000",
        wire.encode(torch.ones(3), meta=first._meta(evaluation, Message("act", 0, (0,)))),
    )
    do(last, "1RECV_F0 1E0 1REPORT 1DEL", evaluation)
    entries = json.loads(bytes(store.get(Attempt(ROOT).report(1, 0, 0))))["entries"]
    sums = {"loss": 1.5, "weight": 2.0, "count": 3, "metrics": {"hits": 1.0}}
    assert entries == [{"trains": False, "step": 7, "sums": [[0, sums]]}]


@pytest.mark.parametrize("sent", [OTHER_STEP, OTHER_SAMPLES], ids=["step", "samples"])
def test_a_message_of_another_step_or_of_other_samples_is_refused(
    make: Make, store: Metered, sent: Pass
) -> None:
    # given a message that lies under the key of the one expected
    (first, _), (last, _) = make(0, 0), make(1, 0)
    do(first, "0F1 0SEND_F1", sent)
    (key,) = store.list("")
    store.put(f"{ROOT}/t00000000/act/0.00001", bytes(store.get(key)))
    # when and then
    with pytest.raises(TrainingError, match=r"act message is not the one expected.*same samples"):
        do(last, "1RECV_F1")


def test_a_damaged_message_is_refused(make: Make, store: Metered) -> None:
    (first, _), (last, _) = make(0, 0), make(1, 0)
    do(first, "0F0 0SEND_F0")
    (key,) = store.list("")
    data = bytearray(store.get(key))
    data[-1] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(ObjectCorrupt):
        do(last, "1RECV_F0")


def test_shares_are_added_to_the_own_part_and_sums_replace_the_others(
    make: Make, store: Metered
) -> None:
    (one, mine), (two, other) = make(0, 0), make(0, 1)
    other.buffer.mul_(10)
    do(one, "0SEND_P1.0")
    do(two, "0SEND_P0.0")
    for tasks, peer in ((one, 1), (two, 0)):
        do(tasks, f"0RECV_P{peer}.0 0ADD{peer}.0 0SEND_S{1 - peer}.0")
    for tasks, peer in ((one, 1), (two, 0)):
        do(tasks, f"0RECV_S{peer}.0 0STEP 0DEL")
    assert mine.buffer.tolist() == other.buffer.tolist() == [0.0, 11.0, 22.0, 33.0, 44.0]
    # a sum is removed by its owner a step later, when all have read it
    sums = [f"{ROOT}/t00000000/sum/0.{owner}.0" for owner in (0, 1)]
    assert sorted(store.list("")) == sums
    do(one, "0STEP 0DEL", Pass(1, True, 1, ONE.micro_batches))
    assert list(store.list("")) == sums[1:]


@pytest.mark.parametrize(
    ("value", "tokens", "kind", "place"),
    [
        ((torch.ones(3),), "0RECV_P1.0 0ADD1.0", "part", (0, 1, 0)),
        ((torch.ones(2), torch.ones(2)), "0RECV_P1.0 0ADD1.0", "part", (0, 1, 0)),
        (torch.ones(2), "0RECV_P1.0 0ADD1.0", "part", (0, 1, 0)),
        ((torch.ones(2),), "0RECV_S1.0", "sum", (1, 0)),
    ],
    ids=["longer share", "two shares", "no tuple", "shorter sum"],
)
def test_a_gradient_chunk_of_another_size_is_refused(
    *, make: Make, store: Metered, value: Any, tokens: str, kind: str, place: tuple[int, ...]
) -> None:
    # given replica 0, whose part are the first two of five gradients
    tasks, built = make(0, 0)
    message = Message(kind, 0, place)
    key = f"{ROOT}/t00000000/{kind}/0.{'.'.join(map(str, place))}"
    store.put(key, wire.encode(value, meta=tasks._meta(ONE, message)))
    # when a chunk of another size comes, then nothing of it is added
    with pytest.raises(TrainingError, match="another size or dtype than expected"):
        do(tasks, tokens)
    assert built.buffer.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
