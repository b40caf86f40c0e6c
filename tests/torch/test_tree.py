"""Trees of values and tensors: what arrives is what was sent, and what cannot be sent is named."""

from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch

from shoal.core.errors import BadInput
from shoal.torch import tree

pytestmark = pytest.mark.torch


class Thing:
    pass


TREE = {
    "nothing": None,
    "numbers": [True, -3, 2**64 - 1, 0.1, float("inf")],
    "text": "ä",
    "bytes": b"\x00\xff",
    "nested": ({"a": (1, (2,))}, []),
    3: "an int key",
    ("a", 1): "a tuple key",
    "counter": Counter({40: 2}),
    "ordered": OrderedDict(b=1, a=2),
}


def test_a_tree_survives_the_way() -> None:
    data, tensors = tree.pack(TREE, "state")
    arrived = tree.Packed(data).unpack(tensors)
    assert arrived == TREE
    assert type(arrived["counter"]) is Counter
    assert type(arrived["nested"]) is tuple
    assert list(arrived["ordered"]) == ["b", "a"]


def test_scalars_of_numpy_become_those_of_python() -> None:
    value = {"lr": np.float64(0.1), np.int64(3): [np.float32(0.5), np.bool_(True)], "name": np.str_("x")}
    wanted = {"lr": 0.1, 3: [0.5, True], "name": "x"}
    for arrived in (tree.copied(value, "state"), tree.Packed(tree.pack(value, "state")[0]).unpack([])):
        assert arrived == wanted
        assert [type(v) for v in (arrived["lr"], *arrived[3], arrived["name"])] == [float, float, bool, str]
        assert [type(key) for key in arrived] == [str, int, str]


def test_tensors_travel_beside_the_structure() -> None:
    value = {"weight": torch.arange(6.0).reshape(2, 3), "step": torch.tensor(7), "half": [torch.ones(2).bfloat16()]}
    data, tensors = tree.pack(value, "state")
    packed = tree.Packed(data)
    assert packed.unpack(None) == {"weight": None, "step": None, "half": [None]}
    assert packed.specs == [(torch.float32, "cpu", [2, 3]), (torch.int64, "cpu", []), (torch.bfloat16, "cpu", [2])]
    arrived = packed.unpack([t.clone() for t in tensors])
    assert torch.equal(arrived["weight"], value["weight"])
    assert arrived["step"].item() == 7


def test_a_copy_shares_nothing() -> None:
    value = {"list": [1], "tensor": torch.zeros(2)}
    copy = tree.copied(value, "state.x")
    value["list"].append(2)
    value["tensor"].add_(1)
    assert copy["list"] == [1]
    assert copy["tensor"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param({"bar": Thing()}, r"state\.foo\['bar'\]: <class '.*Thing'> cannot be sent", id="object"),
        pytest.param([1, {2}], r"state\.foo\[1\]: <class 'set'> cannot be sent", id="set"),
        pytest.param(2**64, r"state\.foo: the number .* more than 64 bits", id="large-int"),
        pytest.param({Thing: 1}, r"state\.foo: a key of <class 'type'> cannot be sent", id="key"),
        pytest.param(torch.eye(2).to_sparse(), r"state\.foo: a tensor of layout torch.sparse_coo", id="sparse"),
        pytest.param(np.longdouble(1), r"state\.foo: <class 'numpy.longdouble'> cannot be sent", id="long-double"),
        pytest.param(print, r"state\.foo: <class 'builtin_function_or_method'> cannot be sent", id="function"),
    ],
)
def test_what_cannot_be_sent_is_named(value: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        tree.copied(value, "state.foo")
    with pytest.raises(BadInput, match=message):
        tree.pack(value, "state.foo")
