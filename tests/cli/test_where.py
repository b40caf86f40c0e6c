"""The same verbs on every platform: which one is meant."""

import pytest

from shoal.cli.where import Known, Platform, Where, platform_of
from shoal.core.errors import BadInput

NOTHING = Known(local_jobs=(), local_running=False, cluster=False)
CLUSTER = Known(local_jobs=(), local_running=False, cluster=True)
BOTH = Known(local_jobs=("mine",), local_running=True, cluster=True)
LOCAL, KUBERNETES = Platform.LOCAL, Platform.KUBERNETES


@pytest.mark.parametrize(
    ("where", "job", "known", "expected"),
    [
        pytest.param(Where(), None, NOTHING, LOCAL, id="no-cluster-known"),
        pytest.param(Where(), None, CLUSTER, KUBERNETES, id="only-a-cluster"),
        pytest.param(Where(), "mine", BOTH, LOCAL, id="a-local-job-by-name"),
        pytest.param(Where(), "other", BOTH, KUBERNETES, id="a-name-that-is-not-local"),
        pytest.param(Where(), None, BOTH, LOCAL, id="a-local-job-runs"),
        pytest.param(Where(namespace="team"), "mine", BOTH, KUBERNETES, id="a-flag-of-clusters"),
        pytest.param(Where(all_namespaces=True), None, BOTH, KUBERNETES, id="all-namespaces"),
        pytest.param(Where(platform="kubernetes"), "mine", BOTH, KUBERNETES, id="said"),
        pytest.param(Where(platform="local"), "other", BOTH, LOCAL, id="said-local"),
    ],
)
def test_platform(where: Where, job: str | None, known: Known, expected: Platform) -> None:
    assert platform_of(where, job, known) is expected


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        pytest.param({"platform": "slurm"}, "local or kubernetes, got 'slurm'", id="unknown"),
        pytest.param({"platform": "local", "context": "c"}, "for a cluster's jobs", id="local-with-a-context"),
        pytest.param({"namespace": "a", "all_namespaces": True}, "contradict", id="one-and-all"),
    ],
)
def test_what_makes_no_sense_is_refused(said: dict[str, object], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        Where(**said)  # type: ignore[arg-type]
