"""A nested state as named tensors."""

import torch

from adagp.program.distributed.tensors import SMALL, memory_orders, put_together, read_rest, take_apart
from adagp.program.train.checkpoint import digest_of


def test_a_state_is_taken_apart_and_put_together() -> None:
    turned = torch.arange(600.0).view(2, 3, 10, 10).contiguous(memory_format=torch.channels_last)
    state = {
        "model": {"weight": turned, "bias": torch.ones(SMALL)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0), "momentum": torch.randn(SMALL + 1)}},
            "groups": [{"lr": 0.1}],
        },
        "plain": (None, True, "text", [torch.zeros(0)], float("inf")),
    }
    named = take_apart(state, "common")
    assert set(named) == {"common", "common/model/weight", "common/optimizer/state/0/momentum"}
    rest = read_rest(named.pop("common"))
    assert memory_orders(rest)["common/model/weight"] == list(turned.stride())
    assert digest_of(put_together(rest, named)) == digest_of(state)
