"""The examples: jobs and platform files, and that they can be used as their documents say."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import default_collate

import funcpipe as fp
from funcpipe import cli
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.profile import ModelProfile

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("digits", "charlm")


def load(name: str) -> ModuleType:
    path = EXAMPLES / name / "job.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batch(dataset: Any, *indices: int) -> tuple[Tensor, Tensor]:
    inputs, targets = default_collate([dataset[index] for index in indices])
    return inputs, targets


def test_every_example_is_checked_here() -> None:
    assert {path.parent.name for path in EXAMPLES.glob("*/job.py")} == set(NAMES)
    assert all((EXAMPLES / name / "README.md").is_file() for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_one_step_of_plain_pytorch_works(name: str) -> None:
    job = load(name).job
    assert isinstance(job, fp.Job)
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    scheduler = job.lr_scheduler(optimizer)
    inputs, targets = batch(job.train_data(), 0, 1, 2)
    before = [parameter.clone() for parameter in model.parameters()]
    loss = job.loss(model(inputs), targets)
    assert loss.shape == ()
    loss.backward()
    optimizer.step()
    scheduler.step()
    changed = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert all(changed)


@pytest.mark.parametrize("name", NAMES)
def test_metrics_are_means_over_samples(name: str) -> None:
    job = load(name).job
    model = job.model().eval()
    inputs, targets = batch(job.eval_data(), 0, 1, 2, 3)
    with torch.no_grad():
        output = model(inputs)
    for metric in job.metrics.values():
        whole = metric(output, targets)
        halves = (metric(output[:2], targets[:2]) + metric(output[2:], targets[2:])) / 2
        assert whole.shape == ()
        assert halves.item() == pytest.approx(whole.item())


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_a_chain_long_enough_for_four_stages(name: str) -> None:
    model = load(name).job.model()
    assert isinstance(model, nn.Sequential)
    assert len(model) >= 8
    assert not any(isinstance(layer, nn.Sequential) for layer in model)


@pytest.mark.parametrize("name", NAMES)
def test_the_data_are_the_same_each_time_they_are_loaded(name: str) -> None:
    job = load(name).job
    for function in (job.train_data, job.eval_data):
        first, again = function(), function()
        assert len(first) == len(again)
        for a, b in zip(batch(first, 0, 5), batch(again, 0, 5), strict=True):
            assert torch.equal(a, b)


def test_digits_are_split_without_overlap() -> None:
    module = load("digits")
    train, test = module.load(train=True), module.load(train=False)
    assert (len(train), len(test)) == (1437, 360)
    seen = {image.numpy().tobytes() for image, _ in train}
    assert all(image.numpy().tobytes() not in seen for image, _ in test)
    assert sorted({int(label) for _, label in test}) == list(range(10))


def test_the_characters_held_out_are_not_trained_on() -> None:
    module = load("charlm")
    train, test = module.load_train(), module.load_test()
    assert len(test) == module.NUM_HELD_OUT
    assert torch.equal(torch.cat([train.codes, test.codes]), module.read_codes())


def test_targets_are_the_next_characters() -> None:
    inputs, targets = load("charlm").load_train()[7]
    assert torch.equal(inputs[1:], targets[:-1])
    assert inputs.dtype == torch.int64


def test_characters_outside_of_the_vocabulary_read_as_question_marks() -> None:
    module = load("charlm")
    codes = "a\n\té".encode("ascii", "replace").translate(module.CODE_OF_BYTE)
    assert [module.VOCABULARY[code] for code in codes] == ["a", "\n", "?", "?"]


def test_the_character_model_never_looks_ahead() -> None:
    module = load("charlm")
    torch.manual_seed(0)
    model = module.build_model().eval()
    codes = torch.randint(len(module.VOCABULARY), (1, 16))
    changed = codes.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % len(module.VOCABULARY)
    with torch.no_grad():
        one, other = model(codes), model(changed)
    assert torch.equal(one[:, :10], other[:, :10])
    assert not torch.equal(one[:, 10:], other[:, 10:])


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("digits", {"stages": 2, "replicas": (2, 1), "micro_batch_size": 32}),
        ("charlm", {"stages": 2, "micro_batch_size": 8, "schedule": "1f1b"}),
    ],
)
def test_two_steps_on_functions_equal_plain_pytorch(
    tmp_path: Path, name: str, plan: dict[str, Any]
) -> None:
    # Given an example, cut short
    path = str(EXAMPLES / name / "job.py")
    # When it is trained by functions, over a directory, and by plain PyTorch
    summary = fp.train(
        path, steps=2, store=str(tmp_path / "s"), emulate="none", run_dir=tmp_path / "run", **plan
    )
    plain = fp.reference(path, plan["micro_batch_size"], steps=2)
    # Then losses and weights are the same, but for float32's rounding
    assert (summary.status, summary.steps) == ("done", 2)
    assert summary.losses == pytest.approx(plain.losses, rel=1e-5)
    assert summary.metrics.keys() == plain.metrics.keys() > {"loss"}
    trained = load_file(tmp_path / "run" / "model.safetensors")
    model = load(name).job.model()
    model.load_state_dict(trained)
    for key, tensor in plain.state_dict.items():
        torch.testing.assert_close(trained[key], tensor, rtol=1e-3, atol=1e-5)


PLATFORMS = sorted(path.name for path in EXAMPLES.glob("platform/*.json"))


def test_there_is_a_platform_and_it_is_told_of() -> None:
    assert PLATFORMS
    text = (EXAMPLES / "platform" / "README.md").read_text(encoding="utf-8")
    assert [name for name in PLATFORMS if f"examples/platform/{name}" not in text] == []


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_platform_of_ones_own_is_taken(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Given
    path = EXAMPLES / "platform" / name
    # When
    platform = load_platform(str(path))
    shown = cli.main(["platforms", str(path), "--json"])
    # Then it is what the file says, and says of each figure where it is from
    assert shown == 0
    assert json.loads(capsys.readouterr().out) == platform.to_dict()
    assert platform.name == path.stem
    assert all(figure.unverified or figure.source for figure in platform.figures)
    assert not any(figure.unverified and figure.source for figure in platform.figures)
    # And every size that it proposes is one that functions can have
    for size in platform.memory.tiers_mb:
        platform.check_memory(size, name)
        assert platform.threads(size) >= 1


def test_what_the_document_says_of_the_platform_is_so() -> None:
    ours = load_platform(str(EXAMPLES / "platform" / "own-servers.json"))
    amazon = load_platform("aws-lambda")
    assert (ours.network.latency_s, amazon.network.latency_s) == (0.003, 0.03)
    assert (ours.time.limit_s, ours.invocation.concurrency) == (None, 24)
    assert {ours.cores(3584), ours.cores(4096)} == {1, 2}
    assert (ours.price.put, ours.price.granularity_ms, ours.price.currency) == (0, 1000, "EUR")


@pytest.mark.parametrize("name", ["digits", "bert-large"])
def test_the_profiles_can_be_planned_for(name: str) -> None:
    profile = fp.ModelProfile.load(EXAMPLES / "plan" / f"{name}.json")
    assert profile.name == name
    assert "measure.py" in profile.source
    assert fp.plan(profile, micro_batch_sizes=8, degrees=1).num_layers == profile.num_layers


def test_the_profile_of_digits_is_what_its_script_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given the script, which imports the job of another example
    path = EXAMPLES / "plan" / "measure.py"
    spec = importlib.util.spec_from_file_location("example_plan", path)
    assert spec is not None
    assert spec.loader is not None
    measure = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "example_plan", measure)
    spec.loader.exec_module(measure)
    monkeypatch.setattr(measure, "TRIES", 1)
    threads = torch.get_num_threads()
    # When it measures anew
    try:
        measure.main("digits")
    finally:
        torch.set_num_threads(threads)
    # Then all but the times is what lies there
    found, known = (
        without_times(ModelProfile.from_dict(json.loads(text)).to_dict())
        for text in (
            capsys.readouterr().out,
            (EXAMPLES / "plan" / "digits.json").read_text(encoding="utf-8"),
        )
    )
    assert found == known


def without_times(profile: dict[str, Any]) -> dict[str, Any]:
    layers = [
        {name: value for name, value in layer.items() if not name.endswith("_s")}
        for layer in profile["layers"]
    ]
    return {**profile, "layers": layers, "source": ""}
