"""The demo (`make demo`): four workers train for a minute while one is killed, one is drained and one joins.

It types what a user would type: `shoal run`, `shoal ps`, `shoal scale`, and `kill -9`. Then the same script trains as
many steps undisturbed, and must have had the same loss at every step. The exit code is 0 only if every promise held.
Everything happens in a temporary folder, and nothing is left running.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEAST_STEPS = 400
MOST_STEPS = 5000  # should nobody be left to end it
PACE = 0.09  # seconds of rest in each step of the disturbed run, so that there is time to watch
TOLERANCE = 1e-9
PATIENCE = 180.0  # seconds for anything that should happen; on a busy machine importing torch takes its time

HERE = Path(__file__).parent
SHOAL = str(Path(sys.executable).with_name("shoal"))
PHASES = ("drain", "rendezvous", "restore", "first_step")

State = dict[str, Any]
"""A job as `shoal ps -o json` shows it."""


class Broken(Exception):
    """A promise did not hold."""


class Demo:
    """One telling of the story, in one temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "SHOAL_HOME": str(folder / "home")}
        self._start = time.monotonic()
        self._job: subprocess.Popen[str] | None = None
        self._name = ""
        self._output: list[str] = []
        self._pids: set[int] = set()

    def tell(self) -> None:
        stirred, state = self._disturbed()
        self._report(state)
        calm = self._undisturbed(len(stirred))
        self._compare(calm, stirred)
        self._check_nothing_left()

    def close(self) -> None:
        """Whatever happened: leave nothing running."""
        if self._job is not None and self._job.poll() is None:
            self._job.terminate()
            try:
                self._job.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._job.kill()  # its nodes die with it

    # The two runs ----------------------------------------------------------------------------------------

    def _disturbed(self) -> tuple[list[float], State]:
        self._say("Four workers start to train a small CNN, with at least two and at most four of them.")
        curve, enough = self._folder / "disturbed.json", self._folder / "enough"
        words = ("--until", str(enough), "--steps", str(MOST_STEPS), "--pace", str(PACE))
        self._run("demo", "--nnodes", "2:4", *self._script(curve), *words, echo=True)
        state = self._wait("four workers to train", lambda s: s["world_size"] == 4 and (s["step"] or 0) >= 20)
        before = _ranks(state)
        self._say(f"Four workers train: {_told(before)}.")

        victim = before.pop(0)
        self._say(f"Rank 0 is the one whose state the others would take. So that is the one to kill: kill -9 {victim}")
        os.kill(victim, signal.SIGKILL)
        self._wait_for_world(state, 3)
        self._say("The three others go on in the same processes. The dead worker is being started again.")
        state = self._wait_for_world(state, 4)
        self._say("It is back, took over the state of the others, and trains with them.")

        self._say("One worker is drained: the others wait for nothing but the end of a step.")
        self._shoal("scale", "demo", "worker=3")
        state = self._wait_for_world(state, 3)
        self._say("And one joins: it starts and imports everything first, only then do the others pause for it.")
        self._shoal("scale", "demo", "worker=4")
        state = self._wait_for_world(state, 4)
        after = _ranks(self._wait("its first report", lambda s: len(_ranks(s)) == 4))
        self._say(f"Four again: {_told(after)}.")
        if not set(before.values()) <= set(after.values()):
            raise Broken(f"the survivors should have kept their processes {sorted(before.values())}, now: {after}")

        self._say(f"No more disturbances. It trains on to step {LEAST_STEPS}, if it is not there yet, and ends.")
        self._wait("the last steps", lambda s: s["step"] >= LEAST_STEPS)
        enough.touch()
        self._wait_for_end()
        return json.loads(curve.read_text()), self._look(ended=True)

    def _undisturbed(self, steps: int) -> list[float]:
        self._say(f"Now the same training undisturbed: 4 workers from the first to the last of {steps} steps.")
        curve = self._folder / "undisturbed.json"
        self._run("undisturbed", "--nnodes", "4", *self._script(curve), "--steps", str(steps))
        self._wait_for_end()
        losses: list[float] = json.loads(curve.read_text())
        return losses

    # What came of it -------------------------------------------------------------------------------------

    def _report(self, state: State) -> None:
        resizes = [resize for resize in state["resizes"] if resize["before"] and resize["reported"]]
        self._say(f"Worlds: {state['generation']}. What each change cost, in milliseconds, by phase:")
        print(
            f"\n  {'world':>5}  {'workers':>7}  {'drain':>7} {'rendezvous':>10} {'restore':>8} {'first step':>10}  lost"
        )
        for resize in resizes:
            drain, rendezvous, restore, first = (f"{resize[phase] * 1000:.0f}" for phase in PHASES)
            workers = f"{resize['before']} → {resize['after']}"
            print(
                f"  {resize['generation']:>5}  {workers:>7}  {drain:>7} {rendezvous:>10} {restore:>8} {first:>10}"
                f"  {resize['lost_steps']:>4}  {resize['reason']}"
            )
        sizes = [(resize["before"], resize["after"]) for resize in resizes]
        if [size for size in sizes if size[0] != size[1]] != [(4, 3), (3, 4), (4, 3), (3, 4)]:
            raise Broken(f"wanted worlds of 4 → 3 → 4 → 3 → 4 workers, got {sizes}")
        if any(resize["lost_steps"] > 1 for resize in resizes):
            raise Broken("a change of world lost more than one step")

    def _compare(self, calm: list[float], stirred: list[float]) -> None:
        print(f"\n  {'step':>5}  {'undisturbed':>18}  {'disturbed':>18}")
        steps = len(stirred)
        if len(calm) != steps:
            raise Broken(f"{steps} losses wanted from the undisturbed run too, got {len(calm)}")
        for step in sorted({1, *range(100, steps, 100), steps}):
            print(f"  {step:>5}  {calm[step - 1]:>18.15f}  {stirred[step - 1]:>18.15f}")
        print()
        apart = max(abs(a - b) for a, b in zip(calm, stirred, strict=True))
        if not apart <= TOLERANCE:
            raise Broken(f"the losses of the two runs are up to {apart:.1e} apart, wanted at most {TOLERANCE:.0e}")
        self._say(f"Final loss {stirred[-1]:.6f}. Over all {steps} steps the two runs are at most {apart:.1e} apart.")

    def _check_nothing_left(self) -> None:
        left = [pid for pid in self._pids if Path(f"/proc/{pid}").exists()]
        if left:
            raise Broken(f"processes {left} are still there")
        self._say("Nothing is left running.")

    # Typing ----------------------------------------------------------------------------------------------

    def _script(self, curve: Path) -> tuple[str, ...]:
        return (str(HERE / "demo_train.py"), "--curve", str(curve))

    def _run(self, name: str, *words: str, echo: bool = False) -> None:
        command = ("run", "--name", name, "--grace", "5", *words)
        print(f"  $ shoal {_short(command)}", flush=True)
        self._job = subprocess.Popen(
            [SHOAL, *command],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for us; we stop it in order
        )
        self._name, self._output = name, []
        self._reader = threading.Thread(target=self._read, args=(self._job, self._output, echo), daemon=True)
        self._reader.start()

    def _shoal(self, *words: str) -> str:
        if words[0] != "ps":
            print(f"  $ shoal {_short(words)}", flush=True)
        done = subprocess.run([SHOAL, *words], env=self._environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise Broken(f"shoal {shlex.join(words)} failed: {done.stderr.strip()}")
        return done.stdout

    def _look(self, *, ended: bool = False) -> State:
        jobs = json.loads(self._shoal("ps", "-o", "json", *(["-a"] if ended else [])))
        state: State = next((job["state"] or {} for job in jobs if job["name"] == self._name), {})
        for node in state.get("nodes", ()):
            self._pids |= {pid for pid in (node["pid"], *(p["pid"] for p in node["processes"])) if pid}
        return state

    def _wait(self, what: str, is_there: Callable[[State], bool]) -> State:
        assert self._job is not None
        until = time.monotonic() + PATIENCE
        while self._job.poll() is None and time.monotonic() < until:
            state = self._look()
            if state and is_there(state):
                return state
            time.sleep(0.3)
        why = f"after {PATIENCE:.0f} s" if self._job.poll() is None else "when the job ended"
        raise Broken(f"still waiting for {what} {why}; its last words:\n" + "".join(self._output[-15:]))

    def _wait_for_world(self, since: State, workers: int) -> State:
        """Wait for a world of so many workers that is newer than `since`, and for its first finished step."""

        def is_there(state: State) -> bool:
            return any(
                r["after"] == workers and r["generation"] > since["generation"] and r["reported"]
                for r in state["resizes"]
            )

        return self._wait(f"a world of {workers} workers", is_there)

    def _wait_for_end(self) -> None:
        assert self._job is not None
        code = self._job.wait(timeout=2 * PATIENCE)
        self._reader.join()
        if code != 0:
            raise Broken(f"shoal run ended with exit code {code}; its last words:\n" + "".join(self._output[-15:]))

    # Saying ----------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        print(f"\n[{time.monotonic() - self._start:3.0f} s] {text}", flush=True)

    @staticmethod
    def _read(job: subprocess.Popen[str], output: list[str], echo: bool) -> None:
        assert job.stdout is not None
        for line in job.stdout:
            output.append(line)
            if echo:
                print(f"  | {line}", end="", flush=True)


def _ranks(state: State) -> dict[int, int]:
    """The process of each rank."""
    processes = (process for node in state["nodes"] for process in node["processes"])
    return {process["rank"]: process["pid"] for process in processes if process["rank"] is not None}


def _told(ranks: dict[int, int]) -> str:
    return ", ".join(f"rank {rank} is process {pid}" for rank, pid in sorted(ranks.items()))


def _short(words: tuple[str, ...]) -> str:
    """A command as a person would type it, with folders left out."""
    return shlex.join(Path(word).name if "/" in word else word for word in words)


def main() -> int:
    print(__doc__)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="shoal-demo-", ignore_cleanup_errors=True) as folder:
        demo = Demo(Path(folder))
        try:
            demo.tell()
        except Broken as exc:
            print(f"\nThe demo failed: {exc}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            demo.close()
    print("\nEvery promise held.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
