"""One machine is split into disjoint shares, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.devices import THREADS, VISIBLE, Machine, split, visible
from shoal.core.errors import BadInput


def a_machine(cores: int = 8, gpus: int = 0, threads_said: bool = False) -> Machine:
    return Machine(cores=cores, gpus=tuple(map(str, range(gpus))), threads_said=threads_said)


@given(gpus=st.integers(1, 16), nproc=st.integers(1, 4), nodes=st.integers(1, 6), more=st.integers(0, 4))
def test_no_gpu_is_given_twice_and_every_process_has_one(gpus: int, nproc: int, nodes: int, more: int) -> None:
    machine = a_machine(gpus=gpus)
    if nodes * nproc > gpus:
        with pytest.raises(BadInput, match="too few GPUs"):
            split(machine, nproc=nproc, nodes=nodes, seats=nodes + more)
        return
    shares = split(machine, nproc=nproc, nodes=nodes, seats=nodes + more)
    given_out = [gpu for share in shares for gpu in share.environment[VISIBLE].split(",")]
    assert len(given_out) == len(set(given_out)) == len(shares) * nproc
    assert nodes <= len(shares) <= nodes + more


@pytest.mark.parametrize(
    ("nproc", "machine", "seats", "processes"),
    [
        pytest.param(3, a_machine(), 4, 3, id="number"),
        pytest.param("cpu", a_machine(cores=8), 4, 2, id="cores-are-divided"),
        pytest.param("cpu", a_machine(cores=2), 4, 1, id="at-least-one"),
        pytest.param("gpu", a_machine(gpus=8), 4, 2, id="gpus-are-divided"),
        pytest.param("auto", a_machine(gpus=4), 2, 2, id="auto-prefers-gpus"),
        pytest.param("auto", a_machine(cores=4), 2, 2, id="auto-takes-cores"),
        pytest.param("cpu", a_machine(cores=4, gpus=1), 2, 2, id="cpu-ignores-gpus"),
    ],
)
def test_how_many_processes(nproc: int | str, machine: Machine, seats: int, processes: int) -> None:
    shares = split(machine, nproc=nproc, nodes=seats, seats=seats)
    assert {share.nproc for share in shares} == {processes}


def test_gpus_that_are_not_there() -> None:
    with pytest.raises(BadInput, match="no GPU"):
        split(a_machine(), nproc="gpu", nodes=1, seats=1)


@pytest.mark.parametrize(
    ("nproc", "nodes", "said", "threads"),
    [
        pytest.param(2, 1, False, "1", id="torchruns-rule"),
        pytest.param(1, 4, False, "2", id="nodes-divide-the-cores"),
        pytest.param(1, 1, False, None, id="one-process-has-the-machine"),
        pytest.param(2, 4, True, None, id="the-user-decided"),
    ],
)
def test_threads(nproc: int, nodes: int, said: bool, threads: str | None) -> None:
    share = split(a_machine(cores=8, threads_said=said), nproc=nproc, nodes=nodes, seats=nodes)[0]
    assert share.environment.get(THREADS) == threads


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ("0", "1", "2")),
        ("", ()),
        ("2,0", ("2", "0")),
        ("-1", ()),
        ("0,7,1", ("0",)),
        ("1,1", ("1",)),
        ("GPU-abc", ("GPU-abc",)),
    ],
)
def test_cuda_visible_devices_hides(setting: str | None, expected: tuple[str, ...]) -> None:
    assert visible(setting, ("0", "1", "2")) == expected


def test_nothing_is_visible_where_nothing_is() -> None:
    assert visible("0,1", ()) == ()
