"""`shoal run --resume NAME`: which job is meant, whether it can go on, and with which command line.

A job's record holds the command line that it was started with; what is typed beside `--resume` wins over it, flag by
flag, for this time. The variables `PET_...` of now do not count: those of then are in the record. Whether the job's
state can be read, and is not somebody else's, only its master finds out.
"""

from dataclasses import dataclass

from shoal.cli.flags import CommandLine, Given
from shoal.cli.registry import Entry, JobState, Registry, RunLine
from shoal.cli.text import clean
from shoal.core.errors import BadInput
from shoal.core.view import JobPhase

NOT_RECORDED = frozenset({"resume", "name", "token_file"})
"""Of this invocation only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """A job that is to go on."""

    entry: Entry
    line: CommandLine
    """The whole command line: the recorded one with what was typed now."""
    directory: str
    """Where it was started, and goes on."""
    note: str | None
    """What people should know before it begins."""


def find(jobs: Registry, typed: CommandLine) -> Resumption:
    """The job of `--resume`. Raises `BadInput` when it cannot go on, with the reason."""
    name = typed.values["resume"].text
    entry = jobs.find(name)
    if entry is None:
        raise BadInput(f"--resume: no job named {clean(name)} on this machine; {_others(jobs)}")
    if (why_not := refusal(entry)) is not None:
        raise BadInput(f"--resume: job {entry.record.name} {why_not}")
    recorded = entry.record.line
    assert recorded is not None
    return Resumption(
        entry=entry, line=merged(recorded, typed), directory=recorded.directory, note=difference(recorded, typed)
    )


def refusal(entry: Entry) -> str | None:
    """Why this job cannot be resumed; None: nothing is known that would hinder it."""
    record = entry.record
    if entry.state is JobState.RUNNING:
        return f"is running (process {record.pid}); `shoal stop {record.name}` would end it"
    if record.result is not None and record.result.phase == JobPhase.SUCCEEDED:
        return f"succeeded at {record.result.ended.astimezone():%Y-%m-%d %H:%M:%S}: there is nothing left to do"
    if record.line is None:
        return "was started by a release that could not resume: start it anew"
    if not entry.can_resume:
        return (
            f"has no state in {entry.state_directory}: it was lost before it began, or the state was removed; "
            "start it anew (with its --checkpoint-dir the model goes on from the last checkpoint)"
        )
    return None


def merged(recorded: RunLine, typed: CommandLine) -> CommandLine:
    """The recorded command line with what was typed now. A script that is typed brings its own arguments."""
    values = {
        key: Given(text=text, source=f"--{key.replace('_', '-')} (as recorded)") for key, text in recorded.flags.items()
    }
    if typed.script is None:
        script, arguments = recorded.script, recorded.arguments
    else:
        script, arguments = typed.script, typed.arguments
    return CommandLine(values={**values, **typed.values}, script=script, arguments=arguments)


def difference(recorded: RunLine, typed: CommandLine) -> str | None:
    """How the script differs from the recorded one, in words."""
    before, now = (recorded.script, *recorded.arguments), (typed.script, *typed.arguments)
    if typed.script is None or before == now:
        return None
    was, given = " ".join(before), " ".join(map(str, now))
    return f"resumed with another command: {clean(given)} instead of {clean(was)}"


def recorded(line: CommandLine, directory: str) -> RunLine:
    """What is written down of a command line."""
    assert line.script is not None
    flags = {key: given.text for key, given in line.values.items() if key not in NOT_RECORDED}
    return RunLine(flags=flags, script=line.script, arguments=line.arguments, directory=directory)


def _others(jobs: Registry) -> str:
    names = [entry.record.name for entry in jobs.entries() if entry.can_resume]
    return f"to be resumed: {', '.join(names)}" if names else f"none can be resumed (SHOAL_HOME is {jobs.home})"
