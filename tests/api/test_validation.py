"""What may be applied: examples that must pass, a table of those that must not, and anything at all."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.builders import EXAMPLES, a_job, a_job_resource, a_plan, a_template, example
from tests.api.refused import Refused, changes, refused
from tests.api.strategies import broken, jobs, valid

from shoal.api import ElasticJob, JobResource, ScalePlan, TrainingJob
from shoal.api.jobspec import normalise
from shoal.api.rules import same
from shoal.api.trainingspec import understand
from shoal.api.validation import problems

MODELS = {"ElasticJob": ElasticJob, "ScalePlan": ScalePlan, "JobResource": JobResource, "TrainingJob": TrainingJob}


@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES])
def test_the_seeds_and_published_examples_are_accepted_unchanged(name: str) -> None:
    assert problems(example(name)) == ()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in refused()])
def test_what_is_wrong_is_refused_with_its_field_and_reason(case: Refused) -> None:
    found = problems(case.written)
    assert case.field in [problem.field for problem in found]
    assert any(case.says in problem.message for problem in found)


@pytest.mark.parametrize(("old", "new", "field"), [pytest.param(*rest, id=name) for name, *rest in changes()])
def test_what_members_are_made_of_changes_only_while_suspended(old: Any, new: Any, field: str) -> None:
    (problem,) = problems(new, old)
    assert field in problem.message
    assert "spec.suspend" in problem.message
    suspended = {**old, "spec": {**old["spec"], "suspend": True}}
    assert problems(new, suspended) == ()
    assert problems(suspended, old) == ()


def test_counts_and_resources_change_while_the_job_runs() -> None:
    new = a_job(worker={"replicas": 3, "max": 4, "resource": {"cpu": 2}}, ttlSecondsAfterFinished=5, suspend=True)
    assert problems(new, a_job()) == ()


def test_a_plan_and_a_job_resource_stay_with_their_job() -> None:
    assert "ownerJob" in problems(a_plan(ownerJob="other"), a_plan())[0].message
    assert "selector" in problems(a_job_resource(selector={"name": "other"}), a_job_resource())[0].message


def test_kubectl_scale_may_write_beside_replica_specs() -> None:
    written = a_job(replicaSpecs={"worker": {"template": a_template()}})
    written["spec"]["worker"] = {"replicas": 3}
    assert problems(written) == ()


def test_a_whole_number_is_written_without_a_point() -> None:
    (problem,) = problems(a_job(worker={"restartCount": 4.0}))
    assert (problem.field, "without a point" in problem.message) == ("spec.worker.restartCount", True)


def test_a_null_is_as_good_as_nothing() -> None:
    assert problems(a_job(worker={"min": None}, evaluator=None, suspend=None)) == ()
    assert problems(a_job(worker={"template": None}))[0].field == "spec"


@pytest.mark.parametrize("written", [None, 3, "job", [], {}, {"kind": "Pod"}, {"kind": [], "apiVersion": {}}])
def test_what_is_no_object_of_ours_is_told_so(written: Any) -> None:
    assert len(problems(written)) == 1


def test_a_template_may_nest_as_deep_as_it_likes() -> None:
    deep: Any = "end"
    for _ in range(20_000):
        deep = {"more": deep}
    written = a_job(worker={"template": a_template()})
    written["spec"]["worker"]["template"]["spec"]["affinity"] = deep
    again = {**written, "spec": {**written["spec"]}}
    assert problems(again, written) == ()


def test_a_message_repeats_nothing_that_a_terminal_would_obey() -> None:
    (problem,) = problems(a_job(priority="\x1b[2J" + "x" * 10_000))
    assert problem.message.isprintable()
    assert len(problem.message) < 200


def test_equal_is_not_what_python_calls_equal() -> None:
    assert not same({"a": [True]}, {"a": [1]})
    assert not same({"a": 1}, {"b": 1})
    assert not same([1], [1, 2])
    assert same({"a": [1, None, {"b": "c"}]}, {"a": [1, None, {"b": "c"}]})


@given(valid)
@settings(deadline=None, max_examples=60)
def test_what_the_schemas_make_is_valid_and_decodes(written: dict[str, Any]) -> None:
    assert problems(written) == ()
    msgspec.convert(written, MODELS[written["kind"]])


@given(jobs())
@settings(deadline=None, max_examples=60)
def test_every_valid_job_has_a_meaning(written: dict[str, Any]) -> None:
    spec = normalise(msgspec.convert(written, ElasticJob))
    for needs in spec.roles.values():
        assert 0 <= needs.min <= needs.max


def without_nulls(value: Any) -> Any:
    """As the server keeps it."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


@given(broken())
@settings(deadline=None, max_examples=150)
def test_nothing_crashes_on_what_is_broken_and_what_passes_decodes(written: dict[str, Any]) -> None:
    found = problems(written)
    assert all(problem.field and problem.rule and problem.message for problem in found)
    if not found:
        kept = msgspec.convert(without_nulls(written), MODELS[written["kind"]])
        if isinstance(kept, ElasticJob):
            normalise(kept)
        if isinstance(kept, TrainingJob):
            understand(kept)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)


@given(anything, anything)
@settings(deadline=None, max_examples=100)
def test_nothing_crashes_on_anything(spec: Any, metadata: Any) -> None:
    problems(spec)
    assert problems({**a_job(), "spec": spec})
    problems({**a_job(), "metadata": metadata})
