"""The job: what the user trains, checked when it is made. Imports no torch."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from funcpipe.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import Dataset

__all__ = ["Job", "Origin"]

_MAX_SEED = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a `Job` was made: the module's ``__name__`` and its file, if it has one."""

    module: str
    file: Path | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A model, its data and how to train it; every field is checked here, with a `JobError`.

    model            () -> ``nn.Sequential``, built anew at each call
    loss             (output, target) -> scalar tensor
    optimizer        (parameters) -> optimizer
    train_data       () -> map-style dataset of (input, target)
    eval_data        the same, held out; evaluated at the end and every `eval_every` epochs
    batch_size       samples of one training step, over all functions together
    loss_reduction   how `loss` joins its samples: "mean" or "sum"
    loss_weight      (target of a micro-batch) -> the weight of its mean loss, where that is not
                     the number of samples (a loss that ignores labels or weighs classes)
    metrics          name -> (output, target) -> scalar tensor, the mean over the given samples
    lr_scheduler     (optimizer) -> scheduler, stepped once a training step
    collate          (list of samples) -> batch; None is torch's default_collate
    include          files, folders or globs, relative to the job file, that functions need too
    """

    model: Callable[[], nn.Module]
    loss: Callable[[Any, Any], Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    train_data: Callable[[], Dataset[Any]]
    eval_data: Callable[[], Dataset[Any]] | None = None
    batch_size: int
    epochs: int = 1
    seed: int = 0
    loss_reduction: Literal["mean", "sum"] = "mean"
    loss_weight: Callable[[Any], float] | None = None
    metrics: Mapping[str, Callable[[Any, Any], Tensor]] = field(default_factory=dict)
    lr_scheduler: Callable[[Optimizer], LRScheduler] | None = None
    shuffle: bool = True
    collate: Callable[[list[Any]], Any] | None = None
    eval_every: int | None = None
    include: tuple[str, ...] = ()
    origin: Origin = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_callable("model", self.model, ())
        _check_callable("loss", self.loss, ("output", "target"))
        _check_callable("optimizer", self.optimizer, ("parameters",))
        _check_callable("train_data", self.train_data, ())
        _check_optional_callable("eval_data", self.eval_data, ())
        _check_int("batch_size", self.batch_size, 1)
        _check_int("epochs", self.epochs, 1)
        _check_int("seed", self.seed, 0, _MAX_SEED)
        _check_reduction(self.loss_reduction)
        _check_optional_callable("loss_weight", self.loss_weight, ("target",))
        _check_optional_callable("lr_scheduler", self.lr_scheduler, ("optimizer",))
        _check_optional_callable("collate", self.collate, ("samples",))
        if not isinstance(self.shuffle, bool):
            raise _wrong("shuffle", self.shuffle, "True or False")
        if self.eval_every is not None:
            _check_int("eval_every", self.eval_every, 1)
            if self.eval_data is None:
                raise JobError("Job.eval_every is set, but there is no eval_data to evaluate on")
        _check_loss(self.loss, self.loss_reduction, self.loss_weight)
        set_field = functools.partial(object.__setattr__, self)
        set_field("metrics", _checked_metrics(self.metrics))
        set_field("include", _checked_include(self.include))
        set_field("origin", _find_origin())


def _readable_names(init: Callable[..., None]) -> Callable[..., None]:
    """The dataclass's ``__init__``, with a `JobError` for wrong names instead of a TypeError."""
    known = [item.name for item in fields(Job) if item.init]
    parameters = inspect.signature(init).parameters
    needed = [name for name in known if parameters[name].default is inspect.Parameter.empty]

    @functools.wraps(init)
    def checked(self: Job, *args: Any, **given: Any) -> None:
        if args:
            raise JobError(
                f"Job takes keywords only, found {len(args)} positional arguments; "
                "write Job(model=..., loss=..., ...)"
            )
        for name in given:
            if name not in known:
                hint = _did_you_mean(name, known) or f"; its fields are {', '.join(known)}"
                raise JobError(f"Job has no field {name!r}{hint}")
        missing = [name for name in needed if name not in given]
        if missing:
            raise JobError(f"Job needs {', '.join(missing)}, too")
        init(self, **given)

    return checked


if not TYPE_CHECKING:
    Job.__init__ = _readable_names(Job.__init__)


def _find_origin() -> Origin:
    """The module that is making a job: the first frame that is neither ours nor a helper's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if top not in {"funcpipe", "dataclasses", "functools", "copy"}:
            break
        frame = frame.f_back
    # Not the module's __file__: a prompt after `python -i job.py` has that, but no file.
    source = frame.f_code.co_filename
    file = Path(os.path.abspath(source)) if os.path.isfile(source) else None
    return Origin(module=str(frame.f_globals.get("__name__", "")), file=file)


# -- checks ----------------------------------------------------------------------------------


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _shown(value: Any) -> str:
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{text} ({type(value).__name__})"


def _wrong(name: str, value: Any, expected: str) -> JobError:
    return JobError(f"Job.{name} is {_shown(value)}; expected {expected}")


def _torch_classes(*names: str) -> tuple[type, ...]:
    """Those classes of torch that are loaded: what is an instance of one cannot exist before."""
    found = (getattr(sys.modules.get(f"torch.{m}"), c, None) for m, c in map(_split, names))
    return tuple(item for item in found if isinstance(item, type))


def _split(name: str) -> tuple[str, str]:
    module, _, attribute = name.rpartition(".")
    return module, attribute


def _is_torch(value: Any, *names: str) -> bool:
    return isinstance(value, _torch_classes(*names))


def _check_int(name: str, value: Any, low: int, high: int | None = None) -> None:
    expected = f"an int of at least {low}" if high is None else f"an int from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, value, expected)
    if value < low or (high is not None and value > high):
        raise _wrong(name, value, expected)


def _check_reduction(value: Any) -> None:
    if not isinstance(value, str) or value not in ("mean", "sum"):
        hint = _did_you_mean(value, ("mean", "sum")) if isinstance(value, str) else ""
        raise JobError(f"Job.loss_reduction is {_shown(value)}; expected 'mean' or 'sum'{hint}")


def _check_optional_callable(name: str, value: Any, arguments: tuple[str, ...]) -> None:
    if value is not None:
        _check_callable(name, value, arguments)


def _check_callable(name: str, value: Any, arguments: tuple[str, ...]) -> None:
    call = f"{name.rpartition('.')[2]}({', '.join(arguments)})"
    _check_not_made(name, value, call)
    if not callable(value):
        raise _wrong(name, value, f"something that can be called as {call}")
    target = value.forward if _is_torch(value, "nn.Module") else value
    if inspect.iscoroutinefunction(target):
        raise _wrong(name, value, f"a plain function called as {call}, not an async one")
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):
        return  # Builtins may have none; the call itself will tell.
    try:
        signature.bind(*arguments)
    except TypeError as error:
        label = getattr(value, "__qualname__", type(value).__name__)
        raise JobError(
            f"Job.{name} is called as {call}, which {label}{signature} does not take: {error}"
        ) from None


def _check_not_made(name: str, value: Any, call: str) -> None:
    """Refuse the thing itself where a function that makes it is expected, and the reverse."""
    field_name = name.partition("[")[0]
    if field_name == "model" and _is_torch(value, "nn.Module"):
        raise JobError(
            f"Job.model is a model ({type(value).__name__}); expected a function that builds it, "
            "since every function builds its own part: model=lambda: nn.Sequential(...)"
        )
    if field_name in {"train_data", "eval_data"} and hasattr(type(value), "__getitem__"):
        raise JobError(
            f"Job.{name} is data itself ({type(value).__name__}); expected a function that loads "
            f"it, called as {call}: {name}=lambda: ..."
        )
    is_class = isinstance(value, type) and issubclass(value, _torch_classes("nn.Module"))
    if field_name in {"loss", "metrics"} and is_class:
        raise JobError(
            f"Job.{name} is the class {value.__name__}; expected something that can be called as "
            f"{call}, such as an instance: {value.__name__}()"
        )
    for made, base in (("optimizer", "Optimizer"), ("lr_scheduler", "lr_scheduler.LRScheduler")):
        if field_name == made and _is_torch(value, f"optim.{base}"):
            kind = type(value).__name__
            argument = "params" if made == "optimizer" else "optimizer"
            raise JobError(
                f"Job.{name} is an instance of {kind}; expected a function that makes it from the "
                f"{argument} of each function: {name}=lambda {argument}: {kind}({argument}, ...)"
            )


def _check_loss(loss: Any, reduction: str, weight: Any) -> None:
    """What a loss tells about itself must fit what the job declares."""
    own = getattr(loss, "reduction", None)
    if isinstance(loss, functools.partial):
        own = loss.keywords.get("reduction")
    if own in ("mean", "sum", "none") and own != reduction:
        raise JobError(
            f"Job.loss has reduction={own!r}, but Job.loss_reduction is {reduction!r}; make them "
            "equal ('mean' or 'sum')"
        )
    if weight is not None and reduction == "sum":
        raise JobError(
            "Job.loss_weight is the weight of a mean loss, but Job.loss_reduction is 'sum': "
            "leave one of them out"
        )
    if _is_torch(loss, "nn.Module"):
        if any(True for _ in loss.parameters()):
            raise JobError(
                f"Job.loss ({type(loss).__name__}) has parameters, which would not be trained; "
                "make them part of the model"
            )
        weighted = _is_torch(loss, "nn.CrossEntropyLoss", "nn.NLLLoss")
        if weighted and reduction == "mean" and weight is None and loss.weight is not None:
            raise JobError(
                f"Job.loss ({type(loss).__name__}) weighs classes, so the mean of a micro-batch "
                "counts by its targets' weights: give them as loss_weight=lambda target: "
                "float(weight[target].sum())"
            )


def _checked_metrics(metrics: Any) -> Mapping[str, Any]:
    if not isinstance(metrics, Mapping):
        raise _wrong("metrics", metrics, "a dict of name -> function(output, target)")
    for name, metric in metrics.items():
        if not isinstance(name, str) or not name.strip():
            raise JobError(f"Job.metrics has the name {_shown(name)}; expected a text")
        if name == "loss":
            raise JobError("Job.metrics has the name 'loss', which is the loss's own; rename it")
        _check_callable(f"metrics[{name!r}]", metric, ("output", "target"))
    return MappingProxyType(dict(metrics))


def _checked_include(include: Any) -> tuple[str, ...]:
    if isinstance(include, str) or not isinstance(include, tuple | list):
        hint = f": include=({include!r},)" if isinstance(include, str) else ""
        raise _wrong("include", include, f"a tuple of paths{hint}")
    checked = []
    for item in include:
        if not isinstance(item, str | os.PathLike):
            raise JobError(f"Job.include has {_shown(item)}; expected paths as text")
        text = os.fspath(item)
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise JobError(f"Job.include has {_shown(text)}; expected paths as text")
        path = PurePosixPath(text)
        if path.is_absolute() or ".." in path.parts or text.startswith("~"):
            raise JobError(
                f"Job.include has {text!r}; expected a path, folder or glob inside the job file's "
                "folder, relative to it and without '..'"
            )
        checked.append(str(path))
    return tuple(checked)
