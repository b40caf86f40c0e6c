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
SCALER = f"{GROUP}/scaler"
"""Of a master: `pod` where it creates and deletes its job's Pods itself."""
POD_SCALER = "pod"
MASTER = "master"

KIND = f"{GROUP}/job-kind"
"""Of what belongs to a TrainingJob, its kind; what belongs to an ElasticJob does not say."""
TRAINING_JOB = "TrainingJob"
PADDLE_LABELS = {"master": "paddle-job-master", "pserver": "paddle-job-pserver", "trainer": "paddle-job"}
"""The first controller's own labels, by role: each holds the job's name."""
FORM = f"{GROUP}/form"
"""An annotation: of which spec an object was made."""
