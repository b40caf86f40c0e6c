"""A TrainingJob through anything: Pods die, the scheduler changes its mind, the user too, the operator crashes."""

import random
from dataclasses import replace

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.api.builders import a_training_job
from tests.operator.training.builders import a_job, allowed, elastic
from tests.operator.training.world import World

from shoal.api import TrainingJob
from shoal.api.trainingjob import MAX_SCALE_RECORDS, Phase, TrainingRole
from shoal.api.trainingspec import understand

MOST = 5


class Life(RuleBasedStateMachine):
    @initialize(ours=st.booleans(), servers=st.booleans(), least=st.integers(1, 2))
    def begin(self, ours: bool, servers: bool, least: int) -> None:
        self.spec = {
            "trainer": {**elastic(least, MOST), "max-restarts": 1},
            **({"master": {}} if ours else {}),
            **({"pserver": {"min-instance": 1, "max-instance": 3}} if servers else {}),
        }
        self.least = least
        self.world = World(a_job(**self.spec))
        self.target: int | None = None
        self.ended: Phase | None = None

    # What happens ------------------------------------------------------------------------------------------------

    @rule(extra=st.integers(-2, MOST), servers=st.integers(0, 4), pick=st.randoms(use_true_random=False))
    def the_scheduler_decides(self, extra: int, servers: int, pick: object) -> None:
        target = 0 if extra < 0 else min(max(extra, self.least), MOST)
        victims = list(self.world.live())
        pick.shuffle(victims)  # type: ignore[attr-defined]
        self.world.allowance = allowed(target, victims=tuple(victims[:3]), servers=servers)
        self.target = target

    @rule()
    def a_service_comes_and_goes(self) -> None:
        self.the_scheduler_decides(-1, 0, random.Random(0))
        self.world.step()
        self.the_scheduler_decides(self.least, 0, random.Random(0))
        self.world.step()

    @rule()
    def the_operator_looks(self) -> None:
        self.world.step()

    @rule(cut=st.integers(0, 6))
    def the_operator_crashes(self, cut: int) -> None:
        self.world.step(cut=cut)

    @rule()
    def kubernetes_works(self) -> None:
        self.world.control()
        self.world.run_all()

    @rule()
    def pods_are_gone(self) -> None:
        self.world.vanish()

    @rule(number=st.integers(0, 9), disrupted=st.booleans())
    def a_trainer_fails(self, number: int, disrupted: bool) -> None:
        running = self.world.running()
        if running:
            self.world.end(running[number % len(running)], well=False, disrupted=disrupted)

    @rule(number=st.integers(0, 9))
    def a_trainer_succeeds(self, number: int) -> None:
        running = self.world.running()
        if running and number < 2:
            self.world.end(running[number % len(running)], well=True)

    @rule(suspend=st.booleans())
    def the_user_suspends_it_or_not(self, suspend: bool) -> None:
        written = a_training_job("job", **{**self.spec, "suspend": suspend})
        written["metadata"] |= {"namespace": "default", "uid": "job-uid", "generation": self.world.job.generation + 1}
        spec = understand(msgspec.convert(written, TrainingJob))
        self.world.job = replace(self.world.job, spec=spec, generation=spec.generation)

    @rule()
    def everything_settles(self) -> None:
        world = self.world
        world.settle()
        job = world.job
        plan = world.step()
        assert (plan.create, plan.resize, plan.evict, plan.delete, plan.ensure) == ((), (), (), (), ())
        assert plan.status == job.status
        if job.is_over:
            assert not any(world.live(role) for role in TrainingRole if role is not TrainingRole.TRAINER)
            assert not world.live() or job.status.phase is Phase.SUCCEEDED
            return
        assert job.spec is not None
        target = 0 if job.spec.suspend else job.memory.target
        finishing = any(each.succeeded for each in world.workloads.values())
        assert len(world.live()) == target or finishing
        assert job.status.phase is (Phase.RUNNING if target else Phase.PENDING) or finishing
        if job.spec.pserver is not None:
            servers = len(world.live(TrainingRole.PSERVER))
            allowed = min(max(job.memory.servers or 0, 1), 3) if job.spec.servers_follow else 1
            assert servers == (allowed if target else 0)
        if job.spec.etcd is not None and (target or job.spec.suspend):  # put back, it keeps what it has
            assert len(world.live(TrainingRole.ETCD)) == (1 if target else 0)
        assert len(world.live(TrainingRole.MASTER)) == (1 if target and job.spec.master else 0)

    # What always holds -------------------------------------------------------------------------------------------

    @invariant()
    def the_end_is_final(self) -> None:
        phase = self.world.job.status.phase
        if self.ended is not None:
            assert phase is self.ended
        if self.world.job.is_over:
            self.ended = phase

    @invariant()
    def nothing_is_there_that_nobody_allowed(self) -> None:
        if self.target is None:
            assert not self.world.pods
            assert not self.world.workloads
        trainers = [self.world.pods[name] for name in self.world.there()]
        assert len(trainers) <= MOST
        assert len({pod.owner for pod in trainers}) <= 1, "two sets of trainers at once"
        assert len(self.world.job.memory.records) <= MAX_SCALE_RECORDS


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_a_training_job_comes_through_anything = Life.TestCase
