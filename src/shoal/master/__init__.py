"""The per-job coordinator: a shell around `shoal.core.job`.

It owns the job's state, turns messages and exits into events, asks `handle`, and carries out the answer: messages to
agents, plans to the scaler. It decides nothing itself.
"""

from shoal.master.clock import SystemClock
from shoal.master.master import Begin, Master
from shoal.master.platform import RemoteScaler

__all__ = ["Begin", "Master", "RemoteScaler", "SystemClock"]
