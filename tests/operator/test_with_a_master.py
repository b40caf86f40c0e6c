"""Operator and master together, their pure halves only: what one decides the other sees. However servers are lost and
whatever the clocks of the two say, they come to rest; nobody adds what the other drops for ever."""

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.ps_stories import PSStory
from tests.operator.builders import KEY, a_job, a_plan, a_role, an_auto_plan, on_a_volume
from tests.operator.world import World

from shoal.api.elasticjob import ElasticJobStatus, Role
from shoal.api.resources import Resource, of_spec
from shoal.api.scaleplan import PodReport, ReplicaResourceSpec
from shoal.brain.algorithms.local import LocalOptimizer
from shoal.core.exits import ProcessExit
from shoal.core.facts import Limits, OptimizerSettings
from shoal.core.job import JobSettings, asked_again, grants_news, is_news, named, reconcile, staying, taken_over
from shoal.core.job.values import (
    CountPinned,
    Effect,
    HeartbeatSeen,
    LeaveNode,
    NodeExited,
    NodesAnnounced,
    ResourcePinned,
    Scale,
    ScaleAsked,
    SelfSizing,
    ServersGranted,
    Sized,
    StopNode,
    Tell,
)
from shoal.core.nodes import NodeId, NodeStatus
from shoal.core.nodes import Role as NodeRole
from shoal.core.plans import NodeGroupResource, NodeResource, ResourcePlan
from shoal.core.pods import PodPhase
from shoal.core.recovery import RecoverySettings
from shoal.core.sizing import answered, look_at
from shoal.core.stages import JobResourceOptimizer
from shoal.core.statistics import Statistics
from shoal.operator.snapshot import PlanSeen, PodOrder, RoleAsk, Training
from shoal.operator.writing import write_job, write_plan
from shoal.platforms.kubernetes.objects import Json
from shoal.platforms.kubernetes.orders import (
    THERE,
    Orders,
    asked,
    node_named,
    node_of,
    ordered,
    pod_name,
    settled,
    sighting,
)
from shoal.platforms.kubernetes.scaler import asks_of, given_by, pinned_by

AUTO = f"ScalePlan/{KEY.name}-auto"
KILLED = 137
REST = 40
"""Rounds after which they must have come to rest."""
SERVERS = 2
SHARED = OptimizerSettings(start_cpu=None, start_memory=None, canary=False)


class Both:
    """One job: an operator with its cluster, and a master with its agents, each with a clock of its own."""

    def __init__(self, directory: str | None, *, sizes_itself: bool = False) -> None:
        checkpoint = {} if directory is None else {"checkpoint": {"path": directory}}
        role = a_role() if directory is None else {"template": on_a_volume(directory)}
        spec = {"distributionStrategy": "parameter_server", "parameterServer": {**role, "max": 6}, **checkpoint}
        self.world = World(a_job(worker=role, **spec))
        self.world.put(a_plan("first", ps=SERVERS, worker=2))
        self.world.put(an_auto_plan())
        self.story = PSStory(platform_grows=True, servers=SERVERS, directory=directory)
        if sizes_itself:
            job = self.story.job
            self.story.job = replace(
                job,
                spec=replace(job.spec, sizing=SelfSizing(limits=Limits(node_memory=8192))),
                settings=replace(job.settings, optimizer=SHARED),
            )
        self.orders = Orders()
        self.reports: tuple[PodReport, ...] = ()
        self.seen: frozenset[str] = frozenset()
        self.declared, self.generation = Orders(), 1
        self.asks: Json = {}
        self.declared_asks: Json = {}
        self.done = 0
        """Effects of the master that were carried out."""
        self.joined: set[NodeId] = set()
        self.silent: set[NodeId] = set()
        """Whose agents say nothing any more, while their Pods run."""
        self.is_deaf = False
        """Nobody's heartbeat is in time: the master's clock runs too fast for that."""

    # What goes on ----------------------------------------------------------------------------------------------------

    def round(self, seconds: float = 1.0) -> None:
        """Each looks once, and so much time passes."""
        self.world.step()
        self.world.run_all()
        self.world.vanish()
        self._observe()
        self._agents()
        self._beat()
        self._look()
        self.story.obey(self.story.wait(seconds))
        self._carry_out()
        self._declare()
        self.world.passes(seconds)
        view = self.story.view
        self.world.job = replace(self.world.job, training=Training(phase=str(view.phase), reason=view.reason))

    def settle(self) -> None:
        for _ in range(REST):
            before = self._form()
            for _ in range(3):
                self.round()
            if self._form() == before:
                return
        raise AssertionError(f"they do not come to rest: {self.born()}; {self.said()[-12:]}")

    def _form(self) -> tuple[object, ...]:
        states = [(member.name, member.state) for member in self.world.job.memory.members]
        return (*self.born(), *states, self.story.version, self.story.view.phase)

    # What happens ----------------------------------------------------------------------------------------------------

    def lose(self, number: int) -> None:
        """A server that runs is killed."""
        there = self.world.names(Role.PS)
        if there:
            name = there[number % len(there)]
            if self.world.pods[name].phase is PodPhase.RUNNING:
                self.world.end(name, KILLED)

    def silence(self, number: int) -> None:
        """The agent of a server that serves is heard no more; its Pod runs on, as far as anybody can see."""
        if self.story.serving:
            self.silent.add(NodeId(self.story.serving[number % len(self.story.serving)]))

    def set_clocks(self, masters: float, operators: float) -> None:
        self.story.now += timedelta(seconds=masters)
        self.world.passes(operators)

    def restart_master(self) -> None:
        """Another one goes on with what was written down, and with what was declared."""
        if self.story.job.ended is not None:
            return
        self.story.job = taken_over(self.story.job, self.story.now, reason="another master")
        self.joined.clear()
        self.orders = self.declared
        self.story.effects += asked_again(self.story.job)

    # What was seen ---------------------------------------------------------------------------------------------------

    def born(self) -> list[str]:
        return [name for name in self.world.born if "-ps-" in name]

    def said(self) -> list[str]:
        return [decision.reason for decision in self.story.job.decisions]

    # The master's shell ----------------------------------------------------------------------------------------------

    def _observe(self) -> None:
        story, auto = self.story, self.world.plans[AUTO]
        written = write_plan(auto, auto.status).get("pods") or []
        self.reports = tuple(msgspec.convert(written, list[PodReport]))
        self.seen |= {report.name for report in self.reports}
        found = sighting(self.reports, frozenset(Role))
        if any(is_news(story.job, each) for each in found.announced):
            story.obey(story.happen(NodesAnnounced(nodes=found.announced)))
        known = frozenset(node for name in self.seen if (node := node_named(KEY.name, name)) is not None)
        story.job = named(story.job, {*found.running, *found.ended, *known})
        for node, exit in found.ended.items():
            told = story.job.nodes.get(node)
            if told is not None and (told.is_live or node in story.job.unexplained):
                story.obey(story.happen(NodeExited(node=node, exit=exit)))
        missing = reconcile(story.job, found.running, known=known, reason="the platform came back without them")
        for lost in missing.gone:
            story.obey(story.happen(NodeExited(node=lost.id, exit=ProcessExit(code=KILLED))))
        if not missing.plan.is_empty:
            story.effects.append(Scale(plan=missing.plan))
        self._hear_of_asks()
        self._hear_of_grant()
        self.orders = settled(self.orders, self.reports, seen=self.seen)

    def _hear_of_asks(self) -> None:
        if self.story.job.spec.sizing is None or self.story.job.ended is not None:
            return
        stamps = msgspec.convert(write_job(self.world.job, self.world.job.status), ElasticJobStatus).accepted_at or []
        counts, resources = pinned_by(stamps), given_by(stamps)
        for role in (NodeRole.WORKER, NodeRole.PS):
            self.story.happen(CountPinned(role=role, by=counts.get(role)))
            self.story.happen(ResourcePinned(role=role, given=resources.get(role)))

    def _look(self) -> None:
        look = look_at(self.story.job, Statistics(), self.story.now)
        if look is not None:
            self.story.happen(answered(look, JobResourceOptimizer(LocalOptimizer(), SHARED)))

    def _hear_of_grant(self) -> None:
        story, grant = self.story, self.world.job.memory.grant
        if story.job.ending is not None or story.job.ended is not None or not grant.counts:
            return
        workers, servers = grant.counts.get(Role.WORKER, 0), grant.counts.get(Role.PS, 0)
        victims = frozenset(node for name in grant.victims if (node := node_named(KEY.name, name)) is not None)
        if workers != story.job.target or workers < len(staying(story.job)):
            story.obey(story.happen(ScaleAsked(count=workers, who="the grant", victims=victims)))
        there = {node_of(each) for each in self.reports if each.role == Role.PS and each.phase in THERE}
        too_many = servers == 0 or (grant.drain_by is not None and len(there) > servers)
        said = ServersGranted(count=servers, are_too_many=too_many, victims=victims & there)
        if grants_news(story.job, said):
            story.obey(story.happen(said))

    def _agents(self) -> None:
        """Who runs joins, and does what it is told."""
        for name, pod in self.world.pods.items():
            node = node_named(KEY.name, name) if pod.role is not None else None
            known = None if node is None else self.story.job.nodes.get(node)
            if node is None or known is None or not known.is_live or node in self.joined:
                continue
            if pod.phase is PodPhase.RUNNING and not pod.deleting:
                self.joined.add(node)
                if pod.role is Role.PS:
                    self.story.serve(node)
                elif known.status is NodeStatus.RUNNING:
                    self.story.join(node)  # back after a change of masters
                else:
                    self.story.name(node)
                self.story.obey()

    def _beat(self) -> None:
        for node, seen in list(self.story.job.seen.items()):
            if seen.connected and node not in self.silent and not self.is_deaf:
                incarnation = self.story.job.nodes[node].incarnation
                self.story.happen(HeartbeatSeen(node=node, incarnation=incarnation, processes=seen.processes))

    def _carry_out(self) -> None:
        while self.done < len(self.story.effects):
            effect: Effect = self.story.effects[self.done]
            self.done += 1
            if isinstance(effect, Scale):
                if effect.plan.is_ask and effect.plan.node_group_resources:
                    self.asks = asks_of(effect.plan.node_group_resources)
                follow = asked if effect.plan.is_ask else ordered
                self.orders = follow(self.orders, effect.plan, job=KEY.name, reports=self.reports)
            elif isinstance(effect, Tell) and isinstance(effect.what, LeaveNode | StopNode):
                for node in effect.to:
                    name = pod_name(KEY.name, node)
                    if name in self.world.pods and self.world.pods[name].phase is PodPhase.RUNNING:
                        self.world.end(name, 0 if isinstance(effect.what, LeaveNode) else KILLED)

    def _declare(self) -> None:
        if self.orders.are_as(self.declared) and self.asks == self.declared_asks:
            return
        self.declared, self.declared_asks, self.generation = self.orders, self.asks, self.generation + 1
        said = msgspec.convert(self.asks, dict[Role, ReplicaResourceSpec])
        roles = {role: RoleAsk(replicas=each.replicas, resource=of_spec(each.resource)) for role, each in said.items()}
        create = tuple(
            PodOrder(
                name=entry.name,
                role=Role(entry.type or ""),
                id=entry.id or 0,
                rank=entry.rank_index,
                resource=of_spec(entry.resource),
                avoid_hosts=tuple(entry.avoid_hosts or ()),
                replaces=entry.replaces,
            )
            for entry in self.orders.create.values()
        )
        remove = tuple(sorted(self.orders.remove))
        self.world.put(an_auto_plan(generation=self.generation, create=create, remove=remove, roles=roles))


def trains(directory: str | None) -> Both:
    both = Both(directory)
    both.settle()
    assert both.story.version == 1, both.said()
    assert both.born() == [f"{KEY.name}-ps-{number}" for number in range(SERVERS)]
    return both


def test_a_server_that_is_lost_before_anything_was_saved_is_replaced_once() -> None:
    both = trains("/ckpt")
    both.lose(0)
    both.settle()
    assert both.born() == [f"{KEY.name}-ps-{number}" for number in range(SERVERS + 1)]
    assert both.story.version == 2


def test_a_server_that_is_lost_where_nothing_can_be_saved_ends_the_job_and_nobody_is_added() -> None:
    both = trains(None)
    both.lose(0)
    both.settle()
    assert len(both.born()) == SERVERS
    assert both.world.job.status.conditions["Succeeded"].status == "False"


def test_a_server_that_falls_silent_while_its_pod_runs_is_replaced_once() -> None:
    both = trains("/ckpt")
    both.silence(0)
    for _ in range(30):
        both.round()
    both.settle()
    assert both.born() == [f"{KEY.name}-ps-{number}" for number in range(SERVERS + 1)], both.said()
    assert both.world.names(Role.PS) == [f"{KEY.name}-ps-1", f"{KEY.name}-ps-2"]
    assert both.story.version == 2


def sized(generation: int, **resource: float) -> PlanSeen:
    return a_plan("sized", generation=generation, roles={Role.WORKER: RoleAsk(resource=Resource(**resource))})


def memory_of_workers(both: Both) -> list[int | None]:
    return sorted(pod.resource.memory or 0 for pod in both.world.live(Role.WORKER))


@pytest.mark.parametrize("can_resize", [True, False])
def test_all_workers_get_more_memory_than_a_plan_gives_when_one_ran_out_of_it_until_the_plan_gives_something_else(
    can_resize: bool,
) -> None:
    both = Both("/ckpt", sizes_itself=True)
    both.world.can_resize = can_resize
    both.settle()
    both.world.put(sized(1, memory=1024))
    both.settle()
    assert memory_of_workers(both) == [1024, 1024]
    both.world.end(both.world.names(Role.WORKER)[1], KILLED, oom_killed=True)
    both.settle()
    assert memory_of_workers(both) == [2048, 2048], both.said()
    assert "ran out of" in both.world.plans["ScalePlan/sized"].status.conditions["Admitted"].message
    both.world.put(sized(2, memory=1024, cpu=2.0))
    both.settle()
    assert memory_of_workers(both) == [2048, 2048], "it gives no other memory"
    both.world.put(sized(3, memory=1536))
    both.settle()
    assert memory_of_workers(both)[0] == 1536
    both.world.put(sized(4, memory=4096))
    both.settle()
    assert memory_of_workers(both) == [4096, 4096]
    assert both.world.plans["ScalePlan/sized"].status.conditions["Admitted"].message == ""


def test_what_an_optimizer_chose_before_a_plan_gives_less_memory_does_not_outlast_it() -> None:
    both = Both("/ckpt", sizes_itself=True)
    both.world.can_resize = True
    both.settle()
    group = NodeGroupResource(count=2, node_resource=NodeResource(memory=3072))
    plan = ResourcePlan(node_group_resources={"worker": group}, reason="because", algorithm="scale_workers")
    both.story.happen(Sized(state=both.story.job.sizing.optimizer, plan=plan))
    both.settle()
    assert memory_of_workers(both) == [3072, 3072]
    both.world.put(sized(1, memory=1024))
    both.settle()
    assert memory_of_workers(both) == [1024, 1024]


FREE = RecoverySettings()


@pytest.mark.parametrize(
    ("seconds", "most"),
    [
        pytest.param(2.0, 1 + FREE.free_losses + FREE.no_progress_limit, id="they-train-in-between"),
        pytest.param(15.0, JobSettings().pending_timeout.total_seconds() / 15.0 + 2, id="they-never-train"),
    ],
)
def test_a_master_whose_clock_is_too_fast_for_any_heartbeat_gives_up_before_long(seconds: float, most: int) -> None:
    both = trains("/ckpt")
    both.is_deaf = True
    for _ in range(400):
        both.round(seconds)
    assert both.world.job.status.conditions["Succeeded"].status == "False"
    assert both.story.job.ended is not None
    assert len(both.born()) <= SERVERS * most, "one follows each that is lost"


LEAPS = st.sampled_from([0.0, 30.0, 1_000.0, 90_000.0, -30.0, -3_600.0])
HAPPENINGS = st.one_of(
    st.tuples(st.just("lose"), st.integers(0, 3)),
    st.tuples(st.just("silence"), st.integers(0, 3)),
    st.tuples(st.just("clocks"), st.tuples(LEAPS, LEAPS)),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("rounds"), st.integers(1, 4)),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([None, "/ckpt"]), st.lists(HAPPENINGS, max_size=12))
def test_they_come_to_rest_whatever_is_lost_and_whatever_their_clocks_say(directory, happenings):
    both = trains(directory)
    lost = 0
    for what, detail in happenings:
        match what:
            case "lose":
                both.lose(detail)
                lost += 1
            case "silence":
                both.silence(detail)
                lost += 1
            case "clocks":
                both.set_clocks(*detail)
            case "restart":
                both.restart_master()
            case _:
                for _ in range(detail):
                    both.round()
    both.settle()
    assert len(both.born()) <= SERVERS + lost, (both.born(), both.said())
    if both.story.job.ended is None:
        assert len(both.world.names(Role.PS)) == SERVERS
        assert len(both.story.serving) == SERVERS
