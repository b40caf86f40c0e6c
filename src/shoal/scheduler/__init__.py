"""Cluster scheduling: who gets how much of the cluster, decided by pure policies.

`rows` are the facts (hosts, jobs, services, quotas), `snapshot` holds them in columns, a policy turns a snapshot into
`decisions`, and `actuation` turns decisions into what each job may have from now on. Production and simulation use the
same of each. Nothing here reads a clock: `now` is seconds since any fixed moment, and comes in as an argument.
"""
