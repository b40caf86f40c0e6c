"""The training process's end of its link to the agent."""

import socket
import threading
from pathlib import Path

import msgspec

from shoal.wire.local import HEADER, Attach, Attached, LocalLink, Report, frame
from shoal.wire.messages import Release

PATIENCE = 30


def read(peer: socket.socket) -> bytes:
    """One message."""
    with peer.makefile("rb", buffering=0) as stream:
        (length,) = HEADER.unpack(stream.read(HEADER.size))
        return bytes(stream.read(length))


def test_an_agent_that_never_stops_talking_still_hears_where_the_process_is(tmp_path: Path) -> None:
    """Workers that take shards get an answer for each: there may be no half second without one."""
    path = str(tmp_path / "agent")
    heard, over = threading.Event(), threading.Event()

    def agent(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            msgspec.msgpack.decode(read(peer), type=Attach)
            peer.sendall(frame(Attached(job="j", node="worker-0", incarnation=1, address="", max_workers=1)))
            listening = threading.Thread(target=lambda: (read(peer), heard.set()))
            listening.start()
            while not over.wait(0.005):
                peer.sendall(frame(Release(generation=1)))
            listening.join(PATIENCE)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)
        talking = threading.Thread(target=agent, args=(listener,))
        talking.start()
        report = Report(generation=0, rank=0, step=7, collectives=0, busy=None)
        link = LocalLink(
            path, local_rank=0, handle=lambda _: None, report=lambda: report, closed=lambda: None, report_seconds=0.1
        )
        was_heard = heard.wait(PATIENCE)
        over.set()
        talking.join(PATIENCE)
        link.close()
    assert was_heard
