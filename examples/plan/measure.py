"""Measures the profiles beside this file: python measure.py digits|bert-large > PROFILE.json

Each layer by itself, in CPU seconds of one thread, the best of several tries: what a function with
one vCPU would take. Times with more vCPUs are those divided by the vCPUs, which is what a
platform's quota does for as long as a layer's work is spread over all threads: a guess, not a
measurement.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import funcpipe as fp
from funcpipe.locate import load_job
from funcpipe.model.chain import chain_of

SIZES = (1, 2, 4, 8)
VCPUS = (1.0, 2.0)
TRIES = 5
DIGITS = Path(__file__).resolve().parents[1] / "digits" / "job.py"


def main(name: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers, inputs, batch_size, factor = {"digits": digits, "bert-large": bert_large}[name]()
    profiles = []
    for layer_name, module in layers:
        profile, inputs = measure(layer_name, module, inputs, factor)
        profiles.append(profile)
    whole = fp.ModelProfile(
        name=name,
        layers=tuple(profiles),
        vcpus=VCPUS,
        micro_batch_sizes=SIZES,
        batch_size=batch_size,
        input_bytes=first_bytes[0],
        source=f"examples/plan/measure.py, torch {torch.__version__.partition('+')[0]}: CPU "
        "seconds of one thread of a server's core; 2 vCPUs are taken to be twice as fast",
    )
    print(json.dumps(whole.to_dict()))


first_bytes: list[int] = []


def digits() -> tuple[Iterator[tuple[str, nn.Module]], Tensor, int, float]:
    """The digits example, trained by SGD with momentum or whatever its job says."""
    job = load_job(str(DIGITS)).job
    data = job.train_data()
    inputs = torch.stack([data[i][0] for i in range(max(SIZES))])
    chain = chain_of(job.model())
    return ((one.name, one.module) for one in chain.layers), inputs, job.batch_size, 1.0


def bert_large() -> tuple[Iterator[tuple[str, nn.Module]], Tensor, int, float]:
    """BERT-large: 24 layers of width 1024, 16 heads, 128 tokens; Adam. One layer at a time."""

    def layers() -> Iterator[tuple[str, nn.Module]]:
        yield "embedding", nn.Sequential(nn.Embedding(30522, 1024), nn.LayerNorm(1024))
        for number in range(24):
            yield f"block{number}", nn.TransformerEncoderLayer(
                1024, 16, 4096, dropout=0.0, activation="gelu", batch_first=True
            )
        yield "head", nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 30522))

    return layers(), torch.randint(30522, (max(SIZES), 128)), 32, 2.0


def measure(
    name: str, module: nn.Module, inputs: Tensor, factor: float
) -> tuple[fp.LayerProfile, Tensor]:
    """What a layer takes, and its output for as many samples as `inputs` has."""
    if not first_bytes:
        first_bytes.append(bytes_of(inputs[:1]))
    module.train()
    forward, backward = [], []
    for size in SIZES:
        best_f, best_b = float("inf"), float("inf")
        for _ in range(TRIES):
            x = inputs[:size].clone().requires_grad_(inputs.is_floating_point())
            took, output = cpu_s(lambda x=x: module(x))
            best_f = min(best_f, took)
            gradient = torch.ones_like(output)
            if output.requires_grad:
                took, _ = cpu_s(lambda o=output, g=gradient: o.backward(g))
                best_b = min(best_b, took)
        forward.append(best_f)
        backward.append(0.0 if best_b == float("inf") else best_b)
    kept, output = saved_bytes(module, inputs[:1])
    weights = sum(bytes_of(p) for p in module.parameters())
    profile = fp.LayerProfile(
        name=name,
        forward_s=tuple(tuple(significant(s / v) for s in forward) for v in VCPUS),
        backward_s=tuple(tuple(significant(s / v) for s in backward) for v in VCPUS),
        parameter_bytes=weights,
        optimizer_factor=factor,
        activation_bytes=kept,
        output_bytes=bytes_of(output),
    )
    with torch.no_grad():
        return profile, module(inputs)


def cpu_s(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def saved_bytes(module: nn.Module, inputs: Tensor) -> tuple[int, Tensor]:
    """Bytes that autograd keeps for the backward, weights aside; each memory counted once."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        held.append(tensor)  # or its address may be used again
        return tensor

    held: list[Tensor] = []
    x = inputs.clone().requires_grad_(inputs.is_floating_point())
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(x)
    return sum(kept.values()), output


def bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def significant(seconds: float) -> float:
    return float(f"{seconds:.4g}")


if __name__ == "__main__":
    main(sys.argv[1])
