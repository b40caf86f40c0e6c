"""The labels of a job's objects: how Pods are found, and what they say of themselves."""

GROUP = "elastic.iml.github.io"

JOB_NAME = f"{GROUP}/job-name"
JOB_UID = f"{GROUP}/job-uid"
ROLE = f"{GROUP}/role"
"""A role of members, or `master`."""
RANK_HINT = f"{GROUP}/rank-hint"
"""The place a member takes."""
TERM = f"{GROUP}/term"
"""Of a master: which one it is."""
MASTER = "master"
