import pytest

from funcpipe.control import Control, Watch, publish, read_next
from funcpipe.errors import ObjectCorrupt, ObjectExists, Stopped, Superseded
from funcpipe.keys import Run
from funcpipe.store.memory import MemoryStore
from funcpipe.store.meter import GET, GET_MISSED, Metered

RUN = Run("r")
FIRST = Control(version=1, attempt=1)


def test_versions_follow_each_other_and_are_never_overwritten() -> None:
    store = MemoryStore()
    publish(store, RUN, FIRST)
    with pytest.raises(ObjectExists):
        publish(store, RUN, FIRST)
    assert read_next(store, RUN, FIRST) is None
    publish(store, RUN, FIRST.next(state="stop", reason="budget"))
    found = read_next(store, RUN, FIRST)
    assert found == Control(version=2, attempt=1, state="stop", reason="budget")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1, "x": 1}'])
def test_damage_is_named(data: bytes) -> None:
    with pytest.raises(ObjectCorrupt, match="control object"):
        Control.decode(data)


def watch(store: Metered, now: list[float]) -> Watch:
    return Watch(store, RUN, FIRST, every_s=1.0, clock=lambda: now[0])


def test_a_watch_looks_at_a_bounded_rate() -> None:
    store, now = Metered(MemoryStore()), [0.0]
    look = watch(store, now)
    for tenth in range(35):
        now[0] = tenth / 10
        look()
    assert store.counts().total(GET_MISSED) == 3


def test_every_caller_of_a_watch_is_told_of_the_end() -> None:
    store, now = Metered(MemoryStore()), [0.0]
    look = watch(store, now)
    publish(store, RUN, FIRST.next(state="stop", reason="enough"))
    now[0] = 2.0
    for _ in range(3):
        with pytest.raises(Stopped, match="enough"):
            look()
    assert store.counts().total(GET) == 1


def test_a_watch_notices_a_stop_and_a_new_attempt() -> None:
    store, now = Metered(MemoryStore()), [0.0]
    first, second = watch(store, now), watch(store, now)
    now[0] = 2.0
    publish(store, RUN, FIRST.next())
    first()
    publish(store, RUN, FIRST.next().next(state="stop", reason="enough"))
    now[0] = 4.0
    with pytest.raises(Stopped, match="enough"):
        first()
    store.delete([RUN.control(2)])
    publish(store, RUN, FIRST.next(attempt=2))
    with pytest.raises(Superseded, match="attempt 2"):
        second()
