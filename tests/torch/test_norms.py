"""BatchNorm's running statistics: as PyTorch would have made them, from micro-batches computed anywhere."""

import pytest
import torch
from torch import nn

from shoal.torch.norms import Norms

pytestmark = pytest.mark.torch


def a_model(momentum: float | None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=momentum)).double()


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("calls", [1, 2], ids=["once", "layer-called-twice"])
def test_statistics_are_those_of_one_process(momentum: float | None, calls: int) -> None:
    """Five micro-batches: one model sees all in turn, of two others one sees the first three and one the rest."""
    batches = [torch.randn(8, 3, dtype=torch.float64) for _ in range(5)]
    plain = a_model(momentum)
    for batch in batches:
        for _ in range(calls):
            plain(batch)

    table = torch.zeros(5, Norms(a_model(momentum)).width, dtype=torch.float64)
    members = [(a_model(momentum), range(3)), (a_model(momentum), range(3, 5))]
    norms = [Norms(model) for model, _ in members]
    for (model, block), own in zip(members, norms, strict=True):
        for position, index in enumerate(block):
            with own.micro_batch(position):
                for _ in range(calls):
                    model(batches[index])
        assert model[1].running_mean.tolist() == [0.0] * 4, "untouched before the commit"
        own.write(table[block.start : block.stop])
    for (model, _), own in zip(members, norms, strict=True):
        own.apply(table)
        for mine, wanted in zip(model.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)


def test_a_layer_in_eval_mode_uses_its_running_statistics() -> None:
    model = a_model(0.1)
    model[1].running_mean.fill_(5.0)
    wanted = model.eval()(torch.ones(2, 3, dtype=torch.float64))
    norms = Norms(model)
    with norms.micro_batch(0):
        assert torch.equal(model(torch.ones(2, 3, dtype=torch.float64)), wanted)


def test_a_forward_that_fails_leaves_the_statistics_in_place() -> None:
    model = a_model(0.1)
    mean = model[1].running_mean
    norms = Norms(model)
    with norms.micro_batch(0):
        with pytest.raises(RuntimeError):
            model[1](torch.ones(2, 7, dtype=torch.float64))
        assert model[1].running_mean is mean
