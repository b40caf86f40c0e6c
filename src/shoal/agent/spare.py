"""A process that is started before it is needed.

Most of a restart goes into imports: TensorFlow's take seconds, in which nobody trains. So an agent may keep a second
process of its command ready. It does all that the script does before it asks for its agent, and waits there at a pipe
(`shoal.trainer.spare`). When the one before it is gone it hears what is new in its environment and goes on, as if it
had just been started. What a spare prints until then is not shown: the script says it in every process. Where one ends
before it is needed there is no second: what ended it, too little memory for two or a port that both want, is still so.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from shoal.agent.guard import Guard
from shoal.agent.output import Route
from shoal.agent.processes import Process
from shoal.wire.local import SPARE_VARIABLE


class Spare:
    """At most one process that waits. `note` hears of the one that does not; `ended` is called when one is gone."""

    def __init__(self, *, guard: Guard, note: Callable[[str], None], ended: Callable[[], None]) -> None:
        self._guard = guard
        self._note = note
        self._told_end = ended
        self._process: Process | None = None
        self._pipe: int | None = None
        self._environment: Mapping[str, str] = {}
        self._is_given_up = False

    @property
    def is_given_up(self) -> bool:
        """One did not wait, or could not be started: another would not either."""
        return self._is_given_up

    @property
    def is_there(self) -> bool:
        return self._process is not None

    def start(self, arguments: Sequence[str], *, environment: Mapping[str, str], working_dir: Path | None) -> None:
        """Raises OSError when the command cannot be started."""
        assert self._process is None
        theirs, ours = os.pipe()
        try:
            self._process = Process(
                arguments,
                guard=self._guard,
                environment={**environment, SPARE_VARIABLE: str(theirs)},
                working_dir=working_dir,
                outputs=lambda _: Route(),
                ended=self._ended,
                pass_fds=(theirs,),
            )
        except OSError:
            os.close(ours)
            self._is_given_up = True
            raise
        finally:
            os.close(theirs)
        self._pipe, self._environment = ours, environment

    def taken(
        self,
        environment: Mapping[str, str],
        *,
        outputs: Callable[[str], Route],
        ended: Callable[[Process, int], None],
    ) -> Process | None:
        """The process that waited: it goes on in this environment, and is not ours any more. None: there is none."""
        process, pipe = self._process, self._pipe
        if process is None or pipe is None:
            return None
        news = {name: value for name, value in environment.items() if self._environment.get(name) != value}
        self._pipe = None
        try:
            os.write(pipe, msgspec.json.encode(news))  # less than a pipe holds: they differ in a few numbers
        except OSError:
            return None  # it has just died
        finally:
            os.close(pipe)
        self._process = None
        process.adopt(outputs, ended)
        return process

    def close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._process is not None:
            self._process.kill()

    def _ended(self, process: Process, code: int) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
            self._is_given_up = True
            last = process.stderr_tail.decode(errors="replace").strip().rpartition("\n")[2]
            self._note(
                f"the spare process did not wait until it was needed (exit {code}): {last or 'it said nothing'}; "
                "no other is started (`shoal run --no-ps-spare`, or no SHOAL_AGENT_SPARE_AFTER, starts none at all)"
            )
        self._process = None
        self._told_end()
