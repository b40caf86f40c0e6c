"""`shoal run`: read the words, decide what this invocation is, make it so."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.cli import invocation, resume
from shoal.cli.flags import CommandLine, read
from shoal.cli.invocation import HostEndpoint, Invocation, Join
from shoal.cli.registry import Registry, home
from shoal.cli.resume import Resumption
from shoal.cli.run_flags import FLAGS
from shoal.cli.torchrun import Program, RunOptions, options_of
from shoal.core.errors import BadInput

USAGE = "shoal run [FLAGS] SCRIPT [ARGUMENTS of the script], shoal run --resume NAME"
ABOUT = "Run a training job on this machine, or be one node of a job. Takes torchrun's command line."
NOTES = (
    "Every flag may be spelled with underscores (--nproc_per_node) and may come from the environment: "
    "PET_NNODES=1:4 is --nnodes 1:4. A flag on the command line wins.",
    "Nothing after SCRIPT is ours: it goes to the script as it is.",
    "Exit codes: 0 the job succeeded, 1 it failed, 2 wrong input, 130 Ctrl-C, 143 SIGTERM.",
)


def main(words: Sequence[str]) -> int:
    environment = dict(os.environ)
    line = read(words, environment, FLAGS)
    if line.help:
        from shoal.cli.help import print_help

        print_help(USAGE, ABOUT, FLAGS, notes=NOTES)
        return 0
    resumption: Resumption | None = None
    if "resume" in line.values:
        resumption = resume.find(Registry(home(environment)), read(words, {}, FLAGS))
        line = resumption.line
        if resumption.note is not None:
            print(f"shoal: {resumption.note}", file=sys.stderr)
        _enter(resumption)
    return _run(line, resumption, environment)


def _run(line: CommandLine, resumption: Resumption | None, environment: Mapping[str, str]) -> int:
    options = options_of(line)
    if resumption is not None:
        options = replace(options, name=resumption.entry.record.name)
    if options.warnings:
        print(f"shoal: {'; '.join(options.warnings)}", file=sys.stderr)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # nohup: the user wants the job to outlive the terminal.
        options = replace(options, signals=tuple(number for number in options.signals if number != signal.SIGHUP))
    if options.program is not None:
        check_program(options.program)
    if options.checkpoint_dir is not None:
        checked = checked_folder if options.servers is None else checked_directory
        options = replace(options, checkpoint_dir=checked(options.checkpoint_dir))
    if options.store is not None:
        options = replace(options, store=checked_store(options.store))
    facts = invocation.look(options.endpoint) if options.endpoint else None
    return _carry_out(invocation.decide(options, facts), options, _Context(line, resumption, environment))


@dataclass(frozen=True, slots=True)
class _Context:
    """What came with the options."""

    line: CommandLine
    resumption: Resumption | None
    environment: Mapping[str, str]


def _carry_out(what: Invocation, options: RunOptions, context: _Context) -> int:
    from shoal.cli import launch

    if isinstance(what, Join):
        return launch.join(what, options, context.environment)
    line = resume.recorded(context.line, os.getcwd())
    try:
        return launch.host(what, options, context.environment, line=line, resumption=context.resumption)
    except launch.PortTaken:
        if not isinstance(what, HostEndpoint) or options.owns_endpoint is not None:
            raise
    # Another invocation on this machine was quicker: it hosts, we join.
    facts = invocation.look(what.listen)
    return _carry_out(invocation.decide(options, facts), options, context)


def _enter(resumption: Resumption) -> None:
    """Go to where the job was started: its paths are relative to that."""
    try:
        os.chdir(resumption.directory)
    except OSError as exc:
        raise BadInput(
            f"--resume: job {resumption.entry.record.name} was started in {resumption.directory}: {exc.strerror}"
        ) from exc


def check_program(program: Program) -> None:
    """Complain about a script that is not there before anything is started."""
    if program.module:
        return  # only the training interpreter knows its modules
    if program.no_python and not program.run_path:
        if shutil.which(program.script) is None:
            raise BadInput(f"--no-python: {program.script} is no program that can be run")
        return
    path = Path(program.script)
    if not path.exists():
        raise BadInput(f"no such script: {program.script}")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise BadInput(f"{program.script} is a directory without __main__.py, not a script")


def checked_folder(url: str) -> str:
    """A place for checkpoints that every node understands alike. Raises `BadInput` for one that cannot be opened."""
    from shoal.checkpoint.folder import open_folder

    folder = open_folder(url)
    path = Path(folder.url)
    if "://" not in folder.url and path.exists() and not path.is_dir():
        raise BadInput(f"--checkpoint-dir: {folder.url} is not a directory")
    return folder.url


def checked_directory(path: str) -> str:
    """A directory that parameter servers can write to: it is made and tried. Raises `BadInput` if that fails."""
    if "://" in path:
        raise BadInput(f"--checkpoint-dir: with --strategy ps it must be a directory, got {path}")
    directory = Path(path).absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as exc:
        raise BadInput(f"--checkpoint-dir: {directory} cannot be written to: {exc.strerror}") from exc
    return str(directory)


def checked_store(where: str) -> str:
    """A place for the job's state, the same for every master. Raises `BadInput` for one that is none."""
    from shoal.cli.master import open_store

    open_store(where)
    if "://" in where:
        return where
    if Path(where).exists() and not Path(where).is_dir():
        raise BadInput(f"--store: {where} is not a directory")
    return str(Path(where).absolute())
