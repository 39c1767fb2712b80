"""Call the user's factories so that every process that calls them gets the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.data import IterableDataset

from funcpipe.errors import JobError, ModelError
from funcpipe.model import rng

if TYPE_CHECKING:
    from funcpipe.job import Job

__all__ = ["build_data", "build_model", "check_dataset"]


def build_model(job: Job) -> nn.Module:
    """`job.model()` with torch, `random` and numpy seeded by ``job.seed``; theirs are restored.

    Equals ``torch.manual_seed(job.seed); random.seed(job.seed); numpy.random.seed(job.seed);
    job.model()``. Raises `ModelError` if that is not a module.
    """
    with rng.preserved():
        rng.seed_all(job.seed)
        model = job.model()
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"job.model() returned a {type(model).__name__}; it must return a torch.nn.Module"
        )
    return model


def build_data(job: Job, *, evaluation: bool = False) -> Any:
    """`job.train_data()` or `job.eval_data()`, seeded alike, so that all who load it agree.

    Raises `JobError` if it is not a map-style dataset, or empty.
    """
    factory, name = (
        (job.eval_data, "job.eval_data()") if evaluation else (job.train_data, "job.train_data()")
    )
    if factory is None:
        raise JobError("the job has no eval_data")
    with rng.preserved():
        rng.seed_all(job.seed)
        dataset = factory()
    check_dataset(dataset, name)
    return dataset


def check_dataset(dataset: Any, name: str) -> None:
    """Raise `JobError` unless `dataset`, called `name` in messages, is map-style with samples."""
    kind = type(dataset)
    if (
        isinstance(dataset, IterableDataset)
        or not hasattr(kind, "__len__")
        or not hasattr(kind, "__getitem__")
    ):
        raise JobError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}, which gives no sample by number. "
            "It must be a map-style torch dataset, with __len__ and __getitem__, so that all "
            "stages and a resumed run see the same samples"
        )
    if len(dataset) == 0:
        raise JobError(f"{name} is empty")
