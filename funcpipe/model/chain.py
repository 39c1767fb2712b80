"""A model as a chain of layers: what a stage is cut from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from funcpipe.errors import ModelError
from funcpipe.model.tensors import hidden_tensors, slots, storage_key

__all__ = ["Chain", "Layer", "chain_of", "class_name", "parameters_of", "separate", "state_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """One link. `name` is its prefix in the plain model's state dict: ``0``, ``features.3``."""

    index: int
    name: str
    module: nn.Module


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    layers: tuple[Layer, ...]


def class_name(module: nn.Module) -> str:
    return type(module).__qualname__


def chain_of(model: nn.Module) -> Chain:
    """`model`, an `nn.Sequential`, nested or not, as a chain of layers.

    Every child that does not merely run its children in turn is a layer. A nested Sequential is
    looked into, one whose class changes how it runs (or that has parameters of its own) is a
    layer. Running the layers one after another computes what the model computes.

    Raises `ModelError` for any other model, an empty one, forward or backward hooks on a
    container that is taken apart, and modules or parameters that two layers share.
    """
    if not isinstance(model, nn.Sequential):
        raise ModelError(
            "so far only torch.nn.Sequential models (nested ones too) can be split into stages; "
            f"job.model() returned a {class_name(model)}. Put its parts, in the order in which "
            "they run, into an nn.Sequential; a block with its own forward is one layer"
        )
    if not _is_plain(model):
        raise ModelError(
            f"the model is a {class_name(model)} that overrides how nn.Sequential runs its "
            "children, or has parameters of its own: it cannot be split. Wrap it, or its parts, in "
            "an nn.Sequential"
        )
    layers = tuple(
        Layer(index=index, name=name, module=module)
        for index, (name, module) in enumerate(_flatten(model, ""))
    )
    if not layers:
        raise ModelError("the model has no layers: job.model() returned an empty nn.Sequential")
    _check_nothing_shared(layers)
    _check_initialised(layers)
    return Chain(layers=layers)


def _flatten(container: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    _check_no_hooks(container, prefix)
    # Not named_children(), which leaves out a module that is there for the second time.
    for name, child in container._modules.items():
        if child is None:
            raise ModelError(f"{prefix}{name} is None: an nn.Sequential holds modules only")
        if _is_plain(child):
            yield from _flatten(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def _is_plain(module: nn.Module) -> bool:
    kind = type(module)
    return (
        isinstance(module, nn.Sequential)
        and not _overridden(kind)
        and "forward" not in module.__dict__
        and not module._parameters
        and not module._buffers
    )


def _overridden(kind: type) -> set[str]:
    """What a subclass of nn.Sequential does in its own way, beside being made."""
    own = kind.__mro__[: kind.__mro__.index(nn.Sequential)]
    names = {name for base in own for name in vars(base)}
    return {name for name in names & set(dir(nn.Sequential)) if name not in _NO_BEHAVIOUR}


_NO_BEHAVIOUR = {"__init__", "__module__", "__doc__", "__annotations__", "__dict__", "__weakref__"}
_NO_BEHAVIOUR |= {"__repr__", "extra_repr", "__parameters__", "__orig_bases__"}

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _check_no_hooks(container: nn.Module, prefix: str) -> None:
    if any(getattr(container, hooks, None) for hooks in _HOOKS):
        name = f"the container {prefix[:-1]!r}" if prefix else "the model itself"
        raise ModelError(
            f"{name} ({class_name(container)}) has forward or backward hooks; they would be lost "
            "when its layers are spread over stages. Register them on the layers instead"
        )


def _check_nothing_shared(layers: tuple[Layer, ...]) -> None:
    """Refuse what would drift apart, or be seeded ambiguously, once layers live in stages."""
    modules: dict[int, Layer] = {}
    storages: dict[int, tuple[Layer, str]] = {}
    for layer in layers:
        for name, module in layer.module.named_modules():
            other = modules.setdefault(id(module), layer)
            if other is not layer:
                where = f"{layer.name}.{name}" if name else layer.name
                raise ModelError(
                    f"layer {other.name!r} and layer {where!r} are, or hold, the same "
                    f"{class_name(module)} object. Layers that share a module cannot be split so "
                    "far: give each its own"
                )
        for name, parameter in _parameters(layer):
            first, first_name = storages.setdefault(storage_key(parameter), (layer, name))
            if first is not layer:
                raise ModelError(
                    f"{layer.name}.{name} and {first.name}.{first_name} share a parameter. Weights "
                    "that are tied across layers cannot be split so far: put both into one layer, "
                    "or give each its own"
                )


def _parameters(layer: Layer) -> Iterator[tuple[str, Tensor]]:
    for slot in slots(layer.module):
        if isinstance(slot.tensor, nn.Parameter) and not is_lazy(slot.tensor):
            yield slot.name.partition("/")[2], slot.tensor
    for where, tensor in hidden_tensors(layer.module):
        if isinstance(tensor, nn.Parameter) and not is_lazy(tensor):
            yield where, tensor


def _check_initialised(layers: tuple[Layer, ...]) -> None:
    for layer in layers:
        for slot in slots(layer.module):
            if is_lazy(slot.tensor):
                raise ModelError(
                    f"layer {layer.name!r} ({class_name(layer.module)}) has the uninitialised "
                    f"{slot.kind} {slot.name.partition('/')[2]!r}. Give lazy modules their sizes, "
                    "or run one input through the model inside job.model()"
                )


def parameters_of(layers: tuple[Layer, ...]) -> list[tuple[str, nn.Parameter]]:
    """(plain model's name, parameter) of `layers`, in the order of ``model.parameters()``."""
    return [
        (f"{layer.name}.{name}", parameter)
        for layer in layers
        for name, parameter in layer.module.named_parameters()
    ]


def state_of(layers: tuple[Layer, ...]) -> dict[str, Tensor]:
    """The part of the plain model's ``state_dict()`` that `layers` hold, not copied."""
    state: dict[str, Tensor] = {}
    for layer in layers:
        state.update(layer.module.state_dict(prefix=f"{layer.name}."))
    return state


def separate(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`state` with tensors that can be written one by one: contiguous, none in another's memory."""
    seen: set[int] = set()
    apart: dict[str, Tensor] = {}
    for name, tensor in state.items():
        plain = tensor.detach().contiguous()
        apart[name] = plain.clone() if plain.data_ptr() in seen else plain
        seen.add(plain.data_ptr())
    return apart
