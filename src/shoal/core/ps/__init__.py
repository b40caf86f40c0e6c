"""Parameter servers: versions of their cluster, and how a job gets from one to the next without losing a parameter."""
