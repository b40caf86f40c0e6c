"""The models: what is written comes back as it was."""

import msgspec
import pytest
from tests.api.builders import EXAMPLES, a_job, a_plan, example

from shoal.api import ElasticJob, JobResource, ScalePlan, TrainingJob
from shoal.api.elasticjob import ElasticJobStatus, Grant, RoleCount
from shoal.api.meta import Condition, condition
from shoal.api.scaleplan import is_manual, job_name

MODELS = {"ElasticJob": ElasticJob, "ScalePlan": ScalePlan, "JobResource": JobResource, "TrainingJob": TrainingJob}


@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES])
def test_an_object_that_is_read_and_written_is_the_same(name: str) -> None:
    written = example(name)
    assert msgspec.to_builtins(msgspec.convert(written, MODELS[written["kind"]])) == written


def test_fields_of_a_newer_version_do_not_stop_an_older_operator() -> None:
    written = a_job(somethingNew={"a": 1})
    written["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    assert msgspec.convert(written, ElasticJob).metadata.name == "job"


def test_a_value_out_of_bounds_still_decodes() -> None:
    assert msgspec.convert(a_job(worker={"replicas": -1}, priority="Urgent"), ElasticJob).spec.priority == "Urgent"


def test_a_status_is_written_in_the_names_of_kubernetes() -> None:
    status = ElasticJobStatus(
        observed_generation=3, grant=Grant(generation=2, counts=[RoleCount(role="worker", count=4)], reason="all fits")
    )
    assert msgspec.to_builtins(status) == {
        "observedGeneration": 3,
        "grant": {"generation": 2, "counts": [{"role": "worker", "count": 4}], "reason": "all fits"},
    }


def test_a_condition_is_found_by_its_type() -> None:
    ready = msgspec.convert(
        {"type": "Ready", "status": "True", "reason": "AllMembersUp", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        Condition,
    )
    assert condition([ready], "Ready") is ready
    assert condition([ready], "Admitted") is None
    assert condition(None, "Ready") is None


def test_a_plan_names_its_job_in_the_spec_or_by_a_label() -> None:
    by_label = a_plan()
    del by_label["spec"]["ownerJob"]
    by_label["metadata"]["labels"] = {"elasticjob-name": "labelled"}
    assert job_name(msgspec.convert(by_label, ScalePlan)) == "labelled"
    assert job_name(msgspec.convert(a_plan(), ScalePlan)) == "job"
    assert job_name(msgspec.convert({**a_plan(), "spec": {}}, ScalePlan)) is None


def test_a_plan_is_a_users_unless_it_says_auto() -> None:
    auto = a_plan()
    auto["metadata"]["labels"] = {"scale-type": "auto"}
    assert not is_manual(msgspec.convert(auto, ScalePlan))
    assert is_manual(msgspec.convert(a_plan(), ScalePlan))
