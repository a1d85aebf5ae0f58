"""What `validate` says of a method's memory and price, against what is there after training and counts by hand; its fixes."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adagp
from adagp.engine.validate import MethodDemand
from adagp.errors import OptionError


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(256, 3))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def demand_of(method: Any, samples: int = 32) -> MethodDemand:
    model = cnn()
    found = adagp.validate(model, optimizer_of(model), method=method, sample=torch.zeros(samples, 1, 8, 8)).demand
    assert found is not None
    return found


def tensor_bytes(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    return (
        sum(map(tensor_bytes, state.values() if isinstance(state, dict) else state))
        if isinstance(state, dict | list | tuple)
        else 0
    )


MEMORY = ["feedback", "adagp", "replay", "average", "feedback_replay", "dni", "dni_labels", "dni_decoupled", "control"]


@pytest.mark.parametrize("method", MEMORY)
@pytest.mark.medium
def test_the_memory_is_what_is_there_after_training(method: Any) -> None:
    model = cnn()
    trainer = adagp.attach(model, optimizer_of(model), method, steps=12, warmup="6 batches")
    for _ in range(6):
        trainer.step(torch.randn(32, 1, 8, 8), torch.arange(32) % 3, F.cross_entropy)
    demand = demand_of(method).demand
    assert demand is not None
    assert demand.state == pytest.approx(tensor_bytes(trainer.state_dict()["sources"]), rel=0.25), (
        "but for small tensors"
    )


@pytest.mark.parametrize("method", ["fa", "dfa"])
def test_the_memory_of_random_matrices(method: Any) -> None:
    model = cnn()
    trainer = adagp.attach(model, optimizer_of(model), method, steps=4)
    for _ in range(2):
        trainer.step(torch.randn(32, 1, 8, 8), torch.arange(32) % 3, F.cross_entropy)
    demand = demand_of(method).demand
    assert demand is not None
    source: Any = trainer.sources[method]
    assert demand.state == tensor_bytes(dict(enumerate(source.matrices.values())))


def test_every_method_is_counted() -> None:
    for name in adagp.METHODS:
        if name != "bp":
            found = demand_of(adagp.NamedMethod(name))
            assert found.demand is not None, name
            assert found.gp_price >= 0
    assert demand_of(adagp.NamedMethod("control", true_share="auto")).demand is None, "depends on what is measured"


def test_prices_of_methods_with_a_backward_pass_by_hand() -> None:
    """The convolution has 4 x 64 positions of 9 weights, the linear layer 256 x 3 weights; the batch 32 samples."""
    convolution, linear = 32 * 4 * 64 * 9, 32 * 256 * 3
    forward = convolution + linear
    backprop = 2 * forward + linear
    assert demand_of("fa").gp_price == pytest.approx(1)
    projected = 32 * 3 * 256  # three errors a sample to the linear layer's input
    assert demand_of("dfa").gp_price == pytest.approx((2 * forward + projected) / backprop)
    chosen = 32 * 4 * 9 + 256 * 3  # one position a sample and channel; one sample a neuron
    assert demand_of("topk").gp_price == pytest.approx((forward + linear + chosen) / backprop)
    networks = 32 * (4 * 64 * 32 * 9 * 2 + 3 * 32 * 2)
    found = demand_of("dni")
    assert found.gp_price == pytest.approx((2 * forward + networks) / backprop)
    assert found.bp_price == pytest.approx(1 + 3 * networks / backprop)
    decoupled = demand_of("dni_decoupled")
    assert decoupled.gp_price == pytest.approx((2 * forward + linear + 4 * networks) / backprop)
    predictor = adagp.NamedMethod("feedback", correction=0.0)
    whole, part = demand_of(predictor).demand, demand_of(predictor, 16).demand
    assert whole is not None
    assert part is not None
    split = forward + (forward + linear) // 2 + part.bp_macs + 2 * part.gp_macs
    assert demand_of("control").gp_price == pytest.approx(split / backprop)
    assert demand_of("control").bp_price == pytest.approx(1 + whole.bp_macs / backprop)


def test_prices_by_hand() -> None:
    forward = 32 * (4 * 64 * 9 + 256 * 3)
    backprop = 3 * forward - 32 * 4 * 64 * 9
    rows, features = 32, 3
    inputs, outputs = 64 + 256, 256 + 3
    predicted = forward + (features + 1) * rows * inputs + (features + 2) * forward // rows
    learned = backprop + (features + 1) * rows * (inputs + outputs)
    found = demand_of("feedback")
    assert found.gp_price == pytest.approx(predicted / backprop)
    assert found.bp_price == pytest.approx(learned / backprop)
    assert demand_of("replay").gp_price == pytest.approx(forward / backprop)
    assert demand_of("skip").gp_price == 0


def test_what_is_printed() -> None:
    model = cnn()
    lines = str(
        adagp.validate(model, optimizer_of(model), method="replay", sample=torch.zeros(32, 1, 8, 8))
    ).splitlines()
    assert lines[-6:] == [
        "memory and price of 'replay' in batches of 32 samples: counted, not timed",
        "  kept between batches     0.0 MB, 1.0 times the weights",
        "  kept in a GP batch       0.0 MB, while backprop keeps all activations",
        "  kept in a BP batch       0.0 MB more than by backprop",
        "  price of a GP batch      0.44 of a batch by backprop, in multiply-accumulates",
        "  price of a BP batch      1.00",
    ]
    with_backward = adagp.validate(model, optimizer_of(model), method="fa", sample=torch.zeros(32, 1, 8, 8))
    assert "\n  kept in a GP batch       0.0 MB, in addition to what autograd keeps\n" in str(with_backward)
    assert with_backward.notes == (
        "a GP batch of 32 samples computes as much as one by backprop: it has a backward pass of its own.",
    )
    unknown = adagp.validate(
        model,
        optimizer_of(model),
        method=adagp.NamedMethod("control", true_share="auto"),
        sample=torch.zeros(32, 1, 8, 8),
    )
    assert str(unknown).endswith("samples: counted, not timed\n  not known for this method")
    dear = adagp.validate(model, optimizer_of(model), sample=torch.zeros(1, 1, 8, 8))
    assert dear.notes == (
        "a GP batch of 1 samples computes as much as one by backprop: larger batches, or for 'feedback' fewer features, make "
        "it cheaper.",
    )


def test_nothing_is_changed_and_nothing_is_attached() -> None:
    model = cnn()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adagp.validate(model, optimizer_of(model), sample=torch.zeros(2, 1, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_method_needs_a_sample() -> None:
    model = cnn()
    with pytest.raises(OptionError) as caught:
        adagp.validate(model, optimizer_of(model), method="feedback")
    assert str(caught.value) == (
        "method and output are checked in a forward pass: give sample=, a batch of inputs, as well."
    )


class Flattened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs)).flatten(0, 1)  # type: ignore[no-any-return]


class OwnLoss(Flattened):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).square().mean()


class Doubled(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * super().forward(inputs)


@pytest.mark.parametrize(
    ("build", "fixes", "printed"),
    [
        (Flattened, {"output": "head"}, "fix: adagp.attach(..., output='head')"),
        (OwnLoss, {"output": "head"}, "fix: adagp.attach(..., output='head')"),
        (
            lambda: nn.Sequential(nn.Linear(4, 4), Doubled(4, 4), nn.Linear(4, 3)),
            {"exclude": ["1"]},
            "fix: adagp.attach(..., exclude=['1'])",
        ),
    ],
)
def test_a_fix_is_offered_and_works(build: Any, fixes: dict[str, Any], printed: str) -> None:
    model, inputs = build(), torch.randn(5, 6, 4)
    found = adagp.validate(model, optimizer_of(model), sample=inputs)
    assert found.problems
    assert found.fixes == fixes
    assert str(found).splitlines()[-1] == printed
    assert adagp.validate(model, optimizer_of(model), sample=inputs, **found.fixes).problems == ()
    trainer = adagp.attach(model, optimizer_of(model), steps=6, warmup="2 batches", **found.fixes)
    for _ in range(4):
        trainer.step(inputs, None, lambda output, _: output.square().mean())
