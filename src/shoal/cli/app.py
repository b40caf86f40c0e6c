"""The `shoal` command line: what there is, and how its words are read. Everything behind it is imported when used."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.where import Known, Platform, Where, platform_of

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
PlatformName = Annotated[
    str | None, typer.Option("--platform", metavar="local|kubernetes", help="Default: by the job's name.")
]
Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", metavar="FILE", help="Default: as kubectl finds it.")]
Context = Annotated[str | None, typer.Option("--context", metavar="NAME", help="Which context of the kubeconfig.")]
Namespace = Annotated[str | None, typer.Option("-n", "--namespace", metavar="NAME", help="Default: the context's.")]
AllNamespaces = Annotated[bool, typer.Option("-A", "--all-namespaces", help="Jobs of all namespaces.")]
PASSED_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""For commands with a parser of their own."""


@app.command(context_settings=PASSED_ON)
def run(context: typer.Context) -> None:
    """Run a training job on this machine, or be one node of it. Takes torchrun's flags."""
    from shoal.cli import run

    raise typer.Exit(run.main(context.args))


@app.command(context_settings=PASSED_ON)
def operator(context: typer.Context) -> None:
    """Run ElasticJobs in a cluster: the process that the chart installs."""
    from shoal.cli import operator

    raise typer.Exit(operator.main(context.args))


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


@app.command(context_settings=PASSED_ON)
def simulate(context: typer.Context) -> None:
    """Try the cluster's policies on a trace, in virtual time, and compare them."""
    from shoal.cli import simulate

    raise typer.Exit(simulate.main(context.args))


@app.command()
def ps(
    everything: Annotated[bool, typer.Option("-a", "--all", help="Also jobs that have ended.")] = False,
    output: Annotated[str, typer.Option("-o", "--output", metavar="table|json|yaml", help="The format.")] = "table",
) -> None:
    """List the jobs of this machine."""
    from shoal.cli import jobs

    _check_output(output, ("table", "json", "yaml"))
    jobs.show(_registry(), everything=everything, output=output)


@app.command()
def submit(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="YAML of jobs and plans; - is standard input.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Have it checked by the API server and change nothing.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Hand jobs and plans to a cluster. Bad input is refused before anything is sent."""
    from shoal.cli import kube_jobs

    where = Where(kubeconfig=kubeconfig, context=context, namespace=namespace)
    kube_jobs.run(where, dict(os.environ), kube_jobs.submit(files, dry_run=dry_run))


@app.command()
def get(
    names: Annotated[list[str] | None, typer.Argument(metavar="[jobs | JOB...]", help="Default: all jobs.")] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="table|wide|json|yaml", help="The format.")
    ] = "table",
    everything: Annotated[bool, typer.Option("-a", "--all", help="Also local jobs that have ended.")] = False,
    platform: PlatformName = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
) -> None:
    """List jobs, of this machine or of a cluster."""
    _check_output(output, ("table", "wide", "json", "yaml"))
    wanted = [name for name in names or [] if name not in ("jobs", "job", "ej", "elasticjobs")]
    where = Where(
        platform=platform, kubeconfig=kubeconfig, context=context, namespace=namespace, all_namespaces=all_namespaces
    )
    if _is_local(where, wanted[0] if wanted else None):
        from shoal.cli import jobs

        jobs.show(_registry(), everything=everything, output=output, names=wanted)
        return
    from shoal.cli import kube_jobs

    kube_jobs.run(where, dict(os.environ), kube_jobs.get(wanted, output=output))


@app.command()
def describe(
    job: Annotated[str, typer.Argument(metavar="JOB")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="table|json|yaml", help="The format.")] = "table",
    platform: PlatformName = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show everything about one job: members, plans, conditions, events."""
    _check_output(output, ("table", "json", "yaml"))
    where = Where(platform=platform, kubeconfig=kubeconfig, context=context, namespace=namespace)
    if _is_local(where, job):
        from shoal.cli import jobs

        jobs.describe(_registry(), job, output=output)
        return
    from shoal.cli import kube_jobs

    kube_jobs.run(where, dict(os.environ), kube_jobs.describe(job, output=output))


@app.command()
def why(
    job: JobName = None,
    output: Annotated[str, typer.Option("-o", "--output", metavar="table|json|yaml", help="The format.")] = "table",
    platform: PlatformName = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Tell what was decided about a job, and why."""
    _check_output(output, ("table", "json", "yaml"))
    where = Where(platform=platform, kubeconfig=kubeconfig, context=context, namespace=namespace)
    if _is_local(where, job):
        from shoal.cli import jobs

        jobs.why(_registry(), job, output=output)
        return
    from shoal.cli import kube_jobs

    kube_jobs.run(where, dict(os.environ), kube_jobs.why(_needed(job), output=output))


@app.command()
def queue(
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="table|wide|json|yaml", help="The format.")
    ] = "table",
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Print it again whenever it changes, until interrupted.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
) -> None:
    """List a cluster's jobs that wait: their places, and what they wait for."""
    _check_output(output, ("table", "wide", "json", "yaml"))
    where = Where(kubeconfig=kubeconfig, context=context, namespace=namespace, all_namespaces=all_namespaces)
    from shoal.cli import kube_jobs, kube_queue

    kube_jobs.run(where, dict(os.environ), kube_queue.queue(output=output, watch=watch))


@app.command()
def whatif(
    file: Annotated[str, typer.Argument(metavar="FILE", help="An ElasticJob or a TrainingJob; -: standard input.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="table|json|yaml", help="The format.")] = "table",
    home: Annotated[str, typer.Option(metavar="NAMESPACE", help="Where Shoal's operator is.")] = "shoal-system",
    scheduler_settings: Annotated[
        str, typer.Option(metavar="NAME", help="The ConfigMap with its scheduler's settings.")
    ] = "shoal-scheduler",
    lease: Annotated[str, typer.Option(metavar="NAME", help="Its lease.")] = "shoal-operator",
    training_image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Its --training-image, for TrainingJobs that name none.")
    ] = None,
    gpu_resource: Annotated[str, typer.Option(metavar="NAME", help="Its --gpu-resource.")] = "nvidia.com/gpu",
    drain: Annotated[float, typer.Option(metavar="SECONDS", min=0.0, help="Its --drain.")] = 120.0,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Tell when a job would start in a cluster, and who would have to shrink. Nothing is changed."""
    _check_output(output, ("table", "json", "yaml"))
    where = Where(kubeconfig=kubeconfig, context=context, namespace=namespace)
    from shoal.cli import kube_jobs, kube_queue

    text = kube_jobs.text_of(file)
    installed = kube_queue.Installation(
        home=home,
        scheduler_settings=scheduler_settings,
        lease=lease,
        training_image=training_image,
        gpu_resource=gpu_resource,
        drain=drain,
    )
    kube_jobs.run(where, dict(os.environ), kube_queue.whatif(file, text, installed=installed, output=output))


@app.command()
def scale(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB] [worker=N|auto] [ps=N|auto] [NODE.cpu=N] [NODE.memory=MIB]",
            help="How many nodes of each role the job should have (auto: as it finds best), and which of them is "
            "replaced by one that has more.",
        ),
    ] = None,
    worker: Annotated[int | None, typer.Option("--worker", metavar="N", help="The same as worker=N.")] = None,
    ps: Annotated[int | None, typer.Option("--ps", metavar="N", help="The same as ps=N.")] = None,
    platform: PlatformName = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Change how many nodes a running job has: workers, and parameter servers where it has any."""
    from shoal.cli import jobs

    said = {"worker": worker, "ps": ps}
    name, wanted = jobs.scale_words([*(words or ()), *(f"{role}={n}" for role, n in said.items() if n is not None)])
    where = Where(platform=platform, kubeconfig=kubeconfig, context=context, namespace=namespace)
    if _is_local(where, name):
        jobs.scale(_registry(), name, wanted)
        return
    from shoal.cli import kube_jobs

    if "migrate" in wanted:
        raise typer.BadParameter("on Kubernetes a ScalePlan says what single nodes have", param_hint="JOB")
    counts = {role: None if count == jobs.AUTO else count for role, count in wanted.items()}
    kube_jobs.run(where, dict(os.environ), kube_jobs.scale(_needed(name), counts))


@app.command()
def top(
    job: JobName = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once and end; so it is in a pipe too.")] = False,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="table|json|yaml", help="json and yaml: once; of a local job with its history."
        ),
    ] = "table",
    node: Annotated[
        str | None,
        typer.Option(
            "--node", metavar="NAME", help="Only this node; of a local job with the node's history in json and yaml."
        ),
    ] = None,
    platform: PlatformName = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show what a job and its nodes use, and how fast it trains."""
    _check_output(output, ("table", "json", "yaml"))
    where = Where(platform=platform, kubeconfig=kubeconfig, context=context, namespace=namespace)
    if _is_local(where, job):
        from shoal.cli import jobs

        jobs.show_top(_registry(), job, once=once, output=output, node=node)
        return
    from shoal.cli import kube_jobs, kube_top

    what = kube_top.top(_needed(job), once=once, output=output, node=node)
    kube_jobs.run(where, dict(os.environ), what)


@app.command()
def logs(
    job: JobName = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank of the world of now.")] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="Only this node.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job ends.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="stderr instead of stdout (local jobs).")] = False,
    platform: PlatformName = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show what the training processes of a job said."""
    where = Where(platform=platform, kubeconfig=kubeconfig, context=context, namespace=namespace)
    if _is_local(where, job):
        from shoal.cli import jobs

        jobs.show_logs(_registry(), job, rank=rank, node=node, follow=follow, stderr=stderr)
        return
    from shoal.cli import kube_jobs

    if stderr:
        raise typer.BadParameter("a Pod's log holds both streams", param_hint="--stderr")
    kube_jobs.run(where, dict(os.environ), kube_jobs.logs(_needed(job), rank=rank, node=node, follow=follow))


@app.command()
def stop(
    job: JobName = None,
    now: Annotated[bool, typer.Option("--now", help="Without a grace period.")] = False,
    platform: PlatformName = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """End a job. On Kubernetes its object and all that belongs to it are deleted."""
    where = Where(platform=platform, kubeconfig=kubeconfig, context=context, namespace=namespace)
    if _is_local(where, job):
        from shoal.cli import jobs

        jobs.stop(_registry(), job, now=now)
        return
    from shoal.cli import kube_jobs

    kube_jobs.run(where, dict(os.environ), kube_jobs.stop(_needed(job), now=now))


@app.command()
def suspend(
    job: Annotated[str, typer.Argument(metavar="JOB")],
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Drain a cluster's job and keep it, without Pods, until it is resumed."""
    from shoal.cli import kube_jobs

    where = Where(kubeconfig=kubeconfig, context=context, namespace=namespace)
    kube_jobs.run(where, dict(os.environ), kube_jobs.suspend(job, on=True))


@app.command()
def resume(
    job: Annotated[str, typer.Argument(metavar="JOB")],
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Let a suspended job of a cluster go on. (A local job that was lost: shoal run --resume.)"""
    from shoal.cli import kube_jobs

    where = Where(kubeconfig=kubeconfig, context=context, namespace=namespace)
    kube_jobs.run(where, dict(os.environ), kube_jobs.suspend(job, on=False))


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
def shoal(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from shoal import __version__

        typer.echo(f"shoal {__version__}")
        raise typer.Exit


def _is_local(where: Where, job: str | None) -> bool:
    """Whether a command is about this machine's jobs."""
    from shoal.cli.registry import JobState

    environment = os.environ
    default = Path(environment.get("HOME", "/")) / ".kube" / "config"
    entries = _registry().entries()
    known = Known(
        local_jobs=tuple(entry.record.name for entry in entries),
        local_running=any(entry.state is JobState.RUNNING for entry in entries),
        cluster=bool(environment.get("KUBECONFIG") or environment.get("KUBERNETES_SERVICE_HOST")) or default.exists(),
    )
    return platform_of(where, job, known) is Platform.LOCAL


def _needed(job: str | None) -> str:
    if job is None:
        raise typer.BadParameter("a cluster may have many jobs: say which", param_hint="JOB")
    return job


def _check_output(output: str, formats: tuple[str, ...]) -> None:
    if output not in formats:
        raise typer.BadParameter(f"wanted one of {', '.join(formats)}, got {output!r}", param_hint="-o")


def _registry() -> "Registry":
    from shoal.cli.registry import Registry, home

    return Registry(home(os.environ))
