"""The engine: time, room and progress add up, whatever arrives, fails or is decided."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.scheduler.rows import Room
from shoal.scheduler.settings import SchedulerSettings
from shoal.sim.engine import Simulation
from shoal.sim.models import Scaling, ScalingSpec, placement_of
from shoal.sim.policies import NAMES, scheduler_named
from shoal.sim.report import Report, Run, to_json
from shoal.sim.scheduling import Act, PolicyScheduler, Resize, View
from shoal.sim.state import Hosts, Pod, PodState, SimJob
from shoal.sim.workload import GIBIBYTE, JobSpec, ServiceSpec, SimSettings, Workload

HOST = Room(cpu=48_000, memory=192 * GIBIBYTE, gpu=4)
RESIZING = ("cfs", "fulfillment")


def job(name: str, submitted: float = 0.0, size: int = 1, duration: float = 1_000.0, **more: int) -> JobSpec:
    spec = JobSpec(name=name, submitted=submitted, model=ScalingSpec(duration, size, 1.0), size=size, max=size)
    return replace(spec, **more)  # type: ignore[arg-type]


def run(*jobs: JobSpec, policy: str = "fifo", hosts: int = 2, seed: int = 0, services: tuple[ServiceSpec, ...] = (),
        **more: float | bool) -> Run:  # fmt: skip
    workload = Workload(name="w", jobs=tuple(sorted(jobs, key=lambda j: j.submitted)), hosts=(HOST,) * hosts,
                        services=services)  # fmt: skip
    sim_settings = SimSettings(**more)  # type: ignore[arg-type]
    return Simulation(workload, scheduler_named(policy, SchedulerSettings()), sim_settings, seed=seed).run()


def outcome(of: Run, name: str):  # type: ignore[no-untyped-def]
    return next(each for each in of.jobs if each.name == name)


# One job ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["cfs", "fulfillment", "fifo", "static"])
def test_a_job_alone_takes_its_start_and_its_duration(policy: str) -> None:
    found = outcome(run(job("a", submitted=10), policy=policy, pod_start=5, startup=30), "a")
    assert found.started == 15
    assert found.finished == pytest.approx(10 + 5 + 30 + 1_000)
    assert found.gpu_seconds == pytest.approx(5 + 30 + 1_000)


def test_utilisation_counts_what_is_held_and_effective_what_trains() -> None:
    found = run(job("a", size=4, duration=65), hosts=1, pod_start=5, startup=30).measures
    assert found.utilisation == pytest.approx(1.0)
    assert found.effective_utilisation == pytest.approx(0.65)
    assert found.jain == pytest.approx(1.0)
    assert found.makespan == pytest.approx(100)


def test_a_larger_cluster_makes_an_elastic_job_faster_and_counts_its_moves() -> None:
    rigid = run(job("a", size=1, max=8, duration=10_000), policy="fifo")
    elastic = run(job("a", size=1, max=8, duration=10_000), policy="cfs")
    assert elastic.jobs[0].completion_seconds < rigid.jobs[0].completion_seconds / 4  # type: ignore[operator]
    assert rigid.jobs[0].moves == 0
    assert max(elastic.jobs[0].allocation.values) == 8


def test_a_job_that_is_too_large_for_the_cluster_does_not_keep_the_run_from_ending() -> None:
    found = run(job("large", size=100), job("small", submitted=1, duration=100), hosts=1)
    assert outcome(found, "large").started is None
    assert outcome(found, "small").finished is not None
    assert (found.measures.finished, found.measures.makespan) == (1, None)
    assert found.simulated_seconds < 300


def test_a_run_may_be_cut_off() -> None:
    found = run(job("a", duration=10_000), until=500)
    assert found.simulated_seconds == 500
    assert found.jobs[0].finished is None


def test_a_job_that_arrives_after_the_end_is_known_all_the_same() -> None:
    found = run(job("a", duration=100), job("b", submitted=9_000), until=500)
    assert [each.name for each in found.jobs] == ["a", "b"]


@pytest.mark.parametrize("interval", [5.0, 60.0])
def test_a_job_that_waits_for_the_evening_of_a_service_is_not_given_up(interval: float) -> None:
    """It comes at eleven and needs all of the only host, which the service shares until the night."""
    web = ServiceSpec(name="web", each=Room(cpu=2_000, memory=GIBIBYTE, gpu=1), low=0, high=4)
    noon = job("noon", submitted=39_600, size=4, min=4, duration=600)
    found = run(noon, policy="fifo", hosts=1, services=(web,), interval=interval)
    assert found.measures.finished == 1
    assert found.jobs[0].started > 16 * 3_600


def test_a_job_that_waits_for_a_long_repair_is_not_given_up() -> None:
    found = run(job("a", submitted=20_000, size=8), host_mtbf=40_000.0, host_repair=30_000.0, interval=5.0, seed=2)
    assert found.measures.finished == 1


def test_a_run_that_ends_before_its_first_job_has_held_nothing() -> None:
    web = ServiceSpec(name="web", each=Room(cpu=2_000, memory=GIBIBYTE, gpu=1), low=2, high=4)
    found = run(job("late", submitted=5_000), services=(web,), until=100)
    assert (found.measures.utilisation, found.measures.effective_utilisation) == (0.0, 0.0)


# Room ------------------------------------------------------------------------------------------------------


class Watched:
    """A scheduler beside which every host is looked at before each round."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inner = scheduler_named(name, SchedulerSettings())
        self.is_rigid, self.sees_progress = self._inner.is_rigid, self._inner.sees_progress

    def round(self, view: View) -> list[Act]:
        for at, free in enumerate(view.hosts.free):
            assert min(free) >= 0, f"host {at} is overfull"
            mine = sum(pod.host == at for job in view.jobs.values() for pod in job.pods.values())
            others = view.others.get(at, Room()).gpu
            assert free.gpu == view.hosts.capacity[at].gpu - mine - others
        return list(self._inner.round(view))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    jobs = []
    for number in range(draw(st.integers(1, 12))):
        size = draw(st.integers(1, 6))
        least = draw(st.integers(1, size))
        spec = job(f"j{number}", submitted=draw(st.integers(0, 3_000)), size=size, duration=draw(st.integers(1, 3_000)))
        jobs.append(replace(spec, min=least, max=draw(st.integers(size, 12))))
    services = ()
    if draw(st.booleans()):
        each = Room(cpu=1_000, memory=GIBIBYTE, gpu=1)
        services = (ServiceSpec(name="web", each=each, low=0, high=draw(st.integers(0, 4)), period=4_000.0),)
    hosts = (HOST,) * draw(st.integers(2, 4))
    return Workload(name="w", jobs=tuple(sorted(jobs, key=lambda j: j.submitted)), hosts=hosts, services=services)


@given(workloads(), st.sampled_from(["cfs", "fulfillment", "fifo", "static"]), st.integers(0, 100), st.booleans())
@settings(max_examples=30)
def test_hosts_are_never_overfull_and_every_job_ends(workload: Workload, policy: str, seed: int, fails: bool) -> None:
    times = SimSettings(host_mtbf=20_000.0 if fails else None, host_repair=300.0, service_step=200.0, interval=30.0)
    found = Simulation(workload, Watched(policy), times, seed=seed).run()
    for each, spec in zip(found.jobs, workload.jobs, strict=True):
        assert each.finished is not None
        assert each.started is not None
        assert spec.submitted <= each.started < each.finished
        fastest = spec.model().seconds_left((spec.max,))
        assert each.completion_seconds is not None
        assert each.completion_seconds >= fastest
    numbers = found.measures
    assert 0 <= numbers.effective_utilisation <= numbers.utilisation <= 1 + 1e-9


@given(workloads(), st.sampled_from(["cfs", "fifo"]), st.integers(1, 40), st.none() | st.integers(1, 9_000))
@settings(max_examples=20)
def test_utilisation_is_a_part_of_the_whole_however_a_run_ends(
    workload: Workload, policy: str, size: int, until: int | None
) -> None:
    """Also when its last job never starts, or when it is cut off, maybe before the first."""
    huge = job("huge", submitted=3_000, size=size, min=size, duration=100)
    times = SimSettings(service_step=200.0, interval=30.0, until=until)
    whole = replace(workload, jobs=(*workload.jobs, huge))
    numbers = Simulation(whole, scheduler_named(policy, SchedulerSettings()), times).run().measures
    assert 0 <= numbers.effective_utilisation <= numbers.utilisation + 1e-9 <= 1 + 2e-9
    assert numbers.jain is None or 0 <= numbers.jain <= 1 + 1e-9


class NeverAtRest:
    """A scheduler that is told in every round that something has happened to every job."""

    sees_progress = False

    def __init__(self, scheduler: PolicyScheduler) -> None:
        self.name, self.is_rigid = scheduler.name, scheduler.is_rigid
        self._scheduler = scheduler

    def round(self, view: View) -> Sequence[Act]:
        return self._scheduler.round(replace(view, changed=frozenset(view.jobs)))


@given(workloads(), st.sampled_from(["cfs", "fulfillment", "fifo", "static", "upstream"]), st.booleans())
@settings(max_examples=12)
def test_rounds_without_anything_to_decide_are_left_out_and_nobody_can_tell(
    workload: Workload, policy: str, fails: bool
) -> None:
    times = SimSettings(service_step=200.0, host_mtbf=9_000.0 if fails else None)
    late = job("late", submitted=9_000, size=2, max=4, duration=500)  # comes when the others have long been at rest
    rest = replace(workload, jobs=(*workload.jobs, late))
    lazy, busy = (scheduler_named(policy, SchedulerSettings()) for _ in range(2))
    assert isinstance(busy, PolicyScheduler)
    found, wanted = (Simulation(rest, each, times).run() for each in (lazy, NeverAtRest(busy)))
    assert to_json(Report(title="t", runs=(found,))) == to_json(Report(title="t", runs=(wanted,)))


@given(workloads(), st.integers(0, 100))
@settings(max_examples=10)
def test_the_same_seed_gives_the_same_report_to_the_byte(workload: Workload, seed: int) -> None:
    times = SimSettings(host_mtbf=20_000.0, service_step=200.0)

    def once() -> str:
        made = [Simulation(workload, scheduler_named(name, SchedulerSettings()), times, seed=seed).run()
                for name in ("cfs", "static", "tiresias")]  # fmt: skip
        return to_json(Report(title="t", runs=tuple(made)))

    assert once() == once()


def test_leaving_pods_hold_their_room_for_their_grace() -> None:
    first = job("first", size=1, max=8, duration=50_000)
    second = job("second", submitted=1_000, size=4, min=4, max=4, duration=100)
    short, long = (run(first, second, policy="cfs", grace=grace) for grace in (0.0, 120.0))
    late = outcome(long, "second").started - outcome(short, "second").started
    assert late == pytest.approx(120, abs=1)


def test_a_pod_that_never_has_a_host_is_given_up_and_not_made_again_at_once() -> None:
    spec = job("a", size=1, max=3)
    there, hosts, scheduler = SimJob(spec, spec.model(), 0), Hosts([HOST]), scheduler_named("cfs", SchedulerSettings())

    def targets(*times: float) -> list[int]:
        found = []
        for now in times:
            happened = frozenset({"a"}) if now == 10 else frozenset[str]()
            view = View(now=now, jobs={"a": there}, changed=happened, hosts=hosts, leaving={}, others={}, services=())
            found += [act.target for act in scheduler.round(view) if isinstance(act, Resize)]
        return found

    assert targets(0.0) == [3]
    there.pods = {name: Pod(name, spec.each, at, host=0, state=PodState.READY) for at, name in enumerate("xy")}
    there.pods["z"] = Pod("z", spec.each, 2, since=5.0)
    assert targets(10.0, 1_800.0) == []
    assert targets(1_805.0) == [2]
    del there.pods["z"]
    assert targets(1_810.0, 1_900.0, 3_600.0) == []
    assert targets(3_605.0, 3_610.0) == [3]


# Failures and services -------------------------------------------------------------------------------------


def test_a_failed_host_costs_what_was_trained_since_the_last_checkpoint() -> None:
    alone = [run(job("a", duration=20_000), hosts=1, host_mtbf=9_000.0, host_repair=600.0, checkpoint=each, seed=3)
             for each in (1.0, 5_000.0)]  # fmt: skip
    assert alone[0].jobs[0].completion_seconds > 20_000 + 600  # type: ignore[operator]
    assert alone[1].jobs[0].completion_seconds > alone[0].jobs[0].completion_seconds + 100  # type: ignore[operator]


def test_survivors_of_a_failed_host_lose_nothing() -> None:
    """Two hosts, an elastic job on both: it goes on with the half that is left, from where it was."""
    spec = job("a", size=8, min=1, max=8, duration=20_000)
    often, seldom = (run(spec, policy="cfs", host_mtbf=9_000.0, host_repair=60.0, checkpoint=each, seed=3)
                     for each in (1.0, 5_000.0))  # fmt: skip
    assert often.jobs[0].completion_seconds == seldom.jobs[0].completion_seconds


def test_training_gives_way_to_a_service_and_comes_back() -> None:
    web = ServiceSpec(name="web", each=Room(cpu=1_000, memory=GIBIBYTE, gpu=1), low=0, high=6, period=8_000.0)
    found = run(job("a", size=8, min=1, max=8, duration=30_000), policy="cfs", services=(web,), service_step=100.0)
    held = found.jobs[0].allocation.values
    assert max(held) == 8
    assert 2 in held[1:-1]
    assert found.extra["service Pods missing"] < 1.0
    rigid = run(job("a", size=8, duration=30_000), policy="static", services=(web,), service_step=100.0)
    assert rigid.extra["service Pods missing"] > found.extra["service Pods missing"]


def test_jobs_that_share_a_host_disturb_each_other_only_if_both_are_spread() -> None:
    pair = [job("a", size=6), job("b", size=2)]
    assert run(*pair, interference=0.5).jobs[0].completion_seconds == run(*pair).jobs[0].completion_seconds
    spread = [job("a", size=5), job("b", submitted=1, size=5)]
    calm, loud = (run(*spread, hosts=3, interference=each) for each in (0.0, 0.5))
    assert loud.jobs[0].completion_seconds > calm.jobs[0].completion_seconds + 500  # type: ignore[operator]


@pytest.mark.parametrize("policy", ["tiresias", "cfs", "static"])
def test_every_job_survives_hosts_that_fail_all_the_time(policy: str) -> None:
    jobs = [job(f"j{at}", submitted=100 * at, size=1 + at % 5, duration=2_000) for at in range(10)]
    web = ServiceSpec(name="web", each=Room(cpu=1_000, memory=GIBIBYTE, gpu=1), low=0, high=3, period=4_000.0)
    found = run(*jobs, policy=policy, hosts=4, host_mtbf=6_000.0, host_repair=400.0, services=(web,), seed=1)
    assert found.measures.finished == 10


# Models ----------------------------------------------------------------------------------------------------


@given(st.floats(1, 1e5), st.integers(1, 64), st.floats(0.55, 1.0), st.integers(1, 128))
def test_a_doubling_gains_what_the_efficiency_says(duration: float, size: int, efficiency: float, gpus: int) -> None:
    model = Scaling(duration=duration, size=size, efficiency=efficiency)
    assert model.seconds_left((size,)) == pytest.approx(duration)
    assert model.seconds_left((gpus,)) / model.seconds_left((2 * gpus,)) == pytest.approx(2 * efficiency)


@given(st.lists(st.integers(1, 900), min_size=1, max_size=20))
def test_progress_does_not_depend_on_how_time_is_cut(slices: list[int]) -> None:
    model, now = Scaling(duration=1_000.0, size=1, efficiency=1.0), 0.0
    for seconds in slices:
        model.advance(now, seconds, (1,))
        now += seconds
    assert model.finished == (pytest.approx(1_000.0) if now >= 1_000.001 else None) or 999.9 < now < 1_000.1


def test_trainers_on_a_host_count_together() -> None:
    assert placement_of((3, 1, 3, 2, 1)) == (2, 2, 1)


def test_every_policy_can_be_named() -> None:
    assert {"cfs", "fulfillment", "fifo", "static", "upstream", "tiresias", "optimus"} <= set(NAMES)
