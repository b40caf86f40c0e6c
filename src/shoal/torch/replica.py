"""What every member holds a copy of: model, optimizer and scheduler; how it is described, given away and taken over."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shoal.torch import tree
from shoal.torch.stepping import Buffers


class Replica:
    def __init__(self, model: nn.Module, optimizer: Optimizer, scheduler: LRScheduler | None, buffers: Buffers) -> None:
        self._model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._buffers = buffers

    def signature(self) -> list[str]:
        """What must be the same on all members, in words."""
        groups = [len(group["params"]) for group in self._optimizer.param_groups]
        return [
            *(f"{name} of {tensor.dtype} {list(tensor.shape)}" for name, tensor in self._tensors()),
            f"optimizer {type(self._optimizer).__name__} with groups of {groups} parameters",
            f"scheduler {type(self._scheduler).__name__}",
        ]

    def names(self) -> list[str]:
        """Of the tensors under `model`, in their order."""
        return [name for name, _ in self._tensors()]

    def essentials(self) -> dict[str, Any]:
        """What may differ even between members that committed the same step."""
        return {
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "buffers": self._buffers.tensors(),
        }

    def everything(self) -> dict[str, Any]:
        return self.essentials() | {
            "model": [tensor.detach() for _, tensor in self._tensors()],
            "optimizer": self._optimizer.state_dict(),
        }

    def adopt(self, received: dict[str, Any]) -> None:
        """Take over another member's `essentials` or `everything`. All of it is here: nothing is waited for."""
        with torch.no_grad():
            if "model" in received:
                for (_, tensor), value in zip(self._tensors(), received["model"], strict=True):
                    tensor.copy_(value)
                self._adopt_optimizer(received["optimizer"])
            else:
                for tensor, value in zip(self._buffers.tensors(), received["buffers"], strict=True):
                    tensor.copy_(value)
        if self._scheduler is not None:
            self._scheduler.load_state_dict(received["scheduler"])

    def _adopt_optimizer(self, received: dict[str, Any]) -> None:
        """In place where the state has the same form already: new memory costs several times the copy."""
        mine = self._optimizer.state_dict()
        groups = tree.copied(received["param_groups"], "optimizer")
        if _form(mine["state"]) == _form(received["state"]):
            state = _overwritten(mine["state"], received["state"])
        else:
            # Copied out of the transfer's one large buffer, which could otherwise never be freed.
            state = tree.copied_at_once(received["state"], "optimizer")
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._model.named_parameters():
            yield f"parameter {name}", parameter
        for name, buffer in self._model.named_buffers():
            yield f"buffer {name}", buffer


def _form(state: Any) -> Any:
    """What two states must have alike for one to be written over the other."""
    if isinstance(state, dict):
        return {key: _form(value) for key, value in state.items()}
    return (state.dtype, state.device.type, state.shape) if isinstance(state, Tensor) else type(state)


def _overwritten(mine: Any, received: Any) -> Any:
    """`mine` with the received values: its tensors are written over, everything else is replaced."""
    if isinstance(mine, dict):
        return {key: _overwritten(value, received[key]) for key, value in mine.items()}
    return mine.copy_(received) if isinstance(mine, Tensor) else tree.copied(received, "optimizer")
