"""Who may do what, under exactly the roles that are shipped: the operator, the masters of jobs, their training Pods.

The API server says what each identity may do (`SelfSubjectRulesReview` lists all of it), and real requests say whether
that is so.
"""

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.kube.harness import Cluster, Unavailable
from hack.kube.harness.parts import built
from tests.cluster.operators import PATIENCE, Jobs, Process, until
from tests.cluster.training_jobs import TrainingJobs
from tools.install_yaml import CHART, INSTALL, NAMESPACE, OLDEST

MakeNamespace = Callable[[Cluster], str]
Rule = tuple[str, str, str, str]
"""Group, resource, verb, and the name of the one object it is for, or nothing."""

SHOAL = "elastic.iml.github.io"
GIVEN_AWAY = {
    ("elasticjobs", "get"),
    ("elasticjobs/status", "get"),
    ("scaleplans", "patch"),
    ("secrets", "patch"),
}
"""What the operator never does, and must have because the masters' Roles that it makes grant it."""
FOR_OTHER_CLUSTERS = {("elasticjobs/finalizers", "update"), ("trainingjobs/finalizers", "update")}
"""Asked for by an admission plug-in that this cluster does not have (OwnerReferencesPermissionEnforcement)."""
SELDOM = {("events", "patch"), ("scaleplans", "get")}
SELDOM |= {(resource, "get") for resource in ("replicasets", "statefulsets", "jobs")}
"""An event that is told again; a master's plan that was there when it was to be made."""


@pytest.fixture(scope="module")
def cluster(kwok: Cluster) -> Iterator[Cluster]:
    """With all that is shipped but the Deployment: the operator runs beside the cluster, as its service account."""
    shipped = [each for each in yaml.safe_load_all(INSTALL.read_text()) if each and each["kind"] != "Deployment"]
    whole = json.dumps({"apiVersion": "v1", "kind": "List", "items": shipped})
    kwok.kubectl("apply", "--server-side", "-f", "-", stdin=whole)
    kwok.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
    names = kwok.hosts.add(2, prefix="guarded", cpu=64)
    yield kwok
    kwok.hosts.remove(names)
    others = [each for each in shipped if each["kind"] != "CustomResourceDefinition"]
    rest = json.dumps({"apiVersion": "v1", "kind": "List", "items": others})
    kwok.kubectl("delete", "--wait=false", "-f", "-", stdin=rest)


class Stage:
    """A namespace for jobs, and the operator beside it."""

    def __init__(self, cluster: Cluster, namespace: str, log: Path, *flags: str) -> None:
        self.jobs = Jobs(cluster, namespace)
        self.kubeconfig = cluster.service_account(NAMESPACE, "shoal-operator", create=False)
        self._log, self._flags = log, flags
        self.start_operator()

    def start_operator(self) -> None:
        flags = ("--home", NAMESPACE, "--drain", "1", "--ending", "1", "--silence", "1", *self._flags)
        self.operator = Process(self.kubeconfig, "all", self._log, *flags)


@pytest.fixture
def stage(cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path) -> Iterator[Stage]:
    for jobs in ("elastic.iml.github.io/v1alpha1/elasticjobs", "paddlepaddle.org/v1/trainingjobs"):
        # Those of earlier tests are on their way out, and nothing may be made in their namespaces any more.
        cluster.api.wait(f"/apis/{jobs}", lambda items: not items, what="no job is left", timeout=PATIENCE)
    stage = Stage(cluster, make_namespace(cluster), tmp_path / "operator.log")
    yield stage
    assert stage.operator.end() == 0


def test_the_operator_needs_every_shipped_rule_and_no_other(stage: Stage) -> None:
    jobs = stage.jobs
    jobs.make("mnist", worker={"resource": {"cpu": "500m"}}, optimizeMode="manual", ttlSecondsAfterFinished=5)
    jobs.plan("plan", "mnist", replicaResourceSpecs={"worker": {"replicas": 2}})
    jobs.cluster.api.create(
        jobs.job_resources,
        {
            "apiVersion": "elastic.easydl.org/v1alpha1",
            "kind": "JobResource",
            "metadata": {"name": "resource"},
            "spec": {"selector": {"name": "mnist"}, "worker": {"replicas": 2, "resource": {"cpu": 1}}},
        },
    )
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0", "mnist-worker-1")
    more = {"spec": {"worker": {"replicas": 2, "resource": {"cpu": 2}}}}
    jobs.cluster.api.patch(f"{jobs.job_resources}/resource", more)
    events = f"/apis/events.k8s.io/v1/namespaces/{jobs.namespace}/events"
    refused = "hosts that run nothing cannot resize Pods, and the server says so"
    jobs.wait(events, lambda items: [each for each in items if each["reason"] == "ResizeRefused"], refused)
    train(TrainingJobs(jobs.cluster, jobs.namespace))
    calls = calls_of(stage.operator)
    stage.operator.end()
    stage.operator.log.unlink()
    jobs.cluster.api.patch(f"{jobs.jobs}/mnist/status", {"status": {"prepared": "0.1"}})  # by an older operator
    stage.start_operator()  # which brings the job's objects up to date
    jobs.cluster.api.delete(f"{jobs.pods}/mnist-master-1")
    jobs.settled("mnist", "mnist-master-2", "mnist-worker-0", "mnist-worker-1")
    jobs.change("mnist", {"worker": {"replicas": 1}})
    jobs.settled("mnist", "mnist-master-2", "mnist-worker-0")
    jobs.cluster.api.delete(f"{jobs.pods}/mnist-worker-0")
    jobs.settled("mnist", "mnist-master-2", "mnist-worker-2")
    jobs.report("mnist", "succeeded", "all data was trained")
    jobs.wait_for("mnist", "Succeeded", "True")
    jobs.wait(jobs.jobs, lambda items: not items, "the job is deleted when its time is over")
    until = time.monotonic() + PATIENCE
    while ("delete", "elasticjobs", "200") not in calls and time.monotonic() < until:
        calls |= calls_of(stage.operator)  # a call is counted when it is answered, and the watch may be faster

    assert {call for call in calls if call[2] == "403"} == set()
    used = {(resource, verb) for verb, resource, _ in calls}  # "not found" is an answer as well
    used |= {(resource, "watch") for resource, verb in used if verb == "list"}  # counted when they end
    shipped = {
        (resource, verb)
        for role in yaml.safe_load_all(INSTALL.read_text())
        if role and role["kind"] in ("ClusterRole", "Role") and "operator" in role["metadata"]["name"]
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    everybodys = {("selfsubjectaccessreviews", "create")}
    assert used - shipped - everybodys == set()
    assert shipped - used - GIVEN_AWAY - FOR_OTHER_CLUSTERS - SELDOM == set(), "\n".join(map(str, sorted(calls)))


def train(jobs: TrainingJobs) -> None:
    """A TrainingJob that grows, shrinks, is suspended, and comes back as another."""
    jobs.make("x", trainer={"min-instance": 1, "max-instance": 1}, pserver={}, master={})
    jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 1})
    jobs.kubectl("scale", "tj/x", "--replicas=2")
    jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 2})
    jobs.kubectl("scale", "tj/x", "--replicas=1")
    jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 1})
    jobs.change("x", suspend=True)
    jobs.roles({})
    jobs.change("x", suspend=False, image="localhost/another:1")
    jobs.roles({"master": 1, "etcd": 1, "pserver": 1, "trainer": 1})
    jobs.kubectl("delete", "tj/x", "--timeout=60s")


def test_an_operator_of_one_namespace_needs_no_right_beyond_it(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    """The chart's `watchNamespace`: Roles instead of ClusterRoles, and all of a job's life works."""
    try:
        helm = built("helm") / "helm"
    except Unavailable as error:
        pytest.skip(f"helm: {error}")
    namespace = make_namespace(cluster)
    where = (f"--namespace={namespace}", f"--kube-version={OLDEST}")
    words = [helm, "template", "one", CHART, *where, f"--set=watchNamespace={namespace}", "--set=crds.install=false"]
    rendered = subprocess.run(words, capture_output=True, text=True, check=True)
    made = [each for each in yaml.safe_load_all(rendered.stdout) if each]
    rights = [each for each in made if each["kind"] in ("ServiceAccount", "Role", "RoleBinding")]
    assert not [each for each in made if each["kind"] == "ClusterRoleBinding"]
    whole = json.dumps({"apiVersion": "v1", "kind": "List", "items": rights})
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=whole)
    (account,) = (each["metadata"]["name"] for each in rights if each["kind"] == "ServiceAccount")
    kubeconfig = cluster.service_account(namespace, account, create=False)
    jobs = Jobs(cluster, namespace)
    (deployment,) = (each for each in made if each["kind"] == "Deployment")
    given = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    flags = [flag for flag in given if flag.partition("=")[0] in ("--lease", "--install-key", "--scheduler-settings")]
    assert len(flags) == 3
    operator = Process(kubeconfig, namespace, tmp_path / "operator.log", "--drain", "1", "--ending", "1", *flags)
    try:
        operator.address()
        jobs.make("mnist", worker={"replicas": 1})
        jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")
        jobs.plan("plan", "mnist", replicaResourceSpecs={"worker": {"replicas": 2}})
        jobs.settled("mnist", "mnist-master-1", "mnist-worker-0", "mnist-worker-1")
        train(TrainingJobs(cluster, namespace))
        calls = calls_of(operator)
    finally:
        code = operator.end()
    assert code == 0, operator.log.read_text()[-2000:]
    assert {call for call in calls if call[2] == "403"} == set()


def test_an_operator_goes_on_with_the_next_token_when_the_server_takes_the_old_one_no_more(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    namespace = make_namespace(cluster)
    jobs = Jobs(cluster, namespace)
    token = tmp_path / "token"
    token.write_text(cluster.token(NAMESPACE, "shoal-operator"))
    access = yaml.safe_load(cluster.service_account(NAMESPACE, "shoal-operator", create=False).read_text())
    access["users"][0]["user"] = {"tokenFile": str(token)}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(access))
    operator = Process(kubeconfig, "all", tmp_path / "operator.log", "--home", NAMESPACE, "--drain", "1")
    jobs.make("mnist", worker={"replicas": 1})
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")

    token.write_text("expired")
    until(lambda: "does not accept our credentials" in operator.log.read_text(), "it says what is wrong")
    jobs.change("mnist", {"worker": {"replicas": 2}})
    assert operator.is_alive()
    token.write_text(cluster.token(NAMESPACE, "shoal-operator"))
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0", "mnist-worker-1")
    assert operator.end() == 0
    assert "Traceback" not in operator.log.read_text()


def test_the_operator_can_neither_list_nor_watch_secrets_nor_take_more_for_itself(stage: Stage) -> None:
    jobs = stage.jobs
    jobs.make("mnist", worker={"replicas": 1})
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")
    operator = Person(jobs.cluster, stage.kubeconfig)
    for words in (
        ("get", "secrets", "--all-namespaces"),
        ("get", "secrets", f"--namespace={NAMESPACE}"),
        ("get", "secrets", f"--namespace={jobs.namespace}", "--watch"),
        ("delete", "secret", "mnist-token", f"--namespace={jobs.namespace}"),
        ("cordon", "guarded-0"),
        ("get", "configmaps", f"--namespace={NAMESPACE}"),
        ("delete", "service", "mnist-master", f"--namespace={jobs.namespace}"),
        ("scale", "deployment/any", "--replicas=0", f"--namespace={jobs.namespace}"),
    ):
        operator.is_refused(*words)
    greedy = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "greedy", "namespace": jobs.namespace},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}],
    }
    with pytest.raises(RuntimeError, match="attempting to grant RBAC permissions not currently held"):
        operator.may("create", "--validate=false", "-f", "-", stdin=json.dumps(greedy))


def test_a_master_reads_and_patches_its_three_objects_and_nothing_else(stage: Stage) -> None:
    jobs, namespace = stage.jobs, stage.jobs.namespace
    for name in ("mnist", "other"):
        jobs.make(name, worker={"replicas": 1})
        jobs.settled(name, *(f"{job}-{pod}" for job in sorted({"mnist", name}) for pod in ("master-1", "worker-0")))
    master = Person(jobs.cluster, jobs.cluster.service_account(namespace, "mnist-master", create=False))

    assert master.rules(namespace) == {
        *((SHOAL, "elasticjobs", verb, "mnist") for verb in ("get", "list", "watch")),
        *((SHOAL, "elasticjobs/status", verb, "mnist") for verb in ("get", "patch")),
        *((SHOAL, "scaleplans", verb, "mnist-auto") for verb in ("get", "list", "watch", "patch")),
        *(("", "secrets", verb, "mnist-state") for verb in ("get", "patch")),
    }
    assert master.rules(NAMESPACE) == set()

    here = f"--namespace={namespace}"
    master.may("get", "elasticjob", "mnist", here)
    master.may("get", "scaleplan", "mnist-auto", here)
    master.may("patch", "secret", "mnist-state", here, "--type=merge", '--patch={"data":{"a":"Yg=="}}')
    master.may("patch", "scaleplan", "mnist-auto", here, "--type=merge", '--patch={"spec":{"removePods":[]}}')
    report = '--patch={"status":{"training":{"phase":"running"}}}'
    master.may("patch", "elasticjob", "mnist", here, "--subresource=status", "--type=merge", report)
    for words in (
        ("get", "secret", "mnist-token"),
        ("get", "secret", "other-state"),
        ("get", "secret", "other-token"),
        ("get", "secrets"),
        ("get", "elasticjob", "other"),
        ("get", "pods"),
        ("delete", "secret", "mnist-state"),
        ("create", "configmap", "mine"),
        ("patch", "elasticjob", "mnist", "--type=merge", '--patch={"spec":{"suspend":true}}'),
        ("patch", "elasticjob", "other", "--subresource=status", "--type=merge", report),
        ("patch", "scaleplan", "other-auto", "--type=merge", '--patch={"spec":{"removePods":[]}}'),
        ("create", "token", "other-master"),
    ):
        master.is_refused(*words, here)


def test_a_master_that_makes_its_pods_has_those_of_its_namespace_as_well(
    cluster: Cluster, make_namespace: MakeNamespace, tmp_path: Path
) -> None:
    """The server lets the operator grant it under the shipped roles, and the operator makes no worker."""
    stage = Stage(cluster, make_namespace(cluster), tmp_path / "operator.log", "--pod-scaler")
    jobs, namespace = stage.jobs, stage.jobs.namespace
    jobs.make("mnist", worker={"replicas": 1})
    jobs.wait_for_pods("mnist-master-1")
    master = Person(cluster, cluster.service_account(namespace, "mnist-master", create=False))
    more = {rule for rule in master.rules(namespace) if rule[1] in ("pods", "elasticjobs/finalizers")}
    assert more == {
        *(("", "pods", verb, "") for verb in ("get", "list", "watch", "create", "delete")),
        (SHOAL, "elasticjobs/finalizers", "update", "mnist"),
    }
    master.is_refused("get", "secrets", f"--namespace={namespace}")
    assert stage.operator.end() == 0


def test_a_training_pod_has_no_token_and_its_identity_no_rights(stage: Stage) -> None:
    jobs, namespace = stage.jobs, stage.jobs.namespace
    for name in ("mnist", "other"):
        jobs.make(name, worker={"replicas": 1})
    jobs.wait_for_pods("mnist-master-1", "mnist-worker-0", "other-master-1", "other-worker-0")
    pod = jobs.cluster.api.get(f"{jobs.pods}/mnist-worker-0")
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not [volume for volume in pod["spec"]["volumes"] if "projected" in volume]  # where a token would be
    (secret,) = [volume["secret"] for volume in pod["spec"]["volumes"] if "secret" in volume]
    assert secret["secretName"] == "mnist-token"
    assert sorted(item["key"] for item in secret["items"]) == ["agent", "fingerprint"]
    containers = [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]
    assert not re.search("serviceaccount|admin", json.dumps(containers))

    account = pod["spec"]["serviceAccountName"]
    assert account == "mnist-agent"
    assert jobs.cluster.api.get(f"{jobs.pods}/other-worker-0")["spec"]["serviceAccountName"] == "other-agent"
    identity = Person(jobs.cluster, jobs.cluster.service_account(namespace, account, create=False))
    assert identity.rules(namespace) == set()
    here = f"--namespace={namespace}"
    for words in (
        ("get", "secret", "mnist-token"),
        ("get", "secret", "mnist-state"),
        ("get", "secret", "other-token"),
        ("get", "secret", "other-state"),
        ("get", "secrets"),
        ("get", "elasticjobs"),
        ("get", "pods"),
        ("create", "configmap", "mine"),
        ("create", "token", "mnist-master"),
        ("create", "token", "mnist-agent"),
        ("create", "secret", "generic", "mine"),
        ("run", "mine", "--image=any"),
        ("delete", "pod", "mnist-worker-0"),
    ):
        identity.is_refused(*words, here)


def test_a_master_pod_has_its_own_identity_and_its_whole_secret(stage: Stage) -> None:
    jobs = stage.jobs
    jobs.make("mnist", worker={"replicas": 1})
    jobs.settled("mnist", "mnist-master-1", "mnist-worker-0")
    spec = jobs.cluster.api.get(f"{jobs.pods}/mnist-master-1")["spec"]
    assert spec["serviceAccountName"] == "mnist-master"
    assert [volume for volume in spec["volumes"] if "projected" in volume]
    assert [volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume] == ["mnist-token"]


# Asking --------------------------------------------------------------------------------------------------------------


def calls_of(process: Process) -> set[tuple[str, str, str]]:
    """What an operator has called so far: verb, resource, answer."""
    text = urllib.request.urlopen(f"{process.address()}/metrics").read().decode()
    found = re.findall(r"shoal_api_requests_total\{(.*?)\}", text)
    labels = [dict(re.findall(r'(\w+)="(.*?)"', each)) for each in found]
    asked = {(each["verb"], each["resource"], each["code"]) for each in labels}
    return {call for call in asked if not call[1].startswith("/")}  # anybody may ask what is served


class Person:
    """Somebody with a kubeconfig, asking with kubectl."""

    def __init__(self, cluster: Cluster, kubeconfig: Path) -> None:
        self._cluster, self._kubeconfig = cluster, kubeconfig

    def may(self, *words: str, stdin: str | None = None) -> None:
        self._cluster.kubectl(*words, stdin=stdin, kubeconfig=self._kubeconfig)

    def is_refused(self, *words: str) -> None:
        with pytest.raises(RuntimeError, match=r"is forbidden: User .* cannot"):
            self._cluster.kubectl(*words, kubeconfig=self._kubeconfig)

    def rules(self, namespace: str) -> set[Rule]:
        """Everything that they may do to objects of a namespace, but for what the cluster lets everybody do."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        words = ("create", "--validate=false", "-o=json", "-f", "-")
        said = self._cluster.kubectl(*words, stdin=json.dumps(review), kubeconfig=self._kubeconfig)
        answer: dict[str, Any] = json.loads(said)["status"]
        assert not answer["incomplete"]
        return {
            (group, resource, verb, name)
            for rule in answer["resourceRules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            for name in rule.get("resourceNames") or ("",)
            if not resource.startswith("selfsubject")
        }
