"""Profiles, chains and merges: nothing is lost on the way, and bounds are bounds."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from funcpipe.partitioner.cost import Estimate, evaluate
from funcpipe.partitioner.graph import Graph, Node, chain, in_order
from funcpipe.partitioner.importers import Scale
from funcpipe.partitioner.merge import Merged, loss_at_most, merge
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting

FIGURES = ("forward_s", "backward_s", "parameter_bytes", "kept_bytes")
MB = 2**20

# -- graphs ----------------------------------------------------------------------------------

amounts = st.sampled_from([0.0, 0.0, 0.1, 1.0, 2.5, 7.0])
bytes_ = st.sampled_from([0.0, 1.0, 2.0, 1e6 + 0.5])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to ten nodes in any order of the file, of which many weigh nothing."""
    count = draw(st.integers(1, 10))
    nodes = [
        Node(
            id=f"n{i}",
            forward_s=draw(amounts),
            backward_s=draw(amounts),
            parameter_bytes=draw(st.sampled_from([0.0, 0.0, 3.0])),
            output_bytes=draw(bytes_),
            kept_bytes=draw(bytes_),
        )
        for i in range(count)
    ]
    pairs = list(itertools.combinations(range(count), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    edges = tuple((f"n{a}", f"n{b}") for a, b in chosen)
    return Graph(nodes=tuple(draw(st.permutations(nodes))), edges=edges)


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_a_chain_keeps_all_totals_and_crosses_what_is_needed_behind(graph: Graph) -> None:
    # When
    layers = chain(graph)
    order = [node for layer in layers for node in layer.nodes]
    # Then every node is there once, behind all that it needs
    assert order == list(in_order(graph))
    assert sorted(node.id for node in order) == sorted(node.id for node in graph.nodes)
    place = {node.id: i for i, node in enumerate(order)}
    assert all(place[a] < place[b] for a, b in graph.edges)
    # And sums are kept
    for name in FIGURES:
        whole = math.fsum(getattr(node, name) for node in graph.nodes)
        assert math.isclose(math.fsum(layer.total(name) for layer in layers), whole)
    # And each layer has one node that weighs something, unless none does
    heavy = [sum(not node.is_light for node in layer.nodes) for layer in layers]
    assert heavy == [1] * len(layers) or (heavy == [0] and all(n.is_light for n in order))
    # And what crosses a cut is counted one by one
    stop = 0
    for layer in layers:
        stop += len(layer.nodes)
        before = {node.id for node in order[:stop]}
        crossers = {a for a, b in graph.edges if a in before and b not in before}
        made = {b for _, b in graph.edges}
        by_id = {node.id: node for node in graph.nodes}
        with_gradient = {a for a in crossers if a in made or not by_id[a].is_light}
        assert layer.output_bytes == math.fsum(by_id[a].output_bytes for a in crossers)
        assert layer.gradient_bytes == math.fsum(by_id[a].output_bytes for a in with_gradient)


@settings(max_examples=100, deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_of_edges_does_not_matter(graph: Graph, random: object) -> None:
    edges = list(graph.edges)
    random.shuffle(edges)  # type: ignore[attr-defined]
    assert in_order(Graph(nodes=graph.nodes, edges=(*edges, *edges))) == in_order(graph)


@given(st.floats(0, 1), st.floats(1, 64), st.floats(1, 64))
def test_more_vcpus_never_take_longer(parallel: float, one: float, other: float) -> None:
    scale = Scale(parallel=parallel)
    few, many = sorted((one, other))
    assert scale.share(many) <= scale.share(few) <= 1 + 1e-15
    assert scale.share(0.5) == 2


# -- profiles --------------------------------------------------------------------------------


def layers(vcpus: int, sizes: int) -> st.SearchStrategy[LayerProfile]:
    times = st.sampled_from([0.0, 0.01, 0.1, 0.3])
    grid = st.tuples(*[st.tuples(*[times] * sizes)] * vcpus)
    megabytes = st.sampled_from([0.0, 1.0, 40.0, 300.0]).map(lambda mb: mb * MB)
    return st.builds(
        lambda weights, share, **drawn: LayerProfile(
            parameter_bytes=weights, trained_bytes=weights * share, **drawn
        ),
        weights=megabytes,
        share=st.sampled_from([0.0, 0.5, 1.0]),
        name=st.text("abc", min_size=1, max_size=3),
        forward_s=grid,
        backward_s=grid,
        optimizer_factor=st.sampled_from([0.0, 1.0, 2.0]),
        activation_bytes=megabytes.map(lambda size: size / 8),
        output_bytes=megabytes.map(lambda size: size / 64),
        output_gradient_bytes=megabytes.map(lambda size: size / 64),
        step_s=st.one_of(st.just(()), st.tuples(*[times] * vcpus)),
        workspace_bytes=megabytes,
        fixed_workspace_bytes=megabytes,
        step_workspace_bytes=megabytes.map(lambda size: size * 4),
    )


@st.composite
def profiles(draw: st.DrawFn, most: int = 5) -> ModelProfile:
    vcpus = draw(st.sampled_from([(1.0,), (0.5, 4.0)]))
    sizes = draw(st.sampled_from([(1,), (2, 4)]))
    return ModelProfile(
        name="drawn",
        layers=tuple(draw(st.lists(layers(len(vcpus), len(sizes)), min_size=1, max_size=most))),
        vcpus=vcpus,
        micro_batch_sizes=sizes,
        batch_size=8,
        input_bytes=draw(st.sampled_from([0.0, 1e3, 1e6])),
        data_bytes=draw(st.sampled_from([0.0, 100.0 * MB, 2000.0 * MB])),
        late_s=draw(st.sampled_from([0.0, 0.2])),
        **{f"{way}_cpu_s": draw(st.sampled_from([0.0, 0.1])) for way in ("put", "get")},
        **{f"{way}_byte_cpu_s": draw(st.sampled_from([0.0, 1e-8])) for way in ("put", "get")},
    )


@settings(max_examples=100, deadline=None)
@given(profiles())
def test_a_profile_survives_json(profile: ModelProfile) -> None:
    assert ModelProfile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile


@settings(max_examples=100, deadline=None)
@given(profiles(most=8), st.integers(1, 9), st.sampled_from([0.0, 0.1, 1.0]))
def test_a_merge_keeps_all_totals(profile: ModelProfile, target: int, slack: float) -> None:
    # When
    merged = merge(profile, target, slack=slack)
    # Then there are so many layers, cut where the bounds say
    assert merged.profile.num_layers == min(target, profile.num_layers)
    assert (merged.bounds[0], merged.bounds[-1]) == (0, profile.num_layers)
    for layer, stop in zip(merged.profile.layers, merged.bounds[1:], strict=True):
        assert layer.output_bytes == profile.layers[stop - 1].output_bytes
        assert layer.output_gradient == profile.layers[stop - 1].output_gradient
    for layer, (start, stop) in zip(merged.profile.layers, pairwise(merged.bounds), strict=True):
        spaces = [one.workspace_bytes for one in profile.layers[start:stop]]
        assert layer.workspace_bytes == max(spaces)
    # And whatever is added up is the same; beyond the sizes that were measured, no less
    pairs = list(zip(sums(merged.profile, (2, 3, 4)), sums(profile, (2, 3, 4)), strict=True))
    assert all(math.isclose(ours, theirs) for ours, theirs in pairs)
    pairs = list(zip(sums(merged.profile, (1, 8)), sums(profile, (1, 8)), strict=True))
    assert all(ours <= theirs * (1 + 1e-9) for ours, theirs in pairs)


def sums(profile: ModelProfile, sizes: tuple[int, ...]) -> list[float]:
    found = []
    for vcpu, size in itertools.product((0.5, 1, 3), sizes):
        for get in (profile.forward_s, profile.backward_s):
            found.append(
                math.fsum(get(i, vcpu=vcpu, micro_batch_size=size) for i in every(profile))
            )
        found.append(math.fsum(profile.step_s(i, vcpu=vcpu) for i in every(profile)))
    for layer_sum in (
        lambda layer: layer.parameter_bytes,
        lambda layer: layer.trained,
        lambda layer: layer.trained * layer.optimizer_factor,
        lambda layer: layer.activation_bytes,
    ):
        found.append(math.fsum(layer_sum(layer) for layer in profile.layers))
    return found


def every(profile: ModelProfile) -> range:
    return range(profile.num_layers)


# -- what merging can cost -------------------------------------------------------------------

PLATFORM = load_platform("aws-lambda")
TIERS = (1024, 3072, 10240)


def plans(num_layers: int, degrees: tuple[int, ...], recompute: bool) -> Iterator[Plan]:
    """All plans with every stage on a tier of `TIERS`, in any mixture of degrees."""
    for count in range(1, min(num_layers, 3) + 1):
        for cuts in itertools.combinations(range(1, num_layers), count - 1):
            for choice in itertools.product(itertools.product(TIERS, degrees), repeat=count):
                stages = tuple(
                    StagePlan(
                        first_layer=start,
                        stop_layer=stop,
                        replicas=degree,
                        memory_mb=tier,
                        recompute=recompute,
                    )
                    for (start, stop), (tier, degree) in zip(
                        pairwise((0, *cuts, num_layers)), choice, strict=True
                    )
                )
                yield Plan(stages=stages, micro_batch_size=2)


def least(profile: ModelProfile, degrees: tuple[int, ...], recompute: bool) -> list[float]:
    """The least time, dollars and a mixture of both, of all plans that fit. Infinite: none."""
    setting = Setting(profile=profile, platform=PLATFORM, batch_size=8, num_steps=100)
    found = [math.inf] * 3
    for plan in plans(profile.num_layers, degrees, recompute):
        estimate = evaluate(setting, plan)
        if estimate.fits:
            values = (estimate.step_s, estimate.dollars, estimate.step_s + 5e4 * estimate.dollars)
            found = list(map(min, found, values))
    return found


@settings(max_examples=40, deadline=None)
@given(
    profiles(most=4),
    st.integers(1, 4),
    st.sampled_from([(1,), (1, 2), (4,)]),
    st.booleans(),
    st.data(),
)
def test_merging_costs_no_more_than_the_bound_says(
    profile: ModelProfile,
    target: int,
    degrees: tuple[int, ...],
    recompute: bool,
    data: st.DataObject,
) -> None:
    # Given a merge with cuts anywhere
    count = min(target, profile.num_layers)
    cuts = data.draw(st.permutations(range(1, profile.num_layers)))[: count - 1]
    bounds = (0, *sorted(cuts), profile.num_layers)
    merged = merged_at(profile, bounds)
    # When the best plans of the relaxed, the original and the merged chain are found by trying all
    bound, best, value = (
        least(one, degrees, recompute) for one in (merged.relaxed, profile, merged.profile)
    )
    # Then they are ordered
    for low, middle, high in zip(bound, best, value, strict=True):
        assert low <= middle * (1 + 1e-9)
        assert middle <= high * (1 + 1e-9)
        if high < math.inf:
            assert middle >= high * (1 - loss_at_most(high, low)) * (1 - 1e-9)


@pytest.mark.parametrize("cheap", [0, 1, 2])
@pytest.mark.parametrize("figure", ["output_bytes", "output_gradient_bytes"])
def test_the_bound_is_tight_where_all_weight_is_in_anchors(cheap: int, figure: str) -> None:
    # Given two heavy layers, and cuts between them of which one is cheap
    flat = ((0.0,),)
    weights = [((0.3,),), flat, flat, ((0.3,),)]
    sizes = [1.0 * MB if i == cheap else 5.0 * MB for i in range(4)]
    profile = ModelProfile(
        name="two heavy ones",
        layers=tuple(
            LayerProfile(
                name=f"l{i}",
                forward_s=weight,
                backward_s=weight,
                **{"output_bytes": MB, "output_gradient_bytes": MB, figure: size},
            )
            for i, (weight, size) in enumerate(zip(weights, sizes, strict=True))
        ),
        input_bytes=MB,
    )
    # When it is merged at the middle
    merged = merged_at(profile, (0, 2, 4))
    bound, best, value = (
        least(one, (1,), False) for one in (merged.relaxed, profile, merged.profile)
    )
    # Then the bound is what the original reaches, and the merged chain only where it kept that cut
    assert bound == pytest.approx(best, rel=1e-12)
    assert (value[0] > best[0] * 1.01) == (cheap != 1)


def merged_at(profile: ModelProfile, bounds: tuple[int, ...]) -> Merged:
    """A merge whose cuts were not chosen by time."""
    parts = []
    for start, stop in pairwise(bounds):
        part = ModelProfile(
            name="part",
            layers=profile.layers[start:stop],
            vcpus=profile.vcpus,
            micro_batch_sizes=profile.micro_batch_sizes,
        )
        parts += merge(part, 1).profile.layers
    shorter = replace(profile, layers=tuple(parts))
    return Merged(profile=shorter, original=profile, bounds=bounds)


@settings(max_examples=60, deadline=None)
@given(profiles(most=6), st.integers(1, 6), st.data())
def test_a_plan_of_a_merged_chain_costs_the_same_on_the_original(
    profile: ModelProfile, target: int, data: st.DataObject
) -> None:
    # Given a plan of the merged chain
    merged = merge(profile, target)
    plan = data.draw(st.sampled_from(list(plans(merged.profile.num_layers, (1, 2), False))))
    # When both are evaluated
    one, other = (
        evaluate(Setting(profile=about, platform=PLATFORM, batch_size=8), chosen)
        for about, chosen in ((merged.profile, plan), (profile, merged.expand(plan)))
    )
    # Then
    assert all(map(math.isclose, figures(one), figures(other)))
    assert len(figures(one)) == 2 + 3 * len(plan.stages)
    # and memory too, but that one layer may have the largest workspace for each sample and another
    # the largest whatever the samples
    for stage, whole in zip(other.stages, one.stages, strict=True):
        assert stage.memory.total <= whole.memory.total * (1 + 1e-9)
        spare = max(layer.fixed_workspace_bytes for layer in profile.layers)
        assert whole.memory.total <= (stage.memory.total + spare) * (1 + 1e-9)


def figures(estimate: Estimate) -> list[float]:
    found = [estimate.step_s, estimate.dollars]
    for stage in estimate.stages:
        found += [stage.sync_s, stage.fees.per_step, stage.times.fill_b]
    return found
