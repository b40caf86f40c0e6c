"""Shoal as people install it, on a real API server: the chart with Helm, and `install.yaml` with kubectl."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hack.kube.harness import Cluster, Unavailable
from hack.kube.harness.parts import built
from tools import install_yaml

from shoal.cli.flags import read, with_defaults
from shoal.cli.operator import FLAGS, PREFIX, configured

MakeNamespace = Callable[[Cluster], str]
Manifest = dict[str, Any]
CRDS = {
    "elasticjobs.elastic.iml.github.io",
    "scaleplans.elastic.iml.github.io",
    "jobresources.elastic.easydl.org",
    "trainingjobs.paddlepaddle.org",
}
EVERYTHING = {
    "image": {"repository": "registry.example:5000/a/shoal", "digest": "sha256:" + 64 * "0", "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "replicas": 3,
    "operator": {
        "workers": 4,
        "logLevel": "debug",
        "extraArgs": ["--silence=30", "--drain=10"],
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "priorityClassName": "system-cluster-critical",
        "podAnnotations": {"a.example/b": "true"},
        "podLabels": {"team": "ml"},
    },
    "jobs": {
        "maxMembers": 64,
        "autoscaleEvery": 10,
        "priorityClasses": {"high": "training-high", "low": "training-low"},
        "priorityClass": {"create": True, "name": "background", "value": -100},
        "trainingImage": "paddle:1",
        "etcdImage": "registry.example:5000/a/etcd:1",
        "gpuResource": "amd.com/gpu",
        "gpuTypeLabel": "amd.com/gpu.product-name",
        "sharedMemory": "8Gi",
        "master": {"cpu": "1", "memory": "1Gi", "memoryLimit": "2Gi"},
    },
    "podScaler": {"enabled": True},
    "serviceAccount": {"name": "robot", "annotations": {"a.example/role": "1"}},
    "metrics": {"port": 9090, "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
}
VALUES: Mapping[str, Manifest] = {
    "as it comes": {},
    "one namespace": {"watchNamespace": "team-a", "replicas": 1},
    "the least": {
        "crds": {"install": False},
        "replicas": 1,
        "rbac": {"aggregate": False},
        "networkPolicy": {"enabled": False},
        "podDisruptionBudget": {"enabled": False},
    },
    "everything set": EVERYTHING,
}


@pytest.fixture(scope="module")
def helm() -> Path:
    try:
        return built("helm") / "helm"
    except Unavailable as error:
        pytest.skip(f"helm: {error}")


@pytest.fixture(params=VALUES)
def values(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(VALUES[request.param]))
    return path


def run(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(str(word) for word in words)}: {done.stderr}"
    return done.stdout


def template(helm: Path, values: Path) -> list[Manifest]:
    version = f"--kube-version={install_yaml.OLDEST}"
    made = run(helm, "template", "shoal", install_yaml.CHART, "--namespace=default", version, f"--values={values}")
    return [each for each in yaml.safe_load_all(made) if each]


def test_the_chart_lints_and_its_flags_exist_whatever_is_set(helm: Path, values: Path) -> None:
    run(helm, "lint", "--strict", install_yaml.CHART, f"--values={values}")
    given = yaml.safe_load(values.read_text())
    made = template(helm, values)
    (deployment,) = [each for each in made if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    config = configured(with_defaults(read(container["args"], {}, FLAGS, PREFIX).values, FLAGS), {})
    assert config.namespace == given.get("watchNamespace")
    assert config.image == container["image"]
    assert config.image_pull_secrets == tuple(each["name"] for each in given.get("imagePullSecrets", ()))
    assert config.priority_classes == given.get("jobs", {}).get("priorityClasses", {})
    jobs = given.get("jobs", {})
    assert config.priority_class == jobs.get("priorityClass", {}).get("name", "shoal-training")
    assert config.training_image == jobs.get("trainingImage")
    (ranked,) = (each for each in made if each["kind"] == "PriorityClass")
    assert (ranked["metadata"]["name"], ranked["preemptionPolicy"]) == (config.priority_class, "Never")
    assert ranked["value"] < 0
    assert config.pod_scaler is given.get("podScaler", {}).get("enabled", False)
    assert config.max_members == given.get("jobs", {}).get("maxMembers", 8)
    assert config.autoscale_seconds == given.get("jobs", {}).get("autoscaleEvery", 30)
    assert {each["metadata"]["name"] for each in made if each["kind"] == "CustomResourceDefinition"} == (
        CRDS if given.get("crds", {}).get("install", True) else set()
    )
    if config.namespace is not None:
        assert not [each for each in made if each["kind"] == "ClusterRoleBinding"]


def test_the_api_server_takes_the_chart_whatever_is_set(helm: Path, values: Path, control_plane: Cluster) -> None:
    made = [each for each in template(helm, values) if each["kind"] != "ServiceMonitor"]
    for each in made:
        if each["metadata"].get("namespace") == "team-a":  # it is not there: a dry run makes none
            each["metadata"]["namespace"] = "default"
    said = apply(control_plane, made, "--dry-run=server")
    assert len(said.splitlines()) == len(made), "one line for each object that was taken"


def test_install_yaml_is_what_helm_makes_of_the_chart(helm: Path) -> None:
    assert install_yaml.INSTALL.read_text(encoding="utf-8") == install_yaml.rendered(helm), (
        "python tools/install_yaml.py --write"
    )


@pytest.fixture
def installed(control_plane: Cluster) -> Iterator[Cluster]:
    control_plane.kubectl("apply", "--server-side", "-f", str(install_yaml.INSTALL))
    yield control_plane
    shipped = [each for each in yaml.safe_load_all(install_yaml.INSTALL.read_text()) if each]
    ours = [each for each in shipped if each["kind"] != "CustomResourceDefinition"]  # other tests use these
    control_plane.kubectl("delete", "--wait=false", "-f", "-", stdin=json.dumps(as_list(ours)))


def test_install_yaml_applies_with_kubectl_again_and_again(installed: Cluster) -> None:
    installed.kubectl("apply", "--server-side", "-f", str(install_yaml.INSTALL))
    installed.kubectl("wait", "--for=condition=Established", "crd", *CRDS, "--timeout=30s")
    pods = installed.api.wait(
        "/api/v1/namespaces/shoal-system/pods",
        lambda items: items if len(items) == 2 else None,
        what="two Pods of the operator: its namespace admits only what keeps to the restricted policy",
    )
    assert {pod["spec"]["serviceAccountName"] for pod in pods} == {"shoal-operator"}


def test_helm_upgrades_and_an_uninstall_keeps_definitions_and_jobs(
    helm: Path, control_plane: Cluster, make_namespace: MakeNamespace
) -> None:
    namespace = make_namespace(control_plane)

    def ask(verb: str, *more: str | Path) -> str:
        where = (f"--kubeconfig={control_plane.kubeconfig}", f"--namespace={namespace}")
        return run(helm, verb, "try", *more, *where)

    said = ask("install", install_yaml.CHART, "--take-ownership")
    assert f"kubectl -n {namespace} rollout status deployment/try-shoal-operator" in said
    try:
        ask("upgrade", install_yaml.CHART, "--take-ownership", "--set=replicas=1", "--set=image.tag=0.2.0")
        deployment = json.loads(
            control_plane.kubectl("get", "-n", namespace, "-o=json", "deployment", "try-shoal-operator")
        )
        assert deployment["spec"]["replicas"] == 1
    finally:
        ask("uninstall")
    kept = control_plane.kubectl("get", "crd", "-o=name").split()
    assert {f"customresourcedefinition.apiextensions.k8s.io/{name}" for name in CRDS} <= set(kept)
    assert not control_plane.kubectl("get", "-n", namespace, "-o=name", "deployments,services,roles")


def apply(cluster: Cluster, objects: list[Manifest], *flags: str) -> str:
    """What kubectl says. Raises where the server refuses one of them."""
    return cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", *flags, "-f", "-", stdin=json.dumps(as_list(objects))
    )


def as_list(objects: list[Manifest]) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": objects}
