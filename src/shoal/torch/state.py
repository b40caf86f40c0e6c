"""The state of a training job: what every member must hold alike, and the steps that change it.

A `State` knows the model, the optimizer, the scheduler, the number of committed steps and any loop attributes given by
keyword (`State(..., epoch=0)` makes `state.epoch`). A step begins at `micro_batches()` and ends at `commit()`. The
world changes only where a step begins, or inside a collective. Loop attributes count as they were when the step
began or was committed: a step that is given up puts them back.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from shoal.core.errors import BadInput
from shoal.core.ledger import DatasetSpec, GlobalBatch
from shoal.core.ledger.dealing import Deal, Standing
from shoal.torch import tree
from shoal.torch.checkpoint import Checkpoints
from shoal.torch.member import Member
from shoal.torch.norms import Norms
from shoal.torch.reducer import BUCKET_BYTES, FIRST_BUCKET_BYTES, Reducer
from shoal.torch.replica import Replica
from shoal.torch.standings import Standings
from shoal.torch.stepping import Buffers, MicroBatch, Stepper
from shoal.trainer.data import Data
from shoal.trainer.inbox import WorldChanged


class State:
    """What all workers hold alike. Made once, before the training function is called.

    `micro_batches`: how many a step has, over all workers: a number, None for the job's maximum of workers (so the
    global batch is fixed), or "world" for one per worker (so it follows the world's size). `metrics`: the names that
    `micro.record` takes; a `ReduceLROnPlateau` follows the first of them. `on_resize`: called with the state after
    each entry into a world.
    """

    __slots__ = (
        "_batch_offset",
        "_bucket_bytes",
        "_buffers",
        "_carried",
        "_committed",
        "_loop",
        "_member",
        "_micro_batch_size",
        "_micro_batches",
        "_names",
        "_norms",
        "_on_resize",
        "_overlap",
        "_reducer",
        "_replica",
        "_seed",
        "_standings",
        "_stepper",
        "_varying_batches",
        "_wants_closure",
        "metrics",
        "model",
        "optimizer",
        "scheduler",
        "step",
    )

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler | None = None,
        step: int = 0,
        micro_batch_size: int | None = None,
        micro_batches: int | Literal["world"] | None = None,
        seed: int = 0,
        metrics: tuple[str, ...] = ("loss",),
        overlap: bool = True,
        bucket_bytes: int = BUCKET_BYTES,
        on_resize: "Callable[[State], None] | None" = None,
        **loop: Any,
    ) -> None:
        object.__setattr__(self, "_loop", {})
        taken = sorted(name for name in loop if hasattr(type(self), name))
        if taken:
            raise BadInput(f"State: {taken[0]!r} is a name of the state's own and cannot be a loop attribute")
        if isinstance(micro_batches, int) and micro_batches < 1:
            raise BadInput(f"State: micro_batches must be at least 1, got {micro_batches}")
        if isinstance(scheduler, ReduceLROnPlateau) and not metrics:
            raise BadInput("State: ReduceLROnPlateau follows the first of the metrics, and metrics=() has none")
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.step = step
        """How many steps are committed."""
        self.metrics: Mapping[str, float] = {}
        """The last committed step's means over its micro-batches."""
        self._micro_batch_size, self._micro_batches, self._seed = micro_batch_size, micro_batches, seed
        self._names, self._on_resize = tuple(metrics), on_resize
        self._overlap, self._bucket_bytes = overlap, bucket_bytes
        self._varying_batches = self._batch_offset = 0
        self._carried: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {}
        self._standings = Standings()
        self._wants_closure = _closure_wanted(type(optimizer))
        self._norms = Norms(model)
        self._buffers = Buffers(model, self._norms)
        self._replica = Replica(model, optimizer, scheduler, self._buffers)
        self._reducer: Reducer | None = None
        self._stepper: Stepper | None = None
        self._member: Member | None = None
        self._loop.update(loop)
        self._committed = self._copied_loop()
        tree.pack(
            self.contents(everything=True), "state"
        )  # what cannot be sent is told now, not at the first change of world

    def __getattr__(self, name: str) -> Any:
        loop: dict[str, Any] = object.__getattribute__(self, "_loop")
        if name in loop:
            return loop[name]
        raise AttributeError(f"the state has no attribute {name!r}; give it one with State(..., {name}=...)")

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            object.__setattr__(self, name, value)
        elif name in self._loop:
            self._loop[name] = value
        else:
            raise AttributeError(f"the state has no attribute {name!r}; give it one with State(..., {name}=...)")

    # Steps -----------------------------------------------------------------------------------------------

    def micro_batches(self, sizes: Sequence[int] | None = None) -> Iterator[MicroBatch]:
        """Begin a step: this worker's micro-batches of it. Do forward, backward and `record` for each.

        `sizes`: how many records each of the step's micro-batches has, over all workers, when they are not all whole.
        Each then weighs by its records, and those without any are left out. The same on all workers.
        """
        stepper = self._running("micro_batches()")
        if stepper.under_way:
            raise RuntimeError("micro_batches() again before commit(): finish the step, or take it back with restore()")
        self._committed = self._copied_loop()
        stepper.group.raise_if_broken()
        if stepper.pause_agreed:
            raise WorldChanged("the members agreed to pause after the last step")
        assert self._reducer is not None
        if self._reducer.is_stale:
            stepper = self._start_stepper(stepper.group, stepper.micro_batches)
        if sizes is not None and len(sizes) != stepper.micro_batches:
            raise ValueError(f"a step has {stepper.micro_batches} micro-batches, got sizes for {len(sizes)}")
        assert self._member is not None
        self._member.meter.begin()
        stepper.begin(sizes)
        yield from stepper.run(self.step, self._batches_done())

    def synchronize(self) -> None:
        """Wait for the step's gradients: afterwards every `grad` is the mean over all micro-batches of all workers."""
        stepper = self._running("synchronize()")
        if not stepper.under_way:
            raise RuntimeError("synchronize() outside a step: go through micro_batches() first")
        stepper.check_run(self.step)
        stepper.synchronize()

    def commit(self, *, update: bool = True) -> None:
        """End the step: reduce, update the model, count the step. Gradients are zeroed when the next one begins.

        With `update=False` the caller has done `optimizer.step()` (and the scheduler's) after `synchronize()`.
        """
        stepper = self._running("commit()")
        if not stepper.under_way:
            raise RuntimeError("commit() outside a step: go through micro_batches() first")
        stepper.check_run(self.step)
        if update and self._wants_closure:
            raise BadInput(
                f"{type(self.optimizer).__name__}.step() wants a closure, which commit() has not: "
                "call state.synchronize(), optimizer.step(closure) and state.commit(update=False)"
            )
        if not update and stepper.totals is None:
            raise RuntimeError(
                "commit(update=False): call synchronize() before optimizer.step(), or workers drift apart"
            )
        totals = stepper.synchronize()
        committed = self._copied_loop()
        if update:
            self._update(totals.metrics)
        stepper.commit()
        self._varying_batches += stepper.micro_batches
        self.step += 1
        self.metrics = totals.metrics
        self._committed = committed
        assert self._member is not None
        for standing in self._standings.committed():
            self._tell(standing)
        samples = None if self._micro_batch_size is None else stepper.samples
        self._member.meter.committed(samples=samples, waited=stepper.waited)
        self._member.stepped()

    def restore(self) -> None:
        """Take the running step back: loop attributes and buffers as at its beginning, gradients zero."""
        if self._stepper is not None and self._stepper.under_way:
            self._stepper.synchronize()  # all members make the same collectives, also in a step taken back
        self._put_back()

    # Checkpoints -----------------------------------------------------------------------------------------

    def save(self) -> bool:
        """Save the state as it is now, between two steps: a copy in the agent's memory, written to disk behind.

        Every worker may call it, only the source does anything; True: this worker's copy was made. Nobody waits for
        anybody. When all processes are lost, training goes on from the newest copy there is.
        """
        if self._running("save()").under_way:
            raise RuntimeError("save() inside a step: call it after commit()")
        return self._checkpoints.save() if self.is_source else False

    def prepare(self) -> None:
        """Get the memory for `save` ready, which otherwise the first one has to wait for. Best after a first step,
        when the optimizer has all its state."""
        self._running("prepare()")
        if self.is_source:
            self._checkpoints.prepare()

    def carry(self, name: str, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        """Carry something else along in checkpoints: `get` is asked for it by each `save`, `put` gets it back on the
        worker that restores one."""
        self._carried[name] = (get, put)

    # Between steps ---------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return 0 if self._stepper is None else self._stepper.group.rank

    @property
    def size(self) -> int:
        return 1 if self._stepper is None else self._stepper.group.size

    @property
    def is_source(self) -> bool:
        """This worker's state is the one that others would take: let it write files and logs."""
        return self._member is None or self._member.is_source

    @property
    def samples_done(self) -> int | None:
        """How many samples the committed steps had, as if all were full; None without `micro_batch_size`."""
        return None if self._micro_batch_size is None else self._batches_done() * self._micro_batch_size

    @property
    def data(self) -> Data:
        """This process's datasets; see `shoal.torch.data`."""
        self._running("data")
        assert self._member is not None
        return self._member.data

    @property
    def global_batch(self) -> GlobalBatch:
        """What every step has, whoever computes it. Raises `BadInput` when that is not fixed."""
        if self._micro_batches == "world" or self._micro_batch_size is None:
            raise BadInput(f"State: a fixed order of the data needs a fixed global batch, got {self.batching}")
        return GlobalBatch(micro_batches=self._fixed_batch(), micro_batch_size=self._micro_batch_size)

    @property
    def micro_batch_size(self) -> int:
        """How many records a whole micro-batch has. Raises `BadInput` when that was not given."""
        if self._micro_batch_size is None:
            raise BadInput("State: to deal shards needs micro_batch_size, the records that each worker gets in a step")
        return self._micro_batch_size

    @property
    def micro_batches_in_step(self) -> int:
        """How many micro-batches a step has in this world, over all workers."""
        return self._running("micro_batches_in_step").micro_batches

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum the tensor over all workers, in place."""
        return self._collective(tensor, lambda group, copy: group.start(copy), "all_reduce()")

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Overwrite the tensor with that of rank `source`."""
        return self._collective(tensor, lambda group, copy: group.broadcast(copy, source), "broadcast()")

    def busy(self, what: str) -> AbstractContextManager[None]:
        """`with state.busy("eval"):` this worker is not training; that it makes no steps is not taken for a hang."""
        self._running("busy()")
        assert self._member is not None
        return self._member.busy_with(what)

    # Shards dealt in the world; for `shoal.torch.data` ---------------------------------------------------

    def attach(self, spec: DatasetSpec) -> None:
        """Deal this dataset among the members, from where the state stands in it. It goes with the state from now on,
        to other members and into checkpoints."""
        self.data.register(spec)
        self._tell(self._standings.attach(spec))

    def standing(self, name: str) -> Standing:
        """What the committed steps have seen of an attached dataset."""
        return self._standings.of(name)

    def deal(self, name: str) -> Deal | None:
        """The records of the step that begins, for all of its micro-batches. Counts when the step is committed."""
        return self._standings.deal(name, seats=self.micro_batches_in_step, size=self.micro_batch_size)

    def _tell(self, standing: Standing) -> None:
        """One member speaks for the world: the one whose state everybody has."""
        if self.is_source and self._stepper is not None:
            self.data.stands(standing, generation=self._stepper.group.generation, step=self.step)

    # For `run` and the member ----------------------------------------------------------------------------

    def join(self, environ: Mapping[str, str]) -> Member:
        """Become a member of the job that the environment names."""
        if self._member is not None:
            raise RuntimeError("this state was trained already; a job has one training function")
        self._member = Member(self, environ)
        return self._member

    def entered(self) -> None:
        """The member is in a world and holds its state."""
        assert self._member is not None
        assert self._member.group is not None
        group = self._member.group
        self._standings.entered()
        self._start_stepper(group, group.size if self._micro_batches == "world" else self._fixed_batch())
        if self._on_resize is not None:
            self._on_resize(self)

    def left(self) -> int:
        """The world is over; put back what an unfinished step changed. Returns how many steps were given up."""
        lost = int(self._stepper is not None and self._stepper.under_way)
        self._put_back()
        self._stepper = None
        return lost

    def finished(self) -> None:
        """The training function returned. If a pause is agreed there is a next world, which it has to see."""
        self._committed = self._copied_loop()  # what was set after the last commit is to be seen there too
        if self._stepper is not None and self._stepper.pause_agreed:
            raise WorldChanged("the members agreed to pause after the last step")

    def contents(self, *, everything: bool) -> dict[str, Any]:
        """What others take over from this member: all of it, or what may differ even after the same step."""
        common = {
            "step": self.step,
            "batches": self._batches_done(),
            "metrics": dict(self.metrics),
            "loop": self._committed,
            "data": self._standings.contents(),
        }
        if not everything:
            return common | self._replica.essentials()
        return common | {"signature": self.signature()} | self._replica.everything()

    def adopt(self, received: dict[str, Any]) -> None:
        """Take over the source's `contents`."""
        self._replica.adopt(received)
        self._count_from(received["step"], received["batches"])
        self.metrics = received["metrics"]
        self._committed = tree.copied(received["loop"], "state")
        self._standings.adopt(received["data"])
        self._put_back()

    def to_save(self) -> dict[str, Any]:
        """What a checkpoint holds: all that others would take over, with names, and what is carried along."""
        everything = self._replica.everything()
        return {
            "step": self.step,
            "batches": self._batches_done(),
            "metrics": dict(self.metrics),
            "loop": self._copied_loop(),
            **everything,
            "model": dict(zip(self._replica.names(), everything["model"], strict=True)),
            "data": self._standings.contents(),
            "carried": {name: get() for name, (get, _) in self._carried.items()},
        }

    def restore_saved(self, saved: dict[str, Any]) -> None:
        """Take over what `to_save` gave, perhaps in another run of the job. Loop attributes that either side does not
        have are left as they are."""
        known = {name: value for name, value in saved["loop"].items() if name in self._loop}
        self.adopt({"data": {}, **saved, "model": list(saved["model"].values()), "loop": self._copied_loop() | known})
        for name, value in saved["carried"].items():
            if name in self._carried:
                self._carried[name][1](value)

    def expected_growth(self) -> int:
        """Bytes that the optimizer will probably add at its first step."""
        if self.optimizer.state:
            return 0
        copies = sum(
            2 if "betas" in group else int(bool(group.get("momentum"))) for group in self.optimizer.param_groups[:1]
        )
        return copies * sum(p.numel() * p.itemsize for p in self.model.parameters())

    def model_signature(self) -> list[str]:
        """What a script must have alike to take over a checkpoint of this one."""
        return self._replica.signature()

    @property
    def batching(self) -> str:
        """How samples are counted, in words."""
        count = self._micro_batches if self._micro_batches == "world" else self._fixed_batch()
        return f"micro_batches={count!r}, micro_batch_size={self._micro_batch_size}, seed={self._seed}"

    def signature(self) -> list[str]:
        """What must be the same on all members, in words."""
        return [
            *self._replica.signature(),
            self.batching,
            f"metrics {list(self._names)}, loop attributes {sorted(self._loop)}",
        ]

    def _batches_done(self) -> int:
        """How many micro-batches the committed steps had. A batch that follows the world has to be counted along."""
        if self._micro_batches == "world":
            return self._varying_batches
        return self._batch_offset + self.step * self._fixed_batch()

    def _count_from(self, step: int, batches: int) -> None:
        """So many micro-batches are done: the next is the one after, also if steps had more or fewer of them before."""
        self.step, self._varying_batches = step, batches
        self._batch_offset = 0 if self._micro_batches == "world" else batches - step * self._fixed_batch()

    def _fixed_batch(self) -> int:
        if isinstance(self._micro_batches, int):
            return self._micro_batches
        return 1 if self._member is None else self._member.max_workers

    def _start_stepper(self, group: Any, micro_batches: int) -> Stepper:
        if self._reducer is None or self._reducer.is_stale:
            if self._reducer is not None:
                self._reducer.close()
            self._reducer = Reducer(
                self.model.parameters(),
                device=group.device,
                overlap=self._overlap,
                first_bucket_bytes=min(FIRST_BUCKET_BYTES, self._bucket_bytes),
                bucket_bytes=self._bucket_bytes,
            )
        self._stepper = Stepper(
            group=group,
            micro_batches=micro_batches,
            micro_batch_size=self._micro_batch_size,
            seed=self._seed,
            metrics=self._names,
            reducer=self._reducer,
            norms=self._norms,
            buffers=self._buffers,
        )
        return self._stepper

    @property
    def _checkpoints(self) -> Checkpoints:
        assert self._member is not None
        return self._member.checkpoints

    def _running(self, what: str) -> Stepper:
        if self._stepper is None:
            raise RuntimeError(f"{what} works inside a function decorated with @run")
        return self._stepper

    def _update(self, metrics: Mapping[str, float]) -> None:
        """Nothing may fail once the first parameter is written."""
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            return
        followed = self._names[0]
        if followed not in metrics:
            raise BadInput(
                f"ReduceLROnPlateau follows {followed!r}: record it in every step, micro.record({followed}=...)"
            )
        self.optimizer.step()
        self.scheduler.step(metrics[followed])

    def _copied_loop(self) -> dict[str, Any]:
        return {name: tree.copied(value, f"state.{name}") for name, value in self._loop.items()}

    def _put_back(self) -> None:
        if self._stepper is not None and self._stepper.under_way:
            self._stepper.give_up()
        self._standings.give_up()
        self._loop.update({name: tree.copied(value, f"state.{name}") for name, value in self._committed.items()})

    def _collective(self, tensor: Tensor, begin: Callable[[Any, Tensor], None], what: str) -> Tensor:
        """On a copy: should the collective be given up, it may still write into what it was given."""
        group = self._running(what).group
        group.raise_if_broken()
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        begin(group, copy)
        group.drain()
        with torch.no_grad():
            tensor.copy_(copy)
        return tensor


def _closure_wanted(kind: type[Optimizer]) -> bool:
    """Its `step()` computes the loss again, perhaps several times; `commit()` can do that for no one."""
    _, *arguments = inspect.signature(kind.step).parameters.values()
    return any(a.default is a.empty and a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD) for a in arguments)
