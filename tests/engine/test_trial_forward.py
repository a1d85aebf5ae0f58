"""What a trial forward pass shows, and that it changes nothing."""

import torch
from tests.transposed import Conv1D
from torch import Tensor, nn

from adagp.engine.trial_forward import registered_layout, trial_forward
from adagp.layers.sites import survey


class Backwards(nn.Module):
    """Layers that are registered in another order than they run, one that never runs, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 2)
        self.token = nn.Parameter(torch.zeros(1))
        self.unused = nn.Linear(2, 2)
        self.norm = nn.BatchNorm2d(3)
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.attention = nn.MultiheadAttention(6, 1, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs + self.token)).flatten(2)
        hidden = self.attention(hidden, hidden, hidden, need_weights=False)[0]
        return self.last(hidden)  # type: ignore[no-any-return]


def test_order_costs_and_shapes() -> None:
    model = Backwards()
    found = survey(model)
    trial = trial_forward(model, found, torch.zeros(5, 1, 2, 3))
    assert [site.name for site in trial.layout.sites] == ["first", "last", "unused"]
    assert [layer.macs for layer in trial.layout.sites] == [5 * 3 * 6 * 9, 5 * 3 * 2 * 6, 0]
    assert [layer.kind for layer in trial.layout.sites] == ["conv", "linear", "linear"]
    assert [layer.name for layer in trial.layout.layers] == [
        "", "first", "norm", "attention", "attention.out_proj", "last", "unused"
    ]  # fmt: skip
    assert trial.layout.others_below(1) == {
        "token", "first.bias", "norm.weight", "norm.bias", "attention.in_proj_weight", "attention.in_proj_bias",
        "attention.out_proj.weight", "attention.out_proj.bias",
    }  # fmt: skip
    assert {site.name: tuple(shape) for site, shape in trial.shapes.items()} == {
        "first": (5, 3, 2, 3),
        "last": (5, 3, 2),
    }


def test_transposed_layers_count_by_what_they_compute() -> None:
    """A transposed convolution is a convolution, with as much work as its input is large."""
    model = nn.Sequential(nn.ConvTranspose2d(2, 3, 2, stride=2), nn.Conv2d(3, 1, 1), nn.Flatten(), Conv1D(4, 24))
    trial = trial_forward(model, survey(model), torch.zeros(5, 2, 2, 3))
    assert [(layer.kind, layer.macs) for layer in trial.layout.sites] == [
        ("conv", 5 * 2 * 6 * 3 * 4), ("conv", 5 * 24 * 3), ("linear", 5 * 24 * 4)
    ]  # fmt: skip


def test_it_leaves_no_trace() -> None:
    model = Backwards()
    model.norm.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    trial_forward(model, survey(model), (torch.randn(5, 1, 2, 3, generator=torch.Generator()),))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    assert not model.norm.training
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_without_a_trial_sites_stand_as_registered() -> None:
    layout = registered_layout(survey(Backwards()))
    assert [site.name for site in layout.sites] == ["last", "unused", "first"]
    assert not layout.measured
