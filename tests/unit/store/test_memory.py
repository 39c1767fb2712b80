from __future__ import annotations

import threading

import pytest

from funcpipe.errors import WaitTimeout
from funcpipe.store.memory import MemoryStore


def test_a_wait_is_woken_and_does_not_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    gets: list[str] = []
    get = store.get
    monkeypatch.setattr(store, "get", lambda key: gets.append(key) or get(key))
    found: list[bytes] = []
    waiter = threading.Thread(target=lambda: found.append(bytes(store.wait("k", deadline_s=60))))
    waiter.start()

    store.put("other", b"")
    store.put("k", b"body")
    waiter.join()

    assert found == [b"body"]
    assert gets == []


def test_a_wait_that_sees_other_objects_only_times_out() -> None:
    store = MemoryStore()
    store.put("other", b"")

    with pytest.raises(WaitTimeout, match="'k'"):
        store.wait("k", deadline_s=0.01)
