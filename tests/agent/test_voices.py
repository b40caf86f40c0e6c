"""Words about parameter servers go through a real agent as they are, and who a process is, is said again."""

from pathlib import Path

from tests.agent.real_agents import LINK, Agents
from tests.agent.small_master import SmallMaster

from shoal.core.ps.cluster import Partition
from shoal.core.ps.words import Drain, Drained, Go, ModelNamed, Resumed
from shoal.wire.messages import PSSaid, PSTold

SCRIPT = (
    LINK
    + """
from shoal.core.ps.cluster import Partition
from shoal.core.ps.words import Drain, Drained, Go, ModelNamed, Resumed
link.send(ModelNamed(partitions=(Partition(name="w", nbytes=8),)))
while True:
    word = get((Drain, Go))
    if isinstance(word, Go):
        link.send(Resumed(version=word.version))
    else:
        link.send(Drained(barrier=word.barrier, step=5))
"""
)
NAMED = PSSaid(incarnation=1, word=ModelNamed(partitions=(Partition(name="w", nbytes=8),)))


async def test_words_go_through_the_agent_in_both_directions(master: SmallMaster, agents: Agents) -> None:
    agents.start(master, SCRIPT)
    assert await master.hear(PSSaid) == NAMED
    master.say("worker-0", PSTold(word=Drain(version=1, barrier=7, reason="a plan")))
    master.say("worker-0", PSTold(word=Go(version=2, chief="worker-0")))
    assert await master.hear(PSSaid, nth=2) == PSSaid(incarnation=1, word=Drained(barrier=7, step=5))
    assert await master.hear(PSSaid, nth=3) == PSSaid(incarnation=1, word=Resumed(version=2))


async def test_who_a_process_is_is_said_again_to_a_master_that_was_out_of_touch(
    master: SmallMaster, agents: Agents, tmp_path: Path
) -> None:
    agents.start(master, SCRIPT)
    await master.hear(PSSaid)
    await master.cut("worker-0")
    assert await master.hear(PSSaid, nth=2) == NAMED
    master.say("worker-0", PSTold(word=Go(version=1, chief="worker-0")))
    assert await master.hear(PSSaid, nth=3) == PSSaid(incarnation=1, word=Resumed(version=1))
