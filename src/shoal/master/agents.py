"""The agents that are connected to a master: one socket for each node, and that is the newest.

Whatever an older socket of a node still says counts for nothing. Sends never wait: each socket has its queue.
"""

from shoal.core.nodes import NodeId
from shoal.core.world import World
from shoal.wire.codec import encode
from shoal.wire.messages import Refuse, StorePush, StoreSet
from shoal.wire.server import AgentSocket


class Agents:
    def __init__(self) -> None:
        self._sockets: dict[NodeId, AgentSocket] = {}

    def welcome(self, node: NodeId, socket: AgentSocket) -> None:
        """This one speaks for the node from now on; one that did before is closed."""
        earlier = self._sockets.get(node)
        if earlier is not None:
            earlier.end()
        socket.node = node
        self._sockets[node] = socket

    def speaks_for(self, node: NodeId, socket: AgentSocket) -> bool:
        """False: it was fenced, or superseded by a newer connection of the same node."""
        return self._sockets.get(node) is socket

    def forget(self, node: NodeId) -> None:
        del self._sockets[node]

    def push(self, node: NodeId, data: bytes) -> None:
        """Send it, if the node is connected: one that is not hears what counts when it comes back."""
        if (agent := self._sockets.get(node)) is not None:
            agent.push(data)

    def fence(self, node: NodeId, reason: str) -> None:
        if (agent := self._sockets.pop(node, None)) is not None:
            agent.push(encode(Refuse(reason=reason)))
            agent.end()

    def push_store(self, world: World | None, node: NodeId, message: StoreSet) -> None:
        """A key for the bootstrap store of the running world goes to all its members."""
        if world is None or world.generation != message.generation or world.member(node) is None:
            return
        data = encode(StorePush(generation=message.generation, store={message.key: message.value}))
        for member in world.members:
            self.push(member.node, data)
