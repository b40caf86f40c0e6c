"""The `shoal` command line: what there is, and how its words are read. Everything behind it is imported when used."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.cli.registry import Registry

app = typer.Typer(
    name="shoal",
    help="Training jobs that grow, shrink and lose members without stopping.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JobName = Annotated[str | None, typer.Argument(metavar="[JOB]", help="May be left out if only one runs.")]
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""For commands with a parser of their own."""


@app.command(context_settings=PASSED_ON)
def run(context: typer.Context) -> None:
    """Run a training job on this machine, or be one node of it. Takes torchrun's flags."""
    from shoal.cli import run

    raise typer.Exit(run.main(context.args))


@app.command(context_settings=PASSED_ON, hidden=True)
def agent(context: typer.Context) -> None:
    """Be one node of a job."""
    from shoal.cli import agent

    raise typer.Exit(agent.main(context.args))


@app.command(context_settings=PASSED_ON, hidden=True)
def master(context: typer.Context) -> None:
    """Be the master of a job."""
    from shoal.cli import master

    raise typer.Exit(master.main(context.args))


@app.command()
def ps(
    everything: Annotated[bool, typer.Option("-a", "--all", help="Also jobs that have ended.")] = False,
    output: Annotated[str, typer.Option("-o", "--output", metavar="table|json", help="The format.")] = "table",
) -> None:
    """List the jobs of this machine."""
    from shoal.cli import jobs

    if output not in ("table", "json"):
        raise typer.BadParameter(f"wanted table or json, got {output!r}", param_hint="-o")
    jobs.show(_registry(), everything=everything, as_json=output == "json")


@app.command()
def scale(
    words: Annotated[list[str], typer.Argument(metavar="[JOB] worker=N", help="How many nodes the job should have.")],
) -> None:
    """Change how many nodes a running job has."""
    from shoal.cli import jobs

    jobs.scale(_registry(), words)


@app.command()
def logs(
    job: JobName = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank of the world of now.")] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="Only this node.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job ends.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="stderr instead of stdout.")] = False,
) -> None:
    """Show what the training processes of a job said."""
    from shoal.cli import jobs

    jobs.show_logs(_registry(), job, rank=rank, node=node, follow=follow, stderr=stderr)


@app.command()
def stop(
    job: JobName = None,
    now: Annotated[bool, typer.Option("--now", help="Without a grace period.")] = False,
) -> None:
    """End a running job."""
    from shoal.cli import jobs

    jobs.stop(_registry(), job, now=now)


checkpoint = typer.Typer(
    name="checkpoint",
    help="Look at checkpoints.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(checkpoint)
Folder = Annotated[str, typer.Argument(metavar="DIR|URL", help="Where the checkpoints are.")]


@checkpoint.command("ls")
def checkpoint_ls(
    directory: Folder,
    output: Annotated[str, typer.Option("-o", "--output", metavar="table|json", help="The format.")] = "table",
) -> None:
    """List the checkpoints of a directory, the newest first."""
    from shoal.cli import checkpoint

    if output not in ("table", "json"):
        raise typer.BadParameter(f"wanted table or json, got {output!r}", param_hint="-o")
    checkpoint.ls(directory, as_json=output == "json")


@checkpoint.command("inspect")
def checkpoint_inspect(
    directory: Folder,
    name: Annotated[str | None, typer.Argument(metavar="[NAME|STEP]", help="Default: the newest.")] = None,
) -> None:
    """Show what one checkpoint holds."""
    from shoal.cli import checkpoint

    checkpoint.inspect(directory, name)


@checkpoint.command("verify")
def checkpoint_verify(directory: Folder) -> None:
    """Read every byte of every checkpoint and check it. Exit code 1: something is damaged, or nothing is there."""
    from shoal.cli import checkpoint

    raise typer.Exit(checkpoint.verify(directory))


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from shoal import __version__

        typer.echo(f"shoal {__version__}")
        raise typer.Exit


def _registry() -> "Registry":
    from shoal.cli.registry import Registry, home

    return Registry(home(os.environ))
