"""Reading the profiles that PipeDream, dnn-partitioning and Piper published, into graphs.

All three repositories are by msr-fiddle on GitHub. Times become seconds, sizes stay bytes, both of
the batch that was measured. What the files leave open is decided here, and told by
`docs/profiles.md`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from funcpipe.errors import PlatformError, ProfileError
from funcpipe.partitioner.graph import Graph, Node, title_of
from funcpipe.partitioner.jsonfile import parse_json
from funcpipe.partitioner.limits import MOST_SAMPLES, is_number, read_number, shown

__all__ = ["FORMATS", "Published", "recognise"]

ASSUMED_SAMPLES = 64
_MOST = 1e18  # of any unit: keeps out infinity, and integers that no float holds


@dataclass(frozen=True, kw_only=True)
class Published:
    """graph: of one batch. samples: in that batch, and how that is known."""

    graph: Graph
    samples: int
    samples_how: str


@dataclass(frozen=True, kw_only=True)
class Format:
    """title: for people. slowdown, optimizer_factor: what `Scale` assumes unless told otherwise."""

    title: str
    read: Callable[[str], Published]
    slowdown: float
    optimizer_factor: float


def recognise(text: str) -> str | None:
    """The name in `FORMATS` of what the text looks like, or None."""
    if not text.lstrip().startswith("{"):
        return "pipedream" if "forward_compute_time=" in text else None
    nodes = _json(text).get("nodes")
    first = nodes[0] if isinstance(nodes, list) and nodes else None
    if not isinstance(first, dict):
        return None
    marks = {"piper": "TMPCs", "dnn-partitioning": "fpgaLatency"}
    return next((name for name, mark in marks.items() if mark in first), None)


# -- PipeDream -------------------------------------------------------------------------------

_NODE = re.compile(
    r"(\S+) -- (.*) -- forward_compute_time=(\S*), backward_compute_time=(\S*), "
    r"activation_size=(\[.*?\]|\S*), parameter_size=(\S*?)(?: -- stage_id=\d+)?"
)
_EDGE = re.compile(r"(\S+) -- (\S+)")
# These give on memory that another node's output has.
_SHARES = re.compile(r"View\b|Size\b|__getitem__|.*\binplace\b")


def read_pipedream(text: str) -> Published:
    """Lines of nodes (milliseconds, bytes) and of edges, indented."""
    nodes, edges = [], []
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _NODE.fullmatch(line.rstrip()):
            nodes.append(_pipedream_node(found))
        elif line[:1].isspace() and (found := _EDGE.fullmatch(line.strip())):
            edges.append((found[1], found[2]))
        elif line.strip():
            raise ProfileError(
                f"line {number} is {line.strip()!r:.80}; expected 'node -- operation -- "
                "forward_compute_time=..., backward_compute_time=..., activation_size=..., "
                "parameter_size=...' or, indented, 'node -- node'"
            )
    samples = _samples_of(nodes)
    return Published(
        graph=Graph(nodes=tuple(node for node, _ in nodes), edges=tuple(edges)),
        samples=ASSUMED_SAMPLES if samples is None else samples,
        samples_how="assumed" if samples is None else "worked out from its layers",
    )


_Sized = tuple[Node, list[float]]


def _pipedream_node(line: re.Match[str]) -> _Sized:
    name, operation, forward, backward, sizes, parameters = line.groups()
    outputs = [_float(name, one) for one in sizes.strip("[]").split(";")]
    is_input = re.fullmatch(r"Input\d*", operation) is not None
    node = Node(
        id=name,
        name=operation,
        # An input's time is the loader's.
        forward_s=0.0 if is_input else _float(name, forward) / 1000,
        backward_s=0.0 if is_input else _float(name, backward) / 1000,
        parameter_bytes=_float(name, parameters),
        output_bytes=sum(outputs),
        kept_bytes=0.0 if _SHARES.match(operation) else sum(outputs),
    )
    return node, outputs


def _samples_of(nodes: Iterable[_Sized]) -> int | None:
    """The batch, from layers that give so many 32-bit numbers for each sample, if all agree.

    An LSTM's last output is its state. A linear layer gives one vector a sample in convolutional
    models; elsewhere it may be one for each word.
    """
    linear, states, convolves = set(), set(), False
    for node, outputs in nodes:
        convolves = convolves or node.name.startswith("Conv2d(")
        if found := re.match(r"Linear\(in_features=\d+, out_features=(\d+)", node.name):
            linear.add(outputs[-1] / 4 / int(found[1]))
        elif (found := re.match(r"LSTM\(\d+, (\d+)\)", node.name)) and len(outputs) > 1:
            states.add(outputs[-1] / 4 / int(found[1]))
    known = states or (linear if convolves else set())
    samples = known.pop() if len(known) == 1 else 0.0
    return int(samples) if 1 <= samples <= MOST_SAMPLES and samples == int(samples) else None


def _float(owner: str, text: str) -> float:
    try:
        value = read_number(text.strip())
    except ValueError:
        value = math.nan
    if not 0 <= value < _MOST:
        raise ProfileError(
            f"{title_of(owner)}: found {shown(text.strip())}; expected a number of at least 0, "
            "below 1e18"
        )
    return value


# -- dnn-partitioning ------------------------------------------------------------------------

# The batches of the two files with these SHA-256, which do not name them. BERT-24: its pooler
# gives 8,192 bytes, 1,024 numbers for each of 2 samples. ResNet-50 has PipeDream's numbers.
_SAMPLES = {
    "8edcf0e9300b16faa608a9eaf3083c6641dec751984f8ee82be8cdfe2126413c": 2,
    "b32cf4d2c2cdeb9241d1f12177a06c569cc551b1a4511bc41a51c883edb5ed8a": 128,
}


def read_dnn_partitioning(text: str) -> Published:
    """Layer graphs of training: milliseconds on the accelerator (fpgaLatency), bytes.

    A forward node and its backward node have one colorClass. `size` of either: parameters and
    output together. An edge's `size` is the output of its source; `cost` is the time of its
    transfer over one certain link, which is left out. A node made from nothing without parameters
    is the input: its time is the loader's.
    """
    data = _json(text)
    rows = {}
    for row in _list(data, "nodes", "the file"):
        name = _id(row, "id", "a node")
        if name in rows:
            raise ProfileError(f"{title_of(name)} is there twice; expected unique ids")
        rows[name] = row
    pairs = _pairs(rows)
    backward_of = {back: name for name, back in pairs.items()}
    outputs: dict[str, list[float]] = {}
    ends: dict[str, float] = {}
    edges = []
    for row in _list(data, "edges", "the file"):
        source, target = (_id(row, end, "an edge") for end in ("sourceId", "destId"))
        for end in (source, target):
            if end not in rows:
                raise ProfileError(
                    f"the edge {source} -> {target} leads to {title_of(end)}, which is not there"
                )
        size = _number(row, "size", f"the edge {source} -> {target}")
        if source in pairs and target in pairs:
            edges.append((source, target))
            outputs.setdefault(source, []).append(size)
        elif source in backward_of and target in backward_of:
            # Backward edges repeat the forward ones, with the output of their target.
            ends[backward_of[target]] = size
    made = {target for _, target in edges}
    nodes = []
    for name, back in pairs.items():
        output = max(outputs.get(name, [ends.get(name, 0.0)]))
        node = _coloured_node(name, rows[name], rows[back], output)
        if name not in made and node.parameter_bytes == 0:
            node = replace(node, forward_s=0.0, backward_s=0.0)
        nodes.append(node)
    samples = _SAMPLES.get(hashlib.sha256(text.encode()).hexdigest())
    return Published(
        graph=Graph(nodes=tuple(nodes), edges=tuple(edges)),
        samples=ASSUMED_SAMPLES if samples is None else samples,
        samples_how="assumed" if samples is None else "of this published file",
    )


def _pairs(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Each forward node's backward node, by colorClass."""
    classes: dict[object, tuple[list[str], list[str]]] = {}
    for name, row in rows.items():
        colour = _id(row, "colorClass", title_of(name))
        told = row.get("isBackwardNode")
        if told not in (0, 1):  # true and false among them
            raise ProfileError(
                f"{title_of(name)}: isBackwardNode is {shown(told)}; expected 0 or 1"
            )
        is_backward = bool(told)
        classes.setdefault(colour, ([], []))[is_backward].append(name)
    for forwards, backwards in classes.values():
        if len(forwards) != 1 or len(backwards) != 1:
            raise ProfileError(
                f"{title_of((forwards + backwards)[0])}: its colorClass has {len(forwards)} "
                f"forward and {len(backwards)} backward nodes; expected one of each, as in the "
                "layer graphs for training"
            )
    return {forwards[0]: backwards[0] for forwards, backwards in classes.values()}


def _coloured_node(
    name: str, forward: Mapping[str, Any], backward: Mapping[str, Any], output: float
) -> Node:
    owner = title_of(name)
    size = _number(forward, "size", owner)
    if output > size:
        raise ProfileError(
            f"{owner}: its size is {size:g} and its output {output:g} bytes; expected the size to "
            "include the output"
        )
    return Node(
        id=name,
        name=str(forward.get("name", "")),
        forward_s=_number(forward, "fpgaLatency", owner) / 1000,
        backward_s=_number(backward, "fpgaLatency", owner) / 1000,
        parameter_bytes=size - output,
        output_bytes=output,
        kept_bytes=output,
    )


# -- Piper -----------------------------------------------------------------------------------

BYTES_PER_PARAMETER = 4


def read_piper(text: str) -> Published:
    """Without tensor parallelism and recomputation ("1", "vanilla"): seconds of a sample, bytes.

    timePerSample is forward and backward together. With recomputation a sample takes one more
    forward: that is the forward's time, or a third where the file does not tell.
    """
    data = _json(text)
    rows = _list(data, "nodes", "the file")
    if all(re.fullmatch(r"node\d+", str(row.get("name", ""))) for row in rows):
        raise ProfileError(
            "its nodes are those of PipeDream (node1, node2, ...): such files of Piper's are in "
            "milliseconds, unlike its others; import PipeDream's own profile instead"
        )
    nodes = [_piper_node(row) for row in rows]
    costs = {}
    for row in _list(data, "edges", "the file"):
        source, target = (_id(row, end, "an edge") for end in ("sourceId", "destId"))
        costs[source, target] = _number(row, "communicationCost", f"the edge {source} -> {target}")
    graph = Graph(nodes=tuple(nodes), edges=tuple(costs))
    outputs = _piper_outputs(graph, costs)
    sized = tuple(replace(node, output_bytes=outputs.get(node.id, 0.0)) for node in nodes)
    return Published(
        graph=Graph(nodes=sized, edges=graph.edges),
        samples=1,
        samples_how="as its times are",
    )


def _piper_node(row: Mapping[str, Any]) -> Node:
    name = _id(row, "id", "a node")
    owner = title_of(name)
    degrees = row.get("TMPCs")
    variants = _list(degrees, "1", f"{owner}: TMPCs") if isinstance(degrees, dict) else []
    by_id = {_id(variant, "id", f"{owner}: a variant"): variant for variant in variants}
    plain, again = by_id.get("vanilla"), by_id.get("activation recomp")
    if plain is None:
        raise ProfileError(
            f'{owner} has no "vanilla" variant with one device; expected one in TMPCs, under "1"'
        )
    whole = _number(plain, "timePerSample", owner)
    more = 0.0 if again is None else _number(again, "timePerSample", owner) - whole
    forward = more if 0 < more < whole else whole / 3
    return Node(
        id=name,
        name=str(row.get("name", "")),
        forward_s=forward,
        backward_s=whole - forward,
        parameter_bytes=_number(plain, "parameterSize", owner) * BYTES_PER_PARAMETER,
        kept_bytes=_number(plain, "memoryUsageA", owner),
    )


def _piper_outputs(graph: Graph, costs: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Bytes of each node's output, from those of the edges.

    bert32a100.json has the hidden state's bytes at the mask's edge into a layer and the other way
    round; their sum is right. So an input gives what it keeps, which is itself, and what
    remains of a layer's edges is that of its one other producer.
    """
    inputs = {node.id: node.kept_bytes for node in graph.nodes if graph.is_input(node)}
    found = dict(inputs)
    for node in graph.nodes:
        producers = graph.producers[node.id]
        others = [one for one in producers if one not in inputs]
        whole = sum(costs[one, node.id] for one in producers)
        rest = whole - sum(inputs[one] for one in producers if one in inputs)
        for other in others:
            share = rest if len(others) == 1 and rest >= 0 else costs[other, node.id]
            found[other] = max(found.get(other, 0.0), share)
    return found


# -- reading JSON ----------------------------------------------------------------------------


def _json(text: str) -> dict[str, Any]:
    try:
        data = parse_json(text)
    except PlatformError as error:
        raise ProfileError(error.message) from error
    if not isinstance(data, dict):
        raise ProfileError(f"it is a JSON {type(data).__name__}; expected an object")
    return data


def _list(data: Mapping[str, Any], name: str, owner: str) -> Sequence[dict[str, Any]]:
    rows = data.get(name)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ProfileError(f"{owner} has no {name!r} that is a list of objects")
    return rows


def _id(row: Mapping[str, Any], name: str, owner: str) -> str:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ProfileError(f"{owner}: {name} is {shown(value)}; expected a number or a name")
    return str(value)


def _number(row: Mapping[str, Any], name: str, owner: str) -> float:
    value = row.get(name)
    if not is_number(value) or not 0 <= value < _MOST:  # type: ignore[operator]
        raise ProfileError(
            f"{owner}: {name} is {shown(value)}; expected a number of at least 0, below 1e18"
        )
    return value  # type: ignore[return-value]


FORMATS: dict[str, Format] = {
    "pipedream": Format(
        title="PipeDream (graph.txt)",
        read=read_pipedream,
        slowdown=100.0,
        optimizer_factor=1.0,
    ),
    "dnn-partitioning": Format(
        title="dnn-partitioning (JSON, layer graphs for training)",
        read=read_dnn_partitioning,
        slowdown=100.0,
        optimizer_factor=1.0,
    ),
    "piper": Format(
        title="Piper (JSON)",
        read=read_piper,
        slowdown=1000.0,
        optimizer_factor=2.0,
    ),
}
