import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from funcpipe.errors import PlanError
from funcpipe.partitioner.plan import Plan, StagePlan, balanced_cuts, even_plan


def stage(first: int, stop: int, replicas: int = 1) -> StagePlan:
    return StagePlan(first_layer=first, stop_layer=stop, replicas=replicas)


def plan(**changes: object) -> Plan:
    fields = {"stages": (stage(0, 2, 2), stage(2, 5)), "micro_batch_size": 8}
    return Plan(**(fields | changes))  # type: ignore[arg-type]


def test_a_plan_survives_a_file(tmp_path: Path) -> None:
    saved = plan(schedule="1f1b", in_flight=4, sync="three-phase")
    saved.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == saved
    assert saved.degrees == (2, 1)
    assert saved.num_functions == 3
    assert saved.num_layers == 5


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"stages": 5}, "stages is 5; expected a tuple of StagePlan"),
        ({"stages": (1,)}, "expected a tuple of StagePlan"),
        ({"stages": ()}, "at least one stage"),
        ({"stages": (stage(1, 2),)}, "begins at layer 1; it must begin at layer 0"),
        ({"stages": (stage(0, 2), stage(3, 4))}, "must begin at layer 2"),
        ({"micro_batch_size": 0}, "micro_batch_size is 0"),
        ({"micro_batch_size": 10**9 + 1}, "at most 1,000,000,000"),
        ({"in_flight": 10**5000}, r"in_flight is \(int, too long to show\)"),
        ({"micro_batch_size": True}, "micro_batch_size is True"),
        ({"schedule": "2f2b"}, "known: gpipe, 1f1b"),
        ({"sync": "none"}, "known: pipelined, three-phase"),
        ({"in_flight": 0}, "in_flight is 0"),
    ],
)
def test_wrong_plans_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint):
        plan(**changes)


@pytest.mark.parametrize("fields", [(0, 0, 1), (-1, 2, 1), (0, 2, 0), (0, 2.5, 1), (0, 2, "1")])
def test_wrong_stages_are_refused(fields: tuple[int, int, int]) -> None:
    with pytest.raises(PlanError, match="a whole number"):
        stage(*fields)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ("{}", "version None"),
        ('{"version": 2}', "version 2"),
        ('{"version": true}', "version True"),
        ('{"version": 1.0}', "version 1.0"),
        ('{"version": 1, "version": 1}', "'version' is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"version": ' + "1" * 5000 + "}", "a number of 5,000 digits"),
        ('{"version": 1}', "needs `stages`"),
        ('{"version": 1, "stages": [1]}', "StagePlan: expected a JSON object"),
        ('{"version": 1, "stages": [{"first_layer": 0}]}', "stop_layer"),
        ('{"version": 1, "stages": [{"first": 0}]}', "unknown field 'first'"),
        ('{"version": 1, "stages": [], "micro_batch_size": 1, "x": 1}', "unknown field 'x'"),
    ],
    ids=lambda value: value[:40],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=complaint) as caught:
        Plan.load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"gone\.json"):
        Plan.load(tmp_path / "gone.json")


def test_a_device_is_no_plan() -> None:
    with pytest.raises(PlanError, match="/dev/zero: it is no file"):
        Plan.load(Path("/dev/zero"))


def test_a_mark_before_the_text_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(plan().to_dict()), encoding="utf-8-sig")
    assert Plan.load(tmp_path / "plan.json") == plan()


def test_json_is_plain() -> None:
    assert Plan.from_dict(json.loads(json.dumps(plan().to_dict()))) == plan()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(1, 8))
def test_no_other_cuts_have_a_lighter_heaviest_stage(weights: list[int], num_stages: int) -> None:
    if num_stages > len(weights):
        with pytest.raises(PlanError, match=f"the model has {len(weights)} layers?;"):
            balanced_cuts(weights, num_stages)
        return

    def heaviest(cuts: list[int]) -> int:
        return max(sum(weights[a:b]) for a, b in itertools.pairwise(cuts))

    inner = itertools.combinations(range(1, len(weights)), num_stages - 1)
    best = min(heaviest([0, *cuts, len(weights)]) for cuts in inner)
    found = balanced_cuts(weights, num_stages)
    assert found[0] == 0
    assert found[-1] == len(weights)
    assert found == sorted(set(found))
    assert heaviest(found) == best


def test_one_replica_count_serves_all_stages() -> None:
    made = even_plan([1, 1, 1, 1], num_stages=2, replicas=[3], micro_batch_size=4)
    assert made.degrees == (3, 3)
    assert [s.stop_layer for s in made.stages] == [2, 4]


def test_replica_counts_must_fit_the_stages() -> None:
    with pytest.raises(PlanError, match="2 replica counts for 3 stages"):
        even_plan([1, 1, 1], num_stages=3, replicas=[1, 2], micro_batch_size=4)
