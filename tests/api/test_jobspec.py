"""One shape for every spelling, and what is assumed when nothing is said."""

from datetime import timedelta

import pytest
from tests.api.builders import Written, a_job, a_template, example, understood

from shoal.api.elasticjob import STRATEGIES, JobPriority, OptimizeMode, Role, RolePriority, Strategy
from shoal.api.jobspec import JobDefaults, JobSpec, normalise
from shoal.api.resources import Resource
from shoal.api.templates import command_of


def meaning(written: Written, defaults: JobDefaults | None = None) -> JobSpec:
    return normalise(understood(written), defaults)


def test_a_job_that_says_nothing_has_defaults() -> None:
    spec = meaning(example("smallest"))
    assert spec.strategy is Strategy.ALLREDUCE
    assert spec.optimize_mode is OptimizeMode.SINGLE_JOB
    assert spec.priority is JobPriority.NORMAL
    worker = spec.worker
    assert (worker.replicas, worker.min, worker.max, worker.restart_count) == (None, 1, 8, 3)
    assert worker.resource.is_silent
    assert command_of(worker.template) == ["python", "train.py"]


def test_defaults_are_settings() -> None:
    spec = meaning(example("smallest"), JobDefaults(max_members=3, restart_count=0, optimize_mode=OptimizeMode.CLUSTER))
    assert (spec.worker.max, spec.worker.restart_count, spec.optimize_mode) == (3, 0, OptimizeMode.CLUSTER)


@pytest.mark.parametrize(("written", "strategy"), STRATEGIES.items())
def test_every_spelling_of_a_strategy_means_one_of_two(written: str, strategy: Strategy) -> None:
    servers = {"parameterServer": {"template": a_template()}} if strategy is Strategy.PARAMETER_SERVER else {}
    assert meaning(a_job(distributionStrategy=written, **servers)).strategy is strategy


def test_parameter_servers_make_a_strategy_of_none() -> None:
    assert meaning(a_job(parameterServer={"template": a_template()})).strategy is Strategy.PARAMETER_SERVER


def test_roles_in_replica_specs_mean_the_same() -> None:
    role = {"template": a_template(), "replicas": 2, "min": 1, "max": 4, "restartCount": 0, "priority": "high"}
    mapped = a_job()
    mapped["spec"] = {"replicaSpecs": {"worker": role, "ps": role}}
    assert meaning(mapped).roles == meaning(a_job(worker=role, parameterServer=role)).roles


def test_in_replica_specs_no_replicas_is_not_said() -> None:
    assert meaning(example("dlrover-parameter-servers")).worker.replicas is None


def test_what_kubectl_scale_writes_wins_over_replica_specs() -> None:
    written = example("dlrover-allreduce")
    written["spec"]["worker"] = {"replicas": 6}
    assert meaning(written).worker.replicas == 6
    assert meaning(written).worker.restart_count == 1


def test_zero_restarts_are_zero() -> None:
    assert meaning(a_job(worker={"restartCount": 0})).worker.restart_count == 0


def test_a_role_gets_what_it_says_and_else_what_its_template_requests() -> None:
    template = a_template(
        resources={"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"nvidia.com/gpu": 1, "cpu": 3}}
    )
    spec = meaning(a_job(worker={"template": template, "resource": {"memory": "8Gi"}}))
    assert spec.worker.resource == Resource(cpu=2, memory=8192, gpu_num=1)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        pytest.param({"cpu": "7"}, 3, id="cpu-allows-three"),
        pytest.param({"cpu": "100", "memory": "4Gi"}, 4, id="memory-allows-four"),
        pytest.param({"cpu": "1"}, 1, id="never-below-min"),
        pytest.param({"nvidia.com/gpu": "4"}, 8, id="nothing-to-divide-by"),
    ],
)
def test_the_most_workers_are_what_the_limits_allow(limits: Written, most: int) -> None:
    job = a_job(worker={"resource": {"cpu": 2, "memory": "1Gi"}}, resourceLimits=limits)
    assert meaning(job).worker.max == most


def test_what_other_roles_take_is_not_left_for_workers() -> None:
    servers = {"template": a_template(), "replicas": 2, "resource": {"cpu": 3}}
    job = a_job(worker={"resource": {"cpu": 1}}, parameterServer=servers, resourceLimits={"cpu": 10})
    assert meaning(job).worker.max == 4


def test_who_asks_for_more_than_the_default_may_have_it() -> None:
    assert meaning(a_job(worker={"replicas": 20})).worker.max == 20
    assert meaning(a_job(worker={"min": 12})).worker.max == 12


def test_there_is_one_chief_and_as_many_evaluators_as_asked() -> None:
    roles = meaning(a_job(chief={"template": a_template()}, evaluator={"template": a_template(), "replicas": 2})).roles
    assert roles[Role.CHIEF].max == 1
    assert roles[Role.EVALUATOR].max == 2


def test_everything_that_can_be_said_is_understood() -> None:
    spec = meaning(example("everything"))
    assert spec.freezing_window == timedelta(hours=1, minutes=30)
    assert spec.ttl_after_finished == timedelta(minutes=10)
    assert spec.active_deadline == timedelta(days=1)
    assert spec.suspend
    assert spec.priority is JobPriority.PRODUCTION
    assert (spec.node_unit, spec.global_batch, spec.checkpoint_path) == (2, 512, "/checkpoints/everything")
    assert spec.limits == Resource(cpu=64, memory=512 * 1024, gpu_num=8)
    assert spec.worker.resource == Resource(cpu=0.5, memory=1536, disk=9537, gpu_num=1, gpu_type="a100")
    assert spec.worker.priority is RolePriority.LOW
    assert command_of(spec.worker.template) == ["python", "train.py"]


def test_the_environment_of_all_pods_keeps_its_names() -> None:
    assert meaning(example("dlrover-parameter-servers")).env == ({"name": "TF_CPP_MIN_LOG_LEVEL", "value": "1"},)
