"""`shoal simulate`: the cluster's policies on a trace, in virtual time.

It reads words, finds the trace, lets `shoal.sim` run, and shows the report: a table, JSON, pictures. Nothing is decided
here.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli import simulate_scope as scope
from shoal.cli.flags import CommandLine, Flag, Given, as_choice, as_int, as_list, as_seconds, read, with_defaults
from shoal.core.errors import BadInput

if TYPE_CHECKING:
    from shoal.scheduler.rows import Room
    from shoal.sim.report import Report
    from shoal.sim.runs import Plan, Tell
    from shoal.sim.traces import Assumed
    from shoal.sim.workload import ServiceSpec, SimSettings, Workload

PREFIX = "SHOAL_SIMULATE_"
TRACES = "SHOAL_TRACES"
SOURCE, CLUSTER, TIMES, OUTPUT = "What is run", "The cluster", "How long things take", "What comes out"
IN_LIVE = "With --cluster live"
SHORTEST_INTERVAL = 1e-3
"""Seconds between rounds."""
DIGITS = 6
"""Of a count in a word that holds two of them."""
EXPERIMENTS = {
    "pollux": scope.POLLUX, "replay": scope.REPLAY, "edl": scope.EDL, "laboratory": scope.LABORATORY,
}  # fmt: skip
THREADS = "OPENBLAS_NUM_THREADS"
"""One is enough: matrices are tiny here, and several threads take longer to find each other than the simulation."""

# fmt: off
FLAGS: tuple[Flag, ...] = (
    Flag(name="policy", short="p", metavar="NAME,...", default="cfs,fifo,static", group=SOURCE,
         help="Side by side: cfs, fulfillment, fifo, static, upstream; tiresias; with measured speeds optimus."),
    Flag(name="synthetic", metavar="JOBS", group=SOURCE, help="Look-alike jobs instead of a trace."),
    Flag(name="experiment", metavar="NAME", group=SOURCE,
         help="pollux: our policies on the published workloads. replay: published completion times, to the second. "
              "edl: the field experiment of PaddlePaddle EDL. laboratory: jobs that size themselves."),
    Flag(name="case", metavar="NAME,...", group=SOURCE, help="Of the EDL experiment. Default: all."),
    Flag(name="load", metavar="X,...", group=SOURCE, help="Of the published workloads: 0.5, 1.0, 1.5."),
    Flag(name="traces", metavar="DIR", group=SOURCE, help=f"Where the public traces are. Default: {TRACES}."),
    Flag(name="limit", metavar="JOBS", group=SOURCE, help="Only so many jobs of a trace, the first ones."),
    Flag(name="seed", metavar="N|A:B", default="0", group=SOURCE, help="One seed, or those from A up to before B."),
    Flag(name="growth", metavar="X", default="2", group=SOURCE,
         help="Jobs whose trace has no `max` may grow to so many times their size."),
    Flag(name="efficiency", metavar="X", default="0.9", group=SOURCE,
         help="How much of a doubling of trainers is gained, where the trace does not say."),
    Flag(name="cluster", metavar="live", group=CLUSTER,
         help="The one of the kubeconfig as it is now: FILE is a job, and the answer that of `shoal whatif`."),
    Flag(name="hosts", metavar="N", default="16", group=CLUSTER, help="How many hosts."),
    Flag(name="gpus", metavar="N", default="4", group=CLUSTER, help="GPUs of each; 0: a cluster without."),
    Flag(name="cores", metavar="N", group=CLUSTER, help="Cores of each. Default: 12 for each GPU, or 64."),
    Flag(name="memory", metavar="GIB", group=CLUSTER, help="Memory of each. Default: 4 GiB for each core."),
    Flag(name="service", metavar="LOW:HIGH", group=CLUSTER,
         help="An online service beside the jobs: Pods of one GPU (or 2 cores), fewest at midnight, most at noon."),
    Flag(name="host-mtbf", metavar="HOURS", group=CLUSTER,
         help="Mean time between failures of a host. Default: they never fail."),
    Flag(name="host-repair", metavar="SECONDS", default="900", group=CLUSTER, help="How long a failed host is away."),
    Flag(name="interference", metavar="X", default="0", group=CLUSTER,
         help="How much slower jobs on several hosts are where they share one."),
    Flag(name="kubeconfig", metavar="FILE", group=IN_LIVE, help="Default: as kubectl finds it."),
    Flag(name="context", metavar="NAME", group=IN_LIVE, help="Which context of the kubeconfig."),
    Flag(name="namespace", short="n", metavar="NAME", group=IN_LIVE, help="Of a job that names none."),
    Flag(name="home", metavar="NAMESPACE", default="shoal-system", group=IN_LIVE, help="Where Shoal's operator is."),
    Flag(name="scheduler-settings", metavar="NAME", default="shoal-scheduler", group=IN_LIVE,
         help="The ConfigMap with its scheduler's settings."),
    Flag(name="lease", metavar="NAME", default="shoal-operator", group=IN_LIVE, help="Its lease."),
    Flag(name="training-image", metavar="IMAGE", group=IN_LIVE, help="Its --training-image."),
    Flag(name="gpu-resource", metavar="NAME", default="nvidia.com/gpu", group=IN_LIVE, help="Its --gpu-resource."),
    Flag(name="drain", metavar="SECONDS", default="120", group=IN_LIVE, help="Its --drain."),
    Flag(name="ground", metavar="NAME", group=TIMES,
         help="pollux: rounds at whole minutes only, 30 s for each change, no grace; the default for measured models. "
              "own: by the flags below."),
    Flag(name="interval", metavar="SECONDS", default="60", group=TIMES, help="Between scheduling rounds."),
    Flag(name="spacing", metavar="SECONDS", default="1", group=TIMES, help="The least time between rounds for events."),
    Flag(name="pod-start", metavar="SECONDS", default="5", group=TIMES, help="Until a Pod with a host is ready."),
    Flag(name="startup", metavar="SECONDS", default="30", group=TIMES, help="Of a job, without progress."),
    Flag(name="resize", metavar="SECONDS", default="5", group=TIMES, help="Of a job, without progress."),
    Flag(name="grace", metavar="SECONDS", default="30", group=TIMES, help="How long a leaving Pod holds its room."),
    Flag(name="until", metavar="SECONDS", group=TIMES, help="End here even if jobs have not."),
    Flag(name="output", short="o", metavar="table|json", default="table", group=OUTPUT, help="The format."),
    Flag(name="json", metavar="FILE", group=OUTPUT, help="The whole report as JSON, beside the table."),
    Flag(name="plots", metavar="DIR", group=OUTPUT,
         help="Pictures: who held what, utilisation, completion times."),
    Flag(name="plot-format", metavar="png,svg", default="png", group=OUTPUT, help="Of the pictures."),
)
# fmt: on
USAGE = "shoal simulate [TRACE.csv ...] [FLAGS]"
ABOUT = "Run the cluster's policies on jobs of a trace, in virtual time, and compare them."
NOTES = (
    "A trace is a CSV file with the columns submit, size and duration (and maybe more), a Philly-style trace, or a "
    "Pollux workload: docs/guides/simulate.md. The same words give the same output, to the byte. A flag that would "
    "change nothing is refused. Exit code 1: a promise of an experiment was not kept.",
)


def main(line: Sequence[str]) -> int:
    said, files = read_words(line, os.environ)
    if said.help:
        from shoal.cli.help import print_help

        print_help(USAGE, ABOUT, FLAGS, notes=NOTES)
        return 0
    os.environ.setdefault(THREADS, "1")
    given = with_defaults(said.values, FLAGS)
    output = as_choice(given["output"], ("table", "json"))
    if "cluster" in given:
        as_choice(given["cluster"], ("live",))
        scope.check_scope(said.values, scope.LIVE)
        return _live(files, given, output)
    formats = _formats(given["plot_format"])
    with progress() as tell:
        report = run(files, said.values, os.environ, tell)
    _write(report, given, formats)
    if output == "json":
        from shoal.sim.report import to_json

        print(to_json(report), end="")
    else:
        from shoal.cli.simulated import print_report

        print_report(report)
    return 0 if all(check.holds for check in report.checks) else 1


def _live(files: Sequence[str], given: Mapping[str, Given], output: str) -> int:
    """What a job would meet in the cluster of the kubeconfig."""
    if len(files) != 1:
        raise BadInput(f"--cluster live wants one FILE with an ElasticJob or a TrainingJob, got {len(files)}")
    from shoal.cli import kube_jobs, kube_queue
    from shoal.cli.where import Where

    text = kube_jobs.text_of(files[0])
    installed = kube_queue.Installation(
        home=given["home"].text,
        scheduler_settings=given["scheduler_settings"].text,
        lease=given["lease"].text,
        training_image=_text(given, "training_image"),
        gpu_resource=given["gpu_resource"].text,
        drain=as_seconds(given["drain"]),
    )
    asked = kube_queue.whatif(files[0], text, installed=installed, output=output)
    where = Where(
        kubeconfig=_text(given, "kubeconfig"), context=_text(given, "context"), namespace=_text(given, "namespace")
    )
    kube_jobs.run(where, dict(os.environ), asked)
    return 0


def _text(given: Mapping[str, Given], key: str) -> str | None:
    return given[key].text if key in given else None


def read_words(line: Sequence[str], environment: Mapping[str, str]) -> tuple[CommandLine, tuple[str, ...]]:
    """Flags and files in any order."""
    files: list[str] = []
    said = read(line, environment, FLAGS, PREFIX)
    values = dict(said.values)
    while said.script is not None and not said.help:
        files.append(said.script)
        said = read(said.arguments, {}, FLAGS, PREFIX)
        values |= said.values
    return CommandLine(values=values, script=None, help=said.help), tuple(files)


def run(
    files: Sequence[str], said: Mapping[str, Given], environment: Mapping[str, str], tell: "Tell | None"
) -> "Report":
    """One of: an experiment, look-alike jobs, traces."""
    asked = [name for name in ("experiment", "synthetic") if name in said]
    if len(asked) + bool(files) != 1:
        raise BadInput("shoal simulate wants one of: trace files, --synthetic JOBS, --experiment NAME")
    if "experiment" in said:
        return _experiment(said, environment, tell)
    if "synthetic" in said:
        scope.check_scope(said, scope.SYNTHETIC)
        return _synthetic(said, tell)
    scope.check_scope(said, scope.TRACES)
    return _traces([Path(name) for name in files], said, environment, tell)


def _experiment(said: Mapping[str, Given], environment: Mapping[str, str], tell: "Tell | None") -> "Report":
    name = as_choice(said["experiment"], tuple(EXPERIMENTS))
    scope.check_scope(said, EXPERIMENTS[name])
    given = with_defaults(said, FLAGS)
    if name == "edl":
        from shoal.sim.edl import run_edl

        policies = _distinct(said["policy"]) if "policy" in said else ()
        cases = _distinct(said["case"]) if "case" in said else ()
        return run_edl(cases, policies, _seeds(given["seed"]), tell=tell)
    if name == "laboratory":
        from shoal.sim.laboratory.experiment import run_laboratory

        return run_laboratory(_seeds(given["seed"]), tell=tell)
    from shoal.sim.pollux import compare

    loads = _distinct(said["load"]) if "load" in said else compare.LOADS if name == "pollux" else ("1.0",)
    for load in loads:
        as_choice(Given(text=load, source="--load"), compare.LOADS)
    folder = compare.pollux_folder(_traces_folder(said, environment))
    if name == "replay":
        return compare.replay(folder, loads, tell)
    return compare.compare(folder, _distinct(given["policy"]), loads, tell)


def _synthetic(said: Mapping[str, Given], tell: "Tell | None") -> "Report":
    from shoal.sim.pollux.synthetic import synthetic_applications, synthetic_asks
    from shoal.sim.pollux.workloads import workload_of
    from shoal.sim.runs import simulate

    given = with_defaults(said, FLAGS)
    if _is_on_pollux_ground(said):
        scope.check_ground(said, why="--ground pollux")
    plan = _plan(given)
    jobs = _count(given["synthetic"])
    applications = synthetic_applications()
    hosts = _hosts(given)

    def workloads(seed: int) -> "Iterator[Workload]":
        asks = synthetic_asks(seed, jobs, applications, hours=max(1.0, jobs / 20.0))
        made = workload_of(f"{jobs} synthetic jobs", asks, applications, hosts)
        yield replace(made, services=_services(given))

    return simulate(f"{jobs} look-alike jobs", workloads, plan, tell)


def _traces(
    files: Sequence[Path], said: Mapping[str, Given], environment: Mapping[str, str], tell: "Tell | None"
) -> "Report":
    from shoal.sim.described import plain
    from shoal.sim.pollux.compare import pollux_folder
    from shoal.sim.pollux.profiles import load_applications
    from shoal.sim.pollux.workloads import workload_of
    from shoal.sim.runs import simulate
    from shoal.sim.traces import EFFICIENCIES, LARGEST, Assumed, names_of, read_trace
    from shoal.sim.workload import Workload

    given = with_defaults(said, FLAGS)
    plan = _plan(given)
    assumed = Assumed(
        growth=as_number(given["growth"], low=1.0, high=LARGEST),
        efficiency=as_number(given["efficiency"], low=EFFICIENCIES[0], high=EFFICIENCIES[1]),
        limit=as_int(given["limit"], at_least=1) if "limit" in given else None,
    )
    found: list[Workload] = []
    notes: list[str] = []
    measured: list[str] = []
    for path, name in zip(files, names_of(files), strict=True):
        trace = read_trace(path, assumed)
        if trace.ignored:
            notes.append(f"{path.name}: columns that mean nothing here: {', '.join(trace.ignored)}")
        if trace.asks:
            measured.append(name)
            applications = load_applications(pollux_folder(_traces_folder(given, environment)))
            made = workload_of(name, trace.asks, applications, _hosts(given))
        else:
            made = Workload(name=name, jobs=trace.jobs, hosts=_hosts(given))
        found.append(replace(made, services=_services(given)))
    scope.check_models(said, measured=measured, plain=[each.name for each in found if each.name not in measured])
    if measured and "ground" not in said:
        scope.check_ground(said, why=f"the default for measured models, as those of {measured[0]}")
        plan = replace(plan, settings=_settings({**given, "ground": Given(text="pollux", source="--ground")}))
    elif _is_on_pollux_ground(said):
        scope.check_ground(said, why="--ground pollux")
    report = simulate(", ".join(path.name for path in files), lambda _: found, plan, tell)
    settings = {**report.settings, "assumed of jobs": plain(assumed)}
    ground = report.ground if len(measured) == len(files) else (*report.ground, _told(assumed))
    return replace(report, settings=settings, ground=ground, notes=(*notes, *report.notes))


def _told(assumed: "Assumed") -> str:
    least = "" if assumed.limit is None else f"; only the first {assumed.limit:,} of each file"
    return (
        f"jobs, where their trace does not say: up to {assumed.growth:g} times their size, and of a doubling of "
        f"trainers {assumed.efficiency:g} is gained{least}"
    )


# Words -------------------------------------------------------------------------------------------------------------


def _plan(given: Mapping[str, Given]) -> "Plan":
    from shoal.sim.runs import Plan

    return Plan(policies=_distinct(given["policy"]), seeds=_seeds(given["seed"]), settings=_settings(given))


def _settings(given: Mapping[str, Given]) -> "SimSettings":
    from shoal.sim.traces import LONGEST
    from shoal.sim.workload import ON_POLLUX_GROUND, SimSettings

    common = SimSettings(
        interval=_seconds(given["interval"], at_least=SHORTEST_INTERVAL),
        host_mtbf=as_number(given["host_mtbf"], low=1e-3, high=LONGEST / 3_600) * 3_600
        if "host_mtbf" in given
        else None,
        host_repair=_seconds(given["host_repair"]),
        interference=as_number(given["interference"], low=0.0, high=0.99),
        until=_seconds(given["until"], at_least=SHORTEST_INTERVAL) if "until" in given else None,
        spacing=_seconds(given["spacing"]),
        pod_start=_seconds(given["pod_start"]),
        startup=_seconds(given["startup"]),
        resize=_seconds(given["resize"]),
        grace=_seconds(given["grace"]),
    )
    if _is_on_pollux_ground(given):
        base = ON_POLLUX_GROUND
        return replace(
            common,
            reacts=base.reacts,
            pod_start=base.pod_start,
            startup=base.startup,
            resize=base.resize,
            grace=base.grace,
        )
    return common


def _is_on_pollux_ground(given: Mapping[str, Given]) -> bool:
    return "ground" in given and as_choice(given["ground"], ("pollux", "own")) == "pollux"


def _distinct(given: Given) -> tuple[str, ...]:
    """A list in which nothing stands twice: it would be run twice, and counted twice."""
    found = as_list(given)
    twice = next((each for each in found if found.count(each) > 1), None)
    if twice is not None:
        raise BadInput(f"{given.source} names {twice} twice: {', '.join(found)}")
    return found


def _hosts(given: Mapping[str, Given]) -> "tuple[Room, ...]":
    from shoal.scheduler.rows import Room
    from shoal.sim.workload import GIBIBYTE

    gpus = _count(given["gpus"], at_least=0)
    cores = _count(given["cores"]) if "cores" in given else 12 * gpus or 64
    memory = _count(given["memory"]) if "memory" in given else 4 * cores
    return (Room(cpu=cores * 1_000, memory=memory * GIBIBYTE, gpu=gpus),) * _count(given["hosts"])


def _services(given: Mapping[str, Given]) -> "tuple[ServiceSpec, ...]":
    if "service" not in given:
        return ()
    from shoal.scheduler.rows import Room
    from shoal.sim.workload import GIBIBYTE, ServiceSpec

    low, colon, high = given["service"].text.partition(":")
    is_range = bool(colon) and low.isdecimal() and high.isdecimal() and len(high) <= DIGITS
    if not is_range or int(low) > int(high):
        raise BadInput(f"--service wants LOW:HIGH, as 4:24, got {given['service'].text!r}")
    gpus = min(1, as_int(given["gpus"], at_least=0))
    each = Room(cpu=2_000, memory=4 * GIBIBYTE, gpu=gpus)
    return (ServiceSpec(name="service", each=each, low=int(low), high=int(high)),)


def _seeds(given: Given) -> tuple[int, ...]:
    first, colon, last = given.text.partition(":")
    if not all(each.isdecimal() and len(each) <= DIGITS for each in (first, *([last] if colon else []))):
        raise BadInput(f"{given.source} wants a seed, or A:B for those from A up to before B, got {given.text!r}")
    if colon and int(last) <= int(first):
        raise BadInput(f"{given.source} wants a seed, or A:B for those from A up to before B, got {given.text!r}")
    return tuple(range(int(first), int(last) if colon else int(first) + 1))


def _formats(given: Given) -> tuple[str, ...]:
    from shoal.sim.plots import FORMATS

    return tuple(as_choice(Given(text=each, source=given.source), FORMATS) for each in as_list(given))


def _traces_folder(given: Mapping[str, Given], environment: Mapping[str, str]) -> Path:
    text = given["traces"].text if "traces" in given else environment.get(TRACES)
    if not text:
        raise BadInput(f"measured models are in the public traces: say where they are, with --traces DIR or {TRACES}")
    return Path(text)


def _seconds(given: Given, *, at_least: float = 0.0) -> float:
    """As long as a trace may be, and no longer: times are counted in microseconds."""
    from shoal.sim.traces import LONGEST

    value = as_seconds(given, zero=at_least == 0)
    if not at_least <= value <= LONGEST:
        raise BadInput(f"{given.source} wants seconds, at least {at_least:g} and at most {LONGEST}, got {given.text}")
    return value


def _count(given: Given, *, at_least: int = 1) -> int:
    from shoal.sim.traces import LARGEST

    value = as_int(given, at_least=at_least)
    if value > LARGEST:
        raise BadInput(f"{given.source} wants a whole number of at most {LARGEST}, got {given.text}")
    return value


def as_number(given: Given, *, low: float, high: float = float("inf")) -> float:
    wanted = f"a number of at least {low:g}" + (f" and at most {high:g}" if high != float("inf") else "")
    try:
        value = float(given.text)
    except ValueError:
        raise BadInput(f"{given.source} wants {wanted}, got {given.text!r}") from None
    if not low <= value <= high or value == float("inf"):
        raise BadInput(f"{given.source} wants {wanted}, got {given.text}")
    return value


# What is shown -----------------------------------------------------------------------------------------------------


@contextmanager
def progress() -> "Iterator[Callable[[str, int, int, float], None] | None]":
    """A bar on stderr while it lasts; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def tell(label: str, ended: int, jobs: int, now: float) -> None:
            bar.update(task, description=f"{label}, day {now / 86_400:.1f}", completed=ended, total=jobs)

        yield tell


def _write(report: "Report", given: Mapping[str, Given], formats: Sequence[str]) -> None:
    from shoal.sim.report import to_json

    try:
        if "json" in given:
            Path(given["json"].text).write_text(to_json(report))
        if "plots" in given:
            from shoal.sim.plots import draw

            for path in draw(report, Path(given["plots"].text), formats):
                print(path, file=sys.stderr)
    except OSError as exc:
        raise BadInput(f"cannot write {exc.filename or 'the output'}: {exc.strerror}") from exc
