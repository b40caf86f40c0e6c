"""`shoal operator`'s words."""

import pytest

from shoal.cli.flags import read, with_defaults
from shoal.cli.operator import FLAGS, PREFIX, OperatorConfig, configured
from shoal.core.errors import BadInput


def config_of(*words: str, **environment: str) -> OperatorConfig:
    said = read(words, environment, FLAGS, PREFIX)
    return configured(with_defaults(said.values, FLAGS), environment)


def test_it_watches_all_namespaces_unless_told_otherwise() -> None:
    assert config_of().namespace is None
    assert config_of("--namespace", "train").namespace == "train"
    assert config_of(SHOAL_OPERATOR_NAMESPACE="train").namespace == "train"


def test_its_home_is_the_namespace_of_its_pod() -> None:
    assert config_of(POD_NAMESPACE="shoal-system").home == "shoal-system"
    assert config_of("--home", "other", POD_NAMESPACE="shoal-system").home == "other"


def test_two_processes_of_one_pod_are_two_candidates() -> None:
    assert config_of(POD_NAME="a").identity != config_of(POD_NAME="a").identity


def test_an_address_of_ipv6_is_understood() -> None:
    assert (config_of("--listen", "[::]:0").host, config_of("--listen", "[::]:0").port) == ("::", 0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--listen", "8080"), "--listen wants HOST:PORT"),
        (("--workers", "0"), "--workers"),
        (("--image-pull-policy", "Sometimes"), "Always, IfNotPresent, Never"),
        (("--silence", "-1"), "--silence"),
        (("--master-frozen", "0"), "--master-frozen"),
        (("--priority-classes", "urgent=x"), "high=NAME,low=NAME"),
        (("--shared-memory", "much"), "--shared-memory"),
        (("--master-memory", "0"), "--master-memory"),
        (("--max-members", "0"), "--max-members"),
        (("--autoscale-every", "5"), "--autoscale-every wants an even number of seconds from 4 to 300, got '5'"),
    ],
)
def test_wrong_words_are_said(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        config_of(*words)


def test_a_lease_that_its_holder_trusts_for_longer_than_it_lasts_is_refused() -> None:
    with pytest.raises(BadInput, match="--lease-seconds"):
        config_of("--lease-seconds", "5").election()


def test_what_jobs_get_reaches_the_settings() -> None:
    made = config_of(
        *("--max-members", "32", "--priority-classes", "high=urgent,low=idle", "--gpu-resource", "amd.com/gpu"),
        *("--gpu-type-label", "gpu", "--shared-memory", "2Gi", "--image-pull-secrets", "a,b"),
        *("--master-cpu", "2", "--master-memory", "1Gi", "--master-memory-limit", "4Gi", "--autoscale-every", "8"),
    ).settings(b"k" * 32)
    assert (made.defaults.max_members, made.autoscale_seconds) == (32, 8)
    assert made.priority_classes == {"high": "urgent", "low": "idle"}
    assert (made.gpu_resource, made.gpu_type_label, made.shared_memory) == ("amd.com/gpu", "gpu", "2Gi")
    assert made.image_pull_secrets == ("a", "b")
    assert (made.master_resources, made.master_memory_limit) == ({"cpu": "2", "memory": "1Gi"}, "4Gi")


def test_without_flags_the_settings_are_their_own_defaults() -> None:
    from shoal.operator.settings import OperatorSettings

    plain = OperatorSettings(image="shoal:latest", install_key=b"k" * 32, operator_namespace="default")
    assert config_of().settings(b"k" * 32) == plain
