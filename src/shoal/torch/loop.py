"""`run`: a training function that lives through changes of the world.

The function is entered once per world, always in the same process, with the state as the last commit left it. So it is
written as a loop over `state.step` that can start anywhere, and its first lines may run more than once.
"""

import faulthandler
import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from shoal.core.errors import BadInput, Refused
from shoal.core.exits import EXIT_DO_NOT_RESTART
from shoal.torch.member import Member
from shoal.torch.state import State
from shoal.trainer.errorfile import write_error
from shoal.trainer.inbox import WorldChanged

P = ParamSpec("P")
R = TypeVar("R")


def run(function: Callable[Concatenate[State, P], R]) -> Callable[Concatenate[State, P], R]:
    """Decorate a training function whose first argument is the `State`."""

    @functools.wraps(function)
    def trained(state: State, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            member = state.join(os.environ)
            if member.session is not None:
                _stacks_on_request()
            return _through_worlds(member, state, lambda: function(state, *args, **kwargs))
        except (BadInput, Refused) as exc:
            write_error(exc, os.environ)
            sys.stderr.write(f"shoal: {exc}\n")
            raise SystemExit(EXIT_DO_NOT_RESTART) from exc  # it would fail in the same way again
        except Exception as exc:
            write_error(exc, os.environ)
            raise

    return trained


def _through_worlds(member: Member, state: State, function: Callable[[], R]) -> R:
    while True:
        try:
            member.enter()
            state.entered()
            result = function()
            state.finished()
            member.finish()
            return result
        except WorldChanged:
            member.leave(lost_steps=state.left())


def _stacks_on_request() -> None:
    """SIGUSR2 prints the stacks of all threads: the agent asks for them when this process seems to hang."""
    if sys.__stderr__ is not None:
        faulthandler.register(signal.SIGUSR2, file=sys.__stderr__, all_threads=True)
