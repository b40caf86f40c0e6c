"""A real `shoal run` under test: started as a user would, watched through its own state and its training logs."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("train_elastic.py")
PLAIN = Path(__file__).with_name("train_plain.py")
PATIENCE = float(os.environ.get("SHOAL_TEST_PATIENCE", "150"))
"""Seconds a test waits for anything before it fails; the machine may be slow, so it is long."""


@dataclass(frozen=True)
class StepLine:
    ns: int
    step: int
    rank: int
    size: int
    loss: float


class JobRun:
    """One running `shoal run`."""

    def __init__(self, process: asyncio.subprocess.Process, home: Path, name: str, logs: Path) -> None:
        self.process = process
        self.home = home
        self.name = name
        self.logs = logs
        self.lines: list[str] = []
        self._session = aiohttp.ClientSession()
        self._reader = asyncio.create_task(self._read())

    # What it says -----------------------------------------------------------------------------------------

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    async def state(self) -> dict[str, Any] | None:
        """The master's own account, or None while it cannot be asked."""
        folder = self.home / "jobs" / self.name
        try:
            url = json.loads((folder / "job.json").read_text())["url"]
            token = (folder / "admin.token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            async with self._session.get(f"{url}/state", headers=headers) as response:
                return await response.json() if response.status == 200 else None
        except (OSError, KeyError, json.JSONDecodeError, aiohttp.ClientError):
            return None

    async def wait_for(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Ask for the state until `holds` says yes."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    state = await self.state()
                    if state is not None and holds(state):
                        return state
                    if self.process.returncode is not None:
                        raise AssertionError(f"the run ended before {what}\n{self.output}")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}: {await self.state()}\n{self.output}") from None

    async def trains_with(self, processes: int, *, beyond: int | None = None) -> dict[str, Any]:
        """Wait for a world of so many processes that has reported a step (beyond `beyond`)."""
        seen: dict[str, int] = {}

        def holds(state: dict[str, Any]) -> bool:
            if state["phase"] != "running" or state["world_size"] != processes or state["step"] is None:
                return False
            if not state["sdk"] or state["generation"] not in {r["generation"] for r in state["resizes"]}:
                return False
            first = seen.setdefault(str(state["generation"]), state["step"])
            return state["step"] > max(first, beyond or 0) and len(self.pids(state)) == processes

        return await self.wait_for(f"a world of {processes}", holds)

    def pids(self, state: dict[str, Any]) -> dict[int, int]:
        """rank → pid of the training processes in the world."""
        return {
            p["rank"]: p["pid"]
            for node in state["nodes"]
            if node["standing"] == "active"
            for p in node["processes"]
            if p["rank"] is not None
        }

    def agents(self, state: dict[str, Any]) -> dict[int, int]:
        """rank → pid of the agent whose first process has that rank."""
        return {
            node["processes"][0]["rank"]: node["pid"]
            for node in state["nodes"]
            if node["standing"] == "active" and node["processes"] and node["processes"][0]["rank"] is not None
        }

    async def steps_with(self, size: int, *, since: int = 0) -> int:
        """Wait until somebody has logged a step in a world of `size` after `since` (ns); when it was."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    found = [
                        x.ns for lines in self.trained().values() for x in lines if x.size == size and x.ns > since
                    ]
                    if found:
                        return max(found)
                    if self.process.returncode is not None:
                        raise AssertionError(f"the run ended before a step with {size}\n{self.output}")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"waited in vain for a step with {size}\n{self.output}") from None

    # What it trained --------------------------------------------------------------------------------------

    def trained(self) -> dict[int, list[StepLine]]:
        """pid → its finished steps."""
        return {
            int(path.stem): [_line(text) for text in path.read_text().splitlines()] for path in self.logs.glob("*.log")
        }

    def losses(self) -> dict[int, float]:
        """step → loss, checked to be the same on everybody who did it."""
        losses: dict[int, float] = {}
        for lines in self.trained().values():
            for line in lines:
                assert losses.setdefault(line.step, line.loss) == line.loss, f"step {line.step} differs"
        return losses

    # What is done to it -----------------------------------------------------------------------------------

    async def command(self, *args: str) -> str:
        """`shoal …` as a user types it."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "shoal",
            *args,
            env=environment(self.home),
            stdout=-1,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()

    async def ended(self) -> int:
        """Wait for its end; its exit code."""
        try:
            async with asyncio.timeout(PATIENCE):
                code = await self.process.wait()
                await self._reader
                return code
        except TimeoutError:
            raise AssertionError(f"it did not end\n{self.output}") from None

    async def close(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()
        self._reader.cancel()
        await self._session.close()


def _line(text: str) -> StepLine:
    ns, step, rank, size, loss = text.split()
    return StepLine(int(ns), int(step), int(rank), int(size), float(loss))


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SHOAL_HOME": str(home),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }


def family(marker: str) -> list[psutil.Process]:
    """Every process on this machine whose command line or environment names `marker`."""
    found = []
    for process in psutil.process_iter():
        try:
            if marker in " ".join(process.cmdline()) or marker in process.environ().get("SHOAL_HOME", ""):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return [p for p in found if p.pid != os.getpid()]


async def nobody_left(home: Path) -> None:
    """Wait until no process of that home is left, and fail with their command lines if some stay."""
    try:
        async with asyncio.timeout(30):
            while family(str(home)):
                await asyncio.sleep(0.05)
    except TimeoutError:
        left = [f"{p.pid} {' '.join(p.cmdline())}" for p in family(str(home))]
        raise AssertionError(f"left running: {left}") from None


@asynccontextmanager
async def shoal_run(
    tmp: Path, *flags: str, script: Path | None = SCRIPT, script_args: tuple[str, ...] = (), name: str = "job"
) -> AsyncIterator[JobRun]:
    """`shoal run FLAGS SCRIPT ARGS` in a home of its own; whatever happens, nothing of it is left afterwards."""
    log = ("--log", str(tmp / "steps")) if script in (SCRIPT, PLAIN) else ()
    args = (str(script), *log, *script_args) if script else ()
    async with shoal_run_words(tmp, "--name", name, *flags, *args, name=name) as run:
        yield run


@asynccontextmanager
async def shoal_run_words(tmp: Path, *words: str, name: str = "job") -> AsyncIterator[JobRun]:
    """`shoal run WORDS`, which is about the job of this name."""
    home, logs = tmp / "home", tmp / "steps"
    logs.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "shoal",
        "run",
        *words,
        env=environment(home),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    run = JobRun(process, home, name, logs)
    try:
        yield run
    finally:
        await run.close()
        await nobody_left(home)
