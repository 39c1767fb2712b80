"""What a stage's function holds at its fullest, part by part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from funcpipe.partitioner.memory import MemoryUse, memory_use
from funcpipe.partitioner.plan import StagePlan
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.table import make_table


def chain(*workspaces: float, step: float = 0.0, **fields: float) -> ModelProfile:
    """Layers of 10 bytes of weights, 5 kept and 3 put out a sample, with these workspaces."""
    layers = tuple(
        LayerProfile(
            name=f"layer{number}",
            forward_s=((1.0,),),
            backward_s=((1.0,),),
            parameter_bytes=10,
            activation_bytes=5,
            output_bytes=3,
            workspace_bytes=workspace,
            step_workspace_bytes=step,
        )
        for number, workspace in enumerate(workspaces)
    )
    return ModelProfile(name="chain", layers=layers, base_memory_bytes=100, **fields)


def use_of(profile: ModelProfile, first: int, stop: int, **options: bool) -> MemoryUse:
    """With two micro-batches of 4 samples held."""
    stage = StagePlan(first_layer=first, stop_layer=stop, **options)
    is_last = stop == profile.num_layers
    return memory_use(profile, stage, num_samples=4, held=2, is_last=is_last)


def test_one_layer_at_a_time_needs_its_workspace() -> None:
    profile = chain(7, 100, 20, 0)
    assert [use_of(profile, *span).workspace for span in ((0, 1), (0, 4), (2, 4), (3, 4))] == [
        28, 400, 80, 0,
    ]  # fmt: skip


def test_the_data_set_is_held_once_at_each_end() -> None:
    profile = chain(0, 0, 0, data_bytes=1000)
    assert [use_of(profile, n, n + 1).data for n in range(3)] == [1000, 0, 1000]
    assert use_of(profile, 0, 3).data == 1000


@pytest.mark.parametrize("step", [0, 10, 200])
def test_the_optimiser_steps_when_no_micro_batch_is_left(step: float) -> None:
    # Given a last stage that keeps 2 x 4 x 5 x 2 bytes, and for a while 4 x 2
    profile = chain(0, 1, 2, step=step)
    passes = 80 + 8
    # Then the larger one counts, beside base, weights, gradients and 4 x 3 x 3 on their way
    told = use_of(profile, 1, 3)
    assert told.step_workspace == step
    assert told.total == 100 + 40 + 36 + max(passes, step)


@pytest.mark.parametrize(("replicas", "parts"), [(1, 0), (2, 1), (3, 2), (4, 2)])
def test_gradients_are_synchronised_when_no_micro_batch_is_left(replicas: int, parts: int) -> None:
    # Given 20 bytes of gradients and passes that need next to nothing, then much
    for workspace, more in ((0, parts * 20 / replicas), (100, 400)):
        profile = chain(workspace, workspace)
        profile = replace(
            profile, layers=tuple(replace(one, activation_bytes=0) for one in profile.layers)
        )
        stage = StagePlan(first_layer=0, stop_layer=2, replicas=replicas)
        told = memory_use(profile, stage, num_samples=4, held=0, is_last=True)
        # Then one part is added while another arrives, and the larger of both counts
        assert told.sync == parts * 20 / replicas
        assert told.total == 100 + 40 + more


def test_a_workspace_may_have_a_part_whatever_the_samples() -> None:
    # Given a layer that needs 4 x 30 and 5 more, and one that needs 200 whatever the samples
    profile = chain(30, 0)
    first, second = profile.layers
    fixed = (
        replace(first, fixed_workspace_bytes=5), replace(second, fixed_workspace_bytes=200),
    )  # fmt: skip
    profile = replace(profile, layers=fixed)
    assert [use_of(profile, *span).workspace for span in ((0, 1), (1, 2), (0, 2))] == [
        125, 200, 200,
    ]  # fmt: skip


def test_a_stage_that_recomputes_needs_workspace_too() -> None:
    # Given one stage of two layers, whose input has 2 bytes a sample
    profile = chain(0, 6, input_bytes=2)
    # Then it keeps inputs, and all of one micro-batch in its backward
    told = use_of(profile, 0, 2, recompute=True)
    assert (told.activations, told.workspace) == (4 * (2 * 2 + 10), 24)


def test_the_table_finds_the_largest_workspace_of_all_stages() -> None:
    # Given a chain whose stages have any length from 1 to 21
    rng = np.random.default_rng(0)
    profile = chain(*rng.integers(0, 1000, size=21).tolist(), data_bytes=50, step=300)
    setting = Setting(profile=profile, platform=load_platform("aws-lambda"), batch_size=8)
    table = make_table(
        setting, Combination(micro_batch_size=4, degrees=(1,)), tiers_mb=(1024,),
        recompute="choose",
    )  # fmt: skip
    assert len(table) == 21 * 22
    # Then each has what it has by itself
    need = table.need(np.array(2))
    for row, (first, stop) in enumerate(zip(table.start, table.stop, strict=True)):
        told = use_of(profile, int(first), int(stop), recompute=bool(table.recompute[row]))
        assert need[row] == told.total
