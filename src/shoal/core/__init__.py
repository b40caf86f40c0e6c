"""The pure domain: what a job, a node, a world and a plan are, and what should happen to them.

Nothing here reads a clock, a socket, an environment variable or a random source: `now` comes in as an
argument. Shells (`master`, `agent`, `sim`) observe, ask this package, and act on its answer.
"""
