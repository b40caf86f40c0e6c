"""Masters that die at every point of simulated schedules: whatever else happens, the promises hold."""

import os

from shoal.core.view import JobPhase
from shoal.sim import worlds

SEEDS = int(os.environ.get("SHOAL_SIM_SEEDS", "2000"))


def test_every_schedule_in_which_masters_die_keeps_the_promises() -> None:
    outcomes = worlds.run_many(range(SEEDS), at_once=os.cpu_count() or 1, failovers=True)
    broken = [str(outcome) for outcome in outcomes if outcome.violation]
    assert not broken, "replay with: python -m shoal.sim.worlds --failovers --seed N\n" + "\n".join(broken)
    assert sum(outcome.ended is JobPhase.SUCCEEDED for outcome in outcomes) >= 0.9 * SEEDS


def test_a_seed_with_failovers_replays_to_the_byte() -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        worlds.run(5, trace=trace.append, failovers=True)
    assert traces[0] == traces[1]
    assert any("takes over" in line for seed in range(20) for line in _trace(seed))


def _trace(seed: int) -> list[str]:
    lines: list[str] = []
    worlds.run(seed, trace=lines.append, failovers=True)
    return lines
