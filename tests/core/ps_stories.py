"""A job with parameter servers under test: nodes say words by name, effects are kept by kind."""

from datetime import datetime

from tests.core.job_builders import T0, Story

from shoal.core.job import JobSettings, JobSpec, PSSpec, new_job
from shoal.core.job.values import (
    DataAnswered,
    DataAsked,
    Effect,
    NodeLeft,
    SayWord,
    Tell,
    WordSaid,
)
from shoal.core.ledger import Ask, DatasetSpec, Owner
from shoal.core.nodes import NodeId
from shoal.core.ps.cluster import Partition, PSCheckpoint
from shoal.core.ps.words import (
    Drain,
    Drained,
    FromNode,
    Go,
    ModelNamed,
    Move,
    Moved,
    PreparedPS,
    PreparePS,
    Resumed,
    Save,
    SavedPS,
    ServerReady,
    ToNode,
)
from shoal.core.rounds import Round, RoundAnswer, owner_of

MODEL = tuple(Partition(name=f"v{n}", nbytes=100) for n in range(4))
CLICKS = DatasetSpec(name="clicks", size=100, shard_size=10)


class PSStory(Story):
    def __init__(
        self,
        *,
        workers: int = 2,
        servers: int = 2,
        most: int = 4,
        chief: bool = False,
        evaluator: bool = False,
        directory: str | None = "/ckpt",
        platform_grows: bool = False,
        **settings: object,
    ) -> None:
        """`platform_grows`: the job has no nodes yet, the platform will announce them."""
        self.now: datetime = T0
        spec = JobSpec(
            name="j",
            uid="u",
            min_nodes=1,
            max_nodes=4,
            ps=PSSpec(max_servers=most, servers=servers, chief=chief, evaluator=evaluator, checkpoint_dir=directory),
            platform_grows=platform_grows,
        )
        nodes = 0 if platform_grows else workers
        self.job, self.last = new_job(spec, JobSettings(**settings), nodes=nodes, now=self.now)  # type: ignore[arg-type]
        self.effects: list[Effect] = list(self.last)
        self.rounds = 0

    def say(self, node: str, word: FromNode) -> tuple[Effect, ...]:
        known = self.job.nodes[NodeId(node)]
        return self.happen(WordSaid(node=known.id, incarnation=known.incarnation, word=word))

    def serve(self, *nodes: str) -> None:
        """Servers come up."""
        self.join(*nodes)
        for node in nodes:
            self.say(node, ServerReady(address=f"{node}:1"))

    def name(self, *nodes: str) -> None:
        """Workers come up."""
        self.join(*nodes)
        for node in nodes:
            self.say(node, ModelNamed(partitions=MODEL))

    def obey(
        self, effects: tuple[Effect, ...] | None = None, *, but: tuple[str, ...] = (), unheard: type | None = None
    ) -> None:
        """Everybody does what it is told, and so on until nobody is told anything; except for those, who do nothing, or
        not what they have not heard."""
        todo = list(self.last if effects is None else effects)
        while todo:
            effect = todo.pop(0)
            if not isinstance(effect, Tell) or not isinstance(effect.what, SayWord):
                continue
            for node in effect.to:
                answer = self.answer(node, effect.what.word)
                is_deaf = node in but and (unheard is None or isinstance(effect.what.word, unheard))
                if answer is not None and not is_deaf and self.job.nodes[node].is_live:
                    todo += self.say(node, answer)

    def answer(self, node: str, word: ToNode) -> FromNode | None:
        match word:
            case PreparePS(cluster=cluster):
                return PreparedPS(version=cluster.version)
            case Drain(barrier=barrier):
                return Drained(barrier=barrier, step=1)
            case Move(version=version, attempt=attempt):
                return Moved(version=version, attempt=attempt, checksum="c", nbytes=400)
            case Save(version=version, barrier=barrier, path=path, mark=mark, fuzzy=fuzzy):
                made = PSCheckpoint(path=path, step=barrier, version=version, mark=mark, fuzzy=fuzzy)
                return SavedPS(checkpoint=made, barrier=barrier)
            case Go(version=version):
                return Resumed(version=version)
            case _:
                return None

    def train(self, *nodes: str, step: int = 30) -> None:
        """Bring the first version and these workers up, or the first two."""
        self.serve(*(n.id for n in self.job.nodes.values() if n.role == "ps"))
        for node in nodes or ("worker-0", "worker-1"):
            self.name(node)
            self.obey()

    def ask(self, node: str, *, want: int = 0, completed: tuple[int, ...] = ()) -> RoundAnswer:
        """The node's process reports shards it has trained, and wants more."""
        self.rounds += 1
        ask = Ask(owner=self.owner(node), dataset=CLICKS.name, want=want, completed=completed)
        said = self.happen(DataAsked(node=NodeId(node), round=Round(number=self.rounds, specs=(CLICKS,), asks=(ask,))))
        return next(e.what.answer for e in said if isinstance(e, Tell) and isinstance(e.what, DataAnswered))

    def owner(self, node: str) -> Owner:
        return owner_of(node, 0, 1, str(self.job.nodes[NodeId(node)].incarnation))

    def leave(self, node: str) -> None:
        self.happen(NodeLeft(node=NodeId(node)))

    def words(self, kind: type[ToNode]) -> list[Tell]:
        return [e for e in self.told(SayWord) if isinstance(e.what.word, kind)]  # type: ignore[union-attr]

    @property
    def version(self) -> int:
        assert self.job.servers is not None
        return 0 if self.job.servers.current is None else self.job.servers.current.version

    @property
    def serving(self) -> list[str]:
        """The nodes of the version that trains."""
        assert self.job.servers is not None
        current = self.job.servers.current
        return [] if current is None else [server.node for server in current.servers]
