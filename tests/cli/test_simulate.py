"""`shoal simulate` as it is typed: what it prints, what it writes, and what it says to wrong words."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sim.traces import TRACES, pollux

from shoal.cli import main
from shoal.cli.simulate import FLAGS, read_words
from shoal.cli.simulate_scope import APPLIES, EDL, check_scope

TRACE = "submit,size,duration,user\n0,2,600,ann\n60,4,900,bob\n90,1,300,cy\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(TRACE)
    return path


def test_policies_stand_side_by_side(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(trace), "--policy", "cfs,fifo,tiresias", "--hosts", "2"]) == 0
    shown = capsys.readouterr().out
    for word in ("cfs", "fifo", "tiresias", "mean JCT", "p99", "makespan", "effective", "Jain", "moves/job", "gangs"):
        assert word in shown
    assert "mine.csv: columns that mean nothing here: user" in shown


def test_flags_and_files_come_in_any_order(trace: Path) -> None:
    said, files = read_words(["--hosts", "2", "a.csv", "--seed=3", "b.csv", "-o", "json"], {})
    assert files == ("a.csv", "b.csv")
    assert {key: given.text for key, given in said.values.items()} == {"hosts": "2", "seed": "3", "output": "json"}


def test_json_is_the_same_to_the_byte_each_time(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", str(trace), "--policy", "cfs,static", "--hosts", "2", "--host-mtbf", "0.2", "--service", "0:3"]
    said = []
    for _ in range(2):
        assert main([*words, "-o", "json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    read = json.loads(said[0])
    assert [each["policy"] for each in read["policies"]] == ["cfs", "static"]
    assert len(read["jobs"]) == 6


def test_pictures_and_json_are_written_and_repeatable(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for folder in ("one", "two"):
        words = [
            "--plots",
            str(tmp_path / folder),
            "--plot-format",
            "png,svg",
            "--json",
            str(tmp_path / f"{folder}.json"),
        ]
        assert main(["simulate", str(trace), "--policy", "cfs,fifo", "--hosts", "2", *words]) == 0
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [
        f"{what}.{kind}"
        for what in ("allocation-mine", "completion-times", "utilisation-mine")
        for kind in ("png", "svg")
    ]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()


def test_a_job_that_never_starts_says_what_it_waits_for(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trainers of a plain trace want a GPU each, and this cluster has none."""
    assert main(["simulate", str(trace), "-p", "cfs", "--gpus", "0", "-o", "json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert all("GPU" in job["waits_for"] for job in read["jobs"])
    assert "3 of 3 jobs never started (job-1: its gang of" in read["notes"][-1]


def test_names_are_no_formulas(tmp_path: Path) -> None:
    """Neither of files nor of jobs: what is between two dollars stays as it is."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "a$\\bad{$b.csv"
    path.write_text("submit,size,duration,name\n0,2,50,$\\bad{$\n1,1,50,_x$^2$\n2,1,9,third\n")
    folder = tmp_path / "plots"
    assert main(["simulate", str(path), "-p", "cfs", "--plots", str(folder), "--plot-format", "svg"]) == 0
    assert len(list(folder.iterdir())) == 3


def test_everybody_can_run_look_alike_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--synthetic", "8", "--policy", "cfs,optimus", "--seed", "1:3", "-o", "json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert [(run["policy"], run["seed"]) for run in read["runs"]] == [
        ("cfs", 1),
        ("optimus", 1),
        ("cfs", 2),
        ("optimus", 2),
    ]
    assert all(run["finished"] == 8 for run in read["runs"])


def test_a_published_workload_is_run_by_its_own_rules(capsys: pytest.CaptureFixture[str]) -> None:
    path = pollux() / "workloads" / "workload-3.csv"
    words = ["simulate", str(path), "--traces", str(TRACES), "--policy", "tiresias", "--limit", "40", "-o", "json"]
    assert main(words) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["settings"]["simulation"]["reacts"] is False
    assert read["policies"][0]["finished"] == 40
    assert all(job["jct"] == int(job["jct"]) for job in read["jobs"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        pytest.param(
            ["--policy", "csf", "{trace}"], "unknown policy 'csf' (did you mean cfs?); there are cfs, ", id="policy"
        ),
        pytest.param(["{trace}", "-p", "cfs,cfs"], "--policy names cfs twice: cfs, cfs", id="twice"),
        pytest.param(["--experiment", "edl", "-p", "cfs,cfs"], "--policy names cfs twice", id="twice-edl"),
        pytest.param(["--experiment", "edl", "--case", "1,1"], "--case names 1 twice", id="case-twice"),
        pytest.param(["{trace}", "{trace}"], "mine.csv was named twice", id="file-twice"),
        pytest.param(
            ["--experiment", "edl", "--hosts", "1"],
            "--hosts has no meaning with --experiment edl; what applies there: --policy, --case, --seed, --output",
            id="edl-hosts",
        ),
        pytest.param(
            ["--experiment", "replay", "-p", "cfs"], "--policy has no meaning with --experiment rep", id="rep"
        ),
        pytest.param(["--experiment", "pollux", "--seed", "1"], "--seed has no meaning with --exp", id="pollux-seed"),
        pytest.param(
            ["--experiment", "pollux", "--load", "2"], "--load wants one of 0.5, 1.0, 1.5, got '2'", id="load"
        ),
        pytest.param(["--synthetic", "5", "--limit", "2"], "--limit has no meaning with --synthetic", id="syn-limit"),
        pytest.param(["{trace}", "--load", "0.5"], "--load has no meaning with trace files; what app", id="trace-load"),
        pytest.param(["{trace}", "--traces", "/x"], "--traces has no meaning here: the jobs of mine have", id="plain"),
        pytest.param(
            ["{trace}", "--host-repair", "9"], "--host-repair has a meaning only with --host-mtbf", id="repair"
        ),
        pytest.param(
            ["--synthetic", "5", "--ground", "pollux", "--grace", "9"],
            "--grace has no meaning on Pollux's ground, which says how long things take (--ground pollux); --ground",
            id="ground",
        ),
        pytest.param(
            ["job.yaml", "--cluster", "live", "--hosts", "3"],
            "--hosts has no meaning with --cluster live; what applies there: --kubeconfig, --context",
            id="live",
        ),
        pytest.param(["{trace}.absent"], "is not readable as a trace", id="no-file"),
        pytest.param([], "wants one of: trace files, --synthetic JOBS, --experiment NAME", id="nothing"),
        pytest.param(["{trace}", "--synthetic", "3"], "wants one of: trace files, --synthetic JOBS", id="both"),
        pytest.param(["--synthetic", "-3"], "--synthetic wants a whole number of at least 1, got -3", id="number"),
        pytest.param(["--synthetic", "3", "--seed", "5:2"], "--seed wants a seed, or A:B", id="seed"),
        pytest.param(["--synthetic", "3", "--service", "9:1"], "--service wants LOW:HIGH", id="service"),
        pytest.param(
            ["--synthetic", "3", "--interval", "0"], "--interval wants a number of seconds above 0", id="interval"
        ),
        pytest.param(["--synthetic", "3", "--interval", "1e-9"], "--interval wants seconds, at least 0.001", id="tiny"),
        pytest.param(["--synthetic", "3", "--grace", "1e308"], "--grace wants seconds, at least 0 and", id="endless"),
        pytest.param(["--synthetic", "3", "--host-mtbf", "1e308"], "--host-mtbf wants a number of at least", id="mtbf"),
        pytest.param(
            ["{trace}", "--hosts", "9999999999"], "--hosts wants a whole number of at most 1000000", id="many-hosts"
        ),
        pytest.param(["{trace}", "--seed", "0:99999999999"], "--seed wants a seed, or A:B", id="many-seeds"),
        pytest.param(
            ["{trace}", "--efficiency", "3"], "--efficiency wants a number of at least 0.5 and at most 1", id="eff"
        ),
        pytest.param(["{trace}", "--policy", "optimus"], "optimus has to know true step times", id="optimus"),
        pytest.param(
            ["--experiment", "none"],
            "--experiment wants one of pollux, replay, edl, laboratory, got 'none'",
            id="experiment",
        ),
        pytest.param(["--experiment", "replay"], "say where they are, with --traces DIR or SHOAL_TRACES", id="traces"),
        pytest.param(["--experiment", "replay", "--traces", "/nowhere"], "holds no Pollux traces", id="no-traces"),
        pytest.param(
            ["{trace}", "--plot-format", "gif"], "--plot-format wants one of png, svg, got 'gif'", id="format"
        ),
        pytest.param(["{trace}", "-o", "xml"], "wants one of table, json, got 'xml'", id="output"),
        pytest.param(
            ["{trace}", "--json", "/nowhere/x.json"], "cannot write /nowhere/x.json: No such file", id="unwritable"
        ),
        pytest.param(["{trace}", "--polcy", "cfs"], "unknown flag --polcy (did you mean --policy?)", id="flag"),
    ],
)
def test_wrong_words_are_explained_with_exit_code_2(
    trace: Path, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_TRACES", raising=False)
    assert main(["simulate", *(word.format(trace=trace) for word in words)]) == 2
    assert complaint in capsys.readouterr().err


def test_every_flag_means_something_somewhere() -> None:
    assert {key for keys in APPLIES.values() for key in keys} == {flag.key for flag in FLAGS}


def test_a_variable_in_the_environment_counts_where_it_applies_and_is_no_mistake_elsewhere() -> None:
    said, _ = read_words(["--experiment", "edl"], {"SHOAL_SIMULATE_HOSTS": "8"})
    assert said.values["hosts"].text == "8"
    check_scope(said.values, EDL)


def test_measured_models_run_on_their_own_ground_unless_another_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["simulate", str(pollux() / "workloads" / "workload-3.csv"), "--traces", str(TRACES), "-p", "static"]
    assert main([*words, "--grace", "9"]) == 2
    assert "--grace has no meaning on Pollux's ground" in capsys.readouterr().err
    assert main([*words, "--growth", "3"]) == 2
    assert "--growth has no meaning for jobs of measured models, as those of workload-3" in capsys.readouterr().err
    assert main([*words, "--grace", "9", "--ground", "own", "--limit", "5", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["simulation"]["grace"] == 9


def test_files_of_the_same_name_are_workloads_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "a" / "x.csv", tmp_path / "b" / "x.csv", tmp_path / "y.1.csv", tmp_path / "y-1.csv"]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_text("submit,size,duration\n" + "0,1,60\n" * (number + 1))
    drawn = ["--plots", str(tmp_path / "plots")]
    assert main(["simulate", *map(str, paths), "-p", "cfs", "--hosts", "2", "-o", "json", *drawn]) == 0
    read = json.loads(capsys.readouterr().out)
    assert [(run["workload"], run["jobs"]) for run in read["runs"]] == [
        (str(paths[0]), 1), (str(paths[1]), 2), ("y.1", 3), ("y-1", 4),
    ]  # fmt: skip
    assert len(list((tmp_path / "plots").glob("allocation-*"))) == 4


def test_a_report_says_what_it_was_made_with(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", str(trace), "-p", "cfs,tiresias", "--hosts", "3", "--gpus", "8", "--seed", "5:7"]
    assert main([*words, "--service", "1:2", "--growth", "3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for line in (
        "hosts: 3 hosts with 8 GPUs, 96 cores, 384 GiB: 24 GPUs in all; service service: 1 to 2 Pods of 1 GPU",
        "seeds 5, 6; a round every 60 s",
        "settings of cfs: as by default",
        "settings of tiresias: none",
        "up to 3 times their size",
    ):
        assert line in shown
    assert main([*words, "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)["settings"]
    assert made["seeds"] == [5, 6]
    assert made["workloads"][0]["hosts"] == [{"count": 3, "cpu": 96_000, "memory": 384 * 2**30, "gpu": 8}]
    assert made["settings of policies"]["cfs"]["weights"]["Production"] == 10_000
    assert made["assumed of jobs"]["growth"] == 2.0


def test_help_lists_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(flag.spelling in shown for flag in FLAGS)


def test_an_interrupt_ends_it_quietly(tmp_path: Path) -> None:
    """The trace is a pipe, so that it is known to be at work when it is interrupted."""
    path = tmp_path / "endless.csv"
    os.mkfifo(path)
    process = subprocess.Popen(
        # A shell's background jobs ignore interrupts, and so would its children.
        ["env", "--default-signal=INT", sys.executable, "-m", "shoal", "simulate", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with path.open("w") as pipe:  # waits until it reads
        pipe.write("submit,size,duration\n")
        pipe.flush()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.slow
def test_a_trace_of_a_million_jobs_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them are read, and a day of two months is run; `benchmarks/simulator.py` runs them all."""
    path, chance = tmp_path / "million.csv", random.Random(1)
    with path.open("w") as file:
        file.write("submit,size,duration\n")
        for _ in range(1_000_000):
            file.write(f"{chance.randrange(60 * 86_400)},{chance.choice((1, 1, 1, 2))},{chance.randrange(30, 900)}\n")
    rounds = ["--spacing", "300", "--interval", "300", "--until", "86400"]
    assert main(["simulate", str(path), "--policy", "fifo", "--hosts", "64", *rounds]) == 0
    shown = capsys.readouterr().out
    ended, of = next(word for word in shown.split() if word.endswith("/1,000,000")).split("/")
    assert (int(ended.replace(",", "")) > 15_000, of) == (True, "1,000,000")
