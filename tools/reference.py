"""Tables of the documentation that are made from the code: metrics, exit codes, `shoal run`'s flags, resources.

    python tools/reference.py            say whether the pages are up to date (exit code 1: they are not)
    python tools/reference.py --write    bring them up to date

A page marks the place of a table with `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import get_type_hints

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from shoal.api.elasticjob import Checkpoint, ElasticJobSpec, ElasticJobStatus, ReplicaSpec, ResourceSpec, RoleSpec
from shoal.api.fields import Field
from shoal.api.jobresource import JobResourceSpec, JobResourceStatus
from shoal.api.reasons import Reason, Sort
from shoal.api.reference import FIELDS_HEAD, RULES_HEAD, field_rows, rule_rows
from shoal.api.rules import elastic_job_rules, job_resource_rules, scale_plan_rules, training_job_rules
from shoal.api.scaleplan import PodMeta, ScalePlanSpec, ScalePlanStatus
from shoal.api.trainingjob import MasterSpec, TrainerSpec, TrainingJobSpec, TrainingJobStatus
from shoal.cli.flags import Flag
from shoal.cli.operator import FLAGS as OPERATOR_FLAGS
from shoal.cli.run_flags import FLAGS
from shoal.cli.simulate import FLAGS as SIMULATE_FLAGS
from shoal.core.exits import (
    EXIT_DO_NOT_RESTART,
    EXIT_LEFT,
    EXIT_OOM,
    EXITS_HARDWARE,
    ExitCause,
    ProcessExit,
    cause_of,
)
from shoal.core.figures import figures
from shoal.core.job import JobSettings, JobSpec, new_job
from shoal.core.job.values import ProcessExited, ResizeTold, SelfSizing, Sized
from shoal.core.nodes import NodeId, NodeSeen, ProcessSeen
from shoal.core.plans import ResourcePlan
from shoal.core.recovery import (
    Budget,
    EndMember,
    FailJob,
    Failure,
    RecoverySettings,
    RelaunchNode,
    RestartProcesses,
    decide_recovery,
)
from shoal.core.stages import OptimizerState
from shoal.core.statistics import Heard, Statistics
from shoal.core.view import PSChangeView, ResizeView
from shoal.master.metrics import MasterMetrics
from shoal.operator.actions import JobPlan
from shoal.operator.counting import Direction, Resized, Result, Trigger
from shoal.operator.metrics import OperatorMetrics
from shoal.operator.scheduling.settings import SettingsText
from shoal.operator.snapshot import JobStatus
from shoal.scheduler.rows import Room
from shoal.scheduler.settings import Load, SchedulerSettings, Scores

DOCS = Path(__file__).parents[1] / "docs"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODE = NodeId("worker-0")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def metrics() -> str:
    """Every metric that a master serves, after a little of everything has happened to it."""
    spec = JobSpec(name="job", uid="job.0", min_nodes=1, max_nodes=1, sizing=SelfSizing())
    job, _ = new_job(spec, JobSettings(), nodes=1, now=NOW)
    job = replace(job, continuing=frozenset({NODE}))
    resized = ResizeView(generation=1, at=NOW, reason="", before=0, after=1)
    served = MasterMetrics()
    failure = ProcessExited(node=NODE, incarnation=1, local_rank=0, exit=ProcessExit(code=1))
    told = ResizeTold(node=NODE, generation=1, drain=0, rendezvous=0, restore=0, first_step=0, lost_steps=0)
    moved = PSChangeView(kind="resize", at=NOW, reason="", before=0, after=1, phase=None, outcome="done")
    served.observe(job, failure, replace(job, resizes=(resized,)), NOW)
    served.observe(job, told, replace(job, changes=(moved,)), NOW)
    served.observe(job, Sized(state=OptimizerState(), plan=ResourcePlan(reason="", algorithm="throughput")), job, NOW)
    process = ProcessSeen(
        local_rank=0, pid=1, stopped=False, cpu=0.0, memory_bytes=0, step=None, collectives=0, busy=None
    )
    heard = Heard(node=NodeSeen(cpu_limit=1.0, memory_limit=1), processes=(process,), gpus=1)
    statistics = Statistics()
    statistics.heard(NODE, heard, NOW)
    return _metric_table(served.text(job, figures(job, statistics, NOW)))


def operator_metrics() -> str:
    """Every metric that an operator serves, after a little of everything has happened."""
    served = OperatorMetrics()
    resized = Resized(Direction.UP, Trigger.USER, Result.GRANTED)
    served.recorded(JobPlan(status=JobStatus(), resized=resized, lost=("user",)))
    served.scheduled("ok", 0.0)
    served.decided("admit", "Granted")
    served.waited("default", "Normal", 0.0)
    served.looked("ok", 0.0)
    served.called("get", "pods", 200, 0.0)
    text = served.text([], staleness={"pods": 0.0}, waiting=0, leads=True, goodput={"default": 1.0})
    return _metric_table(text)


def _metric_table(text: bytes) -> str:
    rows = []
    for family in text_string_to_metric_families(text.decode()):
        if family.name.endswith("_created"):
            continue  # when a counter began: the library's own
        if not family.samples:
            raise SystemExit(f"nothing has happened to {family.name}, so that its labels are not known: let it happen")
        labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append([f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation])
    return table(["metric", "kind", "labels", "meaning"], rows)


def exit_codes() -> str:
    """What each exit code of a training process means, and what follows, as the code decides it."""
    shown: list[tuple[str, int, bool]] = [
        ("0", 0, False),
        ("1 to 127, a Python traceback", 1, False),
        (str(EXIT_DO_NOT_RESTART), EXIT_DO_NOT_RESTART, False),
        (str(EXIT_LEFT), EXIT_LEFT, False),
        ("134, 135, 136, 139: SIGABRT, SIGBUS, SIGFPE, SIGSEGV", 139, False),
        ("137, 143: SIGKILL, SIGTERM", 137, False),
        ("137, and the cgroup's oom_kill count rose", 137, True),
        (" and ".join(map(str, sorted(EXITS_HARDWARE))), min(EXITS_HARDWARE), False),
        (str(EXIT_OOM), EXIT_OOM, False),
    ]
    rows = []
    for name, code, oom in shown:
        cause = cause_of(ProcessExit(code=code, oom=oom))
        rows.append([name, f"`{cause.value}`", *_consequence(cause)])
    return table(["exit code", "cause", "what happens", "charged"], rows)


def _consequence(cause: ExitCause) -> tuple[str, str]:
    if cause is ExitCause.SUCCEEDED:
        return "the process is done; the node has succeeded when all its processes have", ""
    failure = Failure(node=NODE, cause=cause, detail="", node_lost=False, critical=False)
    decision = decide_recovery(failure, Budget(limit=3), without_progress=0, now=NOW, settings=RecoverySettings())
    match decision:
        case RestartProcesses(charged=charged):
            return "the node's processes are started again", "yes" if charged else "no"
        case RelaunchNode(charged=charged):
            return "another node takes its place", "yes" if charged else "no"
        case EndMember():
            return "the member has left; nobody takes its place", "no"
        case FailJob():
            return "the job fails", ""


def flags(of: Sequence[Flag] = FLAGS) -> str:
    rows = []
    for flag in of:
        short = f"`-{flag.short}`, " if flag.short else ""
        value = f" {flag.metavar}" if flag.metavar else ""
        rows.append([f"{short}`{flag.spelling}{value}`", flag.help, f"`{flag.default}`" if flag.default else ""])
    return table(["flag", "meaning", "default"], rows)


def resources() -> Mapping[str, str]:
    """The fields and rules of the custom resources."""
    own = field_rows(RoleSpec)
    fields = {
        "elasticjob-spec": field_rows(ElasticJobSpec),
        "elasticjob-role": field_rows(RoleSpec),
        "elasticjob-dlrover": [row for row in field_rows(ReplicaSpec) if row not in own],
        "elasticjob-resource": field_rows(ResourceSpec),
        "elasticjob-checkpoint": field_rows(Checkpoint),
        "elasticjob-status": field_rows(ElasticJobStatus, flat=True),
        "scaleplan-spec": field_rows(ScalePlanSpec),
        "scaleplan-pod": field_rows(PodMeta),
        "scaleplan-status": field_rows(ScalePlanStatus, flat=True),
        "jobresource-spec": field_rows(JobResourceSpec, flat=True),
        "jobresource-status": field_rows(JobResourceStatus, flat=True),
        "trainingjob-spec": field_rows(TrainingJobSpec),
        "trainingjob-trainer": field_rows(TrainerSpec),
        "trainingjob-master": [row for row in field_rows(MasterSpec) if row not in field_rows(TrainerSpec)],
        "trainingjob-status": field_rows(TrainingJobStatus, flat=True),
    }
    rules = {
        "elasticjob-rules": rule_rows(elastic_job_rules()),
        "scaleplan-rules": rule_rows(scale_plan_rules()),
        "jobresource-rules": rule_rows(job_resource_rules()),
        "trainingjob-rules": rule_rows(training_job_rules()),
    }
    return {
        **{name: table(FIELDS_HEAD, rows) for name, rows in fields.items()},
        **{name: table(RULES_HEAD, rows) for name, rows in rules.items()},
    }


def scheduler_settings() -> str:
    """What the scheduler's ConfigMap may say, with what holds where it says nothing."""
    defaults = SchedulerSettings()
    hints = get_type_hints(SettingsText, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(SettingsText):
        meaning = next(each for each in hints[field.name].__metadata__ if isinstance(each, Field))
        default = getattr(defaults, field.name)
        shown = f"{default / 1000:g}" if field.name == "cpu_per_gpu" else _default(default)
        rows.append([f"`{field.encode_name}`", meaning.meaning, shown])
    return table(["setting", "meaning", "default"], rows)


def _default(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case Load():
            return f"grow {value.grow}, reclaim {value.reclaim}"
        case Scores():
            return f"gpu {value.gpu}, core {value.core}, gibibyte {value.gibibyte}, pod {value.pod}, {value.mode}"
        case float() | int():
            return f"{value:g}"
        case Room():
            return "nothing"
        case Mapping():
            return ", ".join(f"{name} {each:,}" for name, each in value.items()) or "none"
        case tuple() | frozenset():
            return "none"
        case _:
            return f"`{value}`"


def reasons() -> str:
    """Every reason of conditions and events, with what to do about it."""
    rows = [[f"`{each}`", each.sort, each.meaning, each.hint] for each in sorted(Reason, key=_sort)]
    return table(["reason", "sort", "meaning", "what to do"], rows)


def _sort(reason: Reason) -> tuple[int, str]:
    return list(Sort).index(reason.sort), str(reason)


TABLES = {
    "reasons": reasons,
    "metrics": metrics,
    "operator-metrics": operator_metrics,
    "exit-codes": exit_codes,
    "flags": flags,
    "operator-flags": lambda: flags(OPERATOR_FLAGS),
    "simulate-flags": lambda: flags(SIMULATE_FLAGS),
    "scheduler-settings": scheduler_settings,
}
PLACE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def pages(tables: Mapping[str, str]) -> Iterator[tuple[Path, str, str]]:
    """Each page with tables in it: as it is, and as it should be."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if PLACE.search(text):
            yield path, text, PLACE.sub(lambda found: f"{found[1]}{tables[found[2]]}\n{found[3]}", text)


def main(words: Sequence[str]) -> int:
    stale = 0
    for path, text, wanted in pages({**{name: make() for name, make in TABLES.items()}, **resources()}):
        if text == wanted:
            continue
        if "--write" in words:
            path.write_text(wanted, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(DOCS.parent)} brought up to date\n")
        else:
            sys.stdout.write(f"{path.relative_to(DOCS.parent)} is out of date: python tools/reference.py --write\n")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
