"""The host of plain scripts' bootstrap stores: runs by itself in the training interpreter, imports nothing of ours.

Argument: the number of a Unix socket (SOCK_SEQPACKET) on which the agent hands over listening sockets, each with
`{"host", "port", "size"}`. Each becomes the server of a fresh TCPStore, and the one before is let go: stores are
never shared between worlds. Ends when the agent closes its end.
"""

import sys

del sys.path[0]  # this directory: its modules must not stand in for those that torch imports

import json  # noqa: E402
import socket  # noqa: E402
import traceback  # noqa: E402


def main() -> None:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    agent = socket.socket(fileno=int(sys.argv[1]))
    stores: list[TCPStore] = []
    while True:
        message, fds, _, _ = socket.recv_fds(agent, 4096, 1)
        if not message:
            return
        asked = json.loads(message)
        stores.clear()  # closes the server of the world before, and its connections
        try:
            stores.append(
                TCPStore(
                    asked["host"],
                    asked["port"],
                    world_size=asked["size"],
                    is_master=True,
                    wait_for_workers=False,
                    master_listen_fd=fds[0],
                )
            )
        except RuntimeError:  # torch's errors: this world will not come up, the next one may
            traceback.print_exc()


if __name__ == "__main__":
    main()
