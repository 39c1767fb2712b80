"""Jobs: what is wrong with one is said when it is made; what is named is found and imported."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import funcpipe
from funcpipe import locate
from funcpipe.errors import JobError, JobImportError
from funcpipe.job import Job
from funcpipe.locate import importing_job, load_job, located

GOOD: dict[str, Any] = {
    "model": lambda: nn.Sequential(nn.Linear(2, 2)),
    "loss": F.cross_entropy,
    "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
    "train_data": lambda: TensorDataset(torch.ones(4, 2), torch.zeros(4).long()),
    "batch_size": 2,
}

SOURCE = """
import funcpipe as fp
{imports}
def nothing():
    pass
def loss(output, target):
    pass
def optimizer(params):
    pass
job = fp.Job(model=nothing, loss=loss, optimizer=optimizer, train_data=nothing, batch_size={size})
"""

MODULE_JOB = Job(**GOOD)


def _short(value: object) -> str:
    """An id that is the same in every process: no addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))[:60] if isinstance(value, dict) else ""


def write_job(folder: Path, *, imports: str = "", size: Any = 4, name: str = "job.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(SOURCE.format(imports=imports, size=size))
    return file


@pytest.fixture(autouse=True)
def _own_imports() -> Iterator[None]:
    """What a test imports is gone after it."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    locate._brought.clear()
    for name in set(sys.modules) - modules:
        if not name.startswith(("torch", "funcpipe", "numpy")):
            del sys.modules[name]


def test_a_good_job_has_the_documented_defaults() -> None:
    job = Job(**GOOD)
    assert (job.epochs, job.seed, job.loss_reduction, job.shuffle) == (1, 0, "mean", True)
    assert (job.eval_data, job.loss_weight, job.lr_scheduler) == (None, None, None)
    assert (job.collate, job.eval_every, job.include, dict(job.metrics)) == (None, None, (), {})


def test_a_job_is_frozen_compares_by_identity_and_can_be_varied() -> None:
    # given
    metrics = {"accuracy": lambda output, target: output}
    job = Job(**GOOD, metrics=metrics, include=["data/*.csv", Path("x.txt"), "./y"])
    # when
    metrics.clear()
    longer = dataclasses.replace(job, epochs=7)
    # then
    assert job.include == ("data/*.csv", "x.txt", "y")
    assert list(job.metrics) == ["accuracy"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.epochs = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        job.metrics["loss"] = F.mse_loss  # type: ignore[index]
    assert (longer.epochs, longer.batch_size, longer.model) == (7, 2, job.model)
    assert job != Job(**GOOD)
    assert copy.copy(job).batch_size == 2


def test_the_signature_stays_visible_to_tools() -> None:
    parameters = inspect.signature(Job).parameters
    assert "batch_size" in parameters
    assert parameters["epochs"].default == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": torch.optim.SGD},
        {"optimizer": functools.partial(torch.optim.SGD, lr=0.1)},
        {"loss": nn.CrossEntropyLoss()},
        {"loss": nn.MSELoss(reduction="sum"), "loss_reduction": "sum"},
        {"loss": functools.partial(F.cross_entropy, reduction="sum"), "loss_reduction": "sum"},
        {"loss": nn.NLLLoss(torch.ones(2)), "loss_weight": len},
        {"loss": max},  # a builtin without a signature
        {"eval_data": GOOD["train_data"], "eval_every": 2},
        {"collate": torch.utils.data.default_collate},
        {"seed": 2**32 - 1},
        {"lr_scheduler": functools.partial(torch.optim.lr_scheduler.StepLR, step_size=3)},
    ],
    ids=_short,
)
def test_what_can_be_called_as_needed_is_accepted(fields: dict[str, Any]) -> None:
    assert isinstance(Job(**(GOOD | fields)), Job)


SGD = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)


async def later() -> None:
    pass


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": nn.Sequential()}, ["Job.model is a model (Sequential)", "lambda: nn.Seq"]),
        ({"model": None}, ["Job.model is None (NoneType)", "called as model()"]),
        ({"model": nn.Linear}, ["Job.model is called as model(), which Linear", "in_features"]),
        ({"model": later}, ["Job.model", "not an async one"]),
        ({"loss": nn.CrossEntropyLoss}, ["the class CrossEntropyLoss", "CrossEntropyLoss()"]),
        ({"loss": lambda output: output}, ["Job.loss is called as loss(output, target)"]),
        ({"loss": nn.Linear(2, 2)}, ["Job.loss is called as loss(output, target)"]),
        ({"loss": nn.Bilinear(2, 2, 2)}, ["Job.loss (Bilinear) has parameters"]),
        ({"loss": nn.MSELoss(reduction="sum")}, ["reduction='sum'", "loss_reduction is 'mean'"]),
        ({"loss": nn.MSELoss(reduction="none")}, ["reduction='none'", "make them equal"]),
        (
            {"loss": functools.partial(F.mse_loss, reduction="sum")},
            ["reduction='sum'", "loss_reduction is 'mean'"],
        ),
        ({"loss": nn.NLLLoss(torch.ones(2))}, ["weighs classes", "loss_weight=lambda target"]),
        ({"optimizer": SGD}, ["an instance of SGD", "optimizer=lambda params: SGD(params"]),
        ({"optimizer": lambda: None}, ["Job.optimizer is called as optimizer(parameters)"]),
        (
            {"lr_scheduler": torch.optim.lr_scheduler.StepLR(SGD, 1)},
            ["an instance of StepLR", "lr_scheduler=lambda optimizer: StepLR(optimizer"],
        ),
        ({"train_data": TensorDataset(torch.ones(1))}, ["is data itself (TensorDataset)"]),
        ({"eval_data": [1, 2]}, ["Job.eval_data is data itself (list)"]),
        ({"train_data": lambda path: path}, ["Job.train_data is called as train_data()"]),
        ({"batch_size": 0}, ["Job.batch_size is 0 (int)", "at least 1"]),
        ({"batch_size": -3}, ["Job.batch_size is -3"]),
        ({"batch_size": True}, ["Job.batch_size is True (bool)"]),
        ({"batch_size": 2.0}, ["Job.batch_size is 2.0 (float)"]),
        ({"batch_size": "2"}, ["Job.batch_size is '2' (str)"]),
        ({"epochs": 0}, ["Job.epochs is 0"]),
        ({"seed": -1}, ["Job.seed is -1", "from 0 to 4294967295"]),
        ({"seed": 2**32}, ["Job.seed"]),
        ({"shuffle": 1}, ["Job.shuffle is 1 (int)", "True or False"]),
        ({"loss_reduction": "Mean"}, ["'Mean'", "did you mean 'mean'?"]),
        ({"loss_reduction": "sums"}, ["did you mean 'sum'?"]),
        ({"loss_reduction": None}, ["None (NoneType)", "'mean' or 'sum'"]),
        ({"loss_weight": 3}, ["Job.loss_weight is 3"]),
        ({"loss_weight": len, "loss_reduction": "sum"}, ["leave one of them out"]),
        ({"metrics": [F.mse_loss]}, ["Job.metrics is [", "a dict of name"]),
        ({"metrics": {1: F.mse_loss}}, ["the name 1 (int)"]),
        ({"metrics": {"": F.mse_loss}}, ["the name ''"]),
        ({"metrics": {"loss": F.mse_loss}}, ["the loss's own"]),
        ({"metrics": {"f1": 3}}, ["Job.metrics['f1'] is 3"]),
        ({"metrics": {"f1": lambda: 3}}, ["Job.metrics['f1'] is called as"]),
        ({"metrics": {"f1": nn.MSELoss}}, ["the class MSELoss"]),
        ({"collate": lambda: 3}, ["Job.collate is called as collate(samples)"]),
        ({"eval_every": 2}, ["there is no eval_data"]),
        ({"eval_every": 0, "eval_data": list}, ["Job.eval_every is 0"]),
        ({"include": "data.csv"}, ["include=('data.csv',)"]),
        ({"include": ("/etc/passwd",)}, ["'/etc/passwd'", "relative to it"]),
        ({"include": ("a/../../b",)}, ["without '..'"]),
        ({"include": ("~/x",)}, ["inside the job file's folder"]),
        ({"include": ("",)}, ["''"]),
        ({"include": (3,)}, ["3 (int)", "paths as text"]),
        ({"batchsize": 3}, ["no field 'batchsize'", "did you mean 'batch_size'?"]),
        ({"zzz": 3}, ["no field 'zzz'", "model, loss, optimizer"]),
        ({"origin": 3}, ["no field 'origin'"]),
    ],
    ids=_short,
)
def test_a_wrong_field_is_named_with_what_was_expected(
    fields: dict[str, Any], expected: list[str]
) -> None:
    with pytest.raises(JobError) as caught:
        Job(**(GOOD | fields))
    assert type(caught.value) is JobError
    for text in expected:
        assert text in str(caught.value)


def test_missing_and_positional_fields_are_job_errors() -> None:
    with pytest.raises(JobError, match="needs loss, optimizer, train_data, batch_size, too"):
        Job(model=GOOD["model"])  # type: ignore[call-arg]
    with pytest.raises(JobError, match="keywords only"):
        Job(GOOD["model"])  # type: ignore[misc]


def test_a_job_knows_the_module_that_made_it() -> None:
    here = Path(__file__).resolve()
    varied = dataclasses.replace(MODULE_JOB, epochs=2)
    for job in (MODULE_JOB, varied, copy.copy(MODULE_JOB)):
        assert (job.origin.module, job.origin.file) == (__name__, here)


def test_a_job_made_here_is_located_in_this_module() -> None:
    loaded = located(MODULE_JOB)
    assert loaded.job is MODULE_JOB
    assert loaded.attribute == "MODULE_JOB"
    assert loaded.file == Path(__file__).resolve()
    assert loaded.root.joinpath(*loaded.module.split(".")).with_suffix(".py") == loaded.file


def test_a_job_that_is_no_variable_cannot_be_located() -> None:
    with pytest.raises(JobError, match=r"test_job\.py, is not a variable.*top level"):
        located(Job(**GOOD))
    with pytest.raises(JobError, match=r"expected a funcpipe\.Job, found int"):
        located(3)  # type: ignore[arg-type]


def test_a_job_from_a_notebook_or_a_prompt_is_refused_with_what_to_do() -> None:
    scope: dict[str, Any] = {"__name__": "__main__", "Job": Job, "GOOD": GOOD}
    exec("job = Job(**GOOD)", scope)  # noqa: S102
    with pytest.raises(JobError, match="notebook, at a prompt"):
        located(scope["job"])


@pytest.mark.parametrize("call", [["job.py"], ["-m", "job"], ["-m", "pack.inner"]])
def test_a_script_locates_its_own_job(tmp_path: Path, call: list[str]) -> None:
    # given
    show = "\nfrom funcpipe.locate import located\nfound = located(job)\n"
    show += "print(found.root, found.module, found.attribute, *sorted(found.modules))\n"
    (tmp_path / "helper.py").write_text("")
    for file in (write_job(tmp_path), write_job(tmp_path / "pack", name="inner.py")):
        file.write_text(file.read_text() + "import helper" + show)
    # when
    done = subprocess.run(
        [sys.executable, *call], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    # then
    module = call[-1].removesuffix(".py")
    assert done.stdout.split() == [str(tmp_path), module, "job", *sorted(["helper", module])]


def test_a_path_is_imported_from_its_own_folder(tmp_path: Path) -> None:
    # given
    (tmp_path / "helper.py").write_text("value = 5")
    (tmp_path / "lazy.py").write_text("")
    file = write_job(tmp_path, imports="import helper", size="helper.value")
    # when
    loaded = load_job(file)
    # then
    assert loaded.job.batch_size == 5
    assert (loaded.module, loaded.attribute, loaded.root) == ("job", "job", tmp_path)
    assert loaded.file == file
    assert dict(loaded.modules) == {"job": file, "helper": tmp_path / "helper.py"}
    assert sys.path[0] == str(tmp_path)
    assert load_job(f"{file}:job").job is loaded.job
    assert dict(load_job(file).modules) == dict(loaded.modules)
    assert located(loaded.job).ref == f"{file}:job"


def test_a_module_is_found_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    write_job(tmp_path / "pack" / "sub", imports="from .. import common", name="inner.py")
    (tmp_path / "pack" / "common.py").write_text("")
    (tmp_path / "pack" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    # when
    loaded = load_job("pack.sub.inner")
    # then
    assert (loaded.module, loaded.root) == ("pack.sub.inner", tmp_path)
    assert set(loaded.modules) == {"pack", "pack.common", "pack.sub.inner"}
    assert load_job("pack.sub.inner:job").job is loaded.job


def test_a_job_is_imported_again_when_a_file_of_it_has_changed(tmp_path: Path) -> None:
    # given
    (tmp_path / "helper.py").write_text("size = 5")
    file = write_job(tmp_path, imports="import helper", size="helper.size")
    first = load_job(file)
    # when
    (tmp_path / "helper.py").write_text("size = 1_000")
    second = load_job(file)
    # then
    assert (first.job.batch_size, second.job.batch_size) == (5, 1000)
    assert load_job(file).job is second.job


def test_two_jobs_of_the_same_names_live_in_one_process(tmp_path: Path) -> None:
    # given
    files = []
    for name, size in (("one", 1), ("two", 2)):
        files.append(write_job(tmp_path / name, imports="import helper", size="helper.size"))
        (tmp_path / name / "helper.py").write_text(f"size = {size}")
    # when
    jobs = [load_job(file) for file in (files[0], files[1], files[0])]
    # then
    assert [loaded.job.batch_size for loaded in jobs] == [1, 2, 1]
    assert [dict(loaded.modules)["helper"].parent.name for loaded in jobs] == ["one", "two", "one"]


def test_a_module_of_the_same_name_from_elsewhere_gives_way(tmp_path: Path) -> None:
    # given
    for name in ("other", "mine"):
        write_job(tmp_path / name, size=len(name), name="fp_train.py")
    sys.path.insert(0, str(tmp_path / "other"))
    __import__("fp_train")
    # when
    loaded = load_job(tmp_path / "mine" / "fp_train.py")
    # then
    assert loaded.job.batch_size == 4
    assert sys.modules["fp_train"].__file__ == str(loaded.file)


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("jbo.py", ["no file", "did you mean job.py?"]),
        ("nowhere/job.py", ["no file nowhere/job.py", "does not exist"]),
        ("job.py:other", ["has no 'other'", "has the jobs job", "job.py:job"]),
        ("job.py:loss", ["'loss' in job.py is function, not a funcpipe.Job"]),
        ("empty.py", ["has no 'job'", "no Job at its top level"]),
        ("./job", ["not a Python file", "did you mean ./job.py?"]),
        ("folder", ["folder is a folder", "there are inner.py"]),
        ("two.dots.py", ["cannot be imported under the name 'two.dots'"]),
        ("no_such_module", ["no module 'no_such_module'", "package.module"]),
        ("empty.sub", ["no module 'empty.sub'"]),
        ("random.py", ["hide", "'random'"]),
        ("pytest.py", ["hide", "'pytest'"]),
        ("", ["names no job"]),
        (":job", ["names no job"]),
    ],
)
def test_a_reference_that_names_no_job_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ref: str, expected: list[str]
) -> None:
    # given
    for name in ("job.py", "two.dots.py", "random.py", "pytest.py"):
        write_job(tmp_path, name=name)
    write_job(tmp_path / "folder", name="inner.py")
    (tmp_path / "empty.py").write_text("")
    monkeypatch.chdir(tmp_path)
    # when
    with pytest.raises(JobError) as caught:
        load_job(ref)
    # then
    for text in expected:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("imports", "expected", "where"),
    [
        ("def f(:", ["importing job raised SyntaxError: "], "job.py:3: def f(:"),
        ("1 / 0", ["raised ZeroDivisionError: division by zero"], "job.py:3 in <module>: 1 / 0"),
        ("import no_such", ["No module named 'no_such'", "install it"], "job.py:3 in <module>"),
        ("import broken", ["raised KeyError: 'x'"], "broken.py:2 in f: return {}['x']"),
        ("import sys; sys.exit(3)", ["sys.exit", "__main__"], "job.py:3 in <module>"),
    ],
    ids=["syntax", "exception", "module", "sibling", "exit"],
)
def test_a_job_that_does_not_import_shows_the_users_own_line(
    tmp_path: Path, imports: str, expected: list[str], where: str
) -> None:
    # given
    (tmp_path / "broken.py").write_text("def f():\n    return {}['x']\nf()\n")
    file = write_job(tmp_path, imports=imports)
    # when
    with pytest.raises(JobImportError) as caught:
        load_job(file)
    # then
    for text in expected:
        assert text in caught.value.message
    assert str(caught.value.where).startswith(where)
    assert str(tmp_path) not in sys.path
    assert "job" not in sys.modules


def test_a_wrong_field_in_a_job_file_shows_its_line(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"batch_size is 0") as caught:
        load_job(write_job(tmp_path, size=0))
    assert type(caught.value) is JobError
    assert str(caught.value.where).startswith("job.py:10 in <module>: job = fp.Job(")


def test_a_script_can_tell_that_it_is_only_being_imported(tmp_path: Path) -> None:
    # given
    imports = "from funcpipe.locate import importing_job\nseen = importing_job()"
    # when
    load_job(write_job(tmp_path, imports=imports))
    # then
    assert sys.modules["job"].seen is True
    assert importing_job() is False


IMPORTED = """
import sys
{statement}
heavy = {{"torch", "boto3", "botocore", "numpy", "pulp", "rich"}}
print(sorted(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "statement",
    [
        "import funcpipe",
        "import funcpipe; funcpipe.Job; funcpipe.FuncpipeError",
        "import funcpipe.locate, funcpipe.bundle, funcpipe.usercode",
        "from funcpipe.locate import load_job; load_job('job.py')",
    ],
)
def test_importing_loads_neither_torch_nor_an_sdk(tmp_path: Path, statement: str) -> None:
    write_job(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(statement=statement)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_all_there() -> None:
    assert set(funcpipe._EXPORTS) | {"__version__"} == set(funcpipe.__all__)
    assert set(funcpipe.__all__) <= set(dir(funcpipe))
    for name in funcpipe.__all__:
        assert getattr(funcpipe, name) is not None
    assert funcpipe.Job is Job
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        funcpipe.nothing  # noqa: B018
