"""What sending and receiving a large tensor adds to a process's memory.

Run as a script with a store's URL, endpoint and size in bytes, credentials in the environment, it
prints JSON: the most that was held above what was there before, as a share of the size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from funcpipe.emulator.server import RunningServer


def measure_wire(server: RunningServer, num_bytes: int) -> dict[str, float]:
    """``send`` and ``receive``, measured in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, server.url, server.endpoint, str(num_bytes)],
        env={**os.environ, **server.credentials.to_environment()},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def status(field: str) -> int:
    """Bytes of a line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def main(url: str, endpoint: str, num_bytes: int) -> None:
    import torch

    from funcpipe import wire
    from funcpipe.store.open import open_store

    store = open_store(url, endpoint=endpoint, region="us-east-1")
    store.put("bench/small", wire.encode(torch.ones(1 << 18)))  # loads what is loaded lazily
    wire.decode(store.get("bench/small"))
    tensor = torch.ones(num_bytes // 4)

    before = start_peak()
    store.put("bench/large", wire.encode((tensor,), meta={"step": 0}))
    sent = status("VmHWM") - before
    del tensor
    before = start_peak()
    message = wire.decode(store.get("bench/large"))
    received = status("VmHWM") - before
    if message.value[0].numel() != num_bytes // 4:
        raise ValueError("what came back is not what was sent")
    store.delete(["bench/small", "bench/large"])
    store.close()
    print(json.dumps({"send": sent / num_bytes, "receive": received / num_bytes}))


def start_peak() -> int:
    """Let the kernel's peak (VmHWM) begin anew; the bytes that are resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return status("VmRSS")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
