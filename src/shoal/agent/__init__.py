"""The agent: the process that supervises one node's training processes.

It holds one WebSocket to the job's master and one Unix socket for its training processes, and it is the only
thing between them. `run(settings)` is the whole of it; `settings` says what it can be told.

    master ◀──WebSocket── agent ◀──Unix socket── training processes (SDK)
                            │  ╲── pipes ─────── their stdout and stderr
                            ╰── guard            kills what is left if the agent is gone

The parts: `node` decides (pure: what the node's standing is and what follows from an event), `shell` carries out;
`processes`, `output`, `guard`, `sockets`, `link` and `plain_store` are the hands. Nothing outlives the agent, not
even when it is killed.
"""

from shoal.agent.settings import AgentSettings


async def run(settings: AgentSettings) -> int:
    """Be one node until its work is done. Returns the exit code of the agent process (the table is in `shell`)."""
    from shoal.agent.shell import run as run_shell  # late: whoever only builds settings needs none of it

    return await run_shell(settings)


__all__ = ["AgentSettings", "run"]
