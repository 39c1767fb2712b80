"""What a profile of a job is measured for, on this machine, part by part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from funcpipe import __version__
from funcpipe.codeprint import code_digest
from funcpipe.driver.prepare import Prepared
from funcpipe.driver.profile_options import ProfileOptions
from funcpipe.emulator.resources import usable_cpus
from funcpipe.job import Job
from funcpipe.model import rng
from funcpipe.model.chain import Chain, parameters_of
from funcpipe.model.optimizer import make_optimizer
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.profiles import fingerprint
from funcpipe.usercode import user_code

__all__ = ["prints_of"]

_FIGURES = ("cpu.vcpu", "cpu.cores", "network.up_bytes_per_s", "network.down_bytes_per_s",
            "network.latency_s", "network.burst_bytes", "network.burst_bytes_per_s")  # fmt: skip
# How fast a model learns changes nothing of how long it computes.
_RATES = ("lr", "initial_lr")


def prints_of(
    prepared: Prepared,
    options: ProfileOptions,
    *,
    tiers: Sequence[int],
    sizes: Sequence[int],
    copies: int,
) -> dict[str, str]:
    """The fingerprint. What it cannot see: data whose samples differ in size, or what the model
    reads from files and the environment while it computes.
    """
    job, chain = prepared.loaded.job, prepared.chain
    modules = [module for layer in chain.layers for module in layer.module.modules()]
    held = [value for module in modules for value in vars(module).values() if callable(value)]
    held_out = f" and {prepared.num_eval:,} held out" if prepared.num_eval else ""
    threads = "as the platform has them" if options.threads is None else str(options.threads)
    with user_code("making the optimiser", roots=(prepared.loaded.root,)), rng.preserved():
        optimizer = _optimizer(job, chain, prepared.settings["optimizers"][0])
    return fingerprint(
        layers=_structure(chain),
        code=_digest([*modules, *held, job.train_data, job.eval_data, job.collate]),
        loss=_loss(job),
        optimizer=optimizer,
        shapes=prepared.shapes,
        data=f"{prepared.num_train:,} samples{held_out}",
        batch=f"{job.batch_size} samples",
        sizes=", ".join(map(str, sizes)),
        tiers=", ".join(map(str, tiers)) + " MB",
        how=f"{options.repeats} repeats, {copies} functions at once, threads {threads}",
        platform=f"{prepared.platform.name} {_figures(prepared.platform)}",
        machine=f"{_cpu_model()[:40]}, {usable_cpus():g} cores, {_capability()}",
        torch=torch.__version__,
        funcpipe=__version__,
    )


def _digest(objects: Sequence[Any]) -> str:
    return f"sha256:{code_digest(one for one in objects if one is not None)}"


def _structure(chain: Chain) -> list[Any]:
    return [
        [
            layer.name,
            repr(layer.module),
            [
                [name, list(p.shape), str(p.dtype), p.requires_grad]
                for name, p in layer.module.named_parameters()
            ],
            [[name, list(b.shape), str(b.dtype)] for name, b in layer.module.named_buffers()],
        ]
        for layer in chain.layers
    ]


def _loss(job: Job) -> list[Any]:
    shown = repr(job.loss) if isinstance(job.loss, torch.nn.Module) else ""
    return [shown, job.loss_reduction, _digest([job.loss, job.loss_weight])]


def _optimizer(job: Job, chain: Chain, settings: Sequence[Any]) -> str:
    """Its class and which options are on: their values change no time."""
    if not settings:
        return "none"
    name, groups = settings
    on = sorted({", ".join(_switched_on(json.loads(options))) for options, _ in groups})
    text = f"{name} ({'; '.join(on)})"
    made, _ = make_optimizer(job, [parameter for _, parameter in parameters_of(chain.layers)])
    own = code_digest([type(made)])
    return text if own == code_digest([]) else f"{text} {own}"


def _switched_on(options: Mapping[str, Any]) -> list[str]:
    return [name for name, value in sorted(options.items()) if value and name not in _RATES]


def _figures(platform: PlatformSpec) -> str:
    values = {path: platform.figure(path).to_dict().get("value") for path in _FIGURES}
    text = json.dumps(values, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "a CPU"
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else "a CPU"


def _capability() -> str:
    return torch.backends.cpu.get_cpu_capability()
