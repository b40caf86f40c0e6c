from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from torch.distributed.elastic.rendezvous.api import RendezvousParameters

from shoal.core.errors import BadInput
from shoal.torch.rendezvous_settings import read_settings
from shoal.wire.tokens import JobKeys, Purpose

pytestmark = pytest.mark.torch

TOKEN = JobKeys.new("mnist.0a1b2c").token(Purpose.AGENT)
FINGERPRINT = "sha256:" + "ab" * 32


def params(endpoint: str = "localhost:4444", run_id: str = "none", **conf: Any) -> RendezvousParameters:
    return RendezvousParameters("shoal", endpoint, run_id, 1, 4, **conf)


def test_the_job_is_known_from_the_token() -> None:
    settings = read_settings(params(), {"SHOAL_TOKEN": TOKEN})
    assert (settings.job, settings.run_id) == ("mnist", "none")
    assert settings.url == "ws://localhost:4444"


def test_an_rdzv_id_names_the_job() -> None:
    assert read_settings(params(run_id="imagenet"), {"SHOAL_TOKEN": TOKEN}).job == "imagenet"


def test_a_fingerprint_means_tls() -> None:
    settings = read_settings(params(endpoint="127.0.0.1:4444", fingerprint=FINGERPRINT), {"SHOAL_TOKEN": TOKEN})
    assert settings.url == "wss://127.0.0.1:4444"


def test_a_token_file_wins_over_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    settings = read_settings(params(token_file=str(file)), {"SHOAL_TOKEN": "another"})
    assert settings.token == TOKEN
    assert TOKEN not in repr(settings)


def test_a_join_timeout_wins_over_torchruns_own() -> None:
    assert read_settings(params(timeout=900), {"SHOAL_TOKEN": TOKEN}).join_timeout == 900
    assert read_settings(params(timeout=900, join_timeout="30"), {"SHOAL_TOKEN": TOKEN}).join_timeout == 30


@pytest.mark.parametrize(
    ("given", "environment", "said"),
    [
        pytest.param({}, {}, "set SHOAL_TOKEN or SHOAL_TOKEN_FILE, or add token_file=FILE", id="no-token"),
        pytest.param({}, {"SHOAL_TOKEN_FILE": "/none"}, "token file /none cannot be read", id="no-token-file"),
        pytest.param({}, {"SHOAL_TOKEN": "mnist"}, "not a token of Shoal", id="not-a-token"),
        pytest.param({"endpoint": "localhost"}, {"SHOAL_TOKEN": TOKEN}, "HOST:PORT", id="no-port"),
        pytest.param({"endpoint": ""}, {"SHOAL_TOKEN": TOKEN}, "HOST:PORT", id="no-endpoint"),
        pytest.param({"endpoint": "10.0.0.1:4"}, {"SHOAL_TOKEN": TOKEN}, "add fingerprint=", id="no-fingerprint"),
        pytest.param({"fingerprint": "abc"}, {"SHOAL_TOKEN": TOKEN}, "64 hexadecimal digits", id="bad-fingerprint"),
        pytest.param({"nproc": "many"}, {"SHOAL_TOKEN": TOKEN}, "nproc must be a whole number", id="bad-nproc"),
        pytest.param({"nprocs": 2}, {"SHOAL_TOKEN": TOKEN}, "nprocs is not known", id="unknown-key"),
    ],
)
def test_wrong_input_says_what_to_change(given: Any, environment: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_settings(params(**given), environment)
