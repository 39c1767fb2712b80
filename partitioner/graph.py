"""Graphs of measured operations, and how one becomes the chain that a profile is.

`chain` puts the nodes in one order and folds what weighs nothing into its neighbours. The bytes
that cross a cut are the outputs whose producer lies before it and which have a consumer behind it,
each counted once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from funcpipe.errors import ProfileError
from funcpipe.partitioner.limits import is_number, shown

__all__ = ["Graph", "Node", "Segment", "chain", "crossing", "in_order", "title_of"]

_NUMBERS = (
    "forward_s",
    "backward_s",
    "parameter_bytes",
    "output_bytes",
    "kept_bytes",
)


def title_of(node: str) -> str:
    """A node's id in a sentence: `node 7`, and `node7` where ids say so themselves."""
    return node if node.startswith("node") else f"node {node}"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operation, with what its batch took. id: unique in the graph; name: for people.

    forward_s, backward_s: seconds. parameter_bytes: weights. output_bytes: of its output, which
    are those of the output's gradient too. kept_bytes: what it keeps from forward to backward.
    """

    id: str
    name: str = ""
    forward_s: float = 0.0
    backward_s: float = 0.0
    parameter_bytes: float = 0.0
    output_bytes: float = 0.0
    kept_bytes: float = 0.0

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value < math.inf:
                raise ProfileError(
                    f"{self.title}: {name} is {shown(value)}; expected a number of at least 0"
                )

    @property
    def title(self) -> str:
        return title_of(self.id)

    @property
    def is_light(self) -> bool:
        """Without time and parameters, as inputs, views and sizes are: no layer of its own."""
        return self.forward_s == self.backward_s == self.parameter_bytes == 0


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Nodes, and edges from a producer's id to a consumer's. ProfileError, with a node's id, for
    ids that are there twice, edges that lead nowhere, cycles, and for no nodes at all.
    """

    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ProfileError("the graph has no nodes; expected at least one")
        seen: set[str] = set()
        for node in self.nodes:
            if node.id in seen:
                raise ProfileError(f"{node.title} is there twice; expected unique ids")
            seen.add(node.id)
        for source, target in self.edges:
            for end in (source, target):
                if end not in seen:
                    raise ProfileError(
                        f"the edge {source} -> {target} leads to {title_of(end)}, which is not "
                        "there"
                    )
        self._check_acyclic()

    def _check_acyclic(self) -> None:
        waiting = {node.id: len(self.producers[node.id]) for node in self.nodes}
        free = [name for name, count in waiting.items() if count == 0]
        while free:
            name = free.pop()
            del waiting[name]
            for consumer in self.consumers[name]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    free.append(consumer)
        if not waiting:
            return
        # Whoever is left waits for another one that is left: going back must come round.
        path = [next(iter(waiting))]
        while path[-1] not in path[:-1]:
            path.append(next(one for one in self.producers[path[-1]] if one in waiting))
        cycle = path[path.index(path[-1]) :][::-1]
        raise ProfileError(f"{title_of(cycle[0])} depends on itself: {' -> '.join(cycle):.200}")

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """Of each node, without repetitions."""
        return self._neighbours(self.edges)

    @cached_property
    def producers(self) -> Mapping[str, tuple[str, ...]]:
        return self._neighbours([(target, source) for source, target in self.edges])

    def _neighbours(self, pairs: Sequence[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
        found: dict[str, dict[str, None]] = {node.id: {} for node in self.nodes}
        for one, other in pairs:
            found[one][other] = None
        return {name: tuple(others) for name, others in found.items()}

    def apart(self) -> tuple[Node, Node] | None:
        """Two nodes that no edges join, whichever way these lead; None if all are one graph."""
        first, *_ = self.nodes
        reached, open_ = {first.id}, [first.id]
        while open_:
            name = open_.pop()
            new = {*self.producers[name], *self.consumers[name]} - reached
            reached |= new
            open_ += new
        lone = next((node for node in self.nodes if node.id not in reached), None)
        return None if lone is None else (first, lone)

    def is_input(self, node: Node) -> bool:
        """Whether it is the model's input: light, and made from nothing. It has no gradient."""
        return node.is_light and not self.producers[node.id]


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A layer of the chain: consecutive nodes, of which at most one is not light.

    output_bytes, gradient_bytes: what crosses the cut behind it, forward and backward.
    """

    nodes: tuple[Node, ...]
    output_bytes: float
    gradient_bytes: float

    @property
    def name(self) -> str:
        """That of the node that weighs something, with its id."""
        node = next((one for one in self.nodes if not one.is_light), self.nodes[0])
        return node.name if node.id in node.name else f"{node.id} {node.name}".strip()

    def total(self, figure: str) -> float:
        """The sum of a figure over its nodes, correctly rounded."""
        return math.fsum(getattr(node, figure) for node in self.nodes)


def in_order(graph: Graph) -> tuple[Node, ...]:
    """The nodes, each behind its producers: the topological order that `chain` cuts.

    Inputs come first, since only the first stage of a pipeline reads them. Then always that one
    of the possible nodes after which the fewest bytes are still needed; among equal ones the
    one that became possible last (depth first), then the one that the file names first. So
    branches are finished one after the other. A heuristic: the best order is NP-hard to find.
    """
    nodes = {node.id: node for node in graph.nodes}
    index = {name: i for i, name in enumerate(nodes)}
    unplaced = {name: len(graph.producers[name]) for name in nodes}
    unused = {name: len(graph.consumers[name]) for name in nodes}
    since = {name: 0 for name, count in unplaced.items() if count == 0}
    order: list[Node] = []

    def grows(name: str) -> float:
        """Bytes that must be kept for later, more than before it."""
        freed = [nodes[one].output_bytes for one in graph.producers[name] if unused[one] == 1]
        return (nodes[name].output_bytes if graph.consumers[name] else 0.0) - math.fsum(freed)

    def place(name: str) -> None:
        order.append(nodes[name])
        del since[name]
        for producer in graph.producers[name]:
            unused[producer] -= 1
        for consumer in graph.consumers[name]:
            unplaced[consumer] -= 1
            if unplaced[consumer] == 0:
                since[consumer] = len(order)

    for node in graph.nodes:
        if graph.is_input(node):
            place(node.id)
    since = dict.fromkeys(since, 0)  # what needs inputs only was possible from the start
    while since:
        place(min(since, key=lambda name: (grows(name), -since[name], index[name])))
    return tuple(order)


def crossing(graph: Graph, order: Sequence[Node], *, gradients: bool = False) -> list[float]:
    """Bytes across the cut behind each node of `order`; gradients: of those, backwards."""
    place = {node.id: i for i, node in enumerate(order)}
    begins: list[list[float]] = [[] for _ in order]
    for i, node in enumerate(order):
        last = max((place[one] for one in graph.consumers[node.id]), default=i)
        if gradients and graph.is_input(node):
            continue
        for cut in range(i, last):
            begins[cut].append(node.output_bytes)
    return [math.fsum(crossers) for crossers in begins]


def chain(graph: Graph) -> tuple[Segment, ...]:
    """The layers: one for each node that is not light, in the order of `in_order`.

    Light nodes between two others go to the one or the other, so that the fewest bytes cross;
    to the earlier one where it does not matter. Nothing is lost: sums over all layers are those
    over all nodes. A graph of light nodes only is one layer.
    """
    order = in_order(graph)
    forward = crossing(graph, order)
    backward = crossing(graph, order, gradients=True)
    heavy = [i for i, node in enumerate(order) if not node.is_light]
    stops = [
        min(range(one, other), key=lambda cut: (forward[cut] + backward[cut], -cut)) + 1
        for one, other in pairwise(heavy)
    ]
    bounds = [0, *stops, len(order)]
    return tuple(
        Segment(
            nodes=tuple(order[start:stop]),
            output_bytes=forward[stop - 1],
            gradient_bytes=backward[stop - 1],
        )
        for start, stop in pairwise(bounds)
    )
