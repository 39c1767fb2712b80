from __future__ import annotations

import functools
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from funcpipe.errors import ModelError, ObjectCorrupt
from funcpipe.model import weights
from funcpipe.model.build import build_model
from funcpipe.model.chain import Layer, chain_of, state_of
from funcpipe.model.packing import ALIGNMENT, unpack_layer
from funcpipe.model.tensors import slots
from funcpipe.model.weights import (
    LayerEntry,
    layer_entries,
    load_layers,
    make_manifest,
    pack_layer,
    unpack_state,
)
from tests.unit.model.support import make_job

MEMORY_SCRIPT = Path(__file__).with_name("memory_script.py")


class Kept(nn.Module):
    """Every place and kind of tensor that can be packed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last))
        self.tied = self.weight
        self.frozen = nn.Parameter(torch.randn(5, dtype=torch.bfloat16), requires_grad=False)
        self.marked = nn.Parameter(torch.randn(1, 7))
        self.marked.no_decay = True  # type: ignore[attr-defined]
        self.register_buffer("kept", torch.randn(3))
        self.register_buffer("scratch", torch.arange(6).reshape(2, 3).t(), persistent=False)
        self.register_buffer("nothing", None)
        self.register_buffer("expanded", torch.randn(1, 4).expand(3, 4), persistent=False)
        self.table = torch.randn(2, 2, dtype=torch.complex128)
        self.nested = {"a": [torch.ones(()), (torch.zeros(0, 3), 1)], "b": None, 3: self.weight}
        self.flag = torch.tensor([True, False])

    def forward(self, value: Tensor) -> Tensor:
        return value


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)

    def forward(self, value: Tensor) -> Tensor:
        return self.lstm(value)[0]


class Store:
    """Packed layers as a store gives them: in new, aligned, writable memory."""

    def __init__(self, model: Callable[[], nn.Module], **fields: Any) -> None:
        self.job = make_job(model=model, **fields)
        self.chain = chain_of(build_model(self.job))
        packed = [pack_layer(layer) for layer in self.chain.layers]
        self.files = [bytes(data) for data, _ in packed]
        self.entries = [entry for _, entry in packed]
        self.fetched: list[tuple[int, int, int]] = []
        self.buffers: list[Any] = []
        made = make_manifest(self.job, self.chain, self.entries)
        self.manifest = json.loads(json.dumps(made))

    def fetch(self, index: int, start: int, stop: int) -> memoryview:
        self.fetched.append((index, start, stop))
        part = self.files[index][start:stop]
        buffer: Any = aligned(len(part))
        buffer[:] = np.frombuffer(part, dtype=np.uint8)
        self.buffers.append(buffer)
        return memoryview(buffer)

    def load(self, first: int, stop: int) -> tuple[Layer, ...]:
        return load_layers(self.job, self.manifest, first, stop, self.fetch)


def aligned(count: int) -> Any:
    block = np.empty(count + ALIGNMENT, dtype=np.uint8)
    offset = -block.ctypes.data % ALIGNMENT
    return block[offset : offset + count]


def assert_same_layer(got: Layer, want: Layer) -> None:
    assert (got.index, got.name, type(got.module)) == (want.index, want.name, type(want.module))
    for one, other in zip(slots(got.module), slots(want.module), strict=True):
        assert one.name == other.name
        assert type(one.tensor) is type(other.tensor), one.name
        assert one.tensor.requires_grad == other.tensor.requires_grad, one.name
        assert one.tensor.dtype == other.tensor.dtype, one.name
        assert torch.equal(one.tensor, other.tensor), one.name
        assert one.tensor.device.type == "cpu"


def test_every_tensor_of_a_layer_survives_bit_by_bit() -> None:
    store = Store(lambda: nn.Sequential(nn.ReLU(), Kept()))
    torch.manual_seed(123)
    before = torch.get_rng_state()

    (loaded,) = store.load(1, 2)

    assert (store.manifest["build"], store.manifest["reason"]) == ("meta", None)
    assert torch.equal(torch.get_rng_state(), before)
    assert_same_layer(loaded, store.chain.layers[1])
    got: Any = loaded.module
    assert got.tied is got.weight
    assert got.nested[3] is got.weight
    assert got.weight.is_contiguous(memory_format=torch.channels_last)
    assert got.weight.stride() == (27, 1, 9, 3)
    assert got.scratch.stride() == (1, 3)
    assert got.marked.no_decay is True
    assert got.nested["a"][1][1] == 1


def test_the_bytes_are_a_safetensors_file_and_give_the_plain_state_dict() -> None:
    store = Store(lambda: nn.Sequential(Kept(), nn.Sequential(nn.BatchNorm1d(3))))
    read = safetensors.torch.load(store.files[0])
    kept: Any = store.chain.layers[0].module
    assert torch.equal(read["buffer/kept"], kept.kept)
    assert torch.equal(read["parameter/weight"], kept.weight.permute(0, 2, 3, 1))
    assert "parameter/tied" not in read

    state = {}
    for data, entry in zip(store.files, layer_entries(store.manifest), strict=True):
        state.update(unpack_state(memoryview(data), entry))

    plain = build_model(store.job)
    plain.load_state_dict(state)
    assert set(state) == set(plain.state_dict()) == set(state_of(store.chain.layers))


def test_aligned_memory_is_aliased_and_only_the_rest_is_copied() -> None:
    store = Store(lambda: nn.Sequential(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(3))))
    layers = store.load(0, 2)

    assert store.fetched == [(k, 0, len(store.files[k])) for k in range(2)]
    linear, norm = (
        {slot.name: slot.tensor.data_ptr() for slot in slots(layer.module)} for layer in layers
    )
    first, second = (
        range(buffer.ctypes.data, buffer.ctypes.data + buffer.nbytes) for buffer in store.buffers
    )
    assert all(pointer % ALIGNMENT == 0 for pointer in (*linear.values(), *norm.values()))
    assert all(pointer in first for pointer in linear.values())
    # Four tensors of 12 bytes and one of 8: the first of them happens to be aligned.
    assert sum(pointer in second for pointer in norm.values()) == 1


@pytest.mark.parametrize("shift", [1, 8, 63])
def test_memory_that_is_not_aligned_or_not_writable_is_copied(shift: int) -> None:
    store = Store(lambda: nn.Sequential(Kept()))
    entry, data = store.entries[0], store.files[0]
    block = aligned(len(data) + shift)
    block[shift:] = np.frombuffer(data, dtype=np.uint8)
    for buffer in (memoryview(block)[shift:], memoryview(data)):
        tensors = unpack_layer(buffer, entry)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = unpack_layer(buffer, entry)
        for name, tensor in tensors.items():
            assert torch.equal(tensor, again[name])
            assert tensor.numel() == 0 or tensor.data_ptr() % ALIGNMENT == 0


class Item(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.size = self.weight.norm().item()


class Converted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("array", torch.from_numpy(np.arange(3.0)))


class Captured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.scale = functools.partial(torch.mul, torch.randn(3))


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.randn(4))
        self.register_buffer("first_half", self.whole[:2])


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.weight.register_hook(torch.Tensor.neg)


class Special(nn.Parameter):
    pass


class Subclassed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Special(torch.randn(3))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Item, "fails on the meta device"),
        (Captured, "where it cannot be replaced: scale.args"),
        (Viewed, "buffer/first_half of layer '1' shares its memory"),
        (Hooked, "parameter/weight of layer '1' has hooks"),
        (Subclassed, "parameter/weight of layer '1' is a Special"),
    ],
)
def test_models_that_cannot_be_built_without_data_are_built_whole(
    kind: type[nn.Module], reason: str
) -> None:
    store = Store(lambda: nn.Sequential(nn.Linear(2, 2), kind()))
    assert store.manifest["build"] == "full"
    assert reason in store.manifest["reason"]
    with torch.no_grad():
        trained: Any = store.chain.layers[1].module
        for slot in slots(trained):
            slot.tensor.add_(1)
    data, entry = pack_layer(store.chain.layers[1])
    store.files[1] = bytes(data)
    store.manifest["layers"][1] = entry.as_json()

    (loaded,) = store.load(1, 2)

    assert_same_layer(loaded, store.chain.layers[1])
    got: Any = loaded.module
    if kind is Viewed:
        assert got.first_half.data_ptr() == got.whole.data_ptr()
    if kind is Hooked:
        assert got.weight._backward_hooks
    if kind is Captured:
        assert torch.equal(got.scale.args[0], trained.scale.args[0])


def test_arrays_of_numpy_do_not_need_the_whole_model() -> None:
    store = Store(lambda: nn.Sequential(nn.Linear(2, 2), Converted()))
    assert store.manifest["build"] == "meta"
    assert_same_layer(store.load(1, 2)[0], store.chain.layers[1])


def test_a_pretrained_state_dict_is_loaded_by_the_driver_alone() -> None:
    state = nn.Linear(2, 2).state_dict()

    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        made[0].load_state_dict(state)
        made[0].bias.requires_grad_(False)
        return made

    store = Store(model)
    assert store.manifest["build"] == "meta"
    (loaded,) = store.load(0, 1)
    assert_same_layer(loaded, store.chain.layers[0])
    assert torch.equal(loaded.module.weight, state["weight"])


def test_recurrent_layers_compute_with_the_loaded_weights() -> None:
    store = Store(lambda: nn.Sequential(nn.ReLU(), Recurrent()))
    assert store.manifest["build"] == "meta"
    (loaded,) = store.load(1, 2)
    value = torch.randn(2, 3, 4)
    assert torch.equal(loaded.module(value), store.chain.layers[1].module(value))
    got: Any = loaded.module
    assert got.lstm._flat_weights[0] is got.lstm.weight_ih_l0


def test_another_model_than_the_drivers_is_refused() -> None:
    store = Store(lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    models: list[tuple[nn.Module, str]] = [
        (nn.Sequential(nn.Linear(2, 2)), "1 layers here, 2 in the driver"),
        (nn.Sequential(nn.Linear(2, 2), nn.Tanh()), r"'1' \(Tanh\), not '1' \(ReLU\)"),
        (nn.Sequential(nn.Linear(2, 3), nn.ReLU()), r"\(3, 2\).*not.*\(2, 2\)"),
        (nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU()), "has 1 tensors, not 2"),
    ]
    for model, found in models:
        job = make_job(model=lambda model=model: model)
        with pytest.raises(ModelError, match=found):
            load_layers(job, store.manifest, 0, 2, store.fetch)
    store.manifest["version"] = 99
    with pytest.raises(ModelError, match="version 99"):
        store.load(0, 1)


def test_damaged_weights_are_refused() -> None:
    store = Store(lambda: nn.Sequential(nn.Linear(2, 2)))
    good = store.files[0]
    for bad in (good[:-1], good[:-1] + bytes([good[-1] ^ 1]), b""):
        store.files[0] = bad
        with pytest.raises(ObjectCorrupt, match=r"layer 0 \(0\)"):
            store.load(0, 1)
    for bad in (b"", b"\xff" * 8, good[:20], (8).to_bytes(8, "little") + b"[1,2,3]x"):
        with pytest.raises(ObjectCorrupt):
            unpack_layer(memoryview(bad), store.entries[0])


def test_what_has_no_plain_bytes_is_refused() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("links", torch.eye(3).to_sparse())

    class Extra(nn.Module):
        def get_extra_state(self) -> int:
            return 1

    with pytest.raises(ModelError, match="buffer/links is not a dense"):
        pack_layer(chain_of(nn.Sequential(Sparse())).layers[0])
    with pytest.raises(ModelError, match="_extra_state"):
        Store(lambda: nn.Sequential(Extra()))
    with torch.device("meta"), pytest.raises(ModelError, match="meta device"):
        pack_layer(chain_of(nn.Sequential(nn.Linear(1, 1))).layers[0])


def test_a_tensor_left_without_data_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a driver that did not see that the model keeps a tensor in a closure
    with monkeypatch.context() as patch:
        patch.setattr(weights, "hidden_tensors", lambda module: [])
        store = Store(lambda: nn.Sequential(Captured()))
    assert store.manifest["build"] == "meta"
    with pytest.raises(ModelError, match=r"without data: scale\.args\[0\]"):
        store.load(0, 1)


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, value: Tensor) -> Tensor:
        self.last = self.linear(value)
        return self.last


def test_trained_layers_are_packed_and_loaded_as_new_ones() -> None:
    store = Store(lambda: nn.Sequential(Caching()))
    (layer,) = store.load(0, 1)
    layer.module(torch.ones(1, 2)).sum().backward()
    with torch.no_grad():
        layer.module.linear.weight.add_(1)  # type: ignore[union-attr, operator]

    data, entry = pack_layer(layer, like=store.entries[0])
    store.files, store.manifest["layers"] = [bytes(data)], [entry.as_json()]

    assert [item.name for item in entry.tensors] == [
        "parameter/linear.weight",
        "parameter/linear.bias",
    ]
    want = layer.module.linear.weight  # type: ignore[union-attr]
    assert torch.equal(store.load(0, 1)[0].module.linear.weight, want)  # type: ignore[union-attr, arg-type]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_layers_keep_their_weights() -> None:
    store = Store(lambda: nn.Sequential(nn.ReLU(), torch.jit.script(nn.Linear(2, 2))))
    assert "RecursiveScriptModule" in store.manifest["reason"]
    assert_same_layer(store.load(1, 2)[0], store.chain.layers[1])


def test_a_factory_that_returns_the_same_model_twice_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ModelError, match="make a new model at each call"):
        Store(lambda: model)


def test_the_manifest_tells_sizes() -> None:
    store = Store(lambda: nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(3)))
    first, second = layer_entries(store.manifest)
    assert (first.name, first.class_name, first.index) == ("0", "Linear", 0)
    assert [entry.num_bytes for entry in (first, second)] == [len(data) for data in store.files]
    assert (first.parameter_bytes, second.parameter_bytes) == (4 * 16 * 17, 24)
    assert LayerEntry.from_json(json.loads(json.dumps(first.as_json()))) == first


def test_a_worker_never_holds_more_than_its_share(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(MEMORY_SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["build"] == "meta"
    assert result["model_bytes"] >= 400e6
    assert result["peak_share"] <= 0.30, result
