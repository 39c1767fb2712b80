from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from funcpipe.errors import ObjectExists, ObjectMissing, StoreDenied, StoreUnavailable
from funcpipe.store.faulty import Fault, Faulty
from funcpipe.store.memory import MemoryStore
from funcpipe.store.retry import Retrying, RetryPolicy

from .clock import FakeClock

POLICY = RetryPolicy(tries=4, limit_s=60.0, first_s=1.0, factor=2.0, cap_s=3.0)


def scripted(*faults: Fault | None) -> tuple[Callable[[str, str], Fault | None], list[str]]:
    """A chooser that injects `faults` one after the other, and the operations it has seen."""
    left = list(faults)
    seen: list[str] = []

    def choose(operation: str, key: str) -> Fault | None:
        seen.append(operation)
        return left.pop(0) if left else None

    return choose, seen


def retrying(
    inner: MemoryStore, faults: Sequence[Fault | None], policy: RetryPolicy = POLICY
) -> tuple[Retrying, FakeClock, list[str]]:
    clock = FakeClock()
    choose, seen = scripted(*faults)
    store = Retrying(Faulty(inner, choose), policy, rng=lambda: 0.5, clock=clock, sleep=clock.sleep)
    return store, clock, seen


def test_a_second_try_mends_what_is_unavailable() -> None:
    inner = MemoryStore()
    store, clock, seen = retrying(inner, [Fault.BEFORE, Fault.AFTER])

    store.put("k", [b"a", b"b"])

    assert seen == ["put"] * 3
    assert clock.sleeps == [0.75, 1.5]
    assert store.num_retries == 2
    assert bytes(inner.get("k")) == b"ab"


def test_pauses_grow_to_the_cap_and_tries_are_bounded() -> None:
    store, clock, seen = retrying(MemoryStore(), [Fault.BEFORE] * 9)

    with pytest.raises(StoreUnavailable, match=r"did not arrive \(tried 4 times in 4\.5 s\)"):
        store.get("k")

    assert seen == ["get"] * 4
    assert clock.sleeps == [0.75, 1.5, 2.25]


def test_no_try_begins_beyond_the_limit() -> None:
    policy = RetryPolicy(tries=99, limit_s=2.0, first_s=1.0, factor=2.0, cap_s=3.0)
    store, clock, _ = retrying(MemoryStore(), [Fault.BEFORE] * 9, policy)

    with pytest.raises(StoreUnavailable, match="tried 2 times"):
        store.get("k")

    assert clock.sleeps == [0.75]


@pytest.mark.parametrize(("share", "pause_s"), [(0.0, 0.5), (0.5, 0.75), (0.999, 0.9995)])
def test_jitter_is_between_half_and_all(share: float, pause_s: float) -> None:
    assert POLICY.pause_s(1, share) == pytest.approx(pause_s)


def test_what_is_the_callers_fault_is_not_tried_again() -> None:
    class Denying(MemoryStore):
        tries = 0

        def put(self, key: str, data: object, **options: object) -> None:
            self.tries += 1
            raise StoreDenied("no")

    inner = Denying()
    store, clock, _ = retrying(inner, [])

    with pytest.raises(StoreDenied):
        store.put("k", b"")
    with pytest.raises(ObjectMissing):
        store.get("k")
    assert (inner.tries, clock.sleeps, store.num_retries) == (1, [], 0)


def test_a_claim_whose_answer_was_lost_is_known_by_its_token() -> None:
    inner = MemoryStore()
    store, _, seen = retrying(inner, [Fault.AFTER])

    store.put("lease", [b"token ", b"1"], if_absent=True)

    assert seen == ["put", "put", "get"]
    assert bytes(inner.get("lease")) == b"token 1"


def test_a_claim_that_somebody_else_won_meanwhile_is_lost() -> None:
    inner = MemoryStore()
    inner.put("lease", b"token 2")
    store, _, seen = retrying(inner, [Fault.BEFORE])

    with pytest.raises(ObjectExists):
        store.put("lease", b"token 1", if_absent=True)

    assert seen == ["put", "put", "get"]
    assert bytes(inner.get("lease")) == b"token 2"


def test_a_claim_refused_at_the_first_try_is_not_read_back() -> None:
    inner = MemoryStore()
    inner.put("lease", b"token 1")
    store, _, seen = retrying(inner, [])

    with pytest.raises(ObjectExists):
        store.put("lease", b"token 1", if_absent=True)

    assert seen == ["put"]


def test_reading_a_claim_back_is_retried_too() -> None:
    inner = MemoryStore()
    store, _, seen = retrying(inner, [Fault.AFTER, None, Fault.BEFORE])

    store.put("lease", b"token 1", if_absent=True)

    assert seen == ["put", "put", "get", "put", "get"]


def test_a_claim_that_vanished_before_it_was_read_back_is_lost() -> None:
    class Vanishing(MemoryStore):
        def get(self, key: str, **options: object) -> memoryview:
            raise ObjectMissing("gone")

    store, _, _ = retrying(Vanishing(), [Fault.AFTER])

    with pytest.raises(ObjectExists):
        store.put("lease", b"token 1", if_absent=True)


def test_deletes_are_retried_in_batches() -> None:
    inner = MemoryStore()
    keys = [f"k{number}" for number in range(1001)]
    for key in keys:
        inner.put(key, b"")
    store, _, seen = retrying(inner, [Fault.AFTER, None, Fault.BEFORE])

    store.delete(keys)

    assert seen == ["delete"] * 4
    assert list(inner.list("")) == []


def test_a_listing_that_breaks_off_goes_on_without_repeating() -> None:
    inner = MemoryStore()
    for number in range(3):
        inner.put(f"k{number}", b"")
    store, _, seen = retrying(inner, [Fault.BEFORE, Fault.AFTER])

    assert list(store.list("")) == ["k0", "k1", "k2"]
    assert seen == ["list"] * 3


@pytest.mark.parametrize(
    "fields", [{"tries": 0}, {"first_s": 0.0}, {"factor": 0.9}, {"limit_s": -1.0}]
)
def test_policies_that_cannot_be_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"tries must be|needed:"):
        RetryPolicy(**fields)  # type: ignore[arg-type]


def test_jitter_leaves_the_global_generator_alone() -> None:
    # given a store that fails once
    choose, _ = scripted(Fault.BEFORE)
    store = Faulty(MemoryStore(), choose)
    random.seed(5)
    before = random.getstate()
    # when a retry draws its pause
    Retrying(store, sleep=lambda _: None).put("k", b"x")
    # then the model's random numbers are what they were
    assert random.getstate() == before
