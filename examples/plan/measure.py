"""Measures the profiles beside this file: python measure.py digits|bert-large > PROFILE.json

Each layer by itself, in CPU seconds of one thread, the best of several tries: what a function with
one vCPU would take. Times with more of them are not measured: 95 % of the work is taken to be
spread over all vCPUs, and the rest not (Amdahl's law).
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import funcpipe as fp
from funcpipe.locate import load_job
from funcpipe.model.chain import chain_of

VCPUS = (1.0, 2.0, 4.0, 6.0)
PARALLEL = 0.95
TRIES = 5
DIGITS = Path(__file__).resolve().parents[1] / "digits" / "job.py"


def main(name: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    asked = {"digits": digits, "bert-large": bert_large}[name]()
    inputs, profiles = asked.inputs, []
    for layer_name, module in asked.layers:
        profile, inputs = measure(layer_name, module, inputs, asked)
        profiles.append(profile)
    whole = fp.ModelProfile(
        name=name,
        layers=tuple(profiles),
        vcpus=VCPUS,
        micro_batch_sizes=asked.sizes,
        batch_size=asked.batch_size,
        input_bytes=bytes_of(asked.inputs[:1]),
        source=f"examples/plan/measure.py, torch {torch.__version__.partition('+')[0]}: CPU "
        "seconds of one thread, on a busy machine; with more vCPUs by Amdahl's law, 95 % parallel",
    )
    print(text_of(whole.to_dict()))


@dataclass(frozen=True, kw_only=True)
class Model:
    """optimizer_factor: bytes of its state for each byte of weights."""

    layers: Iterator[tuple[str, nn.Module]]
    inputs: Tensor
    sizes: tuple[int, ...]
    batch_size: int
    optimizer_factor: float


def digits() -> Model:
    """The digits example, which is trained by SGD with momentum."""
    job = load_job(str(DIGITS)).job
    data, sizes = job.train_data(), (1, 4, 16, 64)
    layers = chain_of(job.model()).layers
    return Model(
        layers=((f"{one.name}.{type(one.module).__name__}", one.module) for one in layers),
        inputs=torch.stack([data[i][0] for i in range(max(sizes))]),
        sizes=sizes,
        batch_size=job.batch_size,
        optimizer_factor=1.0,
    )


def bert_large() -> Model:
    """BERT-large: 24 layers of width 1024, 16 heads, 128 tokens; Adam. One layer at a time."""

    def layers() -> Iterator[tuple[str, nn.Module]]:
        yield "embedding", nn.Sequential(nn.Embedding(30522, 1024), nn.LayerNorm(1024))
        for number in range(24):
            yield (
                f"block{number}",
                nn.TransformerEncoderLayer(
                    1024, 16, 4096, dropout=0.0, activation="gelu", batch_first=True
                ),
            )
        yield "head", nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 30522))

    sizes = (1, 2, 4, 8)
    return Model(
        layers=layers(),
        inputs=torch.randint(30522, (max(sizes), 128)),
        sizes=sizes,
        batch_size=32,
        optimizer_factor=2.0,
    )


def measure(
    name: str, module: nn.Module, inputs: Tensor, asked: Model
) -> tuple[fp.LayerProfile, Tensor]:
    """What a layer takes, and its output for as many samples as `inputs` has."""
    module.train()
    forward, backward = [], []
    for size in asked.sizes:
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
        forward_s=over_vcpus(forward),
        backward_s=over_vcpus(backward),
        parameter_bytes=weights,
        optimizer_factor=asked.optimizer_factor,
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


def over_vcpus(seconds: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    """A row for each of VCPUS, four digits each."""
    shares = [1 - PARALLEL + PARALLEL / vcpus for vcpus in VCPUS]
    return tuple(tuple(float(f"{s * share:.4g}") for s in seconds) for share in shares)


def text_of(data: dict[str, Any]) -> str:
    """JSON with a line for each field and each layer."""
    layers = ",\n  ".join(json.dumps(layer) for layer in data.pop("layers"))
    fields = [f'"{name}": {json.dumps(value)}' for name, value in data.items()]
    return "{\n " + ",\n ".join([*fields, f'"layers": [\n  {layers}\n ]']) + "\n}"


if __name__ == "__main__":
    main(sys.argv[1])
