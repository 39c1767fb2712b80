"""Profiles and plans for tests that hold whatever the figures are."""

from __future__ import annotations

import random

from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.profile import LayerProfile, ModelProfile

MIB = 2**20


def random_profile(seed: int, num_layers: int = 8, *, largest_mib: int = 40) -> ModelProfile:
    """Layers of any size, some frozen, some without parameters. Bytes are whole numbers."""
    chance = random.Random(seed)

    def layer(number: int) -> LayerProfile:
        forward = chance.uniform(0.05, 0.3)
        parameters = chance.choice([0, chance.randrange(MIB, largest_mib * MIB)])
        return LayerProfile(
            name=f"layer{number}",
            forward_s=((forward, 4 * forward), (forward / 3, 4 * forward / 3)),
            backward_s=((2 * forward, 8 * forward), (forward, 2.5 * forward)),
            parameter_bytes=parameters,
            trained_bytes=chance.choice([None, parameters // 2, 0]),
            optimizer_factor=chance.choice([0, 1, 2]),
            activation_bytes=chance.randrange(MIB, largest_mib * MIB),
            output_bytes=chance.randrange(100_000, 4_000_000),
            output_gradient_bytes=chance.choice([None, chance.randrange(100_000, 4_000_000)]),
            step_s=chance.choice([(), (0.01, 0.004)]),
            workspace_bytes=chance.choice([0, chance.randrange(largest_mib * MIB)]),
            fixed_workspace_bytes=chance.choice([0, chance.randrange(largest_mib * MIB)]),
            step_workspace_bytes=chance.choice([0, chance.randrange(20 * largest_mib * MIB)]),
        )

    return ModelProfile(
        name="any",
        layers=tuple(layer(number) for number in range(num_layers)),
        vcpus=(1, 4),
        micro_batch_sizes=(1, 4),
        input_bytes=3_000,
        data_bytes=chance.choice([0, chance.randrange(300 * MIB)]),
        late_s=chance.choice([0, chance.uniform(0, 0.05)]),
        **{name: chance.uniform(0, 0.02) for name in ("put_cpu_s", "get_cpu_s")},
        **{name: chance.uniform(0, 2e-8) for name in ("put_byte_cpu_s", "get_byte_cpu_s")},
    )


def random_plan(
    seed: int,
    profile: ModelProfile,
    *,
    degrees: tuple[int, ...],
    tiers_mb: tuple[int, ...],
    micro_batch_size: int = 4,
    schedule: str = "gpipe",
    sync: str = "pipelined",
) -> Plan:
    chance = random.Random(seed)
    num_stages = chance.randint(1, min(4, profile.num_layers))
    cuts = sorted(chance.sample(range(1, profile.num_layers), num_stages - 1))
    stages = tuple(
        StagePlan(
            first_layer=start,
            stop_layer=stop,
            replicas=chance.choice(degrees),
            memory_mb=chance.choice(tiers_mb),
            recompute=chance.random() < 0.3,
        )
        for start, stop in zip([0, *cuts], [*cuts, profile.num_layers], strict=True)
    )
    return Plan(stages=stages, micro_batch_size=micro_batch_size, schedule=schedule, sync=sync)
