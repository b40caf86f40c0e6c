from pathlib import Path

import pytest
from tests.cli.test_view import a_node, a_process, a_view

from shoal.cli.logs import Wanted, lines, of_rank
from shoal.core.errors import BadInput, ShoalError


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for node, incarnation, rank, text in (
        ("worker-2", 1, 0, "two\n"),
        ("worker-10", 1, 0, "ten\n"),
        ("worker-2", 2, 0, "two again\x1b[2J\n"),
        ("worker-2", 1, 1, "two, second\nunfinished"),
    ):
        folder = tmp_path / node / str(incarnation) / str(rank)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stdout.log").write_text(text)
        (folder / "stderr.log").write_text("err " + text)
    return tmp_path


def test_all_processes_in_order_with_names(logs: Path) -> None:
    assert list(lines(logs, Wanted(), is_running=None)) == [
        "[worker-2.0] two",
        "[worker-2.0] two again",
        "[worker-2.1] two, second",
        "[worker-2.1] unfinished",
        "[worker-10.0] ten",
    ]


def test_one_process_without_a_name_in_front(logs: Path) -> None:
    assert list(lines(logs, Wanted(node="worker-2", local_rank=0), is_running=None)) == ["two", "two again"]
    assert list(lines(logs, Wanted(node="worker-10", stderr=True), is_running=None)) == ["err ten"]


def test_following_reads_what_comes_until_the_end(logs: Path) -> None:
    path = logs / "worker-10" / "1" / "0" / "stdout.log"
    rounds = iter(["half", " a line\nlast", None])

    def is_running() -> bool:
        more = next(rounds)
        if more is not None:
            with path.open("a") as file:
                file.write(more)
        return more is not None

    assert list(lines(logs, Wanted(node="worker-10"), is_running=is_running)) == ["ten", "half a line", "last"]


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="worker-7"):
        list(lines(tmp_path, Wanted(node="worker-7"), is_running=None))


def test_a_rank_is_a_process_of_a_node() -> None:
    view = a_view(nodes=(a_node("worker-1", a_process(0), a_process(1, local_rank=1)),))
    assert of_rank(view, 1, stderr=True) == Wanted(node="worker-1", local_rank=1, stderr=True)
    with pytest.raises(BadInput, match="ranks 0 to 1"):
        of_rank(view, 5, stderr=False)
