"""The training process's side of a job, without any framework.

`join` is for workers that need their share of the data and nothing else: `job.shards("train")` gives them shards until
everything is trained, by whomever (`job`, `data`).

Below it, a `Session` is the process's tie to its agent: what the agent has said so far stands in its `Inbox`, and
everything that has to wait (for a world, for a collective, for the end) waits on that inbox's one condition.
`shoal.torch` builds on it. Importing this package imports no framework.
"""

from shoal.trainer.data import Shard
from shoal.trainer.inbox import Inbox, WorldChanged
from shoal.trainer.job import Job, join
from shoal.trainer.session import Session

__all__ = ["Inbox", "Job", "Session", "Shard", "WorldChanged", "join"]
