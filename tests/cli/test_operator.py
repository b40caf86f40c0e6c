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
    ],
)
def test_wrong_words_are_said(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        config_of(*words)


def test_a_lease_that_its_holder_trusts_for_longer_than_it_lasts_is_refused() -> None:
    with pytest.raises(BadInput, match="--lease-seconds"):
        config_of("--lease-seconds", "5").election()
