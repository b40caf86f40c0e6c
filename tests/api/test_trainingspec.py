"""What a TrainingJob means: every spelling one shape, and defaults as the design documents have them, mended."""

from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import given, settings
from tests.api.builders import Written, a_training_job, example
from tests.api.strategies import training_jobs

from shoal.api import TrainingJob
from shoal.api.elasticjob import JobPriority
from shoal.api.resources import Resource
from shoal.api.trainingspec import TrainingSpec, in_the_words_of, understand


def meaning(written: Written) -> TrainingSpec:
    return understand(msgspec.convert(written, TrainingJob))


def of(trainer: Written | None = None, **spec: Any) -> TrainingSpec:
    return meaning(a_training_job(trainer=trainer, **spec))


def test_the_seeds_job_is_elastic_fault_tolerant_and_has_a_master_of_ours() -> None:
    spec = meaning(example("seed-trainingjob"))
    assert (spec.trainer.min, spec.trainer.max, spec.is_elastic, spec.fault_tolerant) == (3, 6, True, True)
    assert spec.trainer.resource == Resource(cpu=0.5, memory=600, gpu_num=1)
    assert (spec.image, spec.workspace, spec.passes) == (
        None,
        example("seed-trainingjob")["spec"]["trainer"]["workspace"],
        1,
    )
    assert spec.is_ours
    assert [(part.role, part.min) for part in spec.parts] == [("master", 1), ("etcd", 1), ("pserver", 3)]


def test_passes_count_wherever_they_are_written() -> None:
    assert meaning(example("paddle-trainingjob")).passes == 50
    assert of({"passes": 2}, passes=7).passes == 7


def test_who_says_nothing_has_one_trainer_and_does_not_survive_its_loss() -> None:
    spec = of()
    assert (spec.trainer.min, spec.trainer.max, spec.fault_tolerant, spec.restarts) == (1, 1, False, 0)
    assert (spec.priority, spec.freezing_window, spec.ports) == (JobPriority.NORMAL, None, (7164, 7165))
    assert (spec.pserver, spec.master, spec.etcd) == (None, None, None)


def test_an_elastic_job_survives_three_losses_for_each_trainer() -> None:
    assert of({"min-instance": 1, "max-instance": 4}).restarts == 3
    assert of({"max-restarts": 7}).restarts == 7


def test_a_most_without_a_least_begins_with_one() -> None:
    spec = of({"max-instance": 4})
    assert (spec.trainer.min, spec.trainer.max) == (1, 4)


def test_a_master_with_an_entrypoint_of_its_own_is_not_ours() -> None:
    assert of(master={}).is_ours
    assert not of(master={"entrypoint": "./master"}).is_ours
    assert not of().is_ours
    assert not of({"entrypoint": None}, master={}).is_ours


def test_the_misspelt_class_is_an_alias() -> None:
    assert of(priority="Experiement").priority is JobPriority.EXPERIMENT
    assert of(freezingWindow="1m30s").freezing_window == timedelta(seconds=90)


def test_the_host_network_has_three_spellings() -> None:
    assert all(of(**{name: True}).host_network for name in ("hostNetwork", "host_network", "HostNetwork"))
    assert of(NodeSelector={"a": "1", "b": "1"}, node_selector={"b": "2"}).node_selector == {"a": "1", "b": "2"}


def test_devices_get_the_name_that_kubernetes_takes() -> None:
    amounts = {"alpha.kubernetes.io/nvidia-gpu": 1, "cpu": "500m"}
    assert in_the_words_of("nvidia.com/gpu", amounts) == {"nvidia.com/gpu": "1", "cpu": "500m"}


def test_limits_stand_in_for_requests() -> None:
    spec = of({"resources": {"limits": {"cpu": 2, "memory": "1Gi"}, "requests": {"cpu": 1}}})
    assert spec.trainer.resource == Resource(cpu=1, memory=1024)


@given(training_jobs())
@settings(deadline=None, max_examples=60)
def test_every_valid_job_has_a_meaning(written: Written) -> None:
    spec = meaning(written)
    assert all(1 <= part.min <= part.max for part in (spec.trainer, *spec.parts))
    assert spec.fault_tolerant or not spec.is_elastic
