"""Traces of all kinds, good and bad: what is wrong is named with its line."""

import gzip
from pathlib import Path

import pytest
from tests.sim.traces import pollux

from shoal.core.errors import BadInput
from shoal.scheduler.rows import Priority, Room
from shoal.sim.traces import LARGEST, Assumed, read_trace
from shoal.sim.workload import GIBIBYTE, TRAINER


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_least_a_trace_may_say(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "submit,size,duration\n30,4,100\n0,1,50.5\n\n"), Assumed())
    late, early = trace.jobs[1], trace.jobs[0]
    assert [job.name for job in trace.jobs] == ["job-2", "job-1"]
    assert (early.submitted, early.size, early.min, early.max) == (0.0, 1, 1, 2)
    assert (late.submitted, late.size, late.min, late.max, late.each) == (30.0, 4, 1, 8, TRAINER)
    assert late.model().seconds_left((4,)) == pytest.approx(100)


def test_all_that_a_trace_may_say(tmp_path: Path) -> None:
    text = (
        "name,submit,size,duration,min,max,gpu,cpu,memory,priority,namespace,efficiency,application,user\n"
        "a,5,2,60,2,6,0,1.5,8,production,team,1.0,bert,ann\n"
    )
    trace = read_trace(written(tmp_path, text), Assumed())
    (job,) = trace.jobs
    assert (job.name, job.min, job.max, job.namespace, job.application) == ("a", 2, 6, "team", "bert")
    assert job.each == Room(cpu=1_500, memory=8 * GIBIBYTE, gpu=0)
    assert job.priority is Priority.PRODUCTION
    assert job.model().seconds_left((4,)) == pytest.approx(30)
    assert trace.ignored == ("user",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        pytest.param("", "size, duration; submit, size, duration are missing (it has none)", id="empty"),
        pytest.param("submit,size\n1,1\n", "duration is missing (it has submit, size)", id="missing-column"),
        pytest.param("submit,size,duration\n", "has a header and no jobs", id="no-jobs"),
        pytest.param(
            "submit,size,duration\n-1,1,5\n", "line 2: submit wants a number of at least 0, got -1", id="negative"
        ),
        pytest.param(
            "submit,size,duration\n1,1,-5\n", "line 2: duration wants a number above 0, got -5", id="no-duration"
        ),
        pytest.param(
            "submit,size,duration\nnan,1,5\n", "line 2: submit wants a number of at least 0, got nan", id="nan"
        ),
        pytest.param("submit,size,duration\n0,1,5\nx,1,5\n", "line 3: submit wants a number, got 'x'", id="no-number"),
        pytest.param(
            "submit,size,duration\n0,0,5\n", "line 2: size wants a whole number of at least 1, got 0", id="zero"
        ),
        pytest.param("submit,size,duration\n0,1.5,5\n", "line 2: size wants a whole number, got '1.5'", id="half"),
        pytest.param("submit,size,duration\n0,1\n", "line 2: 2 values for 3 columns", id="short-line"),
        pytest.param(
            "submit,size,duration,min,max\n0,1,5,3,2\n", "min has to be at most max, got 3 and 2", id="min-max"
        ),
        pytest.param(
            "submit,size,duration,efficiency\n0,1,5,2\n",
            "line 2: efficiency wants a number of at least 0.5 and at most 1, got 2",
            id="efficiency",
        ),
        pytest.param("submit,size,duration,efficiency\n0,1,5,0.3\n", "at most 1, got 0.3", id="slower-with-more"),
        pytest.param("submit,size,duration,efficiency\n0,1,5,1e-300\n", "at most 1, got 1e-300", id="never-ends"),
        pytest.param(
            "submit,size,duration\n0,1,1e308\n", "duration wants a number of at most 1000000000, got 1e308", id="long"
        ),
        pytest.param("submit,size,duration\n1e305,1,9\n", "submit wants a number of at most 1000000000", id="late"),
        pytest.param(
            "submit,size,duration\n0,99999999999999999999,9\n",
            "size wants a whole number of at most 1000000, got 99999999999999999999",
            id="huge",
        ),
        pytest.param("submit,size,duration,cpu\n0,1,9,1e300\n", "cpu wants a number of at most 1000000", id="cores"),
        pytest.param(
            "submit,size,duration,memory\n0,1,9,1e9\n", "memory wants a number of at most 1000000", id="memory"
        ),
        pytest.param(
            "submit,size,submit,duration\n0,1,5,9\n", "line 1: there is more than one column submit", id="same-column"
        ),
        pytest.param(
            'submit,size,duration,name\n0,1,9,"two\nlines"\n0,x,9,a\n', "line 4: size wants", id="quoted-newline"
        ),
        pytest.param("submit,size,duration,priority\n0,1,5,Vip\n", "priority wants one of Experiment, ", id="priority"),
        pytest.param("submit,size,duration,name\n0,1,5,a\n1,1,5,a\n", "two jobs are called 'a'", id="twice"),
        pytest.param("timestamp,duration,num_gpus\nnoon,5,1\n", "line 2: timestamp wants a date and a time", id="date"),
        pytest.param("name,time,application,num_replicas,batch_size\na,-3,b,1,8\n", "line 2: time wants", id="pollux"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(BadInput) as told:
        read_trace(written(tmp_path, text), Assumed())
    assert complaint in str(told.value)
    assert str(tmp_path / "trace.csv") in str(told.value)


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path, written(tmp_path, "no gzip", "a.csv.gz")):
        with pytest.raises(BadInput, match="is not readable as a trace"):
            read_trace(path, Assumed())
    (tmp_path / "binary.csv").write_bytes(b"submit,size,duration\n\xff\xfe,1,1\n")
    with pytest.raises(BadInput, match="is not readable as a trace"):
        read_trace(tmp_path / "binary.csv", Assumed())


def test_a_philly_style_trace_starts_at_its_first_job(tmp_path: Path) -> None:
    text = (
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-09 07:02:00,66.0,1,66.0,11cb48\n2017-10-09 07:01:00,60.0,8,480.0,6214e9\n"
    )
    path = tmp_path / "philly.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    trace = read_trace(path, Assumed(growth=1.0))
    assert [(job.submitted, job.size, job.max, job.namespace) for job in trace.jobs] == [
        (0.0, 8, 8, "6214e9"),
        (60.0, 1, 1, "11cb48"),
    ]
    assert trace.ignored == ()


def test_a_timestamp_with_an_offset_is_the_moment_it_says(tmp_path: Path) -> None:
    text = (
        "timestamp,duration,num_gpus\n2017-10-09T08:00:00+08:00,9,1\n2017-10-09T00:00:00Z,9,1\n2017-10-09 00:01,9,1\n"
    )
    trace = read_trace(written(tmp_path, text), Assumed())
    assert [job.submitted for job in trace.jobs] == [0.0, 0.0, 60.0]


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_the_mark_with_which_spreadsheets_begin_a_file_is_no_part_of_a_column(tmp_path: Path, name: str) -> None:
    data = "\ufeffsubmit,size,duration,namespace\n0,2,100,équipe\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    (job,) = read_trace(tmp_path / name, Assumed()).jobs
    assert (job.submitted, job.namespace) == (0.0, "équipe")


def test_a_job_grows_to_no_more_than_a_trace_may_say(tmp_path: Path) -> None:
    (job,) = read_trace(written(tmp_path, "submit,size,duration\n0,900000,9\n"), Assumed(growth=2.0)).jobs
    assert job.max == LARGEST


def test_the_philly_trace_itself() -> None:
    trace = read_trace(pollux() / "philly.csv.gz", Assumed(limit=1_000))
    assert len(trace.jobs) == 1_000
    assert trace.jobs[0].submitted == 0.0
    assert [job.submitted for job in trace.jobs] == sorted(job.submitted for job in trace.jobs)


def test_a_published_workload() -> None:
    trace = read_trace(pollux() / "workloads" / "workload-1.csv", Assumed())
    assert len(trace.asks) == 160
    assert trace.asks[0].application == "cifar10"
