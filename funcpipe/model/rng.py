"""Random numbers that do not depend on who computes what, nor on what was computed before.

Before a layer runs, every generator that user code may draw from is seeded from (seed, step,
global micro-batch, index of the layer in the whole model). A step that is run again, on any
plan with the same micro-batches, draws the same numbers.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["DATA", "OPTIMIZER", "ORDER", "derive_seed", "preserved", "scope", "seed_all"]

DATA = -1
"""The `layer` of data loading."""
ORDER = -2
"""The `layer` of the order of samples."""
OPTIMIZER = -3
"""The `layer` of the optimiser's step."""

_UINT32 = 0xFFFF_FFFF
_UINT64 = 0xFFFF_FFFF_FFFF_FFFF


def derive_seed(seed: int, step: int, micro_batch: int, layer: int) -> int:
    """A 64-bit hash of the four numbers, the same on every machine and version.

    BLAKE2b with an 8-byte digest, personalised ``funcpipe``, over the four as little-endian
    64-bit integers. Its low 32 bits are as well mixed as the rest: torch's CPU generator and
    numpy's legacy one use no more than those.
    """
    packed = struct.pack("<Qqqq", seed & _UINT64, step, micro_batch, layer)
    digest = hashlib.blake2b(packed, digest_size=8, person=b"funcpipe").digest()
    return int.from_bytes(digest, "little")


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def seed_all(seed: int) -> None:
    """Seed torch, `random` and numpy's global generator, as a script's first lines would."""
    # torch.manual_seed would do, but formats a stack trace for a CUDA that may never be used.
    torch.default_generator.manual_seed(seed & _UINT64)
    if _cuda_in_use():
        torch.cuda.manual_seed_all(seed & _UINT64)
    random.seed(seed)
    np.random.seed(seed & _UINT32)


def scope(seed: int, step: int, micro_batch: int, layer: int) -> None:
    """Seed every generator for one layer's work on one micro-batch. Call inside `preserved`."""
    seed_all(derive_seed(seed, step, micro_batch, layer))


@contextmanager
def preserved() -> Iterator[None]:
    """Give the surrounding code its generators back as they were, whatever happens inside."""
    torch_state = torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if _cuda_in_use() else None
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
