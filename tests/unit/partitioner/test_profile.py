"""Profiles: what a file may hold, what it may not, and times between those that were measured."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from funcpipe.errors import ProfileError
from funcpipe.partitioner.importers import Scale, format_names
from funcpipe.partitioner.profile import FORMAT, UNITS, VERSION, LayerProfile, ModelProfile

HUGE = 10**400


def two_layers() -> ModelProfile:
    return ModelProfile(
        name="two",
        layers=(
            LayerProfile(
                name="first",
                forward_s=((1.0, 3.0), (0.5, 2.0)),
                backward_s=((2.0, 5.0), (1.0, 4.0)),
                parameter_bytes=100,
                trained_bytes=60,
                optimizer_factor=2,
                activation_bytes=7,
                output_bytes=5,
                output_gradient_bytes=4,
                step_s=(0.2, 0.1),
                workspace_bytes=9,
                fixed_workspace_bytes=10,
                step_workspace_bytes=11,
            ),
            LayerProfile(name="second", forward_s=((1, 1), (1, 1)), backward_s=((0, 0), (0, 0))),
        ),
        vcpus=(1, 4),
        micro_batch_sizes=(2, 8),
        batch_size=16,
        base_memory_bytes=1000,
        input_bytes=3,
        source="made up",
        data_bytes=500,
        put_cpu_s=0.003,
        get_cpu_s=0.002,
        put_byte_cpu_s=2e-9,
        get_byte_cpu_s=1e-9,
        late_s=0.01,
        spread=0.05,
        measured={"torch": "2.6", "sizes": [2, 8]},
    )


def default(one: Field[Any]) -> object:
    return one.default if one.default_factory is MISSING else one.default_factory()


def test_a_profile_survives_json(tmp_path: Path) -> None:
    # Given a profile whose every field differs from its default
    profile = two_layers()
    assert [
        one.name for one in fields(ModelProfile) if getattr(profile, one.name) == default(one)
    ] == []
    layer = profile.layers[0]
    assert [
        one.name for one in fields(LayerProfile) if getattr(layer, one.name) == default(one)
    ] == []
    # When it is saved and loaded
    profile.save(tmp_path / "two.json")
    # Then it is the same
    assert ModelProfile.load(tmp_path / "two.json") == profile
    data = json.loads((tmp_path / "two.json").read_text(encoding="utf-8"))
    assert (data["format"], data["version"], data["units"]) == (FORMAT, VERSION, UNITS)


def test_what_is_left_out_has_defaults() -> None:
    data = {
        "format": FORMAT,
        "version": VERSION,
        "name": "least",
        "layers": [{"name": "x", "forward_s": [[1]], "backward_s": [[2]], "parameter_bytes": 8}],
    }
    profile = ModelProfile.from_dict(data)
    (layer,) = profile.layers
    assert (profile.vcpus, profile.micro_batch_sizes, profile.batch_size) == ((1.0,), (1,), None)
    assert (layer.trained, layer.output_gradient, layer.step_s) == (8, 0, ())
    assert profile.step_s(0, vcpu=1) == 0
    assert (profile.data_bytes, profile.put_cpu_s, profile.late_s, profile.measured) == (
        0,
        0,
        0,
        {},
    )
    assert (layer.workspace_bytes, layer.step_workspace_bytes) == (0, 0)


def test_what_was_measured_is_a_copy() -> None:
    # Given
    parts = {"torch": "2.6", "sizes": (1, 2)}
    profile = replace(two_layers(), measured=parts)
    # When what it came from, and what it was written as, change
    parts["torch"] = "3"
    profile.to_dict()["measured"]["sizes"].append(3)
    # Then the profile does not, and holds what JSON would give back
    assert profile.measured == {"torch": "2.6", "sizes": [1, 2]}
    assert hash(profile) == hash(two_layers())


Change = Callable[[dict[str, Any]], object]

BAD: dict[str, tuple[Change, str]] = {
    "no format": (lambda d: d.pop("format"), "`format` is None"),
    "another format": (lambda d: d.update(format="keras"), "`format` is 'keras'"),
    "no version": (lambda d: d.pop("version"), "version None"),
    "a later version": (lambda d: d.update(version=2), "version 2 is not known; expected 1"),
    "a version with a point": (lambda d: d.update(version=1.0), "version 1.0 is not known"),
    "true as version": (lambda d: d.update(version=True), "version True"),
    "milliseconds": (lambda d: d.update(units={"time": "ms", "size": "bytes"}), "units are .*'ms'"),
    "no name": (lambda d: d.pop("name"), "has no 'name'"),
    "an empty name": (lambda d: d.update(name=""), "name is ''"),
    "a source that is no text": (lambda d: d.update(source=5), "source is 5"),
    "an unknown field": (lambda d: d.update(vcpu=[1]), "unknown field 'vcpu'.*vcpus"),
    "no layers": (lambda d: d.pop("layers"), "needs `layers`"),
    "zero layers": (lambda d: d.update(layers=[]), "at least one layer"),
    "layers as a number": (lambda d: d.update(layers=3), "a list of layers"),
    "a layer as a number": (lambda d: d["layers"].append(3), "layer 2: expected a JSON object"),
    "vcpus that shrink": (lambda d: d.update(vcpus=[4, 1]), r"vcpus is \[4, 1\].* grow"),
    "vcpus twice": (lambda d: d.update(vcpus=[1, 1]), "grow"),
    "vcpus of zero": (lambda d: d.update(vcpus=[0, 1]), "above 0"),
    "vcpus without end": (lambda d: d.update(vcpus=[1, float("inf")]), "above 0"),
    "vcpus too large for a float": (lambda d: d.update(vcpus=[1, HUGE]), "vcpus is"),
    "hardly any vcpus": (lambda d: d.update(vcpus=[1e-320, 1]), "from 0.001 to 1,000,000"),
    "a sample too many": (lambda d: d.update(micro_batch_sizes=[1, 10**6 + 1]), "to 1,000,000"),
    "a batch beyond all": (lambda d: d.update(batch_size=HUGE), r"batch_size is 10+\.\.\.; exp"),
    "memory beyond all": (lambda d: d.update(base_memory_bytes=2**60), "to 9,007,199,254,740,992"),
    "no vcpus": (lambda d: d.update(vcpus=[]), r"vcpus is \[\]"),
    "vcpus as a number": (lambda d: d.update(vcpus=1), "vcpus is 1; expected a list"),
    "half a sample": (lambda d: d.update(micro_batch_sizes=[0.5, 8]), "whole numbers"),
    "sizes that shrink": (lambda d: d.update(micro_batch_sizes=[8, 2]), "micro_batch_sizes is"),
    "a size more": (lambda d: d.update(micro_batch_sizes=[2, 4, 8]), "forward_s is not 2 x 3"),
    "no batch": (lambda d: d.update(batch_size=0), "batch_size is 0"),
    "part of a batch": (lambda d: d.update(batch_size=1.5), "batch_size is 1.5"),
    "negative memory": (lambda d: d.update(base_memory_bytes=-1), "base_memory_bytes is -1"),
    "negative input": (lambda d: d.update(input_bytes=-1), "input_bytes is -1"),
    "negative data": (lambda d: d.update(data_bytes=-1), "data_bytes is -1"),
    "a negative PUT": (lambda d: d.update(put_cpu_s=-1), "put_cpu_s is -1"),
    "a GET of a year": (lambda d: d.update(get_cpu_s=4e7), "get_cpu_s is 4.*to 31,622,400"),
    "no time for a byte": (lambda d: d.update(put_byte_cpu_s=None), "put_byte_cpu_s is None"),
    "a text for a byte": (lambda d: d.update(get_byte_cpu_s="1"), "get_byte_cpu_s is '1'"),
    "noticed before": (lambda d: d.update(late_s=-0.1), "late_s is -0.1"),
    "an infinite spread": (lambda d: d.update(spread=float("inf")), "spread is inf"),
    "measured as a text": (lambda d: d.update(measured="now"), "measured is 'now'"),
    "measured as nan": (lambda d: d.update(measured={"a": float("nan")}), "measured holds what"),
}  # fmt: skip

BAD_LAYERS: dict[str, tuple[Change, str]] = {
    "no name": (lambda d: d.pop("name"), "layer 0: it has no 'name'"),
    "no times": (lambda d: d.pop("backward_s"), "layer 0: it has no 'backward_s'"),
    "a misspelt field": (lambda d: d.update(output_byte=1), "unknown field 'output_byte'.*output_"),
    "a name on two lines": (lambda d: d.update(name="a\nb"), "printable"),
    "a negative time": (lambda d: d.update(forward_s=[[1, -1], [1, 1]]), "forward_s is -1"),
    "a time that is no number": (lambda d: d.update(forward_s=[[1, "1"], [1, 1]]), "is '1'"),
    "true as time": (lambda d: d.update(forward_s=[[1, True], [1, 1]]), "is True"),
    "not a number": (lambda d: d.update(backward_s=[[1, float("nan")], [1, 1]]), "is nan"),
    "forever": (lambda d: d.update(backward_s=[[1, float("inf")], [1, 1]]), "backward_s is inf"),
    "more than a year": (lambda d: d.update(forward_s=[[1, 4e7], [1, 1]]), "to 31,622,400"),
    "a time too large for a float": (lambda d: d.update(forward_s=[[1, HUGE], [1, 1]]), "to 31,"),
    "one row": (lambda d: d.update(forward_s=[[1, 1]]), r"layer 0 \(first\): forward_s is"),
    "a short row": (lambda d: d.update(backward_s=[[1, 1], [1]]), "backward_s is not 2 x 2"),
    "a flat list": (lambda d: d.update(forward_s=[1, 1]), "expected a list of numbers"),
    "a time alone": (lambda d: d.update(forward_s=1), "expected a list of rows"),
    "a step too few": (lambda d: d.update(step_s=[1]), "step_s has 1 times"),
    "a negative step": (lambda d: d.update(step_s=[1, -1]), "step_s is -1"),
    "negative weights": (lambda d: d.update(parameter_bytes=-1), "parameter_bytes is -1"),
    "null weights": (lambda d: d.update(parameter_bytes=None), "parameter_bytes is None"),
    "more trained than there are": (lambda d: d.update(trained_bytes=101), "trained_bytes is 101"),
    "weights beyond any memory": (lambda d: d.update(parameter_bytes=1e19), "parameter_bytes is"),
    "negative state": (lambda d: d.update(optimizer_factor=-1), "optimizer_factor is -1"),
    "negative activations": (lambda d: d.update(activation_bytes=-1), "activation_bytes is -1"),
    "negative workspace": (lambda d: d.update(workspace_bytes=-1), "workspace_bytes is -1"),
    "a step in no room": (lambda d: d.update(step_workspace_bytes=-1), "step_workspace_bytes is"),
    "negative output": (lambda d: d.update(output_bytes=-1), "output_bytes is -1"),
    "a negative gradient": (lambda d: d.update(output_gradient_bytes=-1), "output_gradient"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_profile_is_refused(case: str, tmp_path: Path) -> None:
    change, message = BAD[case]
    data = copy.deepcopy(two_layers().to_dict())
    change(data)
    refuse(data, message, tmp_path)


@pytest.mark.parametrize("case", BAD_LAYERS)
def test_a_bad_layer_is_refused(case: str, tmp_path: Path) -> None:
    change, message = BAD_LAYERS[case]
    data = copy.deepcopy(two_layers().to_dict())
    change(data["layers"][0])
    refuse(data, message, tmp_path)


def test_a_layer_is_named_once() -> None:
    data = copy.deepcopy(two_layers().to_dict())
    data["layers"][1].update(name="layer 1.Conv2d", output_bytes=-1)
    with pytest.raises(ProfileError) as caught:
        ModelProfile.from_dict(data)
    assert str(caught.value).startswith("layer 1 (layer 1.Conv2d): output_bytes is -1; expected")


@pytest.mark.parametrize("name", ["no\0file", "\0"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(ProfileError, match="there is a NUL byte in its name"):
        ModelProfile.load(Path(name))


def refuse(data: object, message: str, folder: Path) -> None:
    """As a dictionary and, with the file's name, as a file."""
    with pytest.raises(ProfileError, match=message):
        ModelProfile.from_dict(data)
    path = folder / "bad.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ProfileError, match=message) as caught:
        ModelProfile.load(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON: it is nested too deeply"),
        (b'{"batch_size": ' + b"9" * 5000, r"a number of 5,000 digits: 9{20}\.\.\.$"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[1]", "found list"),
        (b'{"format": "a", "format": "b"}', "'format' is there twice"),
        (b'{"format": {}}', "`format` is {}"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "no.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=message):
        ModelProfile.load(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.json: cannot be read"):
        ModelProfile.load(tmp_path / "none.json")
    with pytest.raises(ProfileError, match="it is no file"):
        ModelProfile.load(tmp_path)


# -- times in between ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        (2, 1.0),
        (8, 3.0),
        (5, 2.0),  # half way
        (1, 2 / 3),  # on along the line, which is above proportion
        (11, 4.0),  # on along the line
    ],
)
def test_times_between_sizes_lie_on_a_line(size: int, seconds: float) -> None:
    assert two_layers().forward_s(0, vcpu=1, micro_batch_size=size) == pytest.approx(seconds)


@pytest.mark.parametrize(("size", "seconds"), [(1, 2.0), (2, 4.0), (8, 4.0), (100, 4.0)])
def test_a_falling_line_is_not_followed_beyond_its_ends(size: int, seconds: float) -> None:
    # Given times that do not grow, as noise can make them
    layer = LayerProfile(name="x", forward_s=((4.0, 4.0),), backward_s=((4.0, 1.0),))
    profile = ModelProfile(name="x", layers=(layer,), micro_batch_sizes=(2, 8))
    # Then below the first one it is never less than in proportion, above the last one no less
    assert profile.forward_s(0, vcpu=1, micro_batch_size=size) == max(seconds, 4.0)
    assert profile.backward_s(0, vcpu=1, micro_batch_size=100) == 1.0


def test_one_size_alone_means_proportion() -> None:
    layer = LayerProfile(name="x", forward_s=((4.0,),), backward_s=((8.0,),))
    profile = ModelProfile(name="x", layers=(layer,), micro_batch_sizes=(2,))
    assert profile.forward_s(0, vcpu=1, micro_batch_size=3) == 6.0
    assert profile.backward_s(0, vcpu=1, micro_batch_size=1) == 4.0


@pytest.mark.parametrize(
    ("vcpu", "seconds"),
    [
        (1, 1.0),
        (4, 0.5),
        (2, 1 - 0.5 * (1 - 1 / 2) / (1 - 1 / 4)),  # linear in 1 / vcpu
        (0.5, 2.0),  # a quota stretches time
        (8, 0.5),  # nobody has measured it
    ],
)
def test_times_between_vcpus_follow_amdahl(vcpu: float, seconds: float) -> None:
    profile = two_layers()
    assert profile.forward_s(0, vcpu=vcpu, micro_batch_size=2) == pytest.approx(seconds)
    assert profile.step_s(0, vcpu=vcpu) == pytest.approx(seconds / 5)


# -- the document ----------------------------------------------------------------------------

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "profiles.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("heading", "kind"), [("profile", ModelProfile), ("layer", LayerProfile), ("`Scale`", Scale)]
)
def test_the_document_explains_every_field(heading: str, kind: type) -> None:
    (table,) = re.findall(
        rf"^\| field of (?:the |a )?{heading} \|.*\n((?:\|.*\n)+)", DOCUMENT, re.M
    )
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", table, re.M)
    assert [name for name, _, _ in rows] == [field.name for field in fields(kind)]
    # And the names are all that is in the table
    assert len(rows) == table.count("\n") - 1


@pytest.mark.parametrize(
    ("heading", "kind"), [("the profile", ModelProfile), ("a layer", LayerProfile)]
)
def test_the_document_says_what_is_needed_and_what_else_is_meant(heading: str, kind: type) -> None:
    (table,) = re.findall(rf"^\| field of {heading} \|.*\n((?:\|.*\n)+)", DOCUMENT, re.M)
    told = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| `?(.+?)`? \|", table, re.M))
    assert told == {
        one.name: "needed" if default(one) is MISSING else json.dumps(default(one))
        for one in fields(kind)
    }


def test_the_example_in_the_document_is_a_profile() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```$", DOCUMENT, re.M | re.S)
    profile = ModelProfile.from_dict(json.loads(text))
    assert profile.num_layers == 2


def test_the_document_lists_the_formats() -> None:
    (table,) = re.findall(r"^\| format \|.*\n((?:\|.*\n)+)", DOCUMENT, re.M)
    assert tuple(re.findall(r"^\| `([\w-]+)`", table, re.M)) == format_names()[1:]
