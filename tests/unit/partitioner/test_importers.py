"""Files that others published: what is read from them, how it is scaled, and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from funcpipe.errors import ProfileError
from funcpipe.partitioner.importers import Scale, format_names, load_profile
from funcpipe.partitioner.profile import LayerProfile, ModelProfile

FOLDER = Path(__file__).resolve().parents[2] / "profiles"
ONE_TO_ONE = Scale(samples=1, slowdown=1, vcpus=(1,))
# Samples as the files' own sizes show: see docs/profiles.md.
PUBLISHED = {
    "pipedream/alexnet.graph.txt": (18, 256),
    "pipedream/gnmt.graph.txt": (17, 32),
    "pipedream/resnet18.graph.txt": (60, 256),
    "pipedream/resnet50.graph.txt": (158, 128),
    "pipedream/vgg16.graph.txt": (36, 128),
    "dnn-partitioning/bert24_training.json": (27, 2),
    "dnn-partitioning/resnet50_training.json": (158, 128),
    "piper/bert32a100.json": (34, 1),
}


def total(profile: ModelProfile, name: str) -> float:
    """Of all layers; for times, with one vCPU."""
    values = [getattr(layer, name) for layer in profile.layers]
    return math.fsum(one if isinstance(one, int | float) else one[0][0] for one in values)


def totals(profile: ModelProfile) -> list[float]:
    names = ("forward_s", "backward_s", "parameter_bytes", "activation_bytes")
    return [total(profile, name) for name in names]


def test_every_published_file_is_in_the_table() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*")}
    assert files == set(PUBLISHED)
    notice = (FOLDER / "NOTICE").read_text(encoding="utf-8")
    assert "MIT License" in notice
    assert {name for name in ("pipedream", "dnn-partitioning", "piper") if name in notice} == {
        Path(name).parts[0] for name in PUBLISHED
    }


def test_the_document_tells_what_each_published_file_holds() -> None:
    text = (FOLDER.parents[1] / "docs" / "profiles.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\S+/\S+)` \| (\d+) \| (\d+) \|", text, re.M)
    assert {name: (int(layers), int(samples)) for name, layers, samples in rows} == PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_has_its_layers_and_says_how_it_was_scaled(name: str) -> None:
    # When it is read as it is
    num_layers, samples = PUBLISHED[name]
    profile = load_profile(FOLDER / name)
    # Then
    assert profile.num_layers == num_layers
    plural = "" if samples == 1 else "s"
    assert f"{samples} sample{plural} a batch" in profile.source
    assert "assumed" not in profile.source
    assert profile.batch_size == max(64, samples)
    assert profile.name == Path(name).name.partition(".")[0]
    # And the last layer sends nothing on, all others something, and no gradient is larger
    assert [layer.output_bytes > 0 for layer in profile.layers] == [True] * (num_layers - 1) + [
        False
    ]
    assert all(layer.output_gradient <= layer.output_bytes for layer in profile.layers)
    # And it is a profile that can be kept
    assert ModelProfile.from_dict(profile.to_dict()) == profile


# -- against a second reading ----------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("pipedream")])
def test_totals_of_pipedream(name: str) -> None:
    # Given what a line says, read in another way
    forward = backward = parameters = kept = 0.0
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("\t"):
            continue
        operation = line.split(" -- ")[1]
        *_, f, b, activation, p = [part.split("=")[-1] for part in line.split(", ")]
        if not operation.startswith("Input"):
            forward, backward = forward + float(f), backward + float(b)
        parameters += float(p)
        if "inplace" not in operation and operation.split("(")[0] not in (
            "View",
            "Size",
            "__getitem__",
        ):
            kept += sum(map(float, activation.strip("[]").split("; ")))
    # Then the profile's sums are those, with milliseconds as seconds
    profile = load_profile(FOLDER / name, scale=ONE_TO_ONE)
    assert totals(profile) == pytest.approx([forward / 1e3, backward / 1e3, parameters, kept])


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.startswith("dnn")])
def test_totals_of_dnn_partitioning(name: str) -> None:
    data = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    sizes = {edge["sourceId"]: edge["size"] for edge in data["edges"]}
    ends = {edge["destId"]: edge["size"] for edge in data["edges"]}
    back = {one["colorClass"]: one for one in data["nodes"] if one["isBackwardNode"]}
    nodes = [one for one in data["nodes"] if not one["isBackwardNode"]]
    outputs = [
        sizes[one["id"]] if one["id"] in sizes else ends[back[one["colorClass"]]["id"]]
        for one in nodes
    ]
    made = {edge["destId"] for edge in data["edges"]}
    # What is made from nothing is the input
    forward = sum(one["fpgaLatency"] for one in nodes if one["id"] in made)
    profile = load_profile(FOLDER / name, scale=ONE_TO_ONE)
    assert totals(profile) == pytest.approx(
        [
            forward / 1e3,
            sum(one["fpgaLatency"] for one in back.values()) / 1e3,
            sum(one["size"] for one in nodes) - sum(outputs),
            sum(outputs),
        ]
    )


def test_totals_of_piper() -> None:
    data = json.loads((FOLDER / "piper/bert32a100.json").read_text(encoding="utf-8"))
    plain, again = ([node["TMPCs"]["1"][i] for node in data["nodes"]] for i in (0, 1))
    profile = load_profile(FOLDER / "piper/bert32a100.json", scale=ONE_TO_ONE)
    both = sum(one["timePerSample"] for one in plain)
    more = sum(one["timePerSample"] for one in again) - both
    assert totals(profile) == pytest.approx(
        [
            more,
            both - more,
            4 * sum(one["parameterSize"] for one in plain),
            sum(one["memoryUsageA"] for one in plain),
        ]
    )


def test_the_same_measurement_in_two_formats_is_the_same_chain() -> None:
    # Given ResNet-50 as PipeDream measured it and as dnn-partitioning wrote that down
    one = load_profile(FOLDER / "pipedream/resnet50.graph.txt")
    other = load_profile(FOLDER / "dnn-partitioning/resnet50_training.json")
    # Then cuts, times and weights are the same
    for mine, theirs in zip(one.layers, other.layers, strict=True):
        assert mine.output_bytes == theirs.output_bytes
        assert mine.output_gradient == theirs.output_gradient
        assert mine.parameter_bytes == theirs.parameter_bytes
        assert mine.forward_s[0] == pytest.approx(theirs.forward_s[0])
        assert mine.backward_s[0] == pytest.approx(theirs.backward_s[0])


def test_resnet_is_as_large_as_resnet_is() -> None:
    # 25,557,032 weights, an image of 3 x 224 x 224, and 1,000 classes
    profile = load_profile(FOLDER / "pipedream/resnet50.graph.txt")
    assert total(profile, "parameter_bytes") == pytest.approx(25_557_032 * 4, rel=1e-9)
    assert profile.input_bytes == 3 * 224 * 224 * 4


def test_the_hidden_state_and_the_mask_cross_in_bert32() -> None:
    # Given hidden states of 2,048 x 3,840 numbers, and a mask of 2,048 x 2,048
    hidden, mask = 2048 * 3840 * 4, 2048 * 2048 * 4
    layers = load_profile(FOLDER / "piper/bert32a100.json").layers
    # Then both go on between transformer layers, and the gradient of the state comes back
    assert {layer.output_bytes for layer in layers[:32]} == {hidden + mask}
    assert {layer.output_gradient for layer in layers[:33]} == {hidden}
    assert layers[32].output_bytes == hidden
    assert layers[1].parameter_bytes == (12 * 3840**2 + 13 * 3840) * 4


# -- scaling ---------------------------------------------------------------------------------


def test_times_are_scaled_to_a_sample_on_each_number_of_vcpus() -> None:
    # Given
    raw = load_profile(FOLDER / "pipedream/vgg16.graph.txt", scale=ONE_TO_ONE)
    scale = Scale(
        samples=32,
        slowdown=200,
        parallel=0.9,
        vcpus=(0.5, 1, 3),
        optimizer_factor=2,
        batch_size=96,
    )
    # When
    profile = load_profile(FOLDER / "pipedream/vgg16.graph.txt", scale=scale)
    # Then
    for one, plain in zip(profile.layers, raw.layers, strict=True):
        for name in ("forward_s", "backward_s"):
            alone = getattr(plain, name)[0][0] * 200 / 32
            rows = [[2 * alone], [alone], [alone * (0.1 + 0.9 / 3)]]
            assert list(map(list, getattr(one, name))) == [pytest.approx(row) for row in rows]
        for name in ("activation_bytes", "output_bytes", "output_gradient_bytes"):
            assert getattr(one, name) == pytest.approx(getattr(plain, name) / 32)
        assert one.parameter_bytes == plain.parameter_bytes
        assert one.optimizer_factor == 2
    assert (profile.vcpus, profile.micro_batch_sizes, profile.batch_size) == (
        (0.5, 1, 3),
        (1,),
        96,
    )
    assert profile.input_bytes == pytest.approx(raw.input_bytes / 32)
    assert "32 samples a batch (as told); one vCPU takes 200 times" in profile.source
    assert "90% of the work" in profile.source


@pytest.mark.parametrize(
    ("name", "slowdown", "factor"),
    [
        ("pipedream/vgg16.graph.txt", "100", 1),
        ("dnn-partitioning/bert24_training.json", "100", 1),
        ("piper/bert32a100.json", "1000", 2),
    ],
)
def test_each_format_has_its_assumptions(name: str, slowdown: str, factor: float) -> None:
    profile = load_profile(FOLDER / name)
    assert f"one vCPU takes {slowdown} times as long" in profile.source
    assert {layer.optimizer_factor for layer in profile.layers} == {factor}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"samples": 0}, "samples is 0"),
        ({"samples": 10**6 + 1}, "a whole number from 1 to 1,000,000"),
        ({"samples": 1.5}, "samples is 1.5"),
        ({"batch_size": True}, "batch_size is True"),
        ({"slowdown": 0}, "slowdown is 0"),
        ({"slowdown": math.nan}, "slowdown is nan"),
        ({"slowdown": 10**400}, "slowdown is"),
        ({"parallel": 1.1}, "parallel is 1.1"),
        ({"parallel": "most"}, "parallel is 'most'"),
        ({"optimizer_factor": -1}, "optimizer_factor is -1"),
        ({"vcpus": ()}, r"vcpus is \(\)"),
        ({"vcpus": 4}, "vcpus is 4"),
        ({"vcpus": (2, 1)}, "that grow"),
        ({"vcpus": (0, 1)}, "above 0"),
        ({"vcpus": (1e-320, 1)}, "from 0.001 to 1,000,000"),
    ],
)
def test_a_scale_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        Scale(**fields)


# -- what is in a file -----------------------------------------------------------------------


def node(
    name: str = "n1", operation: str = "Add", forward: object = 1, size: object = 8, extra: str = ""
) -> str:
    """A line of PipeDream's."""
    return (
        f"{name} -- {operation} -- forward_compute_time={forward}, backward_compute_time=1, "
        f"activation_size={size}, parameter_size=0{extra}\n"
    )


def coloured(**changes: Any) -> str:
    """Two forward nodes and their backward nodes, as dnn-partitioning writes them."""
    common = {"fpgaLatency": 1, "cpuLatency": 1, "size": 8}
    nodes = [
        {"id": 1, "colorClass": 1, "isBackwardNode": 0, **common},
        {"id": 2, "colorClass": 2, "isBackwardNode": False, **common},
        {"id": 3, "colorClass": 1, "isBackwardNode": 1, **common},
        {"id": 4, "colorClass": 2, "isBackwardNode": True, **common},
    ]
    nodes[changes.pop("node", 0)].update(changes.pop("change", {}))
    edges = [{"sourceId": 1, "destId": 2, "cost": 1, "size": 4}, *changes.pop("edges", [])]
    return json.dumps({"nodes": nodes, "edges": edges, **changes})


def piper(*variants: dict[str, Any], **changes: Any) -> str:
    plain = {"id": "vanilla", "timePerSample": 3, "parameterSize": 1, "memoryUsageA": 1}
    own = {"id": 0, "name": "layer", "TMPCs": {"1": [plain, *variants]}, **changes.pop("own", {})}
    return json.dumps({"nodes": [own], "edges": [], **changes})


def write(folder: Path, text: str) -> Path:
    path = folder / "some.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_batch_that_the_file_does_not_show_is_assumed(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, node(size="[4; 128; 128]", extra=" -- stage_id=3")))
    assert "64 samples a batch (assumed)" in profile.source
    assert profile.layers[0].activation_bytes == 260 / 64
    assert "64 samples a batch (assumed)" in load_profile(write(tmp_path, coloured())).source


@pytest.mark.parametrize(
    ("lines", "samples"),
    [
        ([("Conv2d(3, 4)", 8), ("Linear(in_features=1, out_features=5, bias=True)", 240)], "12"),
        ([("Linear(in_features=1, out_features=5, bias=True)", 240)], "64"),  # words, perhaps
        ([("LSTM(7, 5)", "[9000; 240; 240]")], "12"),
        ([("LSTM(7, 5)", "[9000; 240; 240]"), ("LSTM(5, 5)", "[9000; 260; 260]")], "64"),
        ([("LSTM(7, 5)", "[9000; 240; 241]")], "64"),
    ],
)
def test_a_batch_is_worked_out_where_layers_agree(
    tmp_path: Path, lines: list[tuple[str, object]], samples: str
) -> None:
    text = "".join(node(f"n{i}", name, size=size) for i, (name, size) in enumerate(lines))
    text += "".join(f"\tn{i - 1} -- n{i}\n" for i in range(1, len(lines)))
    assert f": {samples} samples a batch" in load_profile(write(tmp_path, text)).source


@pytest.mark.parametrize(
    ("again", "forward"),
    [(None, 1.0), (4.2, 1.2), (3, 1.0), (2, 1.0), (6, 1.0)],
    ids=["no second variant", "one more forward", "no more", "less", "as much again"],
)
def test_the_forward_of_piper_is_what_recomputing_adds(
    tmp_path: Path, again: float | None, forward: float
) -> None:
    variants = [] if again is None else [{"id": "activation recomp", "timePerSample": again}]
    profile = load_profile(write(tmp_path, piper(*variants)), scale=ONE_TO_ONE)
    assert profile.layers[0].forward_s[0][0] == pytest.approx(forward)
    assert total(profile, "forward_s") + total(profile, "backward_s") == pytest.approx(3)


KNOWN = "known: funcpipe's own .*'funcpipe-profile'.*PipeDream.*dnn-partitioning.*Piper"
CUT = [{"sourceId": 1, "destId": 9, "size": 1}]
REFUSED = {
    "nothing": ("", KNOWN),
    "prose": ("Once upon a time", KNOWN),
    "a list": ("[1, 2]", KNOWN),
    "some JSON": ('{"a": 1}', KNOWN),
    "JSON with other nodes": ('{"nodes": [{"id": 1}]}', KNOWN),
    "JSON with nodes that are none": ('{"nodes": [1]}', KNOWN),
    "JSON that breaks off": ('{"nodes": [', "not JSON"),
    "a torn line": (node() + "node7 -- ReLU -- forward_compute_t", "line 2 is 'node7 -- ReLU"),
    "an edge that is not indented": (node() + node("n2") + "n1 -- n2\n", "line 3 is 'n1 -- n2'"),
    "a negative time": (node(forward=-1), "node n1: found '-1'; expected a number of at least 0"),
    "a time that is not a number": (node(forward="nan"), "node n1: found 'nan'"),
    "words for a time": (node(forward="soon"), "node n1: found 'soon'"),
    "words for a size": (node(size="[1; x]"), "node n1: found 'x'"),
    "infinite size": (node(size="inf"), "node n1: found 'inf'"),
    "a node twice": (node() + node(), "node n1 is there twice"),
    "an edge to nowhere": (node() + "\tn1 -- n9\n", "edge n1 -> n9 leads to node n9"),
    "a cycle": (node() + node("n2") + "\tn1 -- n2\n\tn2 -- n1\n", "depends on itself"),
    "an age": (node(forward=1e15), r"layer n1 Add: forward_s is"),
    "a node without time": (coloured(change={"fpgaLatency": None}), "node 1: fpgaLatency is None"),
    "a negative latency": (coloured(node=3, change={"fpgaLatency": -1}), "node 2: fpga.* is -1"),
    "an infinite latency": (coloured(change={"fpgaLatency": 10**400}), "node 1: fpga.* is 1000"),
    "a size below the output": (coloured(change={"size": 3}), "node 1: its size is 3 and"),
    "an id twice": (coloured(node=1, change={"id": 1}), "node 1 is there twice"),
    "no id": (coloured(change={"id": None}), "a node: id is None"),
    "no colour": (coloured(change={"colorClass": None}), "node 1: colorClass is None"),
    "no backward": (coloured(node=2, change={"colorClass": 7}), "1 forward and 0 backward"),
    "two backwards": (coloured(node=2, change={"colorClass": 2}), "1 forward and 0 backward"),
    "an edge into nowhere": (coloured(edges=CUT), "edge 1 -> 9 leads to node 9"),
    "an edge without size": (
        coloured(edges=[{"sourceId": 3, "destId": 4, "cost": 1}]), "edge 3 -> 4: size is None"
    ),
    "a node of nothing but time": ('{"nodes": [{"fpgaLatency": 1}]}', "a node: id is None"),
    "one device only": (piper(own={"TMPCs": {"2": []}}), "'1' that is a list"),
    "no devices": (piper(own={"TMPCs": 5}), 'node 0 has no "vanilla"'),
    "no plain variant": (piper(own={"TMPCs": {"1": [{"id": "other"}]}}), 'no "vanilla" variant'),
    "a negative sample": (
        piper(own={"TMPCs": {"1": [{"id": "vanilla", "timePerSample": -1}]}}),
        "node 0: timePerSample is -1",
    ),
    "a variant without a name": (
        piper({"id": [], "timePerSample": 1}), r"node 0: a variant: id is \[\]; expected a"
    ),
    "true as a sample's time": (
        piper(own={"TMPCs": {"1": [{"id": "vanilla", "timePerSample": True}]}}),
        "node 0: timePerSample is True",
    ),
    "true as latency": (coloured(change={"fpgaLatency": True}), "node 1: fpgaLatency is True"),
    "a direction that is none": (coloured(change={"isBackwardNode": 2}), "is 2; expected 0 or 1"),
    "an underscore": (node(forward="1_0"), "node n1: found '1_0'; expected a number"),
    "an id that says node": (node("node1") + "\tnode1 -- node9\n", "> node9 leads to node9, which"),
    "no more than an input": (node(operation="Input0"), "it has inputs only"),
    "two nodes apart": (node() + node("n2"), "node n1 and node n2 are not connected"),
    "a name twice": ('{"nodes": [], "nodes": []}', "'nodes' is there twice"),
    "PipeDream's nodes in Piper's form": (piper(own={"name": "node7"}), "milliseconds"),
    "edges that are none": (piper(edges=5), "no 'edges' that is a list"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_profile_is_refused_with_its_file(case: str, tmp_path: Path) -> None:
    text, message = REFUSED[case]
    path = write(tmp_path, text)
    with pytest.raises(ProfileError, match=message) as caught:
        load_profile(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.txt: cannot be read"):
        load_profile(tmp_path / "none.txt")
    with pytest.raises(ProfileError, match="it is no file"):
        load_profile(tmp_path)
    (tmp_path / "picture").write_bytes(b"\x89PNG\xff")
    with pytest.raises(ProfileError, match=r"it is not text: .*known: "):
        load_profile(tmp_path / "picture")


def test_a_format_can_be_named(tmp_path: Path) -> None:
    path = FOLDER / "piper/bert32a100.json"
    assert load_profile(path, format="piper") == load_profile(path)
    assert format_names() == ("auto", "funcpipe", "pipedream", "dnn-partitioning", "piper")
    for other, message in (
        ("pipedream", r"line 1 is '\{'"),
        ("dnn-partitioning", "node 0: colorClass is None"),
        ("funcpipe", "`format` is None"),
        ("keras", "unknown format 'keras'; known: auto, funcpipe, pipedream"),
    ):
        with pytest.raises(ProfileError, match=message):
            load_profile(path, format=other)


# -- funcpipe's own --------------------------------------------------------------------------


def test_a_profile_of_our_own_is_what_it_is(tmp_path: Path) -> None:
    # Given
    layer = LayerProfile(name="l", forward_s=((1.0,),), backward_s=((2.0,),))
    profile = ModelProfile(name="mine", layers=(layer,) * 3)
    profile.save(tmp_path / "mine.json")
    # Then it is loaded, and merged where that is asked for
    assert load_profile(tmp_path / "mine.json") == profile
    assert load_profile(tmp_path / "mine.json", merge=2).num_layers == 2
    # And not scaled, nor read with an error in it
    with pytest.raises(ProfileError, match="leave the scale out"):
        load_profile(tmp_path / "mine.json", scale=Scale())
    data = {**profile.to_dict(), "version": 99}
    (tmp_path / "mine.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ProfileError, match=r"mine\.json: profile version 99"):
        load_profile(tmp_path / "mine.json")


def test_an_imported_profile_can_be_merged() -> None:
    profile = load_profile(FOLDER / "pipedream/resnet50.graph.txt", merge=12)
    whole = load_profile(FOLDER / "pipedream/resnet50.graph.txt")
    assert profile.num_layers == 12
    assert totals(profile) == pytest.approx(totals(whole))
    assert re.search(r"not measured\); 158 layers merged to 12$", profile.source)


def test_a_long_name_keeps_both_of_its_ends() -> None:
    # Given layers that are described in more letters than a name has
    path = FOLDER / "pipedream" / "vgg16.graph.txt"
    assert "dilation=1, ceil_mode=False)" in path.read_text(encoding="utf-8")
    # When
    names = [layer.name for layer in load_profile(path).layers]
    # Then
    cut = [name for name in names if "..." in name]
    assert cut
    assert {len(name) for name in cut} == {80} == {max(map(len, names))}
    assert all(name.startswith("node") and name.endswith("ceil_mode=False)") for name in cut)
