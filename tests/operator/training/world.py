"""A cluster of one TrainingJob, in memory: what a plan asks for is done, and Kubernetes' controllers do as theirs do.

A `step` may be cut off after any number of actions, as a crash would. The Job controller here fails the test when it
has to choose a running trainer to remove: that choice is ours.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from tests.operator.builders import NOW, SETTINGS
from tests.operator.training.builders import a_job

from shoal.api.labels import FORM, ROLE
from shoal.api.trainingjob import TrainingJobStatus, TrainingRole
from shoal.core.pods import PodPhase
from shoal.core.workloads import TrainingPod, Workload, WorkloadKind
from shoal.operator.allowances import Allowance
from shoal.operator.settings import OperatorSettings
from shoal.operator.training.plan import TrainingPlan, plan_training_job
from shoal.operator.training.recall import recalled, written_status
from shoal.operator.training.snapshot import TrainingSeen, TrainingSnapshot
from shoal.operator.training.trainers import is_waiting

TRAINER = TrainingRole.TRAINER


class World:
    def __init__(self, job: TrainingSeen | None = None, settings: OperatorSettings = SETTINGS) -> None:
        self.job = job or a_job()
        self.settings = settings
        self.workloads: dict[str, Workload] = {}
        self.pods: dict[str, TrainingPod] = {}
        self.allowance: Allowance | None = None
        self.prepared: str | None = None
        self.fixed: set[str] = set()
        self.now: datetime = NOW
        self.notices: list[str] = []
        self.evicted: list[str] = []
        self.made = 0

    # The operator ------------------------------------------------------------------------------------------------

    def snapshot(self) -> TrainingSnapshot:
        return TrainingSnapshot(
            job=self.job,
            workloads=tuple(self.workloads.values()),
            pods=tuple(self.pods.values()),
            allowance=self.allowance,
            prepared=self.prepared,
        )

    def step(self, *, cut: int | None = None) -> TrainingPlan:
        """One look. `cut`: the process dies after so many of its writes, and forgets what it had in memory."""
        plan = plan_training_job(self.snapshot(), self.settings, now=self.now)
        acts = self._acts(plan)
        for act in acts[:cut]:
            act()
        if cut is not None:
            self.prepared, self.allowance = None, None
        return plan

    def settle(self, most: int = 60) -> None:
        """Look until nothing changes, while Pods start and end as they would."""
        for _ in range(most):
            before = (self.job.status, dict(self.workloads), dict(self.pods))
            self.step()
            self.control()
            self.run_all()
            self.vanish()
            if (self.job.status, dict(self.workloads), dict(self.pods)) == before:
                return
        raise AssertionError("it does not settle")

    def _acts(self, plan: TrainingPlan) -> list[Callable[[], None]]:
        acts: list[Callable[[], None]] = []
        if plan.status != self.job.status:
            acts.append(lambda: self._write(plan))
        acts += [lambda ref=ref: self._delete(ref.name) for ref in plan.delete]
        acts += [lambda ref=ref: self._evict(ref.name) for ref in plan.evict]
        acts += [lambda each=each: self._resize(each.name, each.count) for each in plan.resize]
        acts += [lambda each=each: self.fixed.add(each["metadata"]["name"]) for each in plan.ensure]
        if plan.ensure:
            acts.append(lambda: setattr(self, "prepared", plan.form))
        acts += [lambda each=each: self._create(each) for each in plan.create]
        return acts

    def _write(self, plan: TrainingPlan) -> None:
        there = msgspec.convert(written_status(self.job, plan.status), TrainingJobStatus)
        self.job = replace(self.job, status=recalled(there))
        self.notices += [notice.reason for notice in plan.notices]

    def _create(self, manifest: dict[str, Any]) -> None:
        meta, spec = manifest["metadata"], manifest["spec"]
        if meta["name"] in self.workloads:
            return
        if meta["labels"][ROLE] == TRAINER:
            assert not self.there(), "trainers of before still run"
        assert self.job.memory.target > 0, "nothing is made for a job that was never admitted"
        self.made += 1
        self.workloads[meta["name"]] = Workload(
            kind=WorkloadKind(manifest["kind"]),
            name=meta["name"],
            uid=f"{meta['name']}-{self.made}",
            role=TrainingRole(meta["labels"][ROLE]),
            wanted=spec["parallelism"] if "parallelism" in spec else spec["replicas"],
            form=meta["annotations"][FORM],
        )

    def _resize(self, name: str, count: int) -> None:
        if name in self.workloads:
            self._check(self.workloads[name].role, count)
            self.workloads[name] = replace(self.workloads[name], wanted=count)

    def _check(self, role: TrainingRole, count: int) -> None:
        """No number is written that the record does not allow."""
        spec, target = self.job.spec, self.job.memory.target
        assert spec is not None
        most = {part.role: part.min for part in spec.parts}
        if spec.servers_follow and spec.pserver is not None:
            most[TrainingRole.PSERVER] = min(max(self.job.memory.servers or 0, spec.pserver.min), spec.pserver.max)
        assert count <= (target if role is TRAINER else most[role] if target else 0), f"nobody has recorded {count}"

    def _delete(self, name: str) -> None:
        gone = self.workloads.pop(name, None)
        for pod in self.pods.values():
            if gone is not None and pod.owner == gone.uid:
                self.pods[pod.name] = replace(pod, deleting=True)

    def _evict(self, name: str) -> None:
        if name in self.pods and not self.pods[name].deleting:
            self.evicted.append(name)
            self.pods[name] = replace(self.pods[name], deleting=True)

    # Kubernetes --------------------------------------------------------------------------------------------------

    def control(self) -> None:
        """Kubernetes' controllers: as many Pods as each workload wants."""
        for each in list(self.workloads.values()):
            if each.kind is WorkloadKind.JOB:
                self._control_job(each)
                continue
            live = [pod for pod in self.pods.values() if pod.owner == each.uid and pod.is_live]
            for _ in range(each.wanted - len(live)):
                self._make(each)
            for pod in live[each.wanted :]:
                self.pods[pod.name] = replace(pod, deleting=True)

    def _control_job(self, job: Workload) -> None:
        own = [pod for pod in self.pods.values() if pod.owner == job.uid]
        active, leaving = [p for p in own if p.is_live], [p for p in own if p.deleting and not p.is_over]
        if job.succeeded and not active and not leaving:
            self.workloads[job.name] = replace(job, is_complete=True)
        elif len(active) > job.wanted:
            active.sort(key=lambda pod: (not is_waiting(pod), -pod.created_at.timestamp()))
            for pod in active[: len(active) - job.wanted]:
                assert is_waiting(pod) or self.job.is_over, f"the Job controller chose {pod.name}"
                self.pods[pod.name] = replace(pod, deleting=True)
        elif not job.succeeded:
            for _ in range(job.wanted - len(active) - len(leaving)):  # podReplacementPolicy: Failed
                self._make(job)

    def _make(self, of: Workload) -> None:
        self.made += 1
        name = f"{of.name}-{self.made}"
        self.pods[name] = TrainingPod(
            name=name, uid=f"{name}-uid", role=of.role, owner=of.uid, created_at=self.now + timedelta(seconds=self.made)
        )

    def run_all(self) -> None:
        for name, pod in self.pods.items():
            if pod.phase is PodPhase.PENDING and not pod.deleting:
                self.pods[name] = replace(pod, phase=PodPhase.RUNNING, ready=True, host="host-1")

    def vanish(self) -> None:
        """What is being deleted is gone."""
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleting}

    def end(self, name: str, *, well: bool, disrupted: bool = False) -> None:
        """A trainer's process ends, by its own fault unless its host was lost."""
        pod = self.pods[name]
        self.pods[name] = replace(
            pod, phase=PodPhase.SUCCEEDED if well else PodPhase.FAILED, ready=False, reason="boom"
        )
        job = next((each for each in self.workloads.values() if each.uid == pod.owner), None)
        if job is not None and job.kind is WorkloadKind.JOB and not disrupted:
            counts = {"succeeded": job.succeeded + well, "failed": job.failed + (not well)}
            self.workloads[job.name] = replace(job, **counts)

    def live(self, role: TrainingRole = TRAINER) -> list[str]:
        return sorted(pod.name for pod in self.pods.values() if pod.role is role and pod.is_live)

    def there(self) -> list[str]:
        """Trainers whose containers may run: those that are told to end, too."""
        return sorted(pod.name for pod in self.pods.values() if pod.role is TRAINER and not pod.is_over)

    def running(self, role: TrainingRole = TRAINER) -> list[str]:
        return sorted(pod.name for pod in self.pods.values() if pod.role is role and pod.is_running)
