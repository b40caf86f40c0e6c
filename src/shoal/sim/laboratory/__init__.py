"""The throughput laboratory: jobs whose speed is a known formula, so that whoever sizes them can be judged.

A job here has a surface, that is how long a step takes with so many workers, parameter servers and cores, and how much
memory it needs; only the laboratory knows it. Policies see noisy samples of it, as a master would: hot parameter
servers, memory that grows, slow nodes, nodes that take their time to start, pauses for each change. The oracle knows
the surface and tries every size that is allowed; policies are measured against it.

`surface` has jobs and their formula, `oracle` the best size, `bench` the life of one job under a policy, `policies`
who sizes them, `experiment` the table.
"""
