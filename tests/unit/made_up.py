"""Results as functions that measure layers leave them, made up, and a host that leaves them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from funcpipe.driver.host import Execution, Exit
from funcpipe.errors import UserCodeError, describe
from funcpipe.partitioner.pricing import Use
from funcpipe.profiletask import ProfileTask
from funcpipe.store.memory import MemoryStore

Result = dict[str, Any]


def layer_result(index: int, sizes: Iterable[int], *, memory: bool, scale: float = 1.0) -> Result:
    sizes = list(sizes)
    sized = {
        "parameter_bytes": 1000 * (index + 1),
        "trained_bytes": 800 * (index + 1),
        "optimizer_bytes": 1600 * (index + 1),
        "activation_bytes": 40.0 + index,
        "output_bytes": 20.0 + index,
        "output_gradient_bytes": 10.0 + index,
        "workspace_bytes": 5.0 + index,
        "fixed_workspace_bytes": 6.0 + index,
        "step_workspace_bytes": 7.0 + index,
    }
    return {
        "name": f"{index}",
        "forward_s": [scale * (index + 1) * size * 0.001 for size in sizes],
        "backward_s": [scale * (index + 1) * size * 0.002 for size in sizes],
        "step_s": scale * 0.01 * (index + 1),
        **(sized if memory else {}),
    }


def result(
    layers: Iterable[int],
    sizes: Iterable[int],
    *,
    scale: float = 1.0,
    memory: bool = True,
    transport: bool = True,
    **changes: Any,
) -> Result:
    sizes = list(sizes)
    requests = {"put_cpu_s": 0.002, "get_cpu_s": 0.003, "put_byte_cpu_s": 2e-9,
                "get_byte_cpu_s": 1e-9}  # fmt: skip
    return {
        "format": 1,
        "layers": [layer_result(i, sizes, memory=memory, scale=scale) for i in layers],
        "sizes": sizes,
        "spread": 0.02,
        "passes": [5 for _ in sizes],
        "base_bytes": 300_000_000,
        "data_bytes": 1_000_000,
        "input_bytes": 256.0,
        "transport": requests if transport else None,
        "threads": 1,
        "capability": "AVX2",
        "torch": "2.9.0",
        **changes,
    }


class MadeUpHost:
    """Runs each function at once: it leaves its result, or ends as `fate` says for its task.

    fate: (task, memory in MB) -> None for a result, or the reason of another end and the
    micro-batch size at which it came (None: at the first one).
    """

    def __init__(
        self,
        store: MemoryStore,
        fate: Callable[[ProfileTask, int], tuple[str, int | None] | None] | None = None,
    ) -> None:
        self._store = store
        self._fate = fate or (lambda task, memory_mb: None)
        self._exits: list[Exit] = []
        self.tasks: list[tuple[ProfileTask, int]] = []
        self.opened = self.closed = 0

    def opens(self, _: object) -> MadeUpHost:
        self.opened += 1
        return self

    def start(self, payload: bytes, *, name: str, memory_mb: int | None) -> str:
        task = ProfileTask.from_dict(json.loads(payload))
        assert memory_mb is not None
        self.tasks.append((task, memory_mb))
        reason, reached = self._fate(task, memory_mb) or ("done", task.sizes[-1] + 1)
        self._progress(task, reached)
        if reason == "done":
            found = result(
                range(task.first_layer, task.stop_layer), task.sizes, scale=1769 / memory_mb,
                memory=task.memory, transport=task.transport,
            )  # fmt: skip
            self._put(task.run.profile_result(task.token), found)
        if reason == "failed":
            told = describe(UserCodeError("the model raised", where="job.py:3 in forward: boom"))
            self._put(task.run.profile_fault(task.token), told)
        codes = {"done": 0, "failed": 1, "crashed": 7}
        self._exits.append(
            Exit(
                id=task.token,
                name=name,
                code=codes.get(reason, -9),
                reason=reason,  # type: ignore[arg-type]
                log_tail="",
                detail="it held too much" if reason == "out-of-memory" else "",
            )
        )
        return task.token

    def _progress(self, task: ProfileTask, reached: int | None) -> None:
        sizes = [size for size in task.sizes if reached is not None and size < reached]
        for number, size in enumerate(sizes):
            key = task.run.profile_progress(task.token, number)
            self._put(key, {"size": size, "done": number})

    def _put(self, key: str, data: Any) -> None:
        self._store.put(key, json.dumps(data).encode())

    def exits(self) -> list[Exit]:
        ended, self._exits = self._exits, []
        return ended

    def executions(self) -> list[Execution]:
        return []

    def uses(self) -> list[Use]:
        return []

    def stored_bytes(self) -> int:
        return 0

    def alive(self) -> int:
        return 0

    def stop(self, ids: Iterable[str] | None = None, *, grace_s: float = 2.0) -> None:
        pass

    def close(self) -> None:
        self.closed += 1
