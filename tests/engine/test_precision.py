"""A user's model trained in block floating point: which products are converted, and that nothing else changes."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import adagp
from adagp.engine.arguments import read_precision
from adagp.engine.trainer import Trainer
from adagp.errors import ModelError, OptionError

INPUTS = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding="same"), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.Flatten(), nn.Linear(36, 3)
    )


def attached(net: nn.Module, **options: Any) -> Trainer:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    usual: dict[str, Any] = {"length": adagp.Epochs(2, 6), "schedule": "bp"}
    return adagp.attach(net, optimizer, **(usual | options))


def trained(net: nn.Module, batches: int = 4, **options: Any) -> Trainer:
    trainer = attached(net, **options)
    for _ in range(batches):
        trainer.step(INPUTS, TARGETS, F.cross_entropy)
    return trainer


def weights(net: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])


def test_fp32_is_plain_training_bit_by_bit() -> None:
    plain, same = model(), model()
    trained(plain)
    assert trained(same, engine=adagp.EngineOptions(precision="fp32")).arithmetic is None
    assert torch.equal(weights(plain), weights(same))


def test_many_bits_are_plain_training_but_for_rounding_and_few_are_not() -> None:
    plain, fine, coarse = model(), model(), model()
    trained(plain)
    trained(fine, engine=adagp.EngineOptions(precision="bfp24:e=8"))
    trained(coarse, engine=adagp.EngineOptions(precision="bfp2"))
    assert (weights(fine) - weights(plain)).norm() < 1e-4 * weights(plain).norm()
    assert (weights(coarse) - weights(plain)).norm() > 1e-3 * weights(plain).norm()
    assert weights(coarse).isfinite().all()


def test_the_model_and_its_state_are_untouched() -> None:
    net = model()
    names = list(net.state_dict())
    trainer = trained(net, engine=adagp.EngineOptions(precision="bfp4"))
    assert list(net.state_dict()) == names
    inside = net(INPUTS)
    trainer.detach()
    assert torch.equal(inside, net(INPUTS)), "outside of batches the model is the user's own"


def test_noise_is_a_function_of_seed_and_batch() -> None:
    first, second, other = model(), model(), model()
    trained(first, engine=adagp.EngineOptions(precision="bfp2"), seed=3)
    trained(second, engine=adagp.EngineOptions(precision="bfp2"), seed=3)
    trained(other, engine=adagp.EngineOptions(precision="bfp2"), seed=4)
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(other))


def test_the_shares_of_each_precision_are_counted() -> None:
    trainer = trained(model(), engine=adagp.EngineOptions(precision="temporal:2-4@0.25"), batches=6)
    assert trainer.arithmetic is not None
    figures = trainer.arithmetic.read_metrics()["0"]
    assert figures == {
        "mantissa_weights": 3.0,
        "mantissa_activations": 3.0,
        "mantissa_gradients": 3.0,
        "share_w2a2g2": 0.5,
        "share_w4a4g4": 0.5,
    }
    assert trainer.arithmetic.read_metrics() == {}


def test_fast_gives_early_layers_fewer_bits_than_late_ones() -> None:
    trainer = trained(model(), engine=adagp.EngineOptions(precision="fast:alpha=0.55,beta=0.3"), batches=8)
    assert trainer.arithmetic is not None
    found = trainer.arithmetic.read_metrics()
    assert found["0"]["mantissa_weights"] < found["4"]["mantissa_weights"]
    for figures in found.values():
        assert sum(share for name, share in figures.items() if name.startswith("share_")) == pytest.approx(1)


def test_layers_by_their_order_of_execution() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.last = nn.Linear(8, 3)
            self.first = nn.Linear(64, 8)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.last(self.first(inputs.flatten(1)))  # type: ignore[no-any-return]

    for options, site in (({}, "last"), ({"sample": INPUTS}, "first")):
        trainer = trained(Backwards(), batches=1, engine=adagp.EngineOptions(precision="layers:2-fp32@1"), **options)
        assert trainer.arithmetic is not None
        found = trainer.arithmetic.read_metrics()
        assert found[site]["mantissa_weights"] == 2
        assert [figures["mantissa_weights"] for figures in found.values()].count(32) == 1


@pytest.mark.parametrize("method", ["adagp", "feedback", "topk", "skip", "dni"])
def test_with_predicted_gradients(method: str) -> None:
    net = model()
    trainer = attached(
        net,
        method=method,
        schedule="1:1",
        warmup="2 batches",
        engine=adagp.EngineOptions(precision="bfp4"),
        sample=INPUTS,
    )
    phases = [trainer.step(INPUTS, TARGETS, F.cross_entropy).phase for _ in range(8)]
    assert {"bp", "gp"} <= set(phases)
    assert weights(net).isfinite().all()
    assert trainer.arithmetic is not None
    figures = trainer.arithmetic.read_metrics()["2"]
    if method in ("adagp", "feedback"):
        assert figures["share_w4a4"] > 0, "a GP batch has no product with a gradient"
        assert figures["share_w4a4"] + figures["share_w4a4g4"] == pytest.approx(1)


def test_with_predicted_gradients_on_a_sparse_net() -> None:
    net = model()
    sparse = adagp.DropBack(keep=0.3, decay=0.0)
    trainer = attached(
        net,
        method="feedback",
        schedule="1:1",
        warmup="2 batches",
        engine=adagp.EngineOptions(precision="bfp4", weight_hooks=sparse),
    )
    for _ in range(6):
        trainer.step(INPUTS, TARGETS, F.cross_entropy)
    figures = trainer.read_sites()["2"]
    assert figures["mantissa_weights"] == 4
    sites = [parameter for parameter in net.parameters() if parameter.dim() > 1]
    kept = sum(int(parameter.count_nonzero()) for parameter in sites) / sum(parameter.numel() for parameter in sites)
    assert kept <= 0.3


class Blocks(nn.Module):
    """Two layers under activation checkpointing."""

    def __init__(self, *, saves: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
        self.saves = saves

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.flatten(1)
        if self.saves:
            return checkpoint(self.inner, inputs, use_reentrant=False)  # type: ignore[no-any-return]
        return self.inner(inputs)  # type: ignore[no-any-return]


def test_activation_checkpointing_runs_again_in_the_same_arithmetic() -> None:
    nets = [Blocks(saves=saves) for saves in (False, True)]
    shares = []
    for net in nets:
        trainer = trained(net, engine=adagp.EngineOptions(precision="bfp4"))
        assert trainer.arithmetic is not None
        shares.append(trainer.arithmetic.read_metrics())
    assert torch.equal(weights(nets[0]), weights(nets[1]))
    assert shares[0] == shares[1]


def test_micro_batches_have_noise_of_their_own() -> None:
    net = model()
    trainer = attached(net, engine=adagp.EngineOptions(precision="bfp2"))
    gradients = []
    with trainer.batch() as batch:
        for more in (True, False):
            batch.backward(F.cross_entropy(net(INPUTS), TARGETS), more=more)
            gradients.append(net[0].weight.grad.clone())  # type: ignore[union-attr, operator]
        batch.step()
    assert not torch.allclose(gradients[1], 2 * gradients[0], rtol=1e-3)


def test_paused_and_evaluating_calls_are_not_counted() -> None:
    net = model()
    trainer = attached(net, engine=adagp.EngineOptions(precision="bfp2"))
    plain = net(INPUTS).detach()
    with trainer.batch() as batch:
        with trainer.paused():
            assert torch.equal(net(INPUTS), plain)
        with torch.no_grad():
            assert torch.equal(net(INPUTS), plain), "what the user does without autograd is not part of training"
        output = net(INPUTS)
        assert not torch.equal(output, plain)
        batch.backward(F.cross_entropy(output, TARGETS))
        batch.step()
    with trainer.evaluation(), torch.no_grad():
        converted = net(INPUTS)
    assert not torch.equal(converted, net(INPUTS))
    assert trainer.arithmetic is not None
    assert trainer.arithmetic.state_dict()["0"] == {"w2a2g2": 1}


def test_what_is_not_finite_reaches_the_loss_and_the_guard() -> None:
    net = model()
    trainer = attached(
        net, method="adagp", schedule="1:1", warmup="2 batches", engine=adagp.EngineOptions(precision="bfp4")
    )
    bad = INPUTS.clone()
    bad[0, 0, 0, 0] = torch.inf
    before = copy.deepcopy(trainer.norms.state_dict())
    with trainer.batch() as batch:
        loss = F.cross_entropy(net(bad), TARGETS)
        assert not loss.isfinite()
        batch.backward(loss)
        batch.abandon()
    after = trainer.norms.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before), "nothing is learned from it"


def test_under_autocast_sums_are_in_single_precision() -> None:
    net = model()
    trainer = attached(net, engine=adagp.EngineOptions(precision="bfp4"))
    with trainer.batch() as batch:
        with torch.autocast("cpu", torch.bfloat16):
            output = net[0](INPUTS)
            assert output.dtype is torch.float32
            loss = F.cross_entropy(net(INPUTS), TARGETS)
        batch.backward(loss)
        batch.step()
    assert weights(net).isfinite().all()


class Odd(nn.Linear):
    """A linear layer that multiplies in a way of its own."""

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs[:, None] * self.weight).sum(-1)


def test_a_layer_whose_product_is_not_seen_is_rejected() -> None:
    net = nn.Sequential(nn.Flatten(), Odd(64, 3, bias=False))
    with pytest.raises(ModelError) as rejected:
        trained(net, engine=adagp.EngineOptions(precision="bfp4"))
    assert str(rejected.value) == (
        "layer '1' (Odd) does not multiply by its weight in a way that precision 'bfp4' supports (torch's convolutions, linear "
        "and addmm); exclude the layer, or train in fp32."
    )


@pytest.mark.parametrize(
    ("compiled", "several", "message"),
    [
        (True, False, "precision 'bfp4' replaces products while the model runs; it cannot be compiled."),
        (
            False,
            True,
            "precision 'bfp4' is for runs in one process: exponents and widths depend on the whole batch, but each process "
            "has only a share of it.",
        ),
    ],
)
def test_what_precision_does_not_go_with(compiled: bool, several: bool, message: str) -> None:
    with pytest.raises(OptionError) as rejected:
        read_precision("bfp4", compiled=compiled, several=several)
    assert str(rejected.value) == message


def test_a_cut_beyond_the_model_is_rejected() -> None:
    with pytest.raises(
        OptionError, match=r"^the precision 'layers:2-4@3' cuts the model after layer 3; it has 3 layers"
    ):
        attached(model(), engine=adagp.EngineOptions(precision="layers:2-4@3"))
