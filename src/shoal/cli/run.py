"""`shoal run`: read the words, decide what this invocation is, make it so."""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shoal.cli import invocation
from shoal.cli.invocation import HostEndpoint, Invocation, Join
from shoal.cli.run_flags import FLAGS
from shoal.cli.torchrun import Program, RunOptions, parse
from shoal.core.errors import BadInput

USAGE = "shoal run [FLAGS] SCRIPT [ARGUMENTS of the script]"
ABOUT = "Run a training job on this machine, or be one node of a job. Takes torchrun's command line."
NOTES = (
    "Every flag may be spelled with underscores (--nproc_per_node) and may come from the environment: "
    "PET_NNODES=1:4 is --nnodes 1:4. A flag on the command line wins.",
    "Nothing after SCRIPT is ours: it goes to the script as it is.",
    "Exit codes: 0 the job succeeded, 1 it failed, 2 wrong input, 130 Ctrl-C, 143 SIGTERM.",
)


def main(words: Sequence[str]) -> int:
    environment = dict(os.environ)
    options = parse(words, environment)
    if options is None:
        from shoal.cli.help import print_help

        print_help(USAGE, ABOUT, FLAGS, notes=NOTES)
        return 0
    if options.warnings:
        print(f"shoal: {'; '.join(options.warnings)}", file=sys.stderr)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # nohup: the user wants the job to outlive the terminal.
        options = replace(options, signals=tuple(number for number in options.signals if number != signal.SIGHUP))
    if options.program is not None:
        check_program(options.program)
    if options.checkpoint_dir is not None:
        options = replace(options, checkpoint_dir=checked_folder(options.checkpoint_dir))
    facts = invocation.look(options.endpoint) if options.endpoint else None
    return _carry_out(invocation.decide(options, facts), options, environment)


def _carry_out(what: Invocation, options: RunOptions, environment: Mapping[str, str]) -> int:
    from shoal.cli import launch

    if isinstance(what, Join):
        return launch.join(what, options, environment)
    try:
        return launch.host(what, options, environment)
    except launch.PortTaken:
        if not isinstance(what, HostEndpoint) or options.owns_endpoint is not None:
            raise
    # Another invocation on this machine was quicker: it hosts, we join.
    facts = invocation.look(what.listen)
    return _carry_out(invocation.decide(options, facts), options, environment)


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
