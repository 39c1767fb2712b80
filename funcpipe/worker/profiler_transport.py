"""What requests take of a function's CPU time: encoding, checks, the store's client."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median

import torch

from funcpipe import wire
from funcpipe.errors import ObjectMissing
from funcpipe.profiletask import ProfileTask
from funcpipe.store.base import ObjectStore

__all__ = ["measure_transport"]

SMALL_BYTES, LARGE_BYTES = 4 << 10, 8 << 20
SMALL_TRIES, LARGE_TRIES = 16, 5


def measure_transport(task: ProfileTask, store: ObjectStore) -> dict[str, float]:
    """CPU seconds of a request and of each byte more, all threads of the function together.

    miss_cpu_s: of a look for an object that is not there.
    """
    small = _of_size(task, store, SMALL_BYTES, SMALL_TRIES)
    large = _of_size(task, store, LARGE_BYTES, LARGE_TRIES)
    told = {}
    for name, at_small, at_large in zip(("put", "get"), small, large, strict=True):
        each = max(0.0, (at_large - at_small) / (LARGE_BYTES - SMALL_BYTES))
        told[f"{name}_cpu_s"] = max(0.0, at_small - each * SMALL_BYTES)
        told[f"{name}_byte_cpu_s"] = each
    missing = task.run.profile_probe(task.token, 0)

    def miss() -> None:
        with suppress(ObjectMissing):
            store.get(missing)

    return {**told, "miss_cpu_s": _cpu_s(miss, SMALL_TRIES)}


def _of_size(
    task: ProfileTask, store: ObjectStore, num_bytes: int, tries: int
) -> tuple[float, float]:
    """Of a put and of a get, as tasks of a function in training do them."""
    key = task.run.profile_probe(task.token, num_bytes)
    value = torch.zeros(num_bytes // 4)
    meta = {"step": 0, "of": "act", "place": [0], "ids": "0" * 16}
    try:
        put_s = _cpu_s(lambda: store.put(key, wire.encode(value, meta=meta)), tries)
        get_s = _cpu_s(lambda: wire.decode(store.get(key)), tries)
    finally:
        store.delete([key])
    return put_s, get_s


def _cpu_s(request: Callable[[], object], tries: int) -> float:
    request()  # what opens connections is no part of it
    seconds = []
    for _ in range(tries):
        began = time.process_time()
        request()
        seconds.append(time.process_time() - began)
    return median(seconds)
