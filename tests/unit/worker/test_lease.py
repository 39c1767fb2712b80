import pytest

from funcpipe.errors import Superseded
from funcpipe.store.memory import MemoryStore
from funcpipe.worker.lease import SETTLE_S, take_lease


def test_the_first_takes_it_and_a_duplicate_is_told() -> None:
    store = MemoryStore()
    take_lease(store, "k", "mine", if_absent=True, sleep=pytest.fail)
    with pytest.raises(Superseded):
        take_lease(store, "k", "yours", if_absent=True, sleep=pytest.fail)


def test_a_lost_answer_is_told_from_a_duplicate() -> None:
    store = MemoryStore()
    store.put("k", b"mine")
    take_lease(store, "k", "mine", if_absent=True, sleep=pytest.fail)


def test_without_conditional_writes_the_last_writer_wins_after_a_pause() -> None:
    store = MemoryStore()
    slept: list[float] = []

    def overtaken(seconds: float) -> None:
        slept.append(seconds)
        store.put("k", b"yours")

    with pytest.raises(Superseded):
        take_lease(store, "k", "mine", if_absent=False, sleep=overtaken)
    assert slept == [SETTLE_S]


def test_without_conditional_writes_a_late_duplicate_does_not_even_write() -> None:
    store = MemoryStore()
    take_lease(store, "k", "mine", if_absent=False, sleep=lambda _: None)
    with pytest.raises(Superseded):
        take_lease(store, "k", "late", if_absent=False, sleep=pytest.fail)
    assert bytes(store.get("k")) == b"mine"
