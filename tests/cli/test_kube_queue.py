"""`shoal queue` and `shoal whatif`, as they word what they found."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.api.builders import a_training_job

from shoal.api.scheduling import SchedulingStatus
from shoal.cli.kube_jobs import Cluster
from shoal.cli.kube_queue import Installation, queue, waits, whatif, words
from shoal.cli.kube_text import scheduled
from shoal.cli.operator_scheduler import LAST_SETTINGS
from shoal.core.errors import BadInput
from shoal.operator.scheduling.whatif import Answer, Effect
from shoal.platforms.kubernetes.client import Client, Merge
from shoal.platforms.kubernetes.fake import FakeApiServer
from shoal.platforms.kubernetes.kinds import ELASTIC_JOBS, JOB_RESOURCES, SCALE_PLANS, TRAINING_JOBS
from shoal.platforms.kubernetes.objects import CONFIG_MAPS, LEASES, NAMESPACES, NODES
from shoal.scheduler.rows import JobKey, Kind

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def a_waiting_job(**more: object) -> dict:
    told = {"target": 0, "place": 2, "code": "NoRoom", "reason": "3 GPUs are free", "waitingSince": NOW.isoformat()}
    return {
        "metadata": {"name": "mnist", "namespace": "team", "creationTimestamp": NOW.isoformat()},
        "spec": {"priority": "Production"},
        "status": {"scheduling": {**told, **more}, "roles": [{"role": "worker", "asked": 4}]},
    }


def test_a_waiting_job_has_a_line_with_all_that_is_asked() -> None:
    line = waits("ElasticJob", a_waiting_job())
    assert line == {
        "place": 2,
        "namespace": "team",
        "job": "mnist",
        "kind": "ElasticJob",
        "priority": "Production",
        "asked": "4",
        "waitsFor": "NoRoom",
        "since": NOW.isoformat(),
        "created": NOW.isoformat(),
        "attained": None,
        "why": "3 GPUs are free",
    }


def test_a_training_job_asks_for_a_range() -> None:
    job = {**a_waiting_job(), "spec": {"trainer": {"min-instance": 2, "max-instance": 6}}}
    line = waits("TrainingJob", job)
    assert line is not None
    assert (line["asked"], line["priority"]) == ("2-6", "Normal")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(a_waiting_job(target=3), id="it-is-admitted"),
        pytest.param({"metadata": {"name": "new"}}, id="nobody-has-looked-at-it"),
        pytest.param({"metadata": {"name": "odd"}, "status": {"scheduling": {"place": "first"}}}, id="no-number"),
        pytest.param({"metadata": {"name": "odd"}, "status": "broken"}, id="no-status"),
    ],
)
def test_who_does_not_wait_has_no_line(job: dict) -> None:
    assert waits("ElasticJob", job) is None


def test_an_answer_says_when_and_who_would_shrink() -> None:
    effect = Effect(key=JobKey("team", "big", Kind.ELASTIC_JOB), before=8, after=6, reason="a gang needs the room")
    answer = Answer(
        starts_in=35.0, trainers=2, reason="it fits", place=1, waits_for="no host has room", effects=(effect,)
    )
    assert words("ElasticJob team/new", answer) == [
        "ElasticJob team/new would start in about 35 s, with 2: it fits",
        "  until then: place 1 in the queue: no host has room",
        "  ElasticJob team/big would have 6 instead of 8: a gang needs the room",
    ]


def test_an_answer_without_a_start_says_so() -> None:
    lines = words("TrainingJob team/new", Answer(starts_in=None, place=3, waits_for="it is too large"))
    assert lines[0] == "TrainingJob team/new would not start within an hour, if nobody ends meanwhile"
    assert lines[-1] == "  nobody would have to give anything up for it"


def test_whatif_wants_one_job() -> None:
    with pytest.raises(BadInput, match="wanted one ElasticJob or TrainingJob, got 0 objects"):
        whatif("job.yaml", b"", installed=Installation(), output="table")


def test_why_tells_the_schedulers_last_word() -> None:
    told = SchedulingStatus(target=0, place=2, code="NoRoom", reason="no room", waiting_since=NOW)
    later = NOW + timedelta(minutes=5)
    assert scheduled(told, later) == [
        "the scheduler",
        "  it waits, for 5 min 0 s, place 2 in the queue: NoRoom: no room",
    ]
    admitted = SchedulingStatus(target=4, code="FreeRoom", reason="it grows", frozen_until=later)
    assert scheduled(admitted, NOW)[1] == "  4 allowed: FreeRoom: it grows; not resized without need for 5 min 0 s"
    assert scheduled(None, NOW) == []


# Against an API server -------------------------------------------------------------------------------------------

CONTAINER = {"name": "main", "image": "i", "command": ["train"], "resources": {"requests": {"cpu": "4"}}}
ELASTIC = {
    "apiVersion": "elastic.iml.github.io/v1alpha1",
    "kind": "ElasticJob",
    "metadata": {"name": "mnist"},
    "spec": {
        "distributionStrategy": "ring-allreduce",
        "worker": {"replicas": 2, "template": {"spec": {"containers": [CONTAINER]}}},
    },
}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """One host with ten cores."""
    async with FakeApiServer() as server:
        for kind in (ELASTIC_JOBS, SCALE_PLANS, JOB_RESOURCES, TRAINING_JOBS):
            server.serve(kind, status=True)
        async with Client(server.access()) as client:
            ready = [{"type": "Ready", "status": "True"}]
            status = {"status": {"allocatable": {"cpu": "10", "memory": "64Gi"}, "conditions": ready}}
            await client.create(NAMESPACES, {"metadata": {"name": "shoal-system"}})
            await client.create(NODES, {"metadata": {"name": "a"}})
            await client.patch(NODES, "a", Merge(status), subresource="status")
            yield Cluster(client=client, namespace="default")


async def configure(cluster: Cluster, text: str, name: str = "shoal-scheduler", last: str = "") -> None:
    meta = {"name": name, "namespace": "shoal-system"}
    await cluster.client.create(CONFIG_MAPS, {"metadata": meta, "data": {"settings": text}})
    lease = {"name": "shoal-operator", "namespace": "shoal-system", "annotations": {LAST_SETTINGS: last}}
    await cluster.client.create(LEASES, {"metadata": lease, "spec": {}})


async def ask(cluster: Cluster, document: dict[str, Any], **installed: Any) -> None:
    text = yaml.safe_dump(document).encode()
    await whatif("job.yaml", text, installed=Installation(**installed), output="table")(cluster)


async def test_whatif_asks_the_cluster_as_it_is(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    await configure(cluster, "")
    await ask(cluster, ELASTIC)
    said = capsys.readouterr()
    assert said.out.startswith("ElasticJob default/mnist would start at once, with 2")
    assert said.err == ""


@pytest.mark.parametrize("name", ["shoal-scheduler", "mine-scheduler"])
async def test_whatif_minds_the_settings_that_it_is_told_of(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    await configure(cluster, "quotas: {default: {cpu: 1}}", name)
    await ask(cluster, ELASTIC, scheduler_settings=name)
    said = capsys.readouterr()
    assert "would not start within an hour" in said.out
    assert "until then: place" in said.out
    assert said.err == ""


async def test_whatif_says_when_the_settings_cannot_be_read(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await ask(cluster, ELASTIC)
    said = capsys.readouterr()
    assert "would start at once" in said.out
    assert "settings cannot be read (--home, --scheduler-settings), the defaults are taken" in said.err
    assert "(--home, --lease)" in said.err


async def test_whatif_takes_the_settings_before_those_that_are_refused(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await configure(cluster, "interval: often", last="quotas: {default: {cpu: 1}}")
    await ask(cluster, ELASTIC)
    said = capsys.readouterr()
    assert "would not start" in said.out
    assert "settings are refused, those before them are taken: interval" in said.err


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        pytest.param({"image": None}, "it names no image; --training-image", id="no-image"),
        pytest.param({"suspend": True}, "spec.suspend is true", id="suspended"),
    ],
)
async def test_whatif_says_why_a_training_job_would_not_start(
    cluster: Cluster, spec: dict[str, object], why: str
) -> None:
    job = a_training_job("job")
    job["spec"] = {name: value for name, value in {**job["spec"], **spec}.items() if value is not None}
    with pytest.raises(BadInput, match=why):
        await ask(cluster, job)


async def test_whatif_takes_the_operators_image_for_a_job_that_names_none(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_training_job("job")
    job["spec"].pop("image", None)
    await ask(cluster, job, training_image="train:1")
    assert capsys.readouterr().out.startswith("TrainingJob default/job would")


async def test_whatif_does_not_ask_about_a_job_that_exists(cluster: Cluster) -> None:
    document = {**ELASTIC, "metadata": {"name": "mnist", "namespace": "default"}}
    await cluster.client.create(ELASTIC_JOBS, document)
    with pytest.raises(BadInput, match="exists already"):
        await ask(cluster, ELASTIC)


async def enqueue(cluster: Cluster, name: str, **told: Any) -> None:
    """A job that waits."""
    document = {**ELASTIC, "metadata": {"name": name, "namespace": "default"}}
    made = await cluster.client.create(ELASTIC_JOBS, document)
    status = {"scheduling": {"target": 0, **told}}
    await cluster.client.replace(ELASTIC_JOBS, {**made, "status": status}, subresource="status")


async def test_the_queue_is_in_the_order_of_places_and_of_waiting(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, place, minute in (("c", 2, 1), ("b", 1, 5), ("a", 2, 3)):
        await enqueue(cluster, name, place=place, waitingSince=(NOW + timedelta(minutes=minute)).isoformat())
    await queue(output="json")(cluster)
    assert [line["job"] for line in json.loads(capsys.readouterr().out)] == ["b", "c", "a"]
    await queue(output="table")(cluster)
    assert capsys.readouterr().out.startswith("PLACE")


async def test_the_wide_queue_tells_more_and_cuts_nothing(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    long = "no host has room " * 20
    await enqueue(cluster, "mnist", place=1, v="1234.5", reason=long, waitingSince=NOW.isoformat())
    await queue(output="wide")(cluster)
    titles, line = capsys.readouterr().out.splitlines()
    assert titles.split("   ")[-1] == "WHY"
    assert {"AGE", "ATTAINED"} <= set(titles.split())
    assert "1234" in line
    assert line.endswith(long.strip())


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
async def test_a_watched_queue_is_shown_again_when_it_changes(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    await enqueue(cluster, "first", place=1)
    said = ""

    async def until(so: Callable[[str], bool]) -> None:
        nonlocal said
        async with asyncio.timeout(30):
            while not so(said):
                await asyncio.sleep(0.01)
                said += capsys.readouterr().out

    watching = asyncio.create_task(queue(output=output, watch=True)(cluster))
    await until(lambda said: said.count("first") == 1)
    await cluster.client.patch(ELASTIC_JOBS, "first", Merge({"metadata": {"labels": {"a": "b"}}}), namespace="default")
    await enqueue(cluster, "second", place=2)
    await until(lambda said: said.count("second") == 1)
    assert said.count("first") == 2, "what is nothing to the queue is not shown"
    for name in ("first", "second"):
        await cluster.client.delete(ELASTIC_JOBS, name, namespace="default")
    await until(lambda said: said.endswith("nobody waits\n" if output == "table" else "[]\n"))
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


async def test_simulate_on_the_live_cluster_is_told_where_that_is(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        for kind in (ELASTIC_JOBS, SCALE_PLANS, JOB_RESOURCES, TRAINING_JOBS):
            server.serve(kind, status=True)
        async with Client(server.access()) as client:
            ready = [{"type": "Ready", "status": "True"}]
            status = {"status": {"allocatable": {"cpu": "10", "memory": "64Gi"}, "conditions": ready}}
            await client.create(NODES, {"metadata": {"name": "a"}})
            await client.patch(NODES, "a", Merge(status), subresource="status")
            await client.create(NAMESPACES, {"metadata": {"name": "elsewhere"}})
            meta = {"name": "mine", "namespace": "elsewhere"}
            quota = "{quotas: {team: {cpu: 6}}}"
            await client.create(CONFIG_MAPS, {"metadata": meta, "data": {"settings": quota}})
        config, job = tmp_path / "config", tmp_path / "job.yaml"
        contexts = {name: {"cluster": name} for name in ("gone", "here")}
        clusters = {"gone": "http://127.0.0.1:1", "here": server.url}
        config.write_text(
            yaml.safe_dump(
                {
                    "current-context": "gone",
                    "contexts": [{"name": name, "context": context} for name, context in contexts.items()],
                    "clusters": [{"name": name, "cluster": {"server": url}} for name, url in clusters.items()],
                }
            )
        )
        job.write_text(yaml.safe_dump(ELASTIC))
        place = ("--kubeconfig", str(config), "--context", "here", "--namespace", "team")
        installed = ("--home", "elsewhere", "--scheduler-settings", "mine")
        said = await said_by("simulate", str(job), "--cluster", "live", *place, *installed)
    assert said.startswith("ElasticJob team/mnist would start at once, with 1"), "the quota of its settings"


async def said_by(*words: str) -> str:
    command = (sys.executable, "-m", "shoal", *words)
    running = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    out, errors = await running.communicate()
    assert running.returncode == 0, errors.decode()
    return out.decode()
