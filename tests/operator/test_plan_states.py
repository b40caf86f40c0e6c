"""Whatever happens to a job, in whatever order, with an operator that dies anywhere: what never happens, and the end.

Never: more members than granted, Pods made beyond the grant, an id used twice, a Pod made twice (the world refuses
that), a failed member replaced without the master's word before its silence is over, a member let go while there are no
more than granted, an end on the word of an earlier master, a Pod made for a job that is over. And when everybody falls
silent, the job comes to rest at what was asked.
"""

from dataclasses import replace
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.operator.builders import TIMES, a_job, a_move, a_plan, a_role, an_auto_plan, an_order
from tests.operator.world import World

from shoal.api.elasticjob import Role
from shoal.api.labels import ROLE
from shoal.api.resources import Resource
from shoal.operator.actions import JobPlan
from shoal.operator.memory import MemberState
from shoal.operator.snapshot import RoleAsk, Training

W = Role.WORKER
MOST = 6
numbers = st.integers(0, 12)


class Job(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.generations: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        """Of each id ever recorded, the uid of its Pod."""

    @initialize(count=st.integers(1, 4), answers=st.booleans(), resizes=st.booleans())
    def begin(self, count: int, answers: bool, resizes: bool) -> None:
        self.world = World(a_job(worker=a_role(replicas=count, max=MOST), parameterServer=a_role(max=3)))
        self.world.can_resize = resizes
        if answers:
            self.world.job = replace(self.world.job, training=Training(phase="running"))

    # What people do ------------------------------------------------------------------------------------------------

    @rule(count=st.integers(0, 9))
    def scale(self, count: int) -> None:
        spec = self.world.job.spec
        assert spec is not None
        roles = {**spec.roles, W: replace(spec.worker, replicas=count)}
        self.world.job = replace(self.world.job, spec=replace(spec, roles=roles))

    @rule(
        name=st.sampled_from("ab"),
        count=st.integers(0, 9) | st.none(),
        servers=st.integers(0, 4),
        number=numbers,
        memory=st.sampled_from([None, None, 512, 1024]),
    )
    def plan(self, name: str, count: int | None, servers: int, number: int, memory: int | None) -> None:
        self.generations[name] = self.generations.get(name, 0) + 1
        asks = {Role.PS: RoleAsk(replicas=servers)}
        if count is not None or memory is not None:
            asks[W] = RoleAsk(replicas=count, resource=Resource(memory=memory))
        moved = (a_move(W, number, memory=2048),) if number < 6 else ()
        self.world.put(a_plan(name, generation=self.generations[name], migrate=moved, roles=asks))

    @rule(name=st.sampled_from("ab"))
    def unplan(self, name: str) -> None:
        self.world.plans.pop(f"ScalePlan/{name}", None)

    @rule(yes=st.booleans())
    def suspend(self, yes: bool) -> None:
        assert self.world.job.spec is not None
        self.world.job = replace(self.world.job, spec=replace(self.world.job.spec, suspend=yes))

    # What the master does ------------------------------------------------------------------------------------------

    @rule(number=numbers, replaces=numbers, removes=st.none() | numbers)
    def order(self, number: int, replaces: int, removes: int | None) -> None:
        gone = () if removes is None else (f"mnist-worker-{removes}",)
        order = an_order(W, number, replaces=replaces)
        self.generations["auto"] = self.generations.get("auto", 0) + 1
        self.world.put(an_auto_plan(generation=self.generations["auto"], create=(order,), remove=gone))

    @rule(phase=st.sampled_from(["running", "running", "running", "succeeded"]))
    def report(self, phase: str) -> None:
        self.world.job = replace(self.world.job, training=Training(phase=phase))

    @rule(phase=st.sampled_from(["running", "succeeded", "failed"]))
    def late_report(self, phase: str) -> None:
        """The last word of a master that was followed by another."""
        term = self.world.job.memory.master.term - 1
        self.world.job = replace(self.world.job, training=Training(phase=phase, term=term))

    # What the cluster does -----------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 20), code=st.sampled_from([0, 1, 137]))
    def pod_ends(self, which: int, code: int) -> None:
        alive = sorted(name for name, pod in self.world.pods.items() if not pod.is_over and not pod.deleting)
        if alive:
            self.world.end(alive[which % len(alive)], code)

    @rule(which=st.integers(0, 20))
    def pod_is_deleted(self, which: int) -> None:
        if self.world.pods:
            self.world.delete(sorted(self.world.pods)[which % len(self.world.pods)])

    @rule()
    def pods_run(self) -> None:
        self.world.run_all()

    @rule()
    def pods_vanish(self) -> None:
        self.world.vanish()

    @rule(seconds=st.sampled_from([1, 30, 61, 125]))
    def time_passes(self, seconds: int) -> None:
        self.world.passes(seconds)

    # What the operator does ----------------------------------------------------------------------------------------

    @rule(actions=st.none() | st.integers(0, 6))
    def look(self, actions: int | None) -> None:
        before = self.world.job.memory
        born = len(self.world.born)
        plan = self.world.step(actions=actions)
        if before.finish_time is not None:
            assert len(self.world.born) == born, "a job that is over gets no Pods"
        self._nobody_replaced_too_early(before, plan.status.memory)
        self._nobody_let_go_without_need(before, plan.status.memory)
        self._nothing_made_above_the_grant(plan)
        said = self.world.job.training
        if said is not None and said.term is not None and before.finish_time is None:
            assert plan.status.memory.finish_time is None, "only the newest master ends a job"

    def _nothing_made_above_the_grant(self, plan: JobPlan) -> None:
        """Also while more members than granted wait to be drained: nobody is added to them."""
        memory = plan.status.memory
        for role, count in memory.grant.counts.items():
            made = [pod for pod in plan.create if pod["metadata"]["labels"][ROLE] == role]
            live = sum(member.is_live for member in memory.of(role))
            assert not made or live <= count, f"{len(made)} more of {role}: {live} live, {count} granted"

    def _nobody_replaced_too_early(self, before, after) -> None:  # type: ignore[no-untyped-def]
        known = {member.name: member for member in before.members}
        orders = {order.name for plan in self.world.plans.values() if plan.auto for order in plan.create}
        moves = {move.replacement for move in after.moves}
        for member in after.of(W):
            if member.name in known or member.replaces is None or member.name in orders or member.name in moves:
                continue
            old = known.get(member.replaces)
            ended = old.ended_at if old and old.ended_at else None
            assert ended is not None, f"{member.name} replaces {member.replaces}, which has not ended"
            assert self.world.now - ended >= TIMES.silence

    def _nobody_let_go_without_need(self, before, after) -> None:  # type: ignore[no-untyped-def]
        """Live members leave only when there are too many, or by the master's word."""
        orders = {name for plan in self.world.plans.values() if plan.auto for name in plan.remove}
        replaced = {member.replaces for member in after.members}
        left = {m.name for m in after.of(W) if m.state is MemberState.LEAVING}
        left -= {m.name for m in before.of(W) if m.state is MemberState.LEAVING}
        let_go = left - orders - replaced
        known = {member.name: member for member in before.members}
        let_go = {name for name in let_go if name in known and known[name].is_live}
        if let_go and after.finish_time is None:
            live = sum(member.is_live for member in before.of(W))
            assert live > after.grant.counts[W]

    # What never happens --------------------------------------------------------------------------------------------

    @invariant()
    def never_above_the_grant(self) -> None:
        if not hasattr(self, "world"):
            return
        memory = self.world.job.memory
        grant = memory.grant
        if grant.drain_by is not None or memory.finish_time is not None:
            return  # somebody still has to go
        for role, count in grant.counts.items():
            seats = sum(member.has_seat for member in memory.of(role))
            assert seats <= count, f"{seats} of {role}, {count} granted"
            assert count <= MOST + sum(move.is_open for move in memory.moves)

    @invariant()
    def ids_are_never_used_again(self) -> None:
        if not hasattr(self, "world"):
            return
        memory = self.world.job.memory
        for member in memory.members:
            assert member.id < memory.next_id[member.role]
            if member.uid is not None:
                assert self.ids.setdefault(member.name, member.uid) == member.uid

    @precondition(lambda self: hasattr(self, "world"))
    @rule()
    def comes_to_rest(self) -> None:
        """Everybody falls silent: the master is gone, time passes, Pods run. Then the job is what was asked."""
        world = self.world
        for _ in range(14):
            world.settle()
            self.servers_are_released()
            world.passes(130)
        world.settle()
        memory = world.job.memory
        if memory.finish_time is not None:
            assert not [pod for pod in world.pods.values() if not pod.is_over]
            return
        assert world.job.spec is not None
        answers = world.job.training is not None
        for role, granted in memory.grant.counts.items():
            live = len(world.live(role))
            ended = sum(member.has_seat and not member.is_live for member in memory.of(role))
            assert live + ended == granted, f"{live} of {role} run, {ended} ended, {granted} granted"
            if not answers:
                stuck = [m for m in memory.of(role) if m.state is MemberState.FAILED]
                assert all(member.relaunches >= 3 for member in stuck)
        assert not any(member.state is MemberState.LEAVING for member in memory.members)
        plan = world.step()
        assert plan.status == world.job.status
        assert not plan.create
        assert not plan.delete
        assert not plan.resize

    def servers_are_released(self) -> None:
        """The last word of the master, if there was one: no version names the servers that are too many."""
        live = sorted(self.world.names(Role.PS))
        beyond = live[self.world.job.memory.grant.counts.get(Role.PS, 0) :]
        auto = next((plan for plan in self.world.plans.values() if plan.auto), an_auto_plan())
        if beyond and self.world.job.training is not None:
            self.world.put(replace(auto, remove=(*auto.remove, *beyond)))


TestJob = Job.TestCase
TestJob.settings = settings(max_examples=60, stateful_step_count=25, deadline=timedelta(seconds=20))


def test_who_was_replaced_goes_although_another_one_that_ended_waits_for_the_masters_word() -> None:
    story = Job()
    story.begin(count=3, answers=True, resizes=False)
    story.comes_to_rest()
    story.scale(count=9)
    story.plan(name="a", count=None, servers=0, number=0, memory=None)
    story.pod_is_deleted(which=3)  # a worker's, which is not the one that is moved
    story.comes_to_rest()
