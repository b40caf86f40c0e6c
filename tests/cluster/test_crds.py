"""The CRDs on a real API server: they establish, take what they should, and refuse the rest as `problems` does.

Objects are created with `dryRun`: everything happens but the writing. Field validation is strict, as kubectl's is.
"""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hack.kube.harness import ApiError, Cluster
from hypothesis import HealthCheck, given, settings
from tests.api.builders import EXAMPLES, a_job, a_plan, a_template, a_training_job, example
from tests.api.refused import Refused, changes, refused
from tests.api.strategies import broken, valid

from shoal.api.crds import DEFINITIONS
from shoal.api.validation import problems

CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "templates" / "crds"
COLLECTIONS = {each.kind: f"/apis/{each.api_version}/namespaces/default/{each.plural}" for each in DEFINITIONS}
Written = dict[str, Any]


@pytest.fixture(scope="module")
def server(control_plane: Cluster) -> Cluster:
    """A control plane with our CRDs."""
    control_plane.kubectl("apply", "--server-side", "-f", str(CRDS))
    names = {each.name for each in DEFINITIONS}
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

    def established(items: list[Written]) -> bool:
        ours = [each for each in items if each["metadata"]["name"] in names]
        return len(ours) == len(names) and all(is_established(each) for each in ours)

    control_plane.api.wait(path, established, what="our CRDs are established")
    return control_plane


def is_established(crd: Written) -> bool:
    return conditions(crd).get("Established", {}).get("status") == "True"


def conditions(item: Written) -> dict[str, Written]:
    return {each["type"]: each for each in item.get("status", {}).get("conditions") or []}


def verdict(server: Cluster, written: Written) -> str:
    """What the API server has against an object; nothing when it takes it."""
    path = COLLECTIONS[written["kind"]]
    strict = {"dryRun": "All", "fieldValidation": "Strict"}
    try:
        server.api.call("POST", path, written, **strict)
    except ApiError as error:
        if error.status not in (400, 422):
            raise
        return str(error)
    return ""


@pytest.fixture
def kept(server: Cluster) -> Iterator[Callable[[Written], Written]]:
    """Creates an object for good, until the test is over."""
    made: list[str] = []

    def keep(written: Written) -> Written:
        created = server.api.create(COLLECTIONS[written["kind"]], written)
        made.append(f"{COLLECTIONS[written['kind']]}/{written['metadata']['name']}")
        return created

    yield keep
    for path in made:
        server.api.delete(path)


@pytest.mark.parametrize("name", [each.name for each in DEFINITIONS])
def test_a_crd_is_structural_and_has_its_names(server: Cluster, name: str) -> None:
    crd = server.api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    assert conditions(crd).get("NonStructuralSchema", {"status": "False"})["status"] == "False"
    assert conditions(crd)["NamesAccepted"]["status"] == "True"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_seeds_and_published_examples_apply_unchanged(server: Cluster, path: Path) -> None:
    assert "created" in server.kubectl("apply", "--dry-run=server", "-f", str(path))
    assert "serverside-applied" in server.kubectl("apply", "--server-side", "--dry-run=server", "-f", str(path))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_what_is_applied_is_kept_word_for_word(server: Cluster, path: Path, kept: Callable[[Written], Written]) -> None:
    written = example(path.stem)
    stored = kept(written)["spec"]
    if written["kind"] in ("ElasticJob", "TrainingJob"):
        written["spec"].setdefault("suspend", False)
    if "checkpoint" in written["spec"]:
        written["spec"]["checkpoint"].setdefault("fuzzy", False)
    assert stored == written["spec"]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in refused()])
def test_what_is_wrong_is_refused_with_its_field_and_reason(server: Cluster, case: Refused) -> None:
    told = verdict(server, case.written)
    assert case.says in told
    assert case.field in told.replace('"', "") or case.field.startswith("metadata")
    assert told


def test_kubectl_users_see_the_reason(server: Cluster) -> None:
    template = a_template()
    del template["spec"]["containers"][0]["command"]
    with pytest.raises(RuntimeError, match="the first container needs a command"):
        server.kubectl("apply", "-f", "-", stdin=json.dumps(a_job(worker={"template": template})))


@pytest.mark.parametrize(("old", "new", "field"), [pytest.param(*rest, id=name) for name, *rest in changes()])
def test_what_members_are_made_of_changes_only_while_suspended(
    server: Cluster, kept: Callable[[Written], Written], old: Written, new: Written, field: str
) -> None:
    kept(old)
    path = f"{COLLECTIONS[old['kind']]}/{old['metadata']['name']}"

    def change(written: Written) -> None:
        version = server.api.get(path)["metadata"]["resourceVersion"]
        server.api.call("PUT", path, {**written, "metadata": {**written["metadata"], "resourceVersion": version}})

    with pytest.raises(ApiError, match=f"{field} cannot (change|come or go) while the job runs"):
        change(new)
    change({**old, "spec": {**old["spec"], "suspend": True}})
    change(new)


def test_a_plan_stays_with_its_job(server: Cluster, kept: Callable[[Written], Written]) -> None:
    kept(a_plan())
    with pytest.raises(ApiError, match="ownerJob cannot change"):
        server.api.patch(f"{COLLECTIONS['ScalePlan']}/plan", {"spec": {"ownerJob": "other"}})


def test_kubectl_scale_asks_for_workers(server: Cluster, kept: Callable[[Written], Written]) -> None:
    kept(a_job("scaled", worker={"max": 4}))
    server.kubectl("scale", "ej/scaled", "--replicas=3")
    path = f"{COLLECTIONS['ElasticJob']}/scaled"
    assert server.api.get(path)["spec"]["worker"]["replicas"] == 3
    selector = "elastic.iml.github.io/job-name=scaled"
    server.api.patch(f"{path}/status", {"status": {"replicas": 2, "selector": selector}})
    scale = server.api.get(f"{path}/scale")
    assert (scale["spec"]["replicas"], scale["status"]) == (3, {"replicas": 2, "selector": selector})
    with pytest.raises(RuntimeError, match="replicas must not exceed max"):
        server.kubectl("scale", "ej/scaled", "--replicas=5")
    with pytest.raises(RuntimeError, match=r"set spec\.suspend to true"):
        server.kubectl("scale", "ej/scaled", "--replicas=0")


def test_kubectl_scale_works_beside_replica_specs(server: Cluster, kept: Callable[[Written], Written]) -> None:
    kept(example("dlrover-allreduce"))
    server.kubectl("scale", "elasticjob/torch-mnist", "--replicas=2")
    assert server.api.get(f"{COLLECTIONS['ElasticJob']}/torch-mnist")["spec"]["worker"] == {"replicas": 2}


def test_kubectl_scale_says_how_many_trainers_at_most(server: Cluster, kept: Callable[[Written], Written]) -> None:
    kept(a_training_job("trained", trainer={"min-instance": 2, "max-instance": 4}))
    server.kubectl("scale", "tj/trained", "--replicas=3")
    assert server.api.get(f"{COLLECTIONS['TrainingJob']}/trained")["spec"]["trainer"]["max-instance"] == 3
    with pytest.raises(RuntimeError, match="min-instance must not exceed max-instance"):
        server.kubectl("scale", "tj/trained", "--replicas=1")
    head, row = server.kubectl("get", "tj", "trained").splitlines()
    assert head.split() == ["NAME", "PHASE", "TRAINERS", "TARGET", "MIN", "MAX", "PLACE", "AGE"]
    assert row.split()[:3] == ["trained", "2", "3"]


def test_kubectl_get_shows_what_people_want_to_know(server: Cluster, kept: Callable[[Written], Written]) -> None:
    kept(a_job("shown", worker={"replicas": 2}))
    kept(example("seed-scaleplan"))
    kept(example("seed-jobresource"))
    ready = {"type": "Ready", "status": "True", "reason": "AllMembersUp", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"conditions": [ready], "replicas": 1, "restarts": 7}
    server.api.patch(f"{COLLECTIONS['ElasticJob']}/shown/status", {"status": status})
    head, row = server.kubectl("get", "ej", "shown").splitlines()
    assert head.split() == ["NAME", "STATE", "WORKERS", "DESIRED", "RESTARTS", "DONE", "AGE"]
    assert row.split()[:5] == ["shown", "AllMembersUp", "1", "2", "7"]
    _, row = server.kubectl("get", "splan").splitlines()
    assert row.split()[:5] == ["scaleplan-sample", "elasticjob-sample", "manual", "2", "1"]
    assert "elastic-deepctr-job" in server.kubectl("get", "jr")
    everything = server.kubectl("get", "shoal")
    assert all(name in everything for name in ("shown", "scaleplan-sample", "elastic-training-resource"))


def test_kubectl_explain_tells_what_a_field_means(server: Cluster) -> None:
    assert "multiples" in server.kubectl("explain", "elasticjob.spec.nodeUnit")


def test_the_master_and_the_operator_write_one_status_side_by_side(
    server: Cluster, kept: Callable[[Written], Written]
) -> None:
    kept(a_job("shared"))
    path = f"{COLLECTIONS['ElasticJob']}/shared/status"
    head = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "shared"}}

    def apply(manager: str, status: Written) -> Written:
        return server.api.call(
            "PATCH", path, {**head, "status": status}, "application/apply-patch+yaml", fieldManager=manager
        )

    apply("shoal-operator", {"roles": [{"role": "worker", "running": 2}], "world": 1})
    status = apply("shoal-master", {"training": {"phase": "running", "step": 10}})["status"]
    assert status == {
        "roles": [{"role": "worker", "running": 2}],
        "world": 1,
        "training": {"phase": "running", "step": 10},
    }
    status = apply("shoal-operator", {"world": 2})["status"]
    assert status == {"world": 2, "training": {"phase": "running", "step": 10}}


def nested(depth: int) -> str:
    head = (
        '{"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "deep"}, "spec": '
    )
    return head + '{"worker":' * depth + "1" + "}" * (depth + 1)


def a_billion_laughs() -> str:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    for old, new in pairwise("abcdefghi"):
        lines.append(f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(nested(20_000), id="nested"),
        pytest.param(json.dumps(a_job(worker={"template": a_template(args=["x" * 100_000] * 40)})), id="huge"),
        pytest.param(a_billion_laughs(), id="a-billion-laughs"),
        pytest.param("kind: ElasticJob\n\tspec: {", id="no-yaml"),
        pytest.param("\x00\x01\xff", id="no-text"),
    ],
)
def test_hostile_yaml_is_refused_and_the_server_lives(server: Cluster, text: str) -> None:
    with pytest.raises(RuntimeError):
        server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    assert verdict(server, a_job()) == ""


relaxed = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.mark.timeout(900)
@given(written=valid)
@relaxed
def test_the_server_takes_what_our_schemas_make(server: Cluster, written: Written) -> None:
    assert (verdict(server, written), problems(written)) == ("", ())


@pytest.mark.timeout(900)
@given(written=broken())
@settings(relaxed, max_examples=400)
def test_the_servers_verdict_on_broken_objects_is_ours(server: Cluster, written: Written) -> None:
    told, ours = verdict(server, written), problems(written)
    assert bool(told) == bool(ours), f"the server says: {told or 'yes'}; we say: {ours or 'yes'}"
