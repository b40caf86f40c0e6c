"""Training functions for tests, as a user would write them. They kill their own process where a test asks for it."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
from tests.torch.crew import Wire
from torch import nn

import shoal.torch as elastic

FEATURES = 6


def a_model(dtype: torch.dtype) -> nn.Module:
    """No bias before the normalisation: its gradient is rounding noise, which Adam would blow up to whole steps."""
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(FEATURES, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1)
    ).to(dtype)


def batch_for(samples: range, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.arange(samples.start, samples.stop, dtype=torch.float64)
    x = torch.sin(torch.outer(numbers + 1, torch.arange(1, FEATURES + 1, dtype=torch.float64)))
    return x.to(dtype), x.sum(dim=1, keepdim=True).to(dtype)


class FragileAdam(torch.optim.Adam):
    """Kills its process in the middle of an update: some parameters are written, some are not."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kill_now = False

    def step(self, closure: Any = None) -> Any:
        if self.kill_now:
            with torch.no_grad():
                next(iter(self.param_groups[0]["params"])).add_(1.0)
            die()
        return super().step(closure)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def regression(
    wire: Wire,
    *,
    steps: int,
    dtype: str = "float64",
    gates: tuple[int, ...] = (),
    kills: dict[str, tuple[int, str]] | None = None,
    micro_batches: int | None = None,
    clip: float | None = None,
) -> None:
    """`kills`: node -> (step, where): before, in or after the collective, or in the update."""
    kind = getattr(torch, dtype)
    model = a_model(kind)
    optimizer = FragileAdam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=40, gamma=0.7)
    state = elastic.State(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        micro_batch_size=4,
        micro_batches=micro_batches,
        seed=3,
        bucket_bytes=256,  # two buckets: one is under way when backward ends
        seen=0,
        history=[],
    )
    kill_step, where = (kills or {}).get(wire.node, (None, ""))

    @elastic.run
    def train(state: elastic.State) -> None:
        wire.tell("entered", state.step, state.rank, state.size, os.getpid())
        wire.tell("metrics", state.step, dict(state.metrics))
        while state.step < steps:
            if state.step in gates and state.is_source:
                wire.gate(state.step)
            doomed = state.step == kill_step
            for micro in state.micro_batches():
                if doomed and where == "before":
                    die()
                x, y = batch_for(micro.samples, kind)
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()
                micro.record(loss=loss)
            if doomed and where == "in":
                die()
            if clip is not None or (doomed and where == "after"):
                state.synchronize()
                if doomed:
                    die()
                nn.utils.clip_grad_norm_(model.parameters(), clip or 1e9)
            optimizer.kill_now = doomed and where == "update"
            state.seen += 1
            state.commit()
            state.history.append(state.step)
            wire.tell("loss", state.step, state.metrics["loss"])

    train(state)
    wire.tell("gloo", threads_of_gloo())
    wire.tell("final", final(model), state.seen, state.history, os.getpid())


def threads_of_gloo() -> list[str]:
    """Names of the threads that the library still has in this process."""
    names = [task.joinpath("comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return [name for name in names if "gloo" in name]


def final(model: nn.Module) -> list[float]:
    return torch.cat([t.double().flatten() for t in model.state_dict().values()]).tolist()


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(FEATURES, 1)
        self.main = nn.Linear(FEATURES, 1)
        self.sometimes = nn.Linear(FEATURES, 1)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        return self.main(x) + self.sometimes(x) if both else self.main(x)


def branches(wire: Wire, *, steps: int, micro_batches: int) -> None:
    """Clips by the global norm, updates by itself, and reduces a tensor of its own at the end."""
    torch.manual_seed(1)
    model = Branches().double()
    before = model.unused.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    state = elastic.State(model=model, optimizer=optimizer, micro_batch_size=4, micro_batches=micro_batches)
    reduced = torch.ones(())

    @elastic.run
    def train(state: elastic.State) -> None:
        while state.step < steps:
            for micro in state.micro_batches():
                x, y = batch_for(micro.samples, torch.float64)
                loss = nn.functional.mse_loss(model(x, both=micro.index == 1 and state.step % 3 > 0), y)
                loss.backward()
                micro.record(loss=loss)
            state.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            state.commit(update=False)
        with state.busy("eval"):
            reduced.fill_(1.0)
            state.all_reduce(reduced)

    train(state)
    wire.tell("final", final(model), torch.equal(before, model.unused.weight), reduced.item())


def sized(wire: Wire, *, width: int) -> None:
    model = nn.Linear(width, 1)
    state = elastic.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    @elastic.run
    def train(state: elastic.State) -> None:
        while state.step < 2:
            for _ in state.micro_batches():
                model(torch.ones(2, width)).sum().backward()
            state.commit()

    train(state)


def following(wire: Wire, *, steps: int, gates: tuple[int, ...]) -> None:
    """One micro-batch per worker, however many there are; the learning rate follows."""
    model = nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def scale(state: elastic.State) -> None:
        optimizer.param_groups[0]["lr"] = 0.01 * state.size

    @elastic.run
    def train(state: elastic.State) -> None:
        while state.step < steps:
            if state.step in gates and state.is_source:
                wire.gate(state.step)
            done: list[range] = []
            for micro in state.micro_batches():
                x, y = batch_for(micro.samples, torch.float32)
                nn.functional.mse_loss(model(x), y).backward()
                done.append(micro.samples)
            state.commit()
            wire.tell("did", *done)
        wire.tell("final", state.samples_done, optimizer.param_groups[0]["lr"])

    train(elastic.State(model=model, optimizer=optimizer, micro_batch_size=2, micro_batches="world", on_resize=scale))
