"""The driver cuts a model's weights into layers; a worker makes its own layers from them.

A worker's memory is meant to hold its own layers and nothing else: it builds the model's structure
on the meta device, which holds no data, and fills in what it fetched. A model that cannot be
built so (it reads its weights while it is made, say) is built whole, in CPU memory, and stripped
of the other layers: right as well, but the worker needs the memory of the whole model for a
moment. The driver finds out which, once, and writes it with the reason into the manifest.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from funcpipe.errors import ModelError
from funcpipe.model.build import build_model
from funcpipe.model.chain import Chain, Layer, chain_of, class_name, state_of
from funcpipe.model.packing import (
    LayerEntry,
    TensorEntry,
    check_bytes,
    describe,
    pack_layer,
    settings_digest,
    unpack_layer,
    unpack_state,
)
from funcpipe.model.tensors import Slot, fill, hidden_tensors, slots, storage_key

if TYPE_CHECKING:
    from funcpipe.job import Job

__all__ = [
    "MANIFEST_VERSION",
    "Fetch",
    "LayerEntry",
    "TensorEntry",
    "layer_entries",
    "load_layers",
    "make_manifest",
    "pack_layer",
    "unpack_state",
]

MANIFEST_VERSION = 1

Fetch = Callable[[int, int, int], memoryview]
"""(layer index, first byte, last byte + 1) -> these bytes of the layer's file."""


def make_manifest(job: Job, chain: Chain, entries: Sequence[LayerEntry]) -> dict[str, Any]:
    """What workers must know to load layers, as JSON-ready data.

    `chain` is that of ``build_model(job)``, `entries` what `pack_layer` gave for its layers::

        {"version": 1, "build": "meta" | "full", "reason": str | None, "layers": [LayerEntry...]}

    Raises `ModelError` if a layer's state dict has entries that are no tensors of its own, or if
    job.model() gives the same modules again.
    """
    for layer in chain.layers:
        _check_state_dict(layer, entries[layer.index])
    reason = _why_not_meta(job, chain, entries)
    return {
        "version": MANIFEST_VERSION,
        "build": "meta" if reason is None else "full",
        "reason": reason,
        "layers": [entry.as_json() for entry in entries],
    }


def _check_state_dict(layer: Layer, entry: LayerEntry) -> None:
    plain = set(state_of((layer,)))
    ours = {
        f"{layer.name}.{item.name.partition('/')[2]}" for item in entry.tensors if item.persistent
    }
    if plain != ours:
        raise ModelError(
            f"layer {layer.name!r} ({class_name(layer.module)}) changes its state dict: "
            f"{sorted(plain ^ ours)} cannot be mapped to its parameters and buffers. Extra state "
            "and state-dict hooks that rename are not supported"
        )


def _why_not_meta(job: Job, chain: Chain, entries: Sequence[LayerEntry]) -> str | None:
    for layer in chain.layers:
        reason = _why_not_replaced(layer)
        if reason:
            return reason
    try:
        meta = _build_on_meta(job)
    except Exception as error:  # noqa: BLE001 - the user's constructors may raise anything here
        return f"job.model() fails on the meta device: {type(error).__name__}: {error}"
    if len(meta.layers) != len(entries):
        return f"on the meta device it has {len(meta.layers)} layers, not {len(entries)}"
    if any(one.module is two.module for one, two in zip(meta.layers, chain.layers, strict=True)):
        raise ModelError(
            "job.model() returned layers that it had returned before; it must make a new model at "
            "each call, so that none starts from what another one has learnt"
        )
    for layer, entry in zip(meta.layers, entries, strict=True):
        difference = _difference(layer, entry)
        if difference:
            return f"on the meta device {difference}"
        for where, tensor in hidden_tensors(layer.module):
            if tensor.is_meta:
                return f"layer {layer.name!r} keeps a tensor where it cannot be replaced: {where}"
    return None


def _why_not_replaced(layer: Layer) -> str | None:
    """Why new tensors in the places of the old ones would not be the same layer."""
    for module in layer.module.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return f"layer {layer.name!r} holds a {class_name(module)}, which keeps its own tensors"
    owners: dict[int, Tensor] = {}
    for slot in slots(layer.module):
        tensor, where = slot.tensor, f"{slot.name} of layer {layer.name!r}"
        if type(tensor) not in (Tensor, nn.Parameter):
            return f"{where} is a {type(tensor).__qualname__}, not a plain tensor"
        hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
        if any(getattr(tensor, name, None) for name in hooks):
            return f"{where} has hooks"
        if tensor.numel() and owners.setdefault(storage_key(tensor), tensor) is not tensor:
            return f"{where} shares its memory with another tensor"
    return None


def _build_on_meta(job: Job) -> Chain:
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.filterwarnings("ignore", message=".*copying from a non-meta parameter")
        return chain_of(build_model(job))


def _difference(layer: Layer, entry: LayerEntry) -> str | None:
    if (layer.name, class_name(layer.module)) != (entry.name, entry.class_name):
        return (
            f"layer {entry.index} is {layer.name!r} ({class_name(layer.module)}), "
            f"not {entry.name!r} ({entry.class_name})"
        )
    ours = [item.structure() for item in describe(layer)]
    theirs = [item.structure() for item in entry.tensors]
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            return f"layer {entry.name!r} has {one}, not {other}"
    if len(ours) != len(theirs):
        return f"layer {entry.name!r} has {len(ours)} tensors, not {len(theirs)}"
    if settings_digest(layer.module) != entry.settings:
        return f"the plain attributes of layer {entry.name!r} ({entry.class_name}) differ"
    return None


def layer_entries(manifest: Mapping[str, Any]) -> tuple[LayerEntry, ...]:
    """The manifest's layers. Raises `ModelError` if it is of another version."""
    if manifest.get("version") != MANIFEST_VERSION:
        raise ModelError(
            f"the model's manifest has version {manifest.get('version')!r}; this funcpipe reads "
            f"{MANIFEST_VERSION}: let the driver and the functions have the same funcpipe"
        )
    return tuple(LayerEntry.from_json(item) for item in manifest["layers"])


def load_layers(
    job: Job, manifest: Mapping[str, Any], first: int, stop: int, fetch: Fetch
) -> tuple[Layer, ...]:
    """Layers ``first:stop`` with the weights that `fetch` gives, one request a layer.

    Tensors alias the fetched buffers where those are 64-byte aligned (then the buffer lives as
    long as they do). The caller's random generators are left as they were. Raises `ModelError` if
    job.model() makes another model here than it did for the manifest, `ObjectCorrupt` for bytes
    that are not the manifest's.
    """
    entries = layer_entries(manifest)
    if not 0 <= first < stop <= len(entries):
        raise ModelError(f"no layers {first}:{stop} in a model of {len(entries)} layers")
    on_meta = manifest["build"] == "meta"
    chain = _build_on_meta(job) if on_meta else chain_of(build_model(job))
    if len(chain.layers) != len(entries):
        raise ModelError(
            f"job.model() made {len(chain.layers)} layers here, {len(entries)} in the driver"
        )
    own = chain.layers[first:stop]
    del chain
    if not on_meta:
        gc.collect()  # other layers may be in cycles, and are as large as the model
    for layer, entry in zip(own, entries[first:stop], strict=True):
        difference = _difference(layer, entry)
        if difference:
            raise ModelError(
                f"job.model() made another model here than in the driver: {difference}. It must "
                "not depend on environment variables, arguments or unseeded random numbers"
            )
        data = fetch(entry.index, 0, entry.num_bytes)
        check_bytes(data, entry)
        (_replace if on_meta else _overwrite)(layer, entry, unpack_layer(data, entry))
        _check_no_meta(layer)
    return own


def _replace(layer: Layer, entry: LayerEntry, tensors: dict[str, Tensor]) -> None:
    made: dict[str, Tensor] = {}
    for slot, item in zip(list(slots(layer.module)), entry.tensors, strict=True):
        if item.same_as is None:
            made[item.name] = _like(slot, item, tensors[item.name])
        fill(slot, made[item.same_as or item.name])


def _like(slot: Slot, item: TensorEntry, tensor: Tensor) -> Tensor:
    if item.is_parameter:
        tensor = nn.Parameter(tensor, requires_grad=item.requires_grad)
    else:
        tensor.requires_grad_(item.requires_grad)
    tensor.__dict__.update(slot.tensor.__dict__)  # marks such as `parameter.no_decay = True`
    return tensor


def _overwrite(layer: Layer, entry: LayerEntry, tensors: dict[str, Tensor]) -> None:
    """Copy into the tensors that are there, so that views, hooks and subclasses stay right."""
    for slot, item in zip(list(slots(layer.module)), entry.tensors, strict=True):
        if item.same_as is not None:
            continue
        if _overlaps_itself(slot.tensor):
            fill(slot, tensors[item.name])
        else:
            with torch.no_grad():
                slot.tensor.copy_(tensors[item.name])


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether it was expanded: several of its elements are one place in memory."""
    return any(
        size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _check_no_meta(layer: Layer) -> None:
    places = [(slot.name, slot.tensor) for slot in slots(layer.module)]
    for where, tensor in (*places, *hidden_tensors(layer.module)):
        if tensor.is_meta:
            raise ModelError(
                f"layer {layer.name!r} ({class_name(layer.module)}) still has a tensor without "
                f"data: {where}. Make it a parameter, a buffer or a plain attribute"
            )
