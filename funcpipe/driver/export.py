"""From the layers' trained weights in the store to one file that the plain model loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load, save_file

from funcpipe.errors import FuncpipeError
from funcpipe.files import replacing
from funcpipe.keys import Run
from funcpipe.store.base import ObjectStore

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["export_model"]


def export_model(store: ObjectStore, run: Run, *, num_layers: int, path: Path) -> Path:
    """Write ``model.safetensors``: the plain model's state dict. Whole or not at all."""
    state: dict[str, Tensor] = {}
    for index in range(num_layers):
        state |= load(bytes(store.get(run.final_layer(index))))
    try:
        with replacing(path) as partial:
            save_file(state, partial, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise FuncpipeError(f"cannot write the trained model to {path}: {error}") from error
    return path
