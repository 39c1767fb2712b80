"""Platforms: their files, what is computed from the figures, and what is refused."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from funcpipe.errors import PlanError, PlatformError
from funcpipe.partitioner.curve import Curve
from funcpipe.partitioner.figures import BY_THE_USER, KINDS
from funcpipe.partitioner.platform import PlatformSpec, known_platforms, load_platform

FOLDER = Path(__file__).resolve().parents[3] / "partitioner" / "platforms"
NAMES = (
    "aliyun-fc",
    "aliyun-fc-gpu",
    "aws-lambda",
    "aws-lambda-arm64",
    "aws-lambda-s3express",
    "none",
)


def raw(name: str = "aws-lambda") -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return data


def changed(path: str, field: str, value: Any) -> dict[str, Any]:
    """AWS Lambda's file with one field of one figure changed; without it for `...`."""
    data = copy.deepcopy(raw())
    data["figures"][path][field] = value
    if value is ...:
        del data["figures"][path][field]
    return data


# -- the files that are shipped ----------------------------------------------------------------


def test_the_known_platforms_are_the_files() -> None:
    assert known_platforms() == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_has_every_figure_with_its_origin(name: str) -> None:
    spec = load_platform(name)
    assert (spec.name, spec.to_dict()) == (name, raw(name))
    assert [figure.path for figure in spec.figures] == list(KINDS)
    for path, figure in raw(name)["figures"].items():
        assert ("source" in figure and "date" in figure) != ("unverified" in figure), path
        assert figure["unit"] == KINDS[path].unit_in(spec.price.currency)


@pytest.mark.parametrize("name", NAMES)
def test_figures_and_groups_agree(name: str) -> None:
    spec = load_platform(name)
    for figure in spec.figures:
        group, _, field = figure.path.partition(".")
        assert getattr(getattr(spec, group), field) == figure.value
    for size in spec.memory.tiers_mb:
        spec.check_memory(size, "a tier")
        assert 1 <= spec.threads(size) <= spec.cores(size)
        assert spec.threads(size) >= spec.vcpu(size) - 1e-6
        assert spec.up_bytes_per_s(size) > 0
        assert spec.down_bytes_per_s(size) > 0


@pytest.mark.parametrize("name", NAMES)
def test_it_survives_a_trip_through_json(name: str) -> None:
    spec = load_platform(name, changes={"time.limit_s": "60", "cpu.vcpu": "2"})
    again = PlatformSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.figure("time.limit_s").source == BY_THE_USER


def test_prices_are_those_that_were_published() -> None:
    # Given prices as providers print them: for many, or in their own units
    x86, arm = load_platform("aws-lambda").price, load_platform("aws-lambda-arm64").price
    fc, gpu = load_platform("aliyun-fc").price, load_platform("aliyun-fc-gpu").price
    # Then the files hold them for one
    assert (x86.gb_s, arm.gb_s) == (0.0000166667, 0.0000133334)
    assert x86.invocation * 1e6 == pytest.approx(0.20)
    assert (x86.put * 1000, x86.get * 1000) == pytest.approx((0.005, 0.0004))
    assert (x86.missed_get, x86.list, x86.delete) == (x86.get, x86.put, 0)
    per_cu = 0.00011
    assert (fc.vcpu_s, fc.gb_s, fc.disk_gb_s) == pytest.approx(
        (per_cu, 0.15 * per_cu, 0.05 * per_cu)
    )
    assert fc.invocation * 10_000 == pytest.approx(75 * per_cu)
    assert (fc.gpu_gb_s, gpu.gpu_gb_s) == (0, pytest.approx(2.1 * per_cu))
    assert (fc.granularity_ms, gpu.granularity_ms) == (1, 1000)
    assert fc.missed_get == 0


def test_figures_that_differ_between_variants_are_few() -> None:
    def differences(name: str) -> set[str]:
        mine, other = raw()["figures"], raw(name)["figures"]
        return {path for path in mine if mine[path]["value"] != other[path]["value"]}

    assert differences("aws-lambda-arm64") == {"price.gb_s"}
    assert all(
        path == "network.latency_s" or path.startswith("price.")
        for path in differences("aws-lambda-s3express")
    )


# -- what is computed --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory_mb", "cores", "threads"),
    [
        (128, 2, 1),
        (1769, 2, 1),
        (1770, 2, 2),
        (3008, 2, 2),
        (3009, 3, 2),
        (3538, 3, 2),
        (3539, 3, 3),
        (5307, 3, 3),
        (5308, 4, 4),
        (7076, 4, 4),
        (7077, 5, 5),
        (8845, 5, 5),
        (8846, 6, 6),
        (10240, 6, 6),
    ],
)
def test_lambda_sees_cores_in_steps_and_gets_threads_for_its_vcpus(
    memory_mb: int, cores: int, threads: int
) -> None:
    spec = load_platform("aws-lambda")
    assert (spec.cores(memory_mb), spec.threads(memory_mb)) == (cores, threads)
    assert spec.vcpu(memory_mb) == pytest.approx(memory_mb / 1769, abs=1e-6)


def test_a_straight_line_and_its_ends() -> None:
    curve = Curve(points=((100, 1.0), (200, 3.0), (400, 4.0)))
    sizes = (0, 100, 150, 200, 300, 400, 9999)
    assert [curve.at(size) for size in sizes] == [1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 4.0]
    assert curve.least == 1.0


def test_steps_and_their_ends() -> None:
    curve = Curve(points=((100, 1.0), (200, 3.0)), between="step")
    assert [curve.at(size) for size in (0, 100, 199, 200, 9999)] == [1.0, 1.0, 1.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("points", "between"),
    [
        ((), "linear"),
        (((1, 1.0), (1, 2.0)), "linear"),
        (((2, 1.0), (1, 2.0)), "step"),
        (((1, math.nan),), "step"),
        (((1, 1.0),), "cubic"),
    ],
)
def test_a_curve_that_is_none(points: Any, between: str) -> None:
    with pytest.raises(PlatformError):
        Curve(points=points, between=between)


@pytest.mark.parametrize(
    ("name", "memory_mb", "hint"),
    [
        ("aws-lambda", 127, "use 128"),
        ("aws-lambda", 20000, "use 10240"),
        ("aliyun-fc", 1000, "use 960 or 1024"),
        ("aliyun-fc", 40000, "use 32768"),
    ],
)
def test_a_size_that_does_not_exist(name: str, memory_mb: int, hint: str) -> None:
    spec = load_platform(name)
    with pytest.raises(PlanError, match=rf"^stage 0: {memory_mb} MB .*{hint}$"):
        spec.check_memory(memory_mb, "stage 0")


@pytest.mark.parametrize("memory_mb", [128, 1769, 10240])
def test_a_size_that_exists(memory_mb: int) -> None:
    load_platform("aws-lambda").check_memory(memory_mb, "stage 0")


# -- changes by the user -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("network.latency_s", "0.05", 0.05),
        ("network.latency_s", " 5e-2 ", 0.05),
        ("invocation.concurrency", "4", 4),
        ("invocation.concurrency", "none", None),
        ("time.limit_s", "null", None),
        ("memory.tiers_mb", "128,256", (128, 256)),
        ("memory.tiers_mb", "[128, 256]", (128, 256)),
        ("price.bills_initialisation", "False", False),
        ("price.currency", "EUR", "EUR"),
        ("network.up_bytes_per_s", "1e6", Curve(points=((0, 1e6),))),
        ("cpu.vcpu", "[[128, 0.5], [256, 1]]", Curve(points=((128, 0.5), (256, 1)))),
        ("cpu.cores", "[[128, 1], [256, 2]]", Curve(points=((128, 1), (256, 2)), between="step")),
    ],
)
def test_a_figure_is_set_from_a_text(path: str, text: str, value: Any) -> None:
    spec = load_platform("aws-lambda", changes={path: text})
    figure = spec.figure(path)
    assert (figure.value, figure.source, figure.date) == (value, BY_THE_USER, None)
    group, _, field = path.partition(".")
    assert getattr(getattr(spec, group), field) == value
    untouched = [f for f in spec.figures if f.path != path and not f.path.startswith("price.")]
    assert all(f == load_platform("aws-lambda").figure(f.path) for f in untouched)


def test_one_number_is_the_whole_curve() -> None:
    spec = load_platform("aliyun-fc", changes={"network.down_bytes_per_s": "1000"})
    assert {spec.down_bytes_per_s(size) for size in (1, 128, 5000, 10**6)} == {1000.0}


def test_another_currency_is_in_the_units() -> None:
    spec = load_platform("aws-lambda", changes={"price.currency": "EUR", "price.dollars": "1.1"})
    assert spec.figure("price.put").unit == "EUR per request"
    assert PlatformSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        ("network.latency", "1", "did you mean network.latency_s?"),
        ("latency_s", "1", "did you mean network.latency_s?"),
        ("colour", "red", "known: memory.least_mb"),
        ("time.limit_s", "-1", "above 0 and at most 31,622,400, or null"),
        (
            "network.latency_s",
            "1e300",
            "set to '1e300'; expected a number of at least 0",
        ),
        ("network.latency_s", "0_1", "set to '0_1'; expected a number"),
        ("network.latency_s", "٣", "set to '٣'; expected a number"),
        ("network.up_bytes_per_s", "1e-320", "number of at least 1 and at most"),
        ("cpu.vcpu", "1e-320", "number of at least 0.001 and at most 1,000,000"),
        ("price.put", "1e7", "expected a number of at least 0 and at most 1,000,000"),
        ("price.put", "9" * 5000, "99...; expected a number"),
        ("price.granularity_ms", "1" + "0" * 30, "at most 1,000,000,000"),
        ("invocation.retry_delays_s", "1,1e300", "a list of numbers of at least 0 and at most"),
        ("price.currency", "x" * 101, "a text of at most 100 letters"),
        ("time.limit_s", "soon", "expected a number"),
        ("network.latency_s", "none", "expected a number of at least 0"),
        ("network.latency_s", "NaN", "expected a number"),
        ("network.latency_s", "Infinity", "expected a number"),
        ("invocation.duplicate_rate", "1.5", "at most 1"),
        ("invocation.concurrency", "2.5", "of at least 1 and at most 1,000,000,000, or null"),
        ("price.bills_initialisation", "1", "expected true or false"),
        ("cpu.vcpu", "0", "expected a list of points"),
        ("cpu.vcpu", "[[1, 1], [1, 2]]", "must grow"),
        ("cpu.cores", "1.5", "whole numbers"),
        ("memory.default_mb", "100", "100 MB is none of the sizes from 128 to 10240 MB"),
        ("memory.tiers_mb", "256,128", "sizes that grow"),
        ("memory.least_mb", "20000", "memory.least_mb is 20000"),
        ("tmp.default_mb", "1", "growing order"),
        ("gpu.memory_mb", "1024", "expected both or neither"),
    ],
)
def test_a_figure_that_cannot_be_set(path: str, text: str, told: str) -> None:
    with pytest.raises(PlatformError, match=r"^platform aws-lambda: ") as caught:
        load_platform("aws-lambda", changes={path: text})
    assert told in str(caught.value)


def test_retries_need_a_delay() -> None:
    changes = {"invocation.retries": "2", "invocation.retry_delays_s": "[]"}
    with pytest.raises(PlatformError, match="at least one delay"):
        load_platform("aws-lambda", changes=changes)


# -- files that are not right ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("aws-lamda", "did you mean aws-lambda?"),
        ("azure", "known: aliyun-fc, "),
        ("", "known: aliyun-fc, "),
        ("../aws-lambda", "cannot be read"),
        ("missing.json", "cannot be read: No such file"),
    ],
)
def test_an_unknown_name(name: str, told: str) -> None:
    with pytest.raises(PlatformError) as caught:
        load_platform(name)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "a JSON object"),
        (b"{}", "`format` is None; expected 1"),
        (b'{"format": 2}', "`format` is 2"),
        (b'{"format": 1, "figurs": {}}', "did you mean figures?"),
        (b'{"format": 1}', "needs `figures`"),
        (b'{"format": 1, "name": "x", "title": "t", "figures": {}}', "memory.least_mb, "),
        (b'{"format": 1, "name": "A B", "title": "t", "figures": {}}', "the name is 'A B'"),
        (b'{"format": 1, "name": "x", "title": 3, "figures": {}}', "the title is 3"),
    ],
)
def test_a_file_that_is_no_platform(tmp_path: Path, content: bytes, told: str) -> None:
    file = tmp_path / "mine.json"
    file.write_bytes(content)
    with pytest.raises(PlatformError) as caught:
        load_platform(str(file))
    assert str(caught.value).startswith(f"platform {file}: ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("path", "field", "value", "told"),
    [
        ("time.limit_s", "value", "900", 'time.limit_s is "900"; expected a number above 0'),
        ("time.limit_s", "value", ..., "`value` is missing"),
        ("time.limit_s", "value", True, "time.limit_s is true"),
        ("memory.step_mb", "value", 10**400, "expected a whole number of at least 1"),
        ("network.latency_s", "value", math.nan, "expected a number"),
        ("network.latency_s", "value", math.inf, "expected a number"),
        ("time.limit_s", "unit", "minutes", "the unit is \"minutes\"; expected 's'"),
        ("price.put", "unit", "EUR per request", "expected 'USD per request'"),
        ("time.limit_s", "date", ..., "the date of the source is None"),
        ("time.limit_s", "date", "last week", "such as 2026-11-30"),
        ("time.limit_s", "date", "2026-13", "such as 2026-11-30"),
        ("time.limit_s", "date", 2026, "`date` is 2026; expected a text"),
        ("time.limit_s", "source", ..., "expected either `source` and `date`, or `unverified`"),
        ("time.limit_s", "unverified", "a guess", "expected either"),
        ("time.limit_s", "sauce", "x", "did you mean source?"),
        ("time.limit_s", "between", "step", "`between` belongs to curves"),
        ("cpu.vcpu", "between", "spline", "known: linear, step"),
        ("cpu.vcpu", "value", [[128, 1, 2]], "expected a list of points"),
        ("cpu.vcpu", "value", [], "at least one point"),
        ("cpu.vcpu", "value", [["128", 1]], "expected a list of points"),
        ("cpu.cores", "between", "linear", "cores come whole"),
        ("price.currency", "value", 5, "price.currency is 5; expected a text"),
    ],
)
def test_a_figure_that_is_not_right(path: str, field: str, value: Any, told: str) -> None:
    with pytest.raises(PlatformError) as caught:
        PlatformSpec.from_dict(changed(path, field, value))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda figures: figures.pop("tmp.most_mb"), "tmp.most_mb: missing"),
        (lambda figures: figures.pop("price.currency"), "unit"),
        (lambda figures: figures.update({"price.putt": {}}), "did you mean price.put?"),
        (lambda figures: figures.update({"price.put": 5}), "expected an object with a `value`"),
    ],
)
def test_figures_that_are_missing_or_unknown(
    spoil: Callable[[dict[str, Any]], Any], told: str
) -> None:
    data = copy.deepcopy(raw())
    spoil(data["figures"])
    with pytest.raises(PlatformError) as caught:
        PlatformSpec.from_dict(data)
    assert told in str(caught.value)


def test_ones_own_file_is_read(tmp_path: Path) -> None:
    data = changed("time.limit_s", "value", 60) | {"name": "mine"}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    spec = load_platform(str(file), changes={"network.latency_s": "1"})
    assert (spec.name, spec.time.limit_s, spec.network.latency_s) == ("mine", 60, 1)
