"""Things that are done behind training's back, in threads that nobody waits for: until the process ends.

A thread that is inside TensorFlow when the interpreter goes away, and comes back from there, takes the process down
with it. So the end of the process gives them a moment. Whoever does not come back in that time hangs (a session over a
server that is dead), and will not come back at all.
"""

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any

LAST_SECONDS = 5.0
"""For all of them together."""
_threads: set[threading.Thread] = set()
_lock = threading.Lock()


def behind(act: Callable[..., None], *args: Any, name: str) -> None:
    """Do it in a thread of its own."""
    thread = threading.Thread(target=act, args=args, name=name, daemon=True)
    with _lock:
        atexit.unregister(wait)
        atexit.register(wait)
        _threads.difference_update([each for each in _threads if not each.is_alive()])
        thread.start()
        _threads.add(thread)


def wait(seconds: float = LAST_SECONDS) -> None:
    """Wait for all that is under way, for so long."""
    until = time.monotonic() + seconds
    with _lock:
        under_way = list(_threads)
    for thread in under_way:
        thread.join(max(0.0, until - time.monotonic()))
