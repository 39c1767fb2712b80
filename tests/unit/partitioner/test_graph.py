"""Graphs: what is none, the order they are cut in, what crosses, and what is folded."""

from __future__ import annotations

from typing import Any

import pytest

from funcpipe.errors import ProfileError
from funcpipe.partitioner.graph import Graph, Node, chain, crossing, in_order


def graph_of(edges: str, **outputs: float) -> Graph:
    """From ``"a>b b>c"`` and the bytes of each node's output. Capitals weigh nothing."""
    nodes = tuple(
        Node(id=name, forward_s=float(name.islower()), output_bytes=size)
        for name, size in outputs.items()
    )
    pairs = [edge.split(">") for edge in edges.split()]
    return Graph(nodes=nodes, edges=tuple((a, b) for a, b in pairs))


def names(graph: Graph) -> str:
    return "".join(node.id for node in in_order(graph))


@pytest.mark.parametrize(
    ("edges", "outputs", "message"),
    [
        ("", {}, "no nodes"),
        ("a>b", {"a": 1}, "edge a -> b leads to node b, which is not there"),
        ("b>a", {"a": 1}, "leads to node b"),
        ("a>a", {"a": 1}, "node a depends on itself: a -> a"),
        ("a>b b>c c>b", {"a": 1, "b": 1, "c": 1}, "(b -> c -> b|c -> b -> c)"),
        ("a>b b>c c>a c>d", {"d": 1, "c": 1, "b": 1, "a": 1}, "node [abc] depends on itself"),
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused(edges: str, outputs: dict[str, float], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        graph_of(edges, **outputs)


def test_an_id_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ProfileError, match="node x is there twice"):
        Graph(nodes=(Node(id="x"), Node(id="y"), Node(id="x")), edges=())


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", None, True])
@pytest.mark.parametrize(
    "name", ["forward_s", "backward_s", "parameter_bytes", "output_bytes", "kept_bytes"]
)
def test_a_figure_that_is_no_amount_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ProfileError, match=f"node n7: {name} is "):
        Node(id="n7", **{name: value})


def test_branches_are_finished_one_after_the_other() -> None:
    # Given two branches of two nodes, each as large as the other
    graph = graph_of("a>b b>c a>d d>e c>f e>f", a=2, b=2, c=2, d=2, e=2, f=2)
    # Then one is done before the other begins
    assert names(graph) == "abcdef"


def test_what_frees_memory_comes_first() -> None:
    # Given a branch that ends in little and one that stays large
    graph = graph_of("a>b a>c c>d b>e d>e", a=5, b=5, c=4, d=1, e=0)
    # Then the one that ends in little is done first
    assert names(graph) == "acdbe"
    assert crossing(graph, in_order(graph)) == [5, 9, 6, 6, 0]


def test_inputs_come_first_and_have_no_gradient() -> None:
    # Given a mask that only the last node reads
    graph = graph_of("X>a a>b M>b", X=7, a=3, b=1, M=4)
    order = in_order(graph)
    # Then it is carried from the start, and nothing comes back for it
    assert names(graph) == "XMab"
    assert crossing(graph, order)[1:] == [11, 7, 0]
    assert crossing(graph, order, gradients=True) == [0, 0, 3, 0]


def test_an_output_counts_once_however_many_read_it() -> None:
    graph = graph_of("a>b a>b a>c b>c", a=5, b=2, c=0)
    assert crossing(graph, in_order(graph)) == [5, 7, 0]


def test_the_file_decides_between_equals() -> None:
    assert names(graph_of("", c=1, a=1, b=1)) == "cab"


def test_what_weighs_nothing_is_folded_where_the_fewest_bytes_cross() -> None:
    # Given a pair that is unpacked by views, of which one is used
    graph = graph_of("X>a a>V a>W V>b b>P P>c", X=1, a=9, V=6, W=3, b=8, P=2, c=1)
    # Then views stay with their maker, and the pooling before the cut that it makes cheap
    layers = chain(graph)
    assert ["".join(node.id for node in layer.nodes) for layer in layers] == ["XaWV", "bP", "c"]
    assert [layer.output_bytes for layer in layers] == [6, 2, 0]
    assert [layer.name for layer in layers] == ["a", "b", "c"]


def test_what_makes_more_of_little_is_folded_behind_the_cut() -> None:
    graph = graph_of("a>U U>b", a=1, U=100, b=1)
    assert [layer.output_bytes for layer in chain(graph)] == [1, 0]


def test_weightless_nodes_alone_are_one_layer() -> None:
    (layer,) = chain(graph_of("A>B", A=1, B=1))
    assert [node.id for node in layer.nodes] == ["A", "B"]
    assert (layer.name, layer.output_bytes, layer.gradient_bytes) == ("A", 0, 0)
