"""How fast this machine is right now: CPU seconds of a plain PyTorch step of a job, one thread.

    python yardstick.py JOB

Machines that are shared become slower and faster by the minute, most of all in what depends on
memory. What one is measured against then must be known at both times.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from funcpipe.locate import load_job

LEAST_S, LEAST_STEPS, PART = 1.5, 5, 4


def main() -> None:
    torch.set_num_threads(1)
    job = load_job(sys.argv[1]).job
    model, data = job.model(), job.train_data()
    optimizer = job.optimizer(model.parameters())
    samples = [data[k] for k in range(max(1, job.batch_size // PART))]
    inputs, targets = (torch.stack([torch.as_tensor(one[i]) for one in samples]) for i in (0, 1))
    seconds: list[float] = []
    while sum(seconds) < LEAST_S or len(seconds) <= LEAST_STEPS:
        began = time.process_time()
        job.loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - began)
    print(statistics.median(seconds[1:]))


if __name__ == "__main__":
    main()
