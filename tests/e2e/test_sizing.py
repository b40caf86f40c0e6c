"""Jobs that find their size themselves: `shoal run --autoscale`, real agents, real processes, nothing said by hand.
Those with parameter servers train with TensorFlow, those without with PyTorch."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.e2e.harness import PATIENCE, JobRun, shoal_run

pytestmark = [pytest.mark.tensorflow, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

RING = Path(__file__).parents[1] / "cluster" / "train_pods.py"
SERVED = Path(__file__).parents[1] / "tensorflow" / "train_waiting.py"
AUTOSCALE = ("--autoscale", "--autoscale-every", "4")
LOOKS = 3
AIM, BOUND = 0.9, 0.8
"""Of the speed that a job had before one of its servers became hot. What else a machine has to do makes a look at it
uncertain, so the aim is shown and less of it is held against the best of the looks."""
State = dict[str, Any]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow has much to say about servers that come and go."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")


async def test_jobs_whose_steps_wait_grow_to_what_they_may_have_and_stay_there(
    tmp_path: Path, figures: Callable[[str], None]
) -> None:
    """Of both strategies, beside each other: most of the time they wait for samples. The ring grows under way: who
    trained in the small world trains on in the large one."""
    both = {name: tmp_path / name for name in ("ring", "served")}
    for folder in both.values():
        folder.mkdir()
    waits = ("--log", str(both["ring"]), "--size", "1000000", "--pace", "0", "--wait", "0.1")
    servers = ("--strategy", "ps", "--ps", "1:2")
    async with (
        shoal_run(both["ring"], "--nnodes", "1:3", *AUTOSCALE, script=RING, script_args=waits) as ring,
        shoal_run(both["served"], "--nnodes", "1:3", *servers, *AUTOSCALE, script=SERVED) as served,
    ):
        states = await asyncio.gather(settled(ring), settled(served))
        worlds = worlds_of(both["ring"])
        figures("ring: worlds that each process trained in: " + ", ".join(map(str, worlds.values())))
        assert worlds.keys() == set(ring.pids(states[0]).values()), "nobody was started again"
        assert min(worlds.values())[0] == 1, "the first was there all the time"
        assert all(sizes == sorted(sizes) and sizes[-1] == 3 for sizes in worlds.values()), "it grew, and stays"
        for run, state in zip((ring, served), states, strict=True):
            figures(f"{run.home.parent.name}: " + "; ".join(told(state)))
            assert told(state)[0].startswith("the optimizer (probe_workers): 1 worker takes")
            assert (state["target"], workers(state)) == (3, 3)
            first, *others = state["sizing"]["outcomes"]
            assert first["algorithm"] == "probe_workers"
            assert first["measured"] > 1.5 * first["before"]
            assert len(others) <= 2, "a machine with much else to do may make it try something"


async def test_a_server_that_others_take_the_cpu_from_is_found_and_replaced(
    tmp_path: Path, figures: Callable[[str], None]
) -> None:
    """Two servers with half a core each, of which they use the half. One gets company on its core; what takes its place
    has none."""
    busy = tmp_path / "busy"
    flags = ("--strategy", "ps", "--nnodes", "1:2", "--agents", "2", "--ps", "2", *AUTOSCALE)
    works = ("--crosses", "1500000", "--busy", str(busy))
    async with shoal_run(tmp_path, *flags, script=SERVED, script_args=works) as run:
        await run.wait_for("two workers", lambda state: workers(state) == 2 and trained(state) > 0)
        await run.command("scale", "job", "worker=2")
        await run.wait_for("a job that has seen enough to go on", is_running)
        await run.command("scale", "job", "ps-0.cpu=0.5", "ps-1.cpu=0.5")
        await run.wait_for("servers with cores of their own", lambda state: serving(state) == ["ps-2", "ps-3"])
        unloaded = median([await speed(run) for _ in range(3)])  # what else the machine does comes and goes
        busy.write_text("ps-2")
        await run.wait_for("company", lambda _: "the server has company" in run.output)
        loaded = await speed(run, steps=20)
        await run.wait_for("another server", lambda state: serving(state) == ["ps-3", "ps-4"])
        await run.wait_for("the end of the first", lambda state: "ps-2" not in running(state, "ps"))
        after = await recovered(run, unloaded, loaded)
        state = await run.wait_for("the change is judged", lambda state: bool(state["sizing"]["outcomes"]))
    told_after = ", ".join(f"{speed:.1f} ({speed / unloaded:.0%})" for speed in after)
    figures(f"steps/s: {unloaded:.1f} unloaded, {loaded:.1f} loaded, after: {told_after}; the aim is {AIM:.0%}")
    for word in told(state):
        figures(word)
    moved, judged = told(state)[:2]
    assert moved.startswith("the optimizer (relieve_hot_ps): hot parameter servers: ps-2 uses")
    assert judged.startswith("the optimizer: relieve_hot_ps took the job from")


async def recovered(run: JobRun, unloaded: float, loaded: float) -> list[float]:
    """Its speeds afterwards, until one reaches the aim, or of five the best the bound: what else a machine has to do
    comes and goes, but a server that keeps its company stays slow."""
    assert loaded < unloaded, "what is to be recovered from"
    clock, found = asyncio.get_running_loop().time, list[float]()
    until = clock() + PATIENCE
    while not found or max(found) < (AIM if len(found) < 5 else BOUND) * unloaded:
        assert clock() < until, f"{unloaded:.1f} steps/s became {loaded:.1f}, and then {found}"
        found.append(await speed(run))
    return found


async def speed(run: JobRun, steps: int = 50) -> float:
    """Steps a second, over so many of them."""
    clock = asyncio.get_running_loop().time
    first, began = await run.wait_for("a step", lambda state: state["step"] is not None), clock()
    last = await run.wait_for(f"{steps} steps", lambda state: state["step"] >= first["step"] + steps)
    return float(last["step"] - first["step"]) / (clock() - began)


def serving(state: State) -> list[str]:
    """The servers that hold the model, when none is on its way."""
    changes = state["servers"]["changes"]
    return sorted(state["servers"]["nodes"]) if changes and changes[-1]["outcome"] is not None else []


def is_running(state: State) -> bool:
    return bool(state["sizing"]["stage"] == "running")


async def settled(run: JobRun) -> State:
    """Until a change was judged in the last stage, and then nothing was changed for the time of a few looks."""
    first = await run.wait_for("its first step", trained)
    assert first["sizing"]["changes"] == 0
    while True:
        calm = await run.wait_for("a change that was judged", is_judged)
        more = int(calm["sizing"]["outcomes"][-1]["measured"] * LOOKS * int(AUTOSCALE[-1]))
        later = await run.wait_for(f"{more} records more", lambda state: trained(state) > trained(calm) + more)  # noqa: B023
        if later["sizing"]["changes"] == calm["sizing"]["changes"]:
            return later


def worlds_of(folder: Path) -> dict[int, list[int]]:
    """pid → sizes of the worlds that it made steps in, in this order, as the process itself wrote it down."""
    found = dict[int, list[int]]()
    for path in folder.glob("*.log"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                sizes, size = found.setdefault(int(path.name.split(".")[-3]), []), int(line.split()[3])
                if sizes[-1:] != [size]:
                    sizes.append(size)
    return found


def is_judged(state: State) -> bool:
    return bool(is_running(state) and state["sizing"]["outcomes"] and state["sizing"]["pending"] is None)


def trained(state: State) -> int:
    return sum(int(dataset["done"]) for dataset in state["data"])


def workers(state: State) -> int:
    return len(running(state, "worker"))


def running(state: State, role: str) -> list[str]:
    return [node["node"] for node in state["nodes"] if node["role"] == role and node["status"] == "running"]


def told(state: State) -> list[str]:
    return [each["reason"] for each in state["decisions"] if each["reason"].startswith("the optimizer")]
