"""A real job with parameter servers whose master is killed, also in the middle of a change."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.harness import shoal_run
from tests.failover.test_real_jobs import kill_master, master_pid

SCRIPT = Path(__file__).parents[1] / "master" / "train_ps.py"


def on_version(version: int, servers: int) -> Any:
    def holds(state: dict[str, Any]) -> bool:
        ps = state["servers"]
        return bool((ps["version"], ps["servers"]) == (version, servers) and ps["changes"][-1]["outcome"])

    return holds


@pytest.mark.slow
async def test_a_change_goes_on_under_the_next_master_and_a_lost_server_is_replaced(tmp_path: Path) -> None:
    flags = ("--strategy", "ps", "--nnodes", "2", "--ps", "1:3", "--checkpoint-dir", str(tmp_path / "ckpt"))
    (tmp_path / "ckpt").mkdir()
    async with shoal_run(tmp_path, *flags, script=SCRIPT) as run:
        await run.wait_for("the first version", on_version(1, 1))
        await kill_master(run)
        await run.command("scale", "job", "ps=2")
        os.kill(master_pid(run), signal.SIGKILL)  # the servers are being launched
        state = await run.wait_for("a second server", on_version(2, 2))
        server = next(n for n in state["nodes"] if n["node"] == state["servers"]["nodes"][0])
        os.kill(server["pid"], signal.SIGKILL)
        await run.wait_for("another server", on_version(3, 2))
        await kill_master(run)
        (tmp_path / "ckpt" / "finish").touch()
        assert await run.ended() == 0, run.output
    assert "all data is trained and all workers have ended well" in run.output
