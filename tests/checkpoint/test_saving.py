"""The state as an image: every type by its raw bytes, wrong things by their names, counts that go on."""

import contextlib
import copy
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shoal.torch as elastic
from shoal.checkpoint import manifests
from shoal.checkpoint.folder import LocalFolder
from shoal.checkpoint.memory import Home
from shoal.core.errors import BadInput
from shoal.torch.checkpoint import Checkpoints
from shoal.torch.group import Group
from shoal.torch.takeover import ModelMismatch
from shoal.trainer.inbox import Inbox
from shoal.wire.local import Attached, MemoryCopy, SlotGiven, SlotRefused
from shoal.wire.local import Checkpoints as Known

pytestmark = pytest.mark.torch


class Agent:
    """An agent that a state can save to, in this process: as many slots as asked for, none ever used twice."""

    local_rank = 0
    attached = Attached(job="test", node="n", incarnation=1, address="127.0.0.1", max_workers=1)

    def __init__(self, home: Home, directory: Path | None = None, *, memory: bool = True) -> None:
        self.home = home
        self.directory = directory
        self.has_memory = memory
        self.copies: list[MemoryCopy] = []
        self.made = 0

    def slot(self, nbytes: int) -> SlotGiven | SlotRefused:
        if not self.has_memory:
            return SlotRefused(reason="none", directory=str(self.directory) if self.directory else None, keep=2)
        self.made += 1
        return SlotGiven(slot=self.made, path=str(self.home.make(str(self.made), nbytes)))

    def slots(self, nbytes: int) -> tuple[str, ...]:
        return ()

    def saved(self, slot: int, *, step: int, nbytes: int) -> None:
        self.copies.insert(0, MemoryCopy(path=str(self.home.path / str(slot)), step=step))

    def checkpoints(self) -> Known:
        return Known(memory=tuple(self.copies), directory=str(self.directory) if self.directory else None)


class TwoSlots(Agent):
    """Makes the second slot when it is asked to have both ready, and gives them in turn."""

    def slot(self, nbytes: int) -> SlotGiven:
        self.made += 1
        return SlotGiven(slot=self.made % 2, path=self._path(self.made % 2, nbytes))

    def slots(self, nbytes: int) -> tuple[str, ...]:
        return self._path(0, nbytes), self._path(1, nbytes)

    def _path(self, number: int, nbytes: int) -> str:
        path = self.home.path / str(number)
        return str(path if path.exists() else self.home.make(str(number), nbytes))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


def a_state(*, width: int = 3, micro_batches: int = 2, **loop: Any) -> elastic.State:
    torch.manual_seed(width)
    model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width)).to(torch.float64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    return elastic.State(
        model=model, optimizer=optimizer, scheduler=scheduler, micro_batch_size=5, micro_batches=micro_batches, **loop
    )


def trained(state: elastic.State, steps: int = 3) -> elastic.State:
    """As after some steps, without a world."""
    for _ in range(steps):
        state.model(torch.randn(6, 4, dtype=torch.float64)).sum().backward()
        state.optimizer.step()
        assert state.scheduler is not None
        state.scheduler.step()
        state.step += 1
    return state


def alone() -> Group:
    return Group(generation=1, rank=0, size=1, inbox=Inbox(), device=torch.device("cpu"))


def connected(state: elastic.State, agent: Agent) -> Checkpoints:
    return Checkpoints(state, agent)  # type: ignore[arg-type]


def everything(state: elastic.State) -> dict[str, Any]:
    return {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict(), "step": state.step}


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("memory", [True, False], ids=["memory", "disk-only"])
def test_what_is_restored_is_what_was_saved(home: Home, tmp_path: Path, memory: bool) -> None:
    agent = Agent(home, tmp_path / "kept", memory=memory)
    state = trained(a_state(epoch=4, seen=[1, 2]))
    if not memory:
        state.join({})
        state._stepper = object()  # type: ignore[assignment] # `busy` asks for a running state
    assert connected(state, agent).save()
    fresh = a_state(epoch=0, seen=[])
    assert connected(fresh, agent).restore(alone()) == 0
    assert_equal(everything(fresh), everything(state))
    assert (fresh.epoch, fresh.seen, fresh.samples_done) == (4, [1, 2], 3 * 2 * 5)


def test_a_state_that_has_its_memory_already_is_written_over_in_place(home: Home) -> None:
    agent = Agent(home)
    state = trained(a_state())
    connected(state, agent).save()
    wanted = copy.deepcopy(everything(state))
    moments = [t for each in state.optimizer.state.values() for t in each.values()]
    trained(state)
    connected(state, agent).restore(alone())
    assert_equal(everything(state), wanted)
    now = [t for each in state.optimizer.state.values() for t in each.values()]
    assert [t.data_ptr() for t in now] == [t.data_ptr() for t in moments]


def page_faults(act: Callable[[], object]) -> int:
    """Of this thread."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    act()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_after_the_first_save_the_next_one_finds_its_memory_ready() -> None:
    with contextlib.closing(Home()) as home:
        checkpoints = connected(a_state(width=200_000), TwoSlots(home))
        first = page_faults(checkpoints.save)
        for thread in threading.enumerate():
            if thread.name == "shoal-prepare":
                thread.join()
        assert page_faults(checkpoints.save) < first / 10


DTYPES = [torch.bfloat16, torch.float16, torch.float8_e5m2, torch.bool, torch.int64, torch.complex64, torch.uint16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_goes_by_its_raw_bytes(home: Home, dtype: torch.dtype) -> None:
    agent = Agent(home)
    value = torch.randint(0, 2, (3, 5)).to(dtype)
    empty, scalar = torch.empty(0, 3, dtype=dtype), torch.ones((), dtype=dtype)
    strided = torch.randint(0, 2, (5, 4)).to(dtype).t()
    connected(a_state(values=[value, empty, scalar, strided]), agent).save()
    fresh = a_state(values=None)
    connected(fresh, agent).restore(alone())
    for got, wanted in zip(fresh.values, [value, empty, scalar, strided], strict=True):
        assert got.dtype == dtype
        assert got.shape == wanted.shape
        assert (
            got.contiguous().view(-1).view(torch.uint8).tolist()
            == wanted.contiguous().view(-1).view(torch.uint8).tolist()
        )


def test_what_cannot_be_saved_is_named(home: Home) -> None:
    state = a_state(history=[1])
    state.history = [1, {"a": {2}}]
    with pytest.raises(BadInput, match=r"state\.history\[1\]\['a'\]: <class 'set'> cannot be"):
        connected(state, Agent(home)).save()


def test_a_checkpoint_of_another_model_is_an_error_that_names_the_difference(home: Home) -> None:
    agent = Agent(home)
    connected(a_state(width=3), agent).save()
    other = a_state(width=4)
    before = {name: t.clone() for name, t in other.model.state_dict().items()}
    wanted = r"has parameter 0\.weight of torch\.float64 \[3, 4\] where this script has parameter 0\.weight .*\[4, 4\]"
    with pytest.raises(ModelMismatch, match=wanted):
        connected(other, agent).restore(alone())
    assert_equal(dict(other.model.state_dict()), before)


def test_samples_go_on_where_they_were_with_another_number_of_micro_batches(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Agent(home)
    connected(trained(a_state(micro_batches=4)), agent).save()
    fresh = a_state(micro_batches=2)
    connected(fresh, agent).restore(alone())
    assert (fresh.step, fresh.samples_done) == (3, 3 * 4 * 5)
    fresh.step += 1
    assert fresh.samples_done == (3 * 4 + 2) * 5
    assert "was trained with micro_batches=4" in capsys.readouterr().err


def test_loop_attributes_that_one_side_does_not_have_are_left(home: Home) -> None:
    agent = Agent(home)
    connected(a_state(epoch=3, old=1), agent).save()
    fresh = a_state(epoch=0, new=2)
    connected(fresh, agent).restore(alone())
    assert (fresh.epoch, fresh.new) == (3, 2)
    with pytest.raises(AttributeError):
        _ = fresh.old


def test_what_is_carried_along_comes_back(home: Home) -> None:
    agent = Agent(home)
    state, fresh = a_state(), a_state()
    state.carry("ledger", lambda: {"at": (3, b"x")}, lambda value: None)
    got: list[Any] = []
    fresh.carry("ledger", lambda: None, got.append)
    connected(state, agent).save()
    connected(fresh, agent).restore(alone())
    assert got == [{"at": (3, b"x")}]


def test_what_came_back_does_not_change_when_its_slot_is_filled_again(home: Home) -> None:
    agent = Agent(home)
    state, fresh = trained(a_state(seen=torch.ones(3))), a_state(seen=torch.zeros(3))
    state.carry("noise", lambda: torch.full((5,), 7.0), lambda value: None)
    got: list[Tensor] = []
    fresh.carry("noise", lambda: None, got.append)
    connected(state, agent).save()
    connected(fresh, agent).restore(alone())
    slot = Path(agent.copies[0].path)
    slot.write_bytes(bytes(slot.stat().st_size))
    assert_equal(everything(fresh), everything(state))
    assert fresh.seen.tolist() == [1.0] * 3
    assert got[0].tolist() == [7.0] * 5


def test_large_moments_come_back_into_new_memory(home: Home) -> None:
    agent = Agent(home)

    def wide() -> elastic.State:
        model = nn.Linear(600, 600, bias=False)
        return elastic.State(model=model, optimizer=torch.optim.Adam(model.parameters()))

    state, fresh = wide(), wide()
    state.model(torch.randn(2, 600)).sum().backward()
    state.optimizer.step()
    connected(state, agent).save()
    connected(fresh, agent).restore(alone())
    assert_equal(everything(fresh), everything(state))


def damage_memory(agent: Agent, directory: Path) -> None:
    Path(agent.copies[0].path).write_bytes(b"no image at all" * 10)


def damage_disk(agent: Agent, directory: Path) -> None:
    agent.copies.pop(0)
    (data,) = directory.glob("step-000000000002-*.data")
    data.write_bytes(b"torn")


@pytest.mark.parametrize("damage", [damage_memory, damage_disk])
def test_the_next_best_is_used_and_it_is_told(
    home: Home, tmp_path: Path, damage: Callable[[Agent, Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "kept"
    agent = Agent(home, directory)
    state = a_state()
    for _ in range(2):
        trained(state, 1)
        connected(state, agent).save()
        image = memoryview(Path(agent.copies[0].path).read_bytes())
        manifests.write(LocalFolder(directory), [image], job="test", step=state.step, saved_at=0.0)
    damage(agent, directory)
    fresh = a_state()
    connected(fresh, agent).restore(alone())
    assert fresh.step == (2 if damage is damage_memory else 1)
    assert "WARNING: a checkpoint is damaged" in capsys.readouterr().err


def test_without_any_checkpoint_training_starts_at_the_beginning(home: Home, tmp_path: Path) -> None:
    assert connected(a_state(), Agent(home, tmp_path / "nothing")).restore(alone()) is None


def test_a_state_that_trains_alone_says_once_that_nothing_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints = Checkpoints(a_state(), None)
    assert not checkpoints.save()
    assert not checkpoints.save()
    checkpoints.prepare()
    assert capsys.readouterr().err.count("nothing is saved") == 1


def test_save_belongs_between_two_steps() -> None:
    model = nn.Linear(2, 1)
    state = elastic.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    @elastic.run
    def train(state: elastic.State) -> None:
        for micro in state.micro_batches():
            model(torch.ones(2)).sum().backward()
            micro.record(loss=1.0)
            with pytest.raises(RuntimeError, match="after commit"):
                state.save()
        state.commit()
        state.save()

    with pytest.raises(RuntimeError, match="@run"):
        state.save()
    train(state)
