from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.api.durations import parse_duration
from shoal.api.elasticjob import ResourceSpec
from shoal.api.jobresource import MebibyteResource
from shoal.api.quantities import cores, format_cores, mebibytes, parse_quantity
from shoal.api.resources import MOST_MEBIBYTES, Resource, of_job_resource, of_list, of_spec, to_spec


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("0", 0),
        (4, 4),
        ("500m", Fraction(1, 2)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("1.G", 10**9),
        ("+1", 1),
        ("-1", -1),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("1E", 10**18),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("2Ei", 2**61),
        ("100n", Fraction(1, 10**7)),
        ("1u", Fraction(1, 10**6)),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_a_quantity_is_what_kubernetes_says_it_is(written: int | str, value: Fraction) -> None:
    assert parse_quantity(written) == value


# fmt: off
NO_QUANTITIES = [
    "", " 1", "1 ", "1\n", "1KB", "1K", "1mi", "1g", "1 Gi", "1e", "1e1.5", "1ee3", "e3", ".", "+", "m", "0x1",
    "\u0661", "1_000", "1,5", "NaN", "inf", "1Gi1", "--1", 0.5, True, None,
]
# fmt: on


@pytest.mark.parametrize("written", NO_QUANTITIES)
def test_what_kubernetes_would_not_read_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match="'1Gi'"):
        parse_quantity(written)  # type: ignore[arg-type]


def test_whole_units_are_rounded_up() -> None:
    assert mebibytes("1") == 1
    assert mebibytes("1.5Gi") == 1536
    assert cores("1u") == 0.001
    assert cores("250m") == 0.25


def test_bare_numbers_are_mebibytes_in_a_job_resource_only() -> None:
    assert of_job_resource(MebibyteResource(memory=4096, disk="8192")) == Resource(memory=4096, disk=8192)
    assert of_job_resource(MebibyteResource(memory="4Gi")) == Resource(memory=4096)
    assert of_spec(ResourceSpec(memory=2**20)) == Resource(memory=1)


def test_a_resource_list_is_read_by_kubernetes_names() -> None:
    listed = of_list({"cpu": "1500m", "memory": "1Gi", "ephemeral-storage": "1Gi", "nvidia.com/gpu": "2"})
    assert listed == Resource(cpu=1.5, memory=1024, disk=1024, gpu_num=2)


def test_nothing_at_all_is_not_said_but_no_device_is() -> None:
    assert of_spec(ResourceSpec(cpu=0, disk="0", gpu=0)) == Resource(gpu_num=0)


def test_amounts_end_where_those_of_kubernetes_end() -> None:
    assert of_spec(ResourceSpec(memory="1e99")).memory == MOST_MEBIBYTES


@given(st.integers(1, 10**7), st.integers(1, 10**9), st.integers(0, 64))
def test_a_resource_that_is_written_reads_the_same(milli: int, memory: int, gpu: int) -> None:
    resource = Resource(cpu=milli / 1000, memory=memory, disk=memory, gpu_num=gpu, gpu_type="a100")
    assert of_spec(to_spec(resource)) == resource


def test_cores_are_written_as_people_write_them() -> None:
    assert [format_cores(each) for each in (4.0, 0.5, 0.1)] == ["4", "500m", "100m"]


def test_durations_are_hours_minutes_and_seconds() -> None:
    assert parse_duration("1h30m").total_seconds() == 5400
    assert parse_duration("90s").total_seconds() == 90
    for wrong in ("", "90", "1d", "30m1h", "-5s"):
        with pytest.raises(ValueError, match="'1h30m'"):
            parse_duration(wrong)
