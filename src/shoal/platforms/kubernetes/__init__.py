"""Kubernetes: a thin typed client of our own, and what controllers are built from.

| module | holds |
| --- | --- |
| `config`, `access` | kubeconfig files, a Pod's own files, and the credentials behind them |
| `objects`, `selectors`, `errors` | the objects we touch, label selectors, what may go wrong |
| `client` | calls: typed, bounded, with time-outs, errors by name |
| `cache`, `informer` | a live copy of a kind's objects that is never older than what we wrote |
| `workqueue`, `backoff` | keys to be worked on: one worker per key, retried with back-off |
| `elector` | who of several may act, and how a process notices that it no longer may |
| `events` | what users read in `kubectl describe` |
| `fake` | an API server that behaves, in this process, for tests |

Everything that decides is a function or a state machine of values with `now` passed in; the loops around it are thin.
"""
