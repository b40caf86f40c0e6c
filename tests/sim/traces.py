"""Where the public traces are, for the tests that want them."""

from pathlib import Path

import pytest

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def pollux() -> Path:
    folder = TRACES / "pollux-osdi21"
    if not (folder / "applications.json").exists():
        pytest.skip("the public traces are not in ../shared/traces")
    return folder
