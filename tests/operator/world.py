"""A cluster of one job, in memory: what a plan asks for is done, and Pods behave as told.

It stands in for API server, scheduler and kubelet when decisions are tried one after the other. A `step` may be cut
off after any number of actions, as a crash would.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from tests.operator.builders import NOW, SETTINGS, a_job

from shoal.api.elasticjob import ElasticJobStatus, Role
from shoal.api.labels import ROLE, SCALER, TERM
from shoal.api.resources import of_list
from shoal.core.pods import PodPhase, PodSeen
from shoal.operator.actions import JobPlan, Resize
from shoal.operator.memory import MemberState
from shoal.operator.plan import plan_job
from shoal.operator.recall import job_status
from shoal.operator.settings import OperatorSettings
from shoal.operator.snapshot import JobSeen, PlanSeen, Snapshot, Training
from shoal.operator.writing import write_job


class World:
    def __init__(self, job: JobSeen | None = None, settings: OperatorSettings = SETTINGS) -> None:
        self.job = job or a_job()
        self.settings = settings
        self.plans: dict[str, PlanSeen] = {}
        self.pods: dict[str, PodSeen] = {}
        self.prepared: str | None = None
        self.has_auto_plan = False
        self.can_resize = False
        self.now: datetime = NOW
        self.born: list[str] = []
        """Every Pod ever made, in order."""
        self.made: dict[str, str] = {}
        """What the process remembers of them."""
        self.forgotten: set[str] = set()
        """What a crash made it forget before it was recorded: the one case in which a name may be made again."""
        self.notices: list[str] = []
        self.last: JobPlan | None = None
        self.log: list[str] = []
        self.is_deleted = False

    def snapshot(self) -> Snapshot:
        return Snapshot(
            job=replace(self.job, training=self._reported()),
            plans=tuple(self.plans.values()),
            pods=tuple(self.pods.values()),
            has_auto_plan=self.has_auto_plan,
            can_resize=self.can_resize,
            prepared=self.prepared,
            made=self.made,
        )

    def _reported(self) -> Training | None:
        """What a master reports that does not say its term is the newest one's word."""
        said = self.job.training
        return said if said is None or said.term is not None else replace(said, term=self.job.memory.master.term)

    def step(self, *, actions: int | None = None) -> JobPlan:
        """One look: decide, record, act. `actions`: the process dies after so many of them."""
        plan = plan_job(self.snapshot(), self.settings, now=self.now)
        acts = self._acts(plan)
        for act in acts[:actions]:
            act()
        if actions is not None and actions < len(acts):
            recorded = {member.name for member in self.job.memory.members if member.uid is not None}
            self.forgotten |= set(self.made) - recorded
            self.made.clear()
        self.last = plan
        return plan

    def settle(self, *, runs: bool = True, most: int = 60) -> None:
        """Look until nothing changes; Pods that can run do."""
        for _ in range(most):
            before = (self.job.status, dict(self.pods), dict(self.plans))
            self.step()
            if runs:
                self.run_all()
            self.vanish()
            if (self.job.status, dict(self.pods), dict(self.plans)) == before:
                return
        raise AssertionError("it does not settle")

    def _acts(self, plan: JobPlan) -> list[Callable[[], None]]:
        acts: list[Callable[[], None]] = []
        for ask, status in plan.plan_statuses.items():
            if self.plans[ask].status == status:
                continue
            acts.append(lambda ask=ask, status=status: self._write_plan(ask, status))
        if plan.status != self.job.status:
            acts.append(lambda: self._write(plan))
        acts += [lambda ref=ref: self.delete(ref.name) for ref in plan.delete]
        acts += [lambda each=each: self._resize(each) for each in plan.resize]
        if plan.ensure or plan.check:
            acts.append(lambda: self._prepare(plan))
        acts += [lambda manifest=manifest: self._make(manifest) for manifest in plan.create]
        if plan.delete_job:
            acts.append(self._delete_job)
        return acts

    def _write(self, plan: JobPlan) -> None:
        there = msgspec.convert(write_job(self.job, plan.status), ElasticJobStatus)
        self.job = replace(self.job, status=job_status(there))
        self.notices += [notice.reason for notice in plan.notices]

    def _write_plan(self, ask: str, status: Any) -> None:
        self.plans[ask] = replace(self.plans[ask], status=status)

    def _prepare(self, plan: JobPlan) -> None:
        self.prepared = plan.form
        self.has_auto_plan = True

    def _resize(self, each: Resize) -> None:
        pod = self.pods[each.pod.name]
        self.pods[pod.name] = replace(pod, resource=of_list(each.resources["requests"]).over(pod.resource))

    def _delete_job(self) -> None:
        self.is_deleted = True

    def _make(self, manifest: dict[str, Any]) -> None:
        meta = manifest["metadata"]
        name = meta["name"]
        assert name not in self.born or name in self.forgotten, f"{name} is made a second time"
        self.born.append(name)
        self.made[name] = f"{name}-uid"
        self.log.append(f"create {name}")
        role = meta["labels"][ROLE]
        self.pods[name] = PodSeen(
            name=name,
            uid=f"{name}-uid",
            role=None if role == "master" else Role(role),
            id=int(meta["labels"][TERM] if role == "master" else name.rpartition("-")[2]),
            rank=int(meta["labels"].get("elastic.iml.github.io/rank-hint", 0)),
            created_at=self.now,
            makes_pods=SCALER in meta["labels"],
            resource=of_list((manifest["spec"]["containers"][0].get("resources") or {}).get("requests") or {}),
        )

    # What happens in a cluster -----------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        if name in self.pods and not self.pods[name].deleting:
            self.log.append(f"delete {name}")
            self.pods[name] = replace(self.pods[name], deleting=True)

    def vanish(self) -> None:
        """What is being deleted is gone."""
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleting}

    def run(self, name: str) -> None:
        pod = self.pods[name]
        if pod.phase is PodPhase.PENDING and not pod.deleting:
            self.log.append(f"run {name}")
            self.pods[name] = replace(pod, phase=PodPhase.RUNNING, ready=True, host="host-1")

    def run_all(self) -> None:
        for name in self.pods:
            self.run(name)

    def end(self, name: str, code: int = 0, **more: Any) -> None:
        phase = PodPhase.FAILED if code else PodPhase.SUCCEEDED
        self.pods[name] = replace(self.pods[name], phase=phase, ready=False, exit_code=code, **more)

    def put(self, plan: PlanSeen) -> None:
        known = self.plans.get(plan.ask)
        self.plans[plan.ask] = replace(plan, status=known.status) if known else plan

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def live(self, role: Role) -> list[PodSeen]:
        return [pod for pod in self.pods.values() if pod.role is role and not pod.is_over and not pod.deleting]

    def names(self, role: Role) -> list[str]:
        return sorted(pod.name for pod in self.live(role))

    def seats(self, role: Role) -> int:
        return sum(member.has_seat for member in self.job.memory.of(role))

    def has_state(self, name: str) -> MemberState | None:
        return next((member.state for member in self.job.memory.members if member.name == name), None)
