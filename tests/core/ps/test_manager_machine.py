"""Servers that come, crash and vanish, trainers that come, answer late, fall silent and die, plans that overlap, words
that are lost, masters that are replaced, time that runs out: in any order.

What must hold at every step is checked where it happens, on the model that lies on the servers (see `cast`), and by the
invariants below. In the end everybody who can answers: then every change must have ended.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.ps.cast import Cast, a_plan

from shoal.core.nodes import NodeId, Role
from shoal.core.ps.values import Kind, Phase
from shoal.core.ps.versions import elected
from shoal.core.ps.words import PrepareFailed, PreparePS

MOST_TRAINERS = 4
MISHAPS = [
    "it takes too long",
    "the chief dies",
    "somebody falls silent",
    "a server is lost",
    "another plan",
    "somebody joins",
    "a new master",
]
SOMETIMES = st.integers(0, 3).map(lambda n: n == 3)
RESIZING = st.sampled_from([Phase.LAUNCHING, Phase.PREPARING, Phase.DRAINING, Phase.MOVING, Phase.RESUMING])
SAVING = st.sampled_from([Phase.DRAINING, Phase.SAVING, Phase.RESUMING])
MOST_TURNS = 60
"""More time-outs in a row than any change may take."""


class PSMachine(RuleBasedStateMachine):
    @initialize(
        servers=st.integers(1, 3),
        trainers=st.integers(0, 3),
        attempts=st.integers(1, 3),
        calm=st.sampled_from([True, True, False]),
    )
    def begin(self, servers: int, trainers: int, attempts: int, calm: bool) -> None:
        self.cast = Cast(servers=servers, most=4, max_attempts=attempts)
        for _ in range(trainers):
            self.cast.join()
        if calm:
            self.cast.settle()

    # The platform ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.cast.coming)
    @rule(data=st.data())
    def a_node_comes(self, data: st.DataObject) -> None:
        self.cast.come(self.one_of(data, self.cast.coming))

    @precondition(lambda self: self.cast.leaving)
    @rule(data=st.data())
    def a_node_has_ended_as_asked(self, data: st.DataObject) -> None:
        self.cast.gone(self.one_of(data, self.cast.leaving))

    @precondition(lambda self: self.cast.servers or self.cast.coming)
    @rule(data=st.data(), really=SOMETIMES)
    def a_node_is_lost(self, data: st.DataObject, really: bool) -> None:
        if really:
            self.cast.gone(self.one_of(data, {*self.cast.servers, *self.cast.coming}))

    @precondition(lambda self: self.cast.servers)
    @rule(data=st.data(), really=SOMETIMES, is_seen=st.booleans())
    def a_server_crashes(self, data: st.DataObject, really: bool, is_seen: bool) -> None:
        node = self.one_of(data, self.cast.servers)
        if really and is_seen:
            self.cast.crash(node)
        elif really:
            self.cast.up_again(node)

    @precondition(lambda self: self.down())
    @rule(data=st.data())
    def a_server_is_up_again(self, data: st.DataObject) -> None:
        self.cast.up_again(self.one_of(data, self.down()))

    # Trainers --------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.cast.trainers) < MOST_TRAINERS)
    @rule(role=st.sampled_from([Role.WORKER, Role.WORKER, Role.CHIEF]), copies=st.booleans())
    def a_trainer_joins(self, role: Role, copies: bool) -> None:
        node = self.cast.join(role)
        self.cast.trainers[node].copies = copies

    @precondition(lambda self: self.cast.returning)
    @rule(data=st.data())
    def a_restarted_trainer_is_back(self, data: st.DataObject) -> None:
        self.cast.join(again=self.one_of(data, self.cast.returning))

    @precondition(lambda self: self.cast.trainers)
    @rule(data=st.data(), really=SOMETIMES)
    def a_trainer_dies(self, data: st.DataObject, really: bool) -> None:
        if really:
            self.cast.die(self.one_of(data, self.cast.trainers))

    @precondition(lambda self: self.cast.m.chief in self.cast.trainers)
    @rule(really=SOMETIMES)
    def the_chief_dies(self, really: bool) -> None:
        assert self.cast.m.chief is not None
        if really:
            self.cast.die(self.cast.m.chief)

    @precondition(lambda self: self.cast.trainers)
    @rule(data=st.data(), really=SOMETIMES)
    def a_trainer_falls_silent(self, data: st.DataObject, really: bool) -> None:
        if really:
            self.cast.trainers[self.one_of(data, self.cast.trainers)].mute = True

    @precondition(lambda self: self.heeding())
    @rule(data=st.data(), words=st.integers(1, 4))
    def a_trainer_hears(self, data: st.DataObject, words: int) -> None:
        node = self.one_of(data, self.heeding())
        while words and node in self.cast.trainers and self.cast.trainers[node].inbox:
            self.cast.hear(node)
            words -= 1

    @precondition(lambda self: self.speaking())
    @rule(data=st.data(), words=st.integers(1, 4))
    def a_trainer_is_heard(self, data: st.DataObject, words: int) -> None:
        node = self.one_of(data, self.speaking())
        while words and node in self.cast.trainers and self.cast.trainers[node].outbox:
            self.cast.speak(node)
            words -= 1

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def a_trainer_steps(self, data: st.DataObject) -> None:
        self.cast.step(self.one_of(data, self.running()))

    @precondition(lambda self: any(isinstance(w, PreparePS) for t in self.cast.trainers.values() for w in t.inbox))
    @rule(data=st.data())
    def a_trainer_cannot_prepare(self, data: st.DataObject) -> None:
        told = [n for n, t in self.cast.trainers.items() if any(isinstance(w, PreparePS) for w in t.inbox)]
        trainer = self.cast.trainers[self.one_of(data, told)]
        word = next(w for w in trainer.inbox if isinstance(w, PreparePS))
        trainer.inbox.remove(word)
        trainer.sessions[word.cluster.version] = word.cluster  # should it be told to use it all the same, it can
        trainer.outbox.append(PrepareFailed(version=word.cluster.version, reason="no memory"))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), comes_back=st.booleans())
    def a_server_is_out_of_reach(self, data: st.DataObject, comes_back: bool) -> None:
        node = self.one_of(data, self.running())
        trainer = self.cast.trainers[node]
        ranks = trainer.sessions[trainer.version or 0].ranks
        self.cast.unreach(node, rank=data.draw(st.sampled_from(ranks)))
        if comes_back:
            self.cast.reach(node)

    # Plans, saves, masters, time ---------------------------------------------------------------------------------

    @rule(count=st.integers(0, 5), data=st.data())
    def a_plan_asks_for_a_count(self, count: int, data: st.DataObject) -> None:
        victims = frozenset(data.draw(st.sets(st.sampled_from(sorted(self.cast.m.nodes) or [NodeId("ps-0")]))))
        self.cast.plan(a_plan(count), victims)

    @precondition(lambda self: self.cast.m.nodes)
    @rule(data=st.data(), cpu=st.sampled_from([2.0, 4.0]))
    def a_plan_moves_a_server(self, data: st.DataObject, cpu: float) -> None:
        self.cast.plan(a_plan(cpu={self.one_of(data, self.cast.m.nodes): cpu}))

    @precondition(lambda self: self.cast.m.chief in self.cast.trainers)
    @rule(fuzzy=st.booleans())
    def the_chief_wants_to_save(self, fuzzy: bool) -> None:
        self.cast.save(fuzzy=fuzzy)

    @precondition(lambda self: self.cast.trainers)
    @rule(data=st.data())
    def a_connection_breaks(self, data: st.DataObject) -> None:
        self.cast.reconnect(self.one_of(data, self.cast.trainers))

    @rule()
    def another_master_takes_over(self) -> None:
        self.cast.restart_master()

    @rule(seconds=st.sampled_from([1, 30, 100]))
    def time_passes(self, seconds: int) -> None:
        self.cast.wait(seconds)

    @precondition(lambda self: self.cast.m.change is not None and not self.is_vital())
    @rule()
    def time_runs_out(self) -> None:
        self.cast.wait_for_deadline()

    @precondition(lambda self: self.is_vital())
    @rule(really=SOMETIMES)
    def time_runs_out_for_the_job(self, really: bool) -> None:
        if really:
            self.cast.wait_for_deadline()

    @rule(words=st.integers(1, 12))
    def all_go_about_their_work(self, words: int) -> None:
        while words and self.cast.failed is None and self.cast.one_word():
            words -= 1

    @rule()
    def all_do_all_they_can(self) -> None:
        self.cast.settle()

    @rule(phase=st.sampled_from(Phase))
    def a_change_comes_so_far(self, phase: Phase) -> None:
        """Everybody works until a change is in this phase, and then all stop where they are."""
        while self.cast.failed is None and (self.cast.m.change is None or self.cast.m.change.phase is not phase):
            if not (self.cast.one_node() or self.cast.one_word()):
                return

    @rule(data=st.data(), count=st.integers(1, 4), phase=RESIZING, mishap=st.sampled_from(MISHAPS))
    def a_resize_meets_a_mishap(self, data: st.DataObject, count: int, phase: Phase, mishap: str) -> None:
        self.all_train()
        self.cast.plan(a_plan(count))
        self.a_change_comes_so_far(phase)
        self.goes_wrong(data, mishap)

    @precondition(lambda self: self.cast.m.chief in self.cast.trainers)
    @rule(data=st.data(), phase=SAVING, mishap=st.sampled_from(MISHAPS))
    def a_save_meets_a_mishap(self, data: st.DataObject, phase: Phase, mishap: str) -> None:
        self.all_train()
        self.cast.save()
        self.a_change_comes_so_far(phase)
        self.goes_wrong(data, mishap)

    @rule()
    def all_train(self) -> None:
        self.cast.settle()
        for node in self.running():
            self.cast.step(node)

    def goes_wrong(self, data: st.DataObject, mishap: str) -> None:
        match mishap:
            case "it takes too long":
                self.cast.wait_for_deadline()
            case "the chief dies" if self.cast.m.chief in self.cast.trainers:
                self.the_chief_dies(True)
            case "somebody falls silent" if self.cast.trainers:
                self.a_trainer_falls_silent(data, True)
            case "a server is lost" if self.cast.servers:
                self.a_node_is_lost(data, True)
            case "another plan":
                self.cast.plan(a_plan(data.draw(st.integers(1, 4))))
            case "somebody joins":
                node = self.cast.join()
                self.work_alone(node)
            case "a new master":
                self.cast.restart_master()
            case _:
                pass

    @precondition(lambda self: self.cast.trainers)
    @rule(data=st.data())
    def one_does_all_it_can_and_the_others_nothing(self, data: st.DataObject) -> None:
        self.work_alone(self.one_of(data, self.cast.trainers))

    def work_alone(self, node: NodeId) -> None:
        while (trainer := self.cast.trainers.get(node)) and not trainer.mute and (trainer.inbox or trainer.outbox):
            (self.cast.hear if trainer.inbox else self.cast.speak)(node)

    @precondition(lambda self: self.cast.m.change is None and self.cast.m.chief in self.running())
    @rule()
    def a_checkpoint_is_made(self) -> None:
        self.cast.save()
        self.cast.settle()

    # What holds at any time --------------------------------------------------------------------------------------

    @invariant()
    def the_current_version_is_complete_or_being_restored(self) -> None:
        m = self.cast.m
        if m.current is None or m.failed is not None or (m.change is not None and m.change.kind is Kind.ROLLBACK):
            return
        assert m.current.nodes <= m.nodes.keys() - m.removing
        assert self.cast.values(m.current)  # every partition is where the version says

    @invariant()
    def the_next_version_names_only_servers_that_are_there(self) -> None:
        m = self.cast.m
        if m.change is None or m.change.cluster is None:
            return
        cluster = m.change.cluster
        assert cluster.nodes == set(m.change.seats.values())
        assert cluster.nodes <= m.servers.keys() - m.removing
        assert {s.node: s.address for s in cluster.servers} == {n: m.servers[n].address for n in cluster.nodes}
        assert set(cluster.placement) <= set(cluster.ranks)
        assert m.settings.min_servers <= len(cluster.servers) <= m.settings.max_servers

    @invariant()
    def a_server_that_is_being_removed_is_used_by_nobody(self) -> None:
        m = self.cast.m
        for node in m.removing:
            if m.failed is None and m.current is not None and node in m.current.nodes:
                assert m.change is not None
                assert m.change.kind is Kind.ROLLBACK
                assert all(t.halted is not None for t in m.trainers.values() if t.active is not None)

    @invariant()
    def who_trains_is_on_the_current_version(self) -> None:
        m = self.cast.m
        for trainer in m.trainers.values():
            if trainer.active is not None:
                assert m.current is not None
                assert trainer.active == m.current.version
            assert trainer.halted is None or m.change is not None or m.failed is not None

    @invariant()
    def nobody_runs_while_state_is_moved_or_saved(self) -> None:
        m = self.cast.m
        if m.change is not None and m.change.phase in (Phase.MOVING, Phase.SAVING) and not m.change.fuzzy:
            assert not any(t.running for n, t in self.cast.trainers.items() if n in m.trainers and self.is_same(n))

    @invariant()
    def a_chief_is_a_trainer(self) -> None:
        m = self.cast.m
        if m.failed is not None:
            return
        assert m.chief in m.trainers if m.trainers else m.chief is None
        if m.change is None or m.change.phase not in (Phase.MOVING, Phase.SAVING):
            assert m.chief == elected(m)

    # In the end --------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "cast"):
            return
        cast = self.cast
        for node in self.down():
            cast.up_again(node)
        if not any(not t.mute for t in cast.trainers.values()):
            cast.join()
        for _ in range(MOST_TURNS):
            cast.settle()
            if cast.failed is not None or not cast.wait_for_deadline():
                break
        if cast.failed is not None:
            assert "could not be restored" in cast.failed or "did not come up" in cast.failed
            return
        m = cast.m
        assert m.change is None, f"{m.change.kind} hangs in {m.change.phase}"
        assert m.current is not None
        assert len(m.current.servers) == m.goal.count
        assert set(m.nodes) == m.current.nodes == set(cast.servers)
        for trainer in cast.trainers.values():
            if not trainer.mute:
                assert (trainer.running, trainer.version) == (True, m.current.version)
                cast.step(trainer.node)

    # Who can ---------------------------------------------------------------------------------------------------

    def one_of(self, data: st.DataObject, nodes: object) -> NodeId:
        return data.draw(st.sampled_from(sorted(nodes)))  # type: ignore[call-overload, no-any-return]

    def down(self) -> list[NodeId]:
        m = self.cast.m
        return [n for n in self.cast.servers if n in m.nodes and n not in m.servers and n not in m.removing]

    def heeding(self) -> list[NodeId]:
        return [node for node, t in self.cast.trainers.items() if t.inbox and not t.mute]

    def speaking(self) -> list[NodeId]:
        return [node for node, t in self.cast.trainers.items() if t.outbox]

    def running(self) -> list[NodeId]:
        return [node for node, t in self.cast.trainers.items() if t.running]

    def is_vital(self) -> bool:
        """Whether the job fails should time run out now."""
        change = self.cast.m.change
        needed = change is not None and change.kind in (Kind.START, Kind.ROLLBACK)
        return needed and change is not None and change.phase is Phase.LAUNCHING

    def is_same(self, node: NodeId) -> bool:
        return self.cast.trainers[node].incarnation == self.cast.m.trainers[node].incarnation


TestPSManager = PSMachine.TestCase
TestPSManager.settings = settings(max_examples=120, stateful_step_count=40)
