"""What is shipped, as far as it can be judged without Helm and a cluster: up to date, and with flags that exist."""

import base64
import re
from typing import Any

import pytest
import yaml
from tools import install_yaml

from shoal.api.crds import DEFINITIONS, crd
from shoal.api.resources import of_list
from shoal.cli.flags import read, with_defaults
from shoal.cli.operator import FLAGS, PREFIX, configured
from shoal.operator.objects import fixed_objects
from shoal.operator.reading import Reader
from shoal.operator.settings import OperatorSettings

Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def shipped() -> list[Manifest]:
    return [each for each in yaml.safe_load_all(install_yaml.INSTALL.read_text(encoding="utf-8")) if each]


def only(shipped: list[Manifest], kind: str, name: str) -> Manifest:
    (found,) = [each for each in shipped if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def test_the_file_was_made_from_the_chart_as_it_is() -> None:
    assert install_yaml.is_fresh(), "python tools/install_yaml.py --write"


def test_it_has_our_definitions(shipped: list[Manifest]) -> None:
    for definition in DEFINITIONS:
        assert only(shipped, "CustomResourceDefinition", definition.name) == crd(definition)


def test_the_deployments_flags_are_those_of_the_operator(shipped: list[Manifest]) -> None:
    pod = only(shipped, "Deployment", "shoal-operator")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["/shoal/bin/shoal", "operator"]
    said = read(container["args"], {}, FLAGS, PREFIX)
    assert said.script is None
    config = configured(with_defaults(said.values, FLAGS), {"POD_NAMESPACE": install_yaml.NAMESPACE})
    config.election()
    assert (config.namespace, config.home) == (None, install_yaml.NAMESPACE)
    assert config.image == container["image"]
    assert config.port == container["ports"][0]["containerPort"]
    home = only(shipped, "Role", "shoal-operator-home")
    named = {name for rule in home["rules"] for name in rule.get("resourceNames", ())}
    assert named == {config.lease, config.install_key, config.scheduler_settings}


def test_everything_with_a_namespace_is_in_the_one_that_is_made(shipped: list[Manifest]) -> None:
    assert shipped[0]["kind"] == "Namespace"
    assert {each["metadata"].get("namespace", install_yaml.NAMESPACE) for each in shipped} == {
        shipped[0]["metadata"]["name"]
    }


def test_the_operator_can_neither_list_nor_watch_secrets(shipped: list[Manifest]) -> None:
    for role in (each for each in shipped if each["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            if "secrets" in rule["resources"]:
                assert not {"list", "watch", "delete", "update", "deletecollection"} & set(rule["verbs"])


@pytest.mark.parametrize("pod_scaler", [False, True])
def test_the_operator_has_what_it_gives_to_masters(shipped: list[Manifest], pod_scaler: bool) -> None:
    """Kubernetes lets nobody make a Role that grants more than its maker has."""
    has = {
        (group, resource, verb)
        for rule in only(shipped, "ClusterRole", "shoal-operator")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    given = {
        (group, resource, verb)
        for rule in master_role(pod_scaler=pod_scaler)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert given <= has


def test_a_masters_role_names_three_objects() -> None:
    named = {(resource, *rule["resourceNames"]) for rule in master_role()["rules"] for resource in rule["resources"]}
    assert named == {
        ("elasticjobs", "mnist"),
        ("elasticjobs/status", "mnist"),
        ("scaleplans", "mnist-auto"),
        ("secrets", "mnist-state"),
    }


def test_masters_make_pods_only_where_the_chart_is_told_so(shipped: list[Manifest]) -> None:
    pod = only(shipped, "Deployment", "shoal-operator")["spec"]["template"]["spec"]
    args = pod["containers"][0]["args"]
    assert configured(with_defaults(read(args, {}, FLAGS, PREFIX).values, FLAGS), {}).pod_scaler is False
    chart = install_yaml.CHART
    assert yaml.safe_load((chart / "values.yaml").read_text())["podScaler"] == {"enabled": False}
    template = " ".join((chart / "templates" / "deployment.yaml").read_text().split())
    (flag,) = re.findall(r"if \.Values\.podScaler\.enabled }} - (\S+) {{- end", template)
    config = configured(with_defaults(read([*args, flag], {}, FLAGS, PREFIX).values, FLAGS), {})
    assert config.settings(bytes(32)).pod_scaler is True


def master_role(*, pod_scaler: bool = False) -> Manifest:
    job = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "mnist", "namespace": "default", "uid": "u-1", "resourceVersion": "1", "generation": 1},
        "spec": {"worker": {"template": {"spec": {"containers": [{"name": "main", "image": "x", "command": ["y"]}]}}}},
    }
    settings = OperatorSettings(image="shoal", install_key=base64.b64encode(bytes(32)), pod_scaler=pod_scaler)
    (role,) = [each for each in fixed_objects(Reader().job(job), 1, settings) if each["kind"] == "Role"]
    return role


def test_the_operator_may_have_the_memory_that_was_measured(shipped: list[Manifest]) -> None:
    """A limit below it would end the operator of a large cluster again and again, at the same number of jobs."""
    page = (install_yaml.ROOT / "docs" / "concepts" / "operator.md").read_text(encoding="utf-8")
    (measured,) = re.findall(r"operator's memory then \| (\d+) MiB", page)
    (container,) = only(shipped, "Deployment", "shoal-operator")["spec"]["template"]["spec"]["containers"]
    has = of_list(container["resources"]["limits"]).memory
    assert has is not None
    assert has >= 2 * int(measured)
    assert of_list(container["resources"]["requests"]).memory == 512


def test_what_is_to_be_deleted_by_hand_is_every_definition() -> None:
    names = {definition.name for definition in DEFINITIONS}
    for told in (install_yaml.CHART / "templates" / "NOTES.txt", install_yaml.ROOT / "docs" / "install.md"):
        text = told.read_text(encoding="utf-8").replace("\\\n", " ")
        (named,) = re.findall(r"kubectl delete crd (.+)", text)
        assert set(named.split()) == names, told
