"""`shoal master --kubernetes`: what it must be told, and what it says when it was not."""

from pathlib import Path

import pytest

from shoal.cli.master import EXIT_HOPELESS, main
from shoal.cli.master_pod import PORT, place_of, run
from shoal.core.errors import BadInput
from shoal.platforms.kubernetes.access import Access

GIVEN = {"SHOAL_JOB": "j", "SHOAL_NAMESPACE": "n", "SHOAL_TERM": "3", "SHOAL_POD_IP": "10.0.0.7"}


def test_a_pods_environment_says_who_the_master_is() -> None:
    place = place_of(GIVEN)
    assert (place.job, place.namespace, place.term, place.port) == ("j", "n", 3, PORT)
    assert "j-master.n.svc" in place.names
    assert "10.0.0.7" in place.names  # the kubelet asks for its health there


@pytest.mark.parametrize("name", ["SHOAL_JOB", "SHOAL_NAMESPACE", "SHOAL_TERM"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(BadInput, match=f"{name} not set"):
        place_of({key: value for key, value in GIVEN.items() if key != name})


def test_a_term_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadInput, match="SHOAL_TERM and SHOAL_PORT must be numbers"):
        place_of({**GIVEN, "SHOAL_TERM": "first"})


async def test_a_missing_secret_is_named_with_what_should_be_there(tmp_path: Path) -> None:
    place = place_of({**GIVEN, "SHOAL_SECRETS": str(tmp_path)})
    with pytest.raises(BadInput, match=r"cannot read .*/agent.*Secret j-token must be mounted"):
        await run(place, Access(server="http://127.0.0.1:1"))


def test_outside_of_a_pod_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in GIVEN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["--kubernetes"]) == EXIT_HOPELESS
    assert "not in a Pod" in capsys.readouterr().err
