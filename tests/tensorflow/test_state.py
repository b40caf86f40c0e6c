"""Where the model's state is, and that none of it is lost on its way: real servers, real TensorFlow."""

from pathlib import Path
from typing import Any

import pytest
from tests.tensorflow.nodes import in_worker, start_ps

pytestmark = pytest.mark.tensorflow


def test_sessions_share_variables_and_it_is_noticed_when_they_do_not() -> None:
    assert in_worker("state_is_shared") == (True, False)


@pytest.fixture(scope="module")
def life(addresses: list[str]) -> dict[str, Any]:
    """A model on one server, on two, on three and on two again."""
    lived: dict[str, Any] = in_worker("a_life", addresses)
    return lived


def test_no_value_changes_while_servers_come_and_go(life: dict[str, Any]) -> None:
    assert len(set(life["digests"])) == 1
    assert life["spread"] == [2, 3, 2]
    assert all(0 < moved < nbytes for _, nbytes, moved in life["copies"])
    assert life["step"] == 3  # and training goes on where it was


def test_the_checksum_of_a_copy_is_that_of_what_is_there(life: dict[str, Any]) -> None:
    assert {checksum for checksum, _, _ in life["copies"]} == {life["found"]}


def test_a_rehearsed_step_changes_nothing(life: dict[str, Any]) -> None:
    assert life["rehearsed"] == life["digests"][-1]


def test_who_missed_a_change_finds_nothing_to_write_to(life: dict[str, Any]) -> None:
    assert "version 4 has no state" in life["fenced"]


def test_a_model_function_is_called_once_and_each_version_has_its_servers_and_container(addresses: list[str]) -> None:
    seen = in_worker("called_once", addresses)
    assert (seen["calls"], seen["doubled"]) == (1, 4)
    alike = {"strays": [], "metric": True, "lift": [1.0, 0.98]}  # what the function adds is trained like all else
    worker, servers = "/job:worker/task:0", ["/job:ps/task:0", "/job:ps/task:1"]
    assert seen["found"] == {
        1: {"devices": {worker, servers[0]}, "containers": {"gen1"}, **alike},
        2: {"devices": {worker, *servers}, "containers": {"gen2"}, **alike},
    }


def test_an_evaluator_keeps_what_its_model_calls_in_python(tmp_path: Path) -> None:
    scores, calls = in_worker("scored_after_a_collection", str(tmp_path))
    assert scores["twice"] == pytest.approx(2 * scores["loss"])
    assert calls == 2


def test_function_bodies_are_placed_too_and_what_the_model_has_placed_itself_stays() -> None:
    blank, placed = in_worker("with_a_function")
    assert placed == ["/job:ps/task:7/device:CPU:0", "/job:worker/task:3", "/job:elsewhere/task:1"]
    assert blank[0] == "/job:partition/replica:0/task:1/device:CPU:0", "others copy it too"


def test_a_first_step_is_rehearsed_before_it_may_be_done_and_nobody_waits_for_it(addresses: list[str]) -> None:
    seen = in_worker("rehearsed_before_it_may_train", addresses)
    assert seen == {
        "rehearsed": True,
        "waited for": False,
        "said": ["PreparedPS", "Moved", "Resumed"],
        "steps": [0, 1],
    }


@pytest.mark.parametrize("optimizer", ["AdamOptimizer", pytest.param("AdagradOptimizer", marks=pytest.mark.slow)])
def test_a_checkpoint_is_restored_onto_more_and_fewer_servers_and_a_bad_one_says_why(
    addresses: list[str], tmp_path: Path, optimizer: str
) -> None:
    seen = in_worker("through_checkpoints", addresses, str(tmp_path), optimizer)
    assert len(set(seen["digests"])) == 1
    assert seen["saved"]["wide/table"] == (3000, 32), "whole, whatever parts it has"
    assert any(name.startswith("wide/table/Ada") for name in seen["saved"])
    files = ["manifest.json", "variables.data-00000-of-00002", "variables.data-00001-of-00002", "variables.index"]
    assert seen["files"] == files, "one of each server"
    said = seen["said"]
    assert "cannot write there: Not a directory" in said["unwritable"]
    assert "is there already" in said["there"]
    assert "say parts=3" in said["parts"]
    assert "were written" in said["short"]
    assert "the checksum does not hold" in said["manifest"]
    assert "old ones cannot be found: Not a directory" in said["unlisted"]
    assert seen["left"] == ["ckpt-10-v1-worker-1", "ckpt-11", "ckpt-2", "file", "mine"]
    assert (seen["newest"], seen["damaged"]) == ("ckpt-10-v1-worker-1", 1)
    assert seen["step"] == 3  # training goes on whatever became of them


def test_a_saver_of_tensorflow_reads_our_checkpoints_and_we_read_its(addresses: list[str], tmp_path: Path) -> None:
    seen = in_worker("read_by_a_saver_and_written_by_one", addresses, str(tmp_path))
    assert len(set(seen["digests"])) == 1
    assert seen["cut"] == {"wide/table", "wide/table/Adam", "wide/table/Adam_1"}
    ours, theirs = seen["names"]
    assert ours == theirs
    assert seen["step"] == 3


def test_a_server_that_cannot_write_is_told_of_and_training_goes_on(tmp_path: Path) -> None:
    (server,) = start_ps(1, can_write=False)
    try:
        said, step, left = in_worker("saved_where_servers_cannot_write", [server.address], str(tmp_path))
    finally:
        server.kill()
    assert f"checkpoint directory {tmp_path}: a parameter server cannot write there" in said
    assert "File too large" in said
    assert (step, left) == (3, [])


def test_a_model_that_cannot_be_trained_is_refused_with_the_reason() -> None:
    said = in_worker("bad_models")
    assert "variable v/part_0 is of the old kind" in said["old kind"]
    assert "must return a shoal.tensorflow.Model" in said["no model"]
    assert "is for another model" in said["another"]
    assert "is not a global one (tf.metrics makes such)" in said["local"]
    assert "seen keeps state of its own (tables do" in said["table"]
    assert "checkpoint=False" in said["table"]


def test_a_traced_step_shows_which_server_has_the_work(addresses: list[str]) -> None:
    loads = in_worker("a_traced_step", addresses)
    assert loads.keys() == {0, 1}
    (operations, seconds, nbytes), (fewer, _, little) = loads[0], loads[1]
    assert operations > fewer > 0
    assert nbytes > 10 * little
    assert seconds > 0
