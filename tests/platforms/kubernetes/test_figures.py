"""Figures in a job's status: what is written is valid, bounded, and read back as it was."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.api.elasticjob import Training
from shoal.api.validation import problems
from shoal.core.figures import JobFigures, NodeFigures
from shoal.core.view import JobPhase
from shoal.platforms.kubernetes.figures import EVERY, MOST_NODES, ToldFigures, heard, told

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GIB = 1024.0**3
amounts = st.none() | st.floats(0, 1e18)


def a_node(number: int, cpu: float | None = 1.0, memory: float | None = GIB, **more: float | None) -> NodeFigures:
    return NodeFigures(
        node=f"worker-{number}",
        role="worker",
        ranks=(number,),
        status="running",
        cpu=cpu,
        cpu_limit=4.0,
        memory_bytes=memory,
        memory_limit=8 * GIB,
        **more,  # type: ignore[arg-type]
    )


def a_job(*nodes: NodeFigures) -> JobFigures:
    return JobFigures(
        job="demo",
        phase=JobPhase.RUNNING,
        at=NOW,
        step=10,
        samples=100,
        world_size=len(nodes),
        samples_per_second=312.5,
        step_seconds=0.0125,
        recent_speed=(300.0, None, 312.5),
        nodes=nodes,
    )


def training(job: JobFigures) -> Training:
    return Training(phase=job.phase, step=job.step, samples=job.samples, world_size=job.world_size, figures=told(job))


def test_what_a_status_tells_is_what_was_measured() -> None:
    before = a_job(a_node(0, samples_per_second=150.25, work_seconds=0.01), a_node(1))
    back = heard("demo", training(before))
    assert back == replace(before, recent_speed=(300.0, 0.0, 312.5))


def test_of_many_nodes_those_are_told_that_use_most_of_what_they_may() -> None:
    nodes = [a_node(number, cpu=number / 100) for number in range(300)]
    figures = told(a_job(*nodes))
    assert figures.nodes is not None
    assert [node.name for node in figures.nodes] == [f"worker-{number}" for number in range(236, 300)]
    assert (len(figures.nodes), figures.left_out) == (MOST_NODES, 236)
    assert len(msgspec.json.encode(figures)) < 16 * 1024


@given(amounts, amounts, amounts, amounts)
def test_whatever_was_measured_the_api_server_takes_it(a: float, b: float, c: float, d: float) -> None:
    job = replace(
        a_job(a_node(0, cpu=a, memory=b, samples_per_second=c, work_seconds=d)), cpu=a, memory_bytes=b, step_seconds=c
    )
    written = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "demo", "namespace": "default"},
        "spec": {"worker": {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}},
        "status": {"training": msgspec.to_builtins(training(job))},
    }
    assert not [each for each in problems(written) if "status" in str(each)]
    assert heard("demo", training(job)) is not None


def test_figures_are_taken_anew_only_twice_a_minute() -> None:
    clock, looks = [NOW], [0]

    def look() -> JobFigures:
        looks[0] += 1
        return replace(a_job(a_node(0)), at=clock[0])

    figures = ToldFigures(look, lambda: clock[0])
    seen = []
    for _ in range(240):
        seen.append(figures.now())
        clock[0] += timedelta(seconds=0.5)
    assert seen[0] is None
    assert looks[0] == 120 / EVERY.total_seconds() - 1
    assert len({id(each) for each in seen}) == looks[0] + 1


@pytest.mark.parametrize("phase", [None, "odd"])
def test_a_status_that_nobody_of_ours_wrote_is_read_all_the_same(phase: str | None) -> None:
    figures = msgspec.structs.replace(told(a_job(a_node(0))), cpu="lots", nodes=None)
    found = heard("demo", Training(phase=phase, figures=figures))
    assert found is not None
    assert found.cpu is None
    assert heard("demo", Training(phase=phase)) is None
