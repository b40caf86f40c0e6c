"""The state object by itself, in a process that trains alone."""

import numpy as np
import pytest
import torch
from torch import nn

import shoal.torch as elastic
from shoal.core.errors import BadInput
from shoal.torch import tree
from shoal.torch.takeover import describe_difference

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_AGENT_SOCKET", raising=False)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)


class Counting(nn.Module):
    """Counts its forward calls in a buffer, as no BatchNorm does."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        result: torch.Tensor = self.layer(x)
        return result


def a_state(model: nn.Module | None = None, **options: object) -> elastic.State:
    model = model or nn.Linear(2, 1)
    return elastic.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **options)  # type: ignore[arg-type]


def one_step(state: elastic.State) -> None:
    for micro in state.micro_batches():
        loss = state.model(torch.ones(1, 2)).sum()
        loss.backward()
        micro.record(loss=loss)


def test_alone_it_trains_like_a_plain_loop() -> None:
    torch.manual_seed(0)
    model, plain = nn.Linear(2, 1), nn.Linear(2, 1)
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)

    @elastic.run
    def train(state: elastic.State, steps: int) -> str:
        while state.step < steps:
            one_step(state)
            state.commit()
        return "done"

    state = a_state(model, micro_batch_size=4)
    assert train(state, steps=3) == "done"
    for _ in range(3):
        optimizer.zero_grad()
        plain(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert torch.equal(model.weight, plain.weight)
    assert (state.step, state.rank, state.size, state.is_source, state.samples_done) == (3, 0, 1, True, 12)


def test_micro_batches_name_the_samples_and_key_the_random_streams() -> None:
    seen: list[tuple[int, int, range, float]] = []

    @elastic.run
    def train(state: elastic.State) -> None:
        for _ in range(2):
            for micro in state.micro_batches():
                seen.append((micro.step, micro.index, micro.samples, torch.rand(()).item()))
                state.model(torch.ones(1, 2)).sum().backward()
                micro.record(loss=float(micro.index))
            state.commit()
        assert state.metrics == {"loss": 1.0}

    train(a_state(micro_batches=3, micro_batch_size=2))
    assert [(step, index, samples) for step, index, samples, _ in seen] == [
        (0, 0, range(2)),
        (0, 1, range(2, 4)),
        (0, 2, range(4, 6)),
        (1, 0, range(6, 8)),
        (1, 1, range(8, 10)),
        (1, 2, range(10, 12)),
    ]
    assert len({draw for *_, draw in seen}) == 6


def test_a_step_taken_back_leaves_no_trace() -> None:
    @elastic.run
    def train(state: elastic.State) -> None:
        one_step(state)
        state.count += 1
        state.items.append("first")
        state.commit()
        before = state.model.layer.weight.detach().clone()
        one_step(state)
        state.count += 1
        state.items.append("second")
        state.restore()
        assert (state.count, state.items, state.step) == (1, ["first"], 1)
        assert state.model.calls.item() == 1
        assert torch.equal(state.model.layer.weight, before)
        one_step(state)
        state.commit()
        assert state.step == 2

    train(a_state(Counting(), count=0, items=[]))


@pytest.mark.parametrize("everything", [False, True])
def test_whoever_adopts_a_step_has_its_metrics(everything: bool) -> None:
    @elastic.run
    def train(state: elastic.State, steps: int) -> None:
        while state.step < steps:
            one_step(state)
            state.commit()

    source, behind = a_state(), a_state()
    train(source, 2)
    train(behind, 1)
    assert source.metrics != behind.metrics
    data, tensors = tree.pack(source.contents(everything=everything), "state")
    behind.adopt(tree.Packed(data).unpack(tensors))
    assert behind.metrics == source.metrics


def test_what_cannot_be_sent_is_told_when_the_state_is_made() -> None:
    with pytest.raises(BadInput, match=r"state\.foo\['bar'\]: <class 'object'> cannot be sent"):
        a_state(foo={"bar": object()})


def test_what_cannot_be_sent_is_told_at_the_commit_and_ends_for_good(capsys: pytest.CaptureFixture[str]) -> None:
    weights: list[torch.Tensor] = []

    @elastic.run
    def train(state: elastic.State) -> None:
        weights.append(state.model.weight.detach().clone())
        one_step(state)
        state.foo = {1, 2}
        state.commit()

    state = a_state(foo=None)
    with pytest.raises(SystemExit) as ended:
        train(state)
    assert ended.value.code == 76
    assert "state.foo: <class 'set'> cannot be sent" in capsys.readouterr().err
    assert torch.equal(weights[0], state.model.weight), "nothing was written"


def test_an_error_is_left_in_the_error_file(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    path = f"{tmp_path}/error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", path)

    @elastic.run
    def train(state: elastic.State) -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError):
        train(a_state())
    with open(path) as file:
        assert "KeyError: 'lost'" in file.read()


def test_wrong_use_is_told() -> None:
    @elastic.run
    def train(state: elastic.State) -> None:
        with pytest.raises(RuntimeError, match="outside a step"):
            state.commit()
        for micro in state.micro_batches():
            with pytest.raises(ValueError, match=r"'accuracy' was not declared: .*metrics=\('loss', 'accuracy',\)"):
                micro.record(accuracy=1.0)
        with pytest.raises(RuntimeError, match="again before commit"):
            next(state.micro_batches())
        state.restore()
        one_step(state)
        with pytest.raises(RuntimeError, match="call synchronize"):
            state.commit(update=False)
        with pytest.raises(AttributeError, match=r"State\(\.\.\., epoch=\.\.\.\)"):
            state.epoch = 1

    state = a_state()
    with pytest.raises(RuntimeError, match="decorated with @run"):
        next(state.micro_batches())
    train(state)
    with pytest.raises(BadInput, match="'commit' is a name of the state's own"):
        a_state(commit=1)


def test_two_backward_calls_in_the_last_micro_batch_are_refused_unless_overlap_is_off() -> None:
    def train(state: elastic.State) -> None:
        for _ in state.micro_batches():
            state.model(torch.ones(1, 2)).sum().backward()
            state.model(torch.ones(1, 2)).sum().backward()
        state.commit()

    with pytest.raises(RuntimeError, match="backward\\(\\) once per micro-batch"):
        elastic.run(train)(a_state())
    elastic.run(train)(a_state(overlap=False))


def test_a_parameter_that_thaws_is_trained() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()

    @elastic.run
    def train(state: elastic.State) -> None:
        one_step(state)
        state.commit()
        assert torch.equal(model[0].weight, before)
        model[0].requires_grad_(True)
        one_step(state)
        state.commit()

    train(a_state(model))
    assert not torch.equal(model[0].weight, before)


def test_a_scheduler_that_follows_a_metric_gets_the_first_one() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)

    @elastic.run
    def train(state: elastic.State) -> None:
        for loss in (3.0, 1.0, 2.0):
            for micro in state.micro_batches():
                model(torch.ones(1, 2)).sum().backward()
                micro.record(loss=loss, accuracy=loss)
            state.commit()

    train(elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, metrics=("loss", "accuracy")))
    assert scheduler.best == 1.0
    assert optimizer.param_groups[0]["lr"] == 0.05
    with pytest.raises(BadInput, match="follows the first of the metrics"):
        elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, metrics=())


def test_a_followed_metric_that_was_not_recorded_is_told_before_anything_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    @elastic.run
    def train(state: elastic.State) -> None:
        for _ in state.micro_batches():
            model(torch.ones(1, 2)).sum().backward()
        state.commit()

    with pytest.raises(SystemExit):
        train(elastic.State(model=model, optimizer=optimizer, scheduler=scheduler))
    assert "ReduceLROnPlateau follows 'loss': record it" in capsys.readouterr().err
    assert torch.equal(model.weight, before)


def test_an_optimizer_that_wants_a_closure_is_stepped_by_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    @elastic.run
    def train(state: elastic.State, update: bool) -> None:
        for _ in state.micro_batches():
            loss = state.model(torch.ones(1, 2)).sum()
            loss.backward()
        if not update:
            state.synchronize()
            state.optimizer.step(loss.item)
        state.commit(update=update)

    def trained(update: bool) -> bool:
        model = nn.Linear(2, 1)
        before = model.weight.detach().clone()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
        torch.optim.lr_scheduler.StepLR(optimizer, 10)  # wraps optimizer.step
        try:
            train(elastic.State(model=model, optimizer=optimizer), update)
        except SystemExit:
            pass
        return not torch.equal(model.weight, before)

    assert not trained(update=True)
    assert "LBFGS.step() wants a closure" in capsys.readouterr().err
    assert trained(update=False)


def test_a_learning_rate_of_numpy_is_no_obstacle() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.float64(0.5) ** step)

    @elastic.run
    def train(state: elastic.State) -> None:
        one_step(state)
        state.commit()

    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler)
    train(state)
    tree.pack(state.contents(everything=True), "state")
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_difference_names_both_sides() -> None:
    mine, theirs = ["a of float32 [2]", "b of float32 [2]"], ["a of float32 [2]"]
    assert describe_difference(mine, theirs, rank=3, source=0) == (
        "the training state differs between workers: rank 3 has b of float32 [2] "
        "where rank 0, whose state everybody takes, has nothing more"
    )
