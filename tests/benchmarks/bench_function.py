"""A function for benchmarks: computes, or moves bytes, and writes down how long it took.

The payload says what; times are in the function's own seconds, those of its context's clock.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from funcpipe.store.open import StoreSpec
from funcpipe.store.shape import Shaped

SIZE = 512


def work(payload: Mapping[str, Any], context: Any) -> int:
    result = {"compute": _compute, "transfer": _transfer}[payload["do"]](payload, context)
    Path(payload["to"]).write_text(json.dumps(result))
    return 0


def _compute(payload: Mapping[str, Any], context: Any) -> Any:
    """The same arithmetic, while it initialised and now; real seconds of each action."""
    return {"free": FREE, "held": _actions()}


def _actions() -> list[float]:
    """Real seconds of some actions of the same arithmetic."""
    import torch

    torch.set_num_threads(1)
    left = torch.randn(SIZE, SIZE)
    products, actions = map(int, os.environ["BENCH_PRODUCTS"].split("x"))
    seconds = []
    for _ in range(actions):
        began = time.perf_counter()
        for _ in range(products):
            left @ left
        seconds.append(time.perf_counter() - began)
    return seconds


def _transfer(payload: Mapping[str, Any], context: Any) -> Any:
    """Rounds of one put and one get at a time, side by side; platform seconds of each."""
    spec, clock = StoreSpec.from_dict(payload["store"]), context.clock
    store = Shaped(spec.open(), context.link.open(clock))
    data = bytearray(payload["bytes"])
    mine, rows = payload["name"], []
    store.put(f"{mine}/seed", data)
    clock.sleep(payload["pause_s"])
    for number in range(payload["rounds"]):
        taken: dict[str, float] = {}

        def put(number: int = number, taken: dict[str, float] = taken) -> None:
            began = clock.now()
            store.put(f"{mine}/{number}", data)
            taken["put"] = clock.now() - began

        other = threading.Thread(target=put)
        other.start()
        began = clock.now()
        store.get(f"{mine}/seed")
        taken["get"] = clock.now() - began
        other.join()
        store.delete([f"{mine}/{number}"])
        rows.append(taken)
    return rows


stub = types.ModuleType("funcpipe.worker.entry")
stub.main = work  # type: ignore[attr-defined]
sys.modules[stub.__name__] = stub

if __name__ == "__main__":
    # Before it is ready, a function has all of the machine's speed: what its action takes without
    # a limit is measured right before what it takes with one.
    FREE = _actions() if "BENCH_PRODUCTS" in os.environ else []
    from funcpipe.functions import local

    code = local.main()
    sys.stdout.flush()
    os._exit(code)
