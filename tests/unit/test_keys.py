import itertools

from funcpipe.keys import KINDS, Run, kind_of


def every_key() -> dict[str, str]:
    run = Run("runs/x")
    attempt = run.attempt(1)
    named = {
        "control": run.control(1),
        "bundle": run.bundle("ab"),
        "model": run.layer(7),
        "final": run.final_layer(7),
        "lease": attempt.lease(0, 1, 2),
        "fault": attempt.fault(),
        "report": attempt.report(0, 1, 12),
        "result": attempt.result(0, 1),
        "resultPass": run.profile_result("t"),
        "faultPass": run.profile_fault("t"),
        "reportPass": run.profile_progress("t", 12),
        "actPass": run.profile_value(7, 16),
        "partPass": run.profile_probe("t", 4096),
    }
    for one in (attempt.training(3), attempt.evaluation(3)):
        named |= {f"act{one}": one.activation(0, 3), f"grad{one}": one.gradient(0, 3)}
        named |= {f"part{one}": one.partial(0, 1, 2, 0), f"sum{one}": one.sum(0, 1, 0)}
    return named


def test_the_kind_is_read_back_from_the_key() -> None:
    for name, key in every_key().items():
        kind = name.split("Pass")[0]
        assert kind_of(key) == kind
    kinds = {name.split("Pass")[0] for name in every_key()}
    assert KINDS[-1] == "other"
    assert sorted(KINDS[:-1]) == sorted(kinds)
    assert kind_of("somewhere/else/x") == "other"
    assert kind_of("x") == "other"


def test_no_key_is_a_folder_of_another() -> None:
    for one, other in itertools.permutations(every_key().values(), 2):
        assert not other.startswith(one + "/")


def test_attempts_share_no_key() -> None:
    run = Run("r")
    assert run.attempt(1).training(0).activation(0, 0) != run.attempt(2).training(0).activation(
        0, 0
    )
