"""Operators that a test started end with it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.operators import PATIENCE, ROOT

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere}}]
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:1"}}]
"""
STARTS_ONE = """
import sys, time
from pathlib import Path
from tests.cluster.operators import Process
folder = Path(sys.argv[1])
print(Process(folder / "kubeconfig", "default", folder / "log", "--skip-checks").pid, flush=True)
time.sleep(600)
"""


def test_operators_do_not_outlive_the_process_that_started_them_however_it_ends(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    command = [sys.executable, "-c", STARTS_ONE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        operator = Path("/proc") / owner.stdout.readline().strip()
        assert operator.exists()
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    until = time.monotonic() + PATIENCE
    while _runs(operator) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(operator)


def _runs(process: Path) -> bool:
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
