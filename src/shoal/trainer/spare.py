"""A process that was started before it is needed waits here (`shoal.agent.spare`)."""

from collections.abc import Mapping, MutableMapping

import msgspec

from shoal.wire.local import SPARE_VARIABLE


def wait_until_needed(environ: Mapping[str, str]) -> None:
    """Return at once, unless this process is a spare one: then when its agent needs it, with an environment of that
    time. If it never does, the process ends."""
    if SPARE_VARIABLE not in environ:
        return
    assert isinstance(environ, MutableMapping), "a spare process goes on in another environment"
    with open(int(environ.pop(SPARE_VARIABLE)), "rb") as said:
        news = said.read()  # all there is: the agent closes its end, or dies
    if not news:
        raise SystemExit(0)
    environ.update(msgspec.json.decode(news, type=dict[str, str]))
