"""The published experiment: reproduced by what was published, beaten by ours, and the same every time."""

from collections.abc import Sequence

import pytest

from shoal.core.errors import BadInput
from shoal.scheduler.settings import SchedulerSettings
from shoal.sim.edl import CASES, LEAST, MIXES, arm_of, hosts_of, jain, run_case, run_edl
from shoal.sim.edl_goals import MOST_MOVES, gate, goals, mean, moves
from shoal.sim.report import Run, to_json

SEEDS = range(4)
"""Few, since each run takes a second."""
ALL_SEEDS = range(10)
"""As many runs as were published; `shoal simulate --experiment edl --seed 0:10` has their table."""


def runs(case: int, arm: str, seeds: Sequence[int] = SEEDS) -> list[Run]:
    return [run_case(CASES[case], arm_of(arm), seed) for seed in seeds]


@pytest.fixture(scope="module")
def first() -> dict[str, list[Run]]:
    return {arm: runs(1, arm) for arm in ("static", "upstream", "cfs")}


@pytest.fixture(scope="module")
def second() -> dict[str, list[Run]]:
    return {arm: runs(2, arm) for arm in ("static", "upstream", "cfs", "cfs+headroom")}


def test_the_clusters_are_the_published_one() -> None:
    for mix in MIXES:
        hosts = hosts_of(mix)
        assert len(hosts) == 133
        assert sum(room.cpu for room in hosts.values()) == 2_348_000


def test_case_1_comes_out_as_published(first: dict[str, list[Run]]) -> None:
    assert [check for check in gate(1, first["static"], first["upstream"]) if not check.holds] == []


def test_case_2_comes_out_as_published(second: dict[str, list[Run]]) -> None:
    assert [check for check in gate(2, second["static"], second["upstream"]) if not check.holds] == []


def test_case_1_is_beaten(first: dict[str, list[Run]]) -> None:
    assert [check for check in goals(1, first["cfs"], first["upstream"]) if not check.holds] == []


def test_case_2_is_beaten(second: dict[str, list[Run]]) -> None:
    found = goals(2, second["cfs"], second["upstream"], second["cfs+headroom"])
    assert [check for check in found if not check.holds] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_case_1_is_as_published_and_beaten_in_ten_runs_of_ten() -> None:
    static, upstream, cfs = (runs(1, arm, ALL_SEEDS) for arm in ("static", "upstream", "cfs"))
    assert [check for check in (*gate(1, static, upstream), *goals(1, cfs, upstream)) if not check.holds] == []
    assert [run.measures.gangs_started for run in cfs] == [20] * len(ALL_SEEDS)
    ratio = mean(cfs, moves) / mean(upstream, moves)
    assert ratio <= MOST_MOVES, "starts and stops, times those of the original"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_case_2_is_as_published_and_beaten_in_ten_runs_of_ten() -> None:
    static, upstream, cfs, headroom = (runs(2, arm, ALL_SEEDS) for arm in ("static", "upstream", "cfs", "cfs+headroom"))
    found = (*gate(2, static, upstream), *goals(2, cfs, upstream, headroom))
    assert [check for check in found if not check.holds] == []


def test_what_is_claimed_is_claimed_of_the_settings_that_clusters_have(first: dict[str, list[Run]]) -> None:
    ours = arm_of("cfs")
    assert ours.settings == SchedulerSettings()
    told: list[tuple[str, int, int, float]] = []
    report = run_edl(["1"], ["cfs"], tell=lambda *words: told.append(words))
    assert told == [("EDL case 1 under cfs", 0, 20, 0.0)]
    assert report.runs == tuple(first["cfs"][:1])


def test_a_gang_is_started_when_it_has_all_that_its_owner_asked_for_at_least(first: dict[str, list[Run]]) -> None:
    """Not before its second trainer runs."""
    for run in first["cfs"]:
        for job in run.jobs:
            assert job.started is not None
            had = [at for at, count in zip(job.allocation.times, job.allocation.values, strict=True) if count >= LEAST]
            assert job.started >= had[0]


def test_a_report_names_its_hosts_its_seeds_and_the_settings_of_each_policy() -> None:
    report = run_edl(["2"], ["static", "cfs+headroom"], [3])
    hosts, seeds, *settings = report.ground
    assert hosts.startswith("hosts: 69 hosts with 12 cores")
    assert hosts.endswith("2348 cores in all")
    assert seeds.startswith("seed 3; ")
    assert settings == [
        "settings of static: gang False; else as by default",
        "settings of cfs+headroom: service_headroom 900 cores; else as by default",
    ]
    made = report.settings["settings of policies"]
    assert made["cfs+headroom"]["service_headroom"] == {"cpu": 900_000, "memory": 0, "gpu": 0}  # type: ignore[index]


def test_the_numbers_would_be_noticed_if_they_were_bad(first: dict[str, list[Run]]) -> None:
    """The original would not pass for ours, nor ours for the original."""
    assert not all(check.holds for check in goals(1, first["upstream"], first["upstream"]))
    assert not all(check.holds for check in gate(1, first["static"], first["cfs"]))


def test_a_run_depends_on_nothing_but_its_seed() -> None:
    one, same = (to_json(run_edl(["2"], ["cfs"], [7])) for _ in range(2))
    assert one == same
    assert one != to_json(run_edl(["2"], ["cfs"], [8]))


def test_jains_index_is_one_for_equals_and_a_fraction_for_one_that_has_all() -> None:
    assert jain([3, 3, 3, 3]) == pytest.approx(1.0)
    assert jain([8, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([0, 0]) == 0.0


@pytest.mark.parametrize(
    ("cases", "policies", "said"),
    [
        pytest.param(["3"], [], "--case wants 1 or 2, got '3'", id="no-such-case"),
        pytest.param(["1"], ["best"], "policy 'best' is unknown", id="no-such-policy"),
    ],
)
def test_wrong_words_are_refused_with_what_is_right(cases: list[str], policies: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        run_edl(cases, policies)
