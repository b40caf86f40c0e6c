"""Every reason that a condition or an event of ours may have, with what it means and what to do about it.

A reason is one word that people alert on, so it is never changed and never means two things. `Sort` says what kind of
word it is; troubles and refusals have a hint, which follows the words of whoever refused in the condition's message
(`explained`). `docs/reference/reasons.md` is made from this table.
"""

from enum import StrEnum
from typing import Self


class Sort(StrEnum):
    STATE = "state"
    """How things are; nothing is wrong."""
    WAIT = "wait"
    """Something is waited for, and comes by itself."""
    TROUBLE = "trouble"
    """Somebody has to do something."""
    REFUSAL = "refusal"
    """A plan that is not carried out."""
    END = "end"
    EVENT = "event"
    """Of an event only."""


_SHRINK = "ask for less (`worker.min` or `trainer.min-instance`, `resource`), or get the namespace more"
_LOG = "read its log (`shoal logs JOB`, `kubectl logs POD`)"
_RESPECIFY = "set `spec.suspend: true`, change the template, and set it back: templates do not change while a job runs"
_OPERATOR_LOG = "see the operator's log"


class Reason(StrEnum):
    sort: Sort
    meaning: str
    hint: str
    """What to do. Empty: nothing."""

    def __new__(cls, word: str, sort: Sort, meaning: str, hint: str = "") -> Self:
        made = str.__new__(cls, word)
        made._value_ = word
        made.sort, made.meaning, made.hint = sort, meaning, hint
        return made

    # How a job is --------------------------------------------------------------------------------------------------
    GRANTED = "Granted", Sort.STATE, "All that was asked for is granted."
    ADMITTED = "Admitted", Sort.STATE, "It may run."
    TRIMMED = "Trimmed", Sort.STATE, "Less is granted than was asked for; the message says why."
    ALL_MEMBERS_UP = "AllMembersUp", Sort.STATE, "All members that it should have run."
    RUNNING = "Running", Sort.STATE, "It trains."
    STARTING = "Starting", Sort.STATE, "None of its members runs yet."
    CREATING = "Creating", Sort.STATE, "Not all that it needs to train runs yet."
    MEMBERS_MISSING = "MembersMissing", Sort.STATE, "Some of its members do not run."
    TRAINERS_ENDING = "TrainersEnding", Sort.STATE, "Trainers of before have to end before there are others."
    SCALING_UP = "ScalingUp", Sort.STATE, "Members are starting."
    SCALING_DOWN = "ScalingDown", Sort.STATE, "Members have to leave."
    MIGRATING = "Migrating", Sort.STATE, "A replacement starts beside the member whose place it is to take."
    IDLE = "Idle", Sort.STATE, "Its size is not being changed."
    SUSPENDED = "Suspended", Sort.STATE, "`spec.suspend` is true."
    AT_TARGET_SIZE = "AtTargetSize", Sort.STATE, "Nothing is wrong."
    AS_EXPECTED = "AsExpected", Sort.STATE, "Nothing is wrong."
    AS_ASKED = "AsAsked", Sort.STATE, "It is as the job asks."
    WITHIN_QUOTA = "WithinQuota", Sort.STATE, "No quota is in its way."
    IMAGE_NAMED = "ImageNamed", Sort.STATE, "It has an image."
    TRAINERS_FOLLOW = "TrainersFollow", Sort.STATE, "Its parameter servers can be resized."
    WHILE_IT_RUNS = (
        "WhileItRuns",
        Sort.STATE,
        "A TrainingJob's parameter servers keep what they hold only while it runs.",
    )
    FINISHED = "Finished", Sort.STATE, "The job is over."

    # What it waits for ---------------------------------------------------------------------------------------------
    QUEUED = "Queued", Sort.WAIT, "Others are before it in the queue (`shoal queue`)."
    NO_ROOM = "NoRoom", Sort.WAIT, "Its members do not fit now."
    RESERVED = "Reserved", Sort.WAIT, "Its members do not fit yet; room that becomes free is kept for it."
    ONLINE_SERVICE = "OnlineService", Sort.WAIT, "A service needs the room."
    WAITING = "Waiting", Sort.WAIT, "It waits in the queue."
    WAITING_FOR_SCHEDULER = "WaitingForScheduler", Sort.WAIT, "The scheduler has not looked at it yet."
    IN_PROGRESS = "InProgress", Sort.WAIT, "The plan is being carried out."

    # What somebody has to do something about -----------------------------------------------------------------------
    WAITING_FOR_PLAN = (
        "WaitingForPlan",
        Sort.TROUBLE,
        "Nobody has said how many members it should have.",
        "say `worker.replicas`, `kubectl scale`, apply a ScalePlan or a JobResource, or let the master decide",
    )
    INVALID_SPEC = (
        "InvalidSpec",
        Sort.TROUBLE,
        "The job cannot be understood.",
        "`kubectl explain elasticjob.spec` tells of every field",
    )
    IMAGE_PULL_FAILED = (
        "ImagePullFailed",
        Sort.TROUBLE,
        "A container's image cannot be had.",
        f"push the image, or give the Pod a Secret to pull it with (`imagePullSecrets`); if its name is wrong, "
        f"{_RESPECIFY}",
    )
    IMAGE_MISSING = (
        "ImageMissing",
        Sort.TROUBLE,
        "A TrainingJob names no image.",
        "say `spec.image`, or give the operator `--training-image`",
    )
    CANNOT_START = (
        "CannotStart",
        Sort.TROUBLE,
        "A container cannot be made: a ConfigMap or Secret is missing, a command does not exist.",
        f"make what is missing, or {_RESPECIFY}",
    )
    UNSCHEDULABLE = (
        "Unschedulable",
        Sort.TROUBLE,
        "Kubernetes finds no host for a Pod.",
        "compare what it asks for (`resource`, `nodeSelector`, tolerations) with the hosts (`kubectl describe nodes`)",
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        Sort.TROUBLE,
        "A ResourceQuota, or a quota of the scheduler's, has no room.",
        f"{_SHRINK} quota (`kubectl describe quota`)",
    )
    OVER_QUOTA = (
        "AboveWholeQuota",
        Sort.TROUBLE,
        "The least that it can run with is above its namespace's whole quota: it can never start.",
        f"{_SHRINK} quota",
    )
    TOO_LARGE = (
        "TooLarge",
        Sort.TROUBLE,
        "The least that it can run with would not fit into the empty cluster.",
        "ask for less (`worker.min` or `trainer.min-instance`, `resource`), or add hosts",
    )
    CPU_PER_GPU = (
        "TooLittleCpu",
        Sort.TROUBLE,
        "It asks for devices without enough cores beside them.",
        "raise `requests.cpu`, or have the scheduler's setting `cpuPerGpu` lowered",
    )
    NOT_COUNTED = (
        "NotCounted",
        Sort.TROUBLE,
        "What it asks for is beyond counting.",
        "write amounts that a cluster could have",
    )
    FORBIDDEN = (
        "Forbidden",
        Sort.TROUBLE,
        "The API server does not let the operator make something.",
        "if an admission rule of the namespace refused the Pod, change the template to suit it; if the operator lacks "
        "a permission, install its roles again (`docs/install.md`)",
    )
    INVALID_OBJECT = (
        "InvalidObject",
        Sort.TROUBLE,
        "The API server finds a Pod or another object of the job invalid.",
        f"the message names the field; {_RESPECIFY}",
    )
    NAMESPACE_ENDING = (
        "NamespaceEnding",
        Sort.TROUBLE,
        "Its namespace is being deleted.",
        "nothing can be made there any more: make the job in another namespace",
    )
    NAME_CONFLICT = (
        "NameConflict",
        Sort.TROUBLE,
        "An object of a name that the job needs belongs to somebody else.",
        "delete that object, or rename the job",
    )
    MEMBER_FAILED = ("MemberFailed", Sort.TROUBLE, "A member failed, and is not replaced, or not yet.", _LOG)
    MASTER_FAILING = (
        "MasterFailing",
        Sort.TROUBLE,
        "Its masters end before they are ready.",
        "see the last one's log (`kubectl logs JOB-master-N`)",
    )
    MASTER_SILENT = (
        "MasterSilent",
        Sort.TROUBLE,
        "No master answers, and nobody else makes Pods (`--pod-scaler`).",
        "look at its master's Pod and log",
    )
    SCHEDULER_FAILING = (
        "SchedulerFailing",
        Sort.TROUBLE,
        "The scheduler decides nothing new: jobs keep what they have.",
        _OPERATOR_LOG,
    )
    DISRUPTION_BUDGET = (
        "DisruptionBudget",
        Sort.TROUBLE,
        "A Pod has to go, and a PodDisruptionBudget forbids it.",
        "make the budget allow it, or wait until more Pods run",
    )
    NOT_IN_PRIORITIES = (
        "NotInPriorities",
        Sort.TROUBLE,
        "It says `priority: Production` and counts as Normal.",
        "have its namespace added to the scheduler's setting `priorities`, or say `Normal`",
    )
    TRAINERS_CANNOT_FOLLOW = (
        "TrainersCannotFollow",
        Sort.TROUBLE,
        "A TrainingJob's parameter servers stay at their least number.",
        "let Shoal run them (no `entrypoint` of their own, one process for each trainer), or say the same for "
        "`min-instance` and `max-instance`",
    )
    NO_CHECKPOINT_PATH = (
        "NoCheckpointPath",
        Sort.TROUBLE,
        "What a TrainingJob's parameter servers held is lost with them.",
        "name a `checkpoint.path` that outlives them",
    )
    SERVERS_ENDED = (
        "ServersEnded",
        Sort.TROUBLE,
        "A TrainingJob was suspended or put back: what its parameter servers had not saved is lost.",
        "have them save to a volume, or let Shoal run them, with a `checkpoint.path`",
    )
    NO_VOLUME = (
        "NoVolume",
        Sort.TROUBLE,
        "What a TrainingJob's master knew is lost with the suspension.",
        "name `master.etcd-storage` before the next one",
    )

    # Plans ---------------------------------------------------------------------------------------------------------
    ACCEPTED = "Accepted", Sort.STATE, "The plan is understood."
    JOB_NOT_FOUND = (
        "JobNotFound",
        Sort.REFUSAL,
        "The plan's job is not there; it waits for it.",
        "make the job, or name one that exists (`ownerJob`, `kubectl get elasticjobs`)",
    )
    NO_JOB_NAMED = (
        "NoJobNamed",
        Sort.REFUSAL,
        "The plan does not say which job it is for; nothing comes of it.",
        "say `spec.ownerJob` or the label `elasticjob-name` (`kubectl get elasticjobs`)",
    )
    JOB_FINISHED = (
        "JobFinished",
        Sort.REFUSAL,
        "The plan's job is over.",
        "delete the plan; to train again, make the job anew",
    )
    CONTRADICTION = (
        "Contradiction",
        Sort.REFUSAL,
        "The plan contradicts itself.",
        "`kubectl explain scaleplan.spec` tells of every field",
    )
    INVALID_PLAN = (
        "InvalidPlan",
        Sort.REFUSAL,
        "The plan cannot be understood.",
        "`kubectl explain scaleplan.spec` tells of every field",
    )
    TOO_MANY_PLANS = ("TooManyPlans", Sort.REFUSAL, "The job has too many plans.", "delete some that are superseded")
    SUPERSEDED = (
        "Superseded",
        Sort.REFUSAL,
        "A later ask names the same roles.",
        "it comes back into force when that one is deleted",
    )
    MIGRATION_FAILED = (
        "MigrationFailed",
        Sort.REFUSAL,
        "A replacement did not run, or failed: the old member stays.",
        "change the plan to try again",
    )
    RESIZE_REFUSED = (
        "ResizeRefused",
        Sort.REFUSAL,
        "A running Pod cannot be given what the plan asks for, and keeps what it has. An event says it of each Pod.",
        "ask for less, or get the namespace or the host more: what the server refused is tried again; a move "
        "(`migratePods`) gives it another Pod",
    )
    COMPLETED = "Completed", Sort.END, "It is done."

    # Ends ----------------------------------------------------------------------------------------------------------
    TRAINERS_SUCCEEDED = "TrainersSucceeded", Sort.END, "All trainers ended well."
    STOPPED = "Stopped", Sort.END, "Somebody stopped it."
    TRAINING_FAILED = ("TrainingFailed", Sort.END, "Training failed; the message has the last error.", _LOG)
    DEADLINE_EXCEEDED = (
        "DeadlineExceeded",
        Sort.END,
        "It ran for longer than it may.",
        "to let such a job run for longer, raise `activeDeadlineSeconds`",
    )
    MASTER_FAILED = (
        "MasterFailed",
        Sort.END,
        "It got no master: too many failed before they were ready, or one was not ready for too long.",
        "see to the cause, then make the job anew",
    )
    JOB_FAILED = ("JobFailed", Sort.END, "Kubernetes gave its trainers up.", _LOG)
    TOO_MANY_FAILURES = ("TooManyFailures", Sort.END, "More trainers failed than it survives.", _LOG)

    # Events --------------------------------------------------------------------------------------------------------
    RESIZED = "Resized", Sort.EVENT, "It is granted another size."
    SCALED = "Scaled", Sort.EVENT, "A TrainingJob has another size."
    PUT_BACK = "PutBack", Sort.EVENT, "The scheduler has put it back into the queue."
    QUOTA_PENDING = "QuotaPending", Sort.EVENT, "It waits because a quota has no room for it."
    PREEMPTED = "Preempted", Sort.EVENT, "The scheduler took members from it for others, or a Pod was evicted."
    RENDEZVOUS_COMPLETED = "RendezvousCompleted", Sort.EVENT, "A new world trains."
    HANG_DETECTED = (
        "HangDetected",
        Sort.EVENT,
        "Training stood still, and the master acts.",
        "see the stacks in the log",
    )
    MEMBER_LOST = "MemberLost", Sort.EVENT, "A member's Pod ended badly, is gone, or lost its host."
    MEMBER_REPLACED = "MemberReplaced", Sort.EVENT, "Another takes its place."
    MASTER_LOST = "MasterLost", Sort.EVENT, "A master ended; the next one takes over."
    MIGRATED = "Migrated", Sort.EVENT, "A replacement runs; the old member is to leave."
    TRAINER_FAILED = "TrainerFailed", Sort.EVENT, "A trainer's Pod failed.", _LOG
    PRIORITY_IGNORED = (
        "PriorityIgnored",
        Sort.EVENT,
        "A role's `priority` means nothing here.",
        "give the operator a PriorityClass for it (`--priority-classes`)",
    )
    NO_ROOM_MADE = "NoRoomMade", Sort.EVENT, "Of a service's Pod: no job makes room for it."
    SETTINGS_REFUSED = (
        "SettingsRefused",
        Sort.EVENT,
        "The scheduler's settings were not understood; the old ones hold.",
        "change the ConfigMap as the message says",
    )


_WORDS = {str(reason): reason for reason in Reason}


def explained(reason: str, message: str, longest: int) -> str:
    """A message with what to do about it, and no longer than it may be: what is cut is the message."""
    known = _WORDS.get(reason)
    hint = known.hint if known is not None and known.sort in (Sort.TROUBLE, Sort.REFUSAL) and message else ""
    if not hint or hint in message:
        return message[:longest]
    return f"{message[: longest - len(hint) - 2]}; {hint}"
