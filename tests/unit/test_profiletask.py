from __future__ import annotations

import json
from typing import Any

import pytest

from funcpipe.errors import FuncpipeError
from funcpipe.profiletask import ProfileTask
from funcpipe.store.open import StoreSpec


def make_task(**changes: Any) -> ProfileTask:
    fields: dict[str, Any] = {
        "root": "profiles/x",
        "entry": "package.module:job",
        "digest": "d" * 64,
        "store": StoreSpec(url="s3://bucket/prefix", endpoint="http://127.0.0.1:9", region="r"),
        "first_layer": 2,
        "stop_layer": 5,
        "num_layers": 8,
        "sizes": (1, 4, 16),
        "warmup": 3,
        "repeats": 7,
        "least_s": 1.5,
        "memory": False,
        "transport": False,
        "token": "0123456789abcdef",
    }
    return ProfileTask(**(fields | changes))


def test_what_is_encoded_comes_back() -> None:
    one = make_task()
    assert ProfileTask.from_dict(json.loads(one.encode())) == one
    # none of its fields was left at its default, which a forgotten one would come back as
    fields = ProfileTask.__dataclass_fields__
    assert all(getattr(one, name) != item.default for name, item in fields.items())


@pytest.mark.parametrize("change", [{"format": 2}, {"task": "train"}, {"format": None}])
def test_another_format_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FuncpipeError, match=r"knows 'profile' and 1.*deploy again"):
        ProfileTask.from_dict({**json.loads(make_task().encode()), **change})


def test_unknown_and_missing_fields_are_named() -> None:
    told = json.loads(make_task().encode())
    del told["sizes"]
    with pytest.raises(FuncpipeError, match=r"lacks \['sizes'\] and has \['more'\]"):
        ProfileTask.from_dict({**told, "more": 1})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"first_layer": 5}, "no layers 5:5 in a model of 8"),
        ({"stop_layer": 9}, "no layers 2:9 in a model of 8"),
        ({"sizes": ()}, r"sizes are \[\]; expected"),
        ({"sizes": (4, 4)}, r"sizes are \[4, 4\]; expected"),
        ({"sizes": (0, 4)}, r"sizes are \[0, 4\]; expected"),
        ({"repeats": 0}, "repeats 0"),
        ({"warmup": -1}, "warmup is -1"),
        ({"least_s": float("inf")}, "least_s inf"),
        ({"token": "a/b"}, "token is 'a/b'"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(FuncpipeError, match=text):
        make_task(**changes)


def test_it_knows_its_place_in_the_model() -> None:
    places = [(0, 3), (3, 5), (5, 8), (0, 8)]
    made = [make_task(first_layer=first, stop_layer=stop) for first, stop in places]
    assert [one.is_first for one in made] == [True, False, False, True]
    assert [one.is_last for one in made] == [False, False, True, True]
    assert made[0].run.profile_result("t") == "profiles/x/profile/result/t.json"
