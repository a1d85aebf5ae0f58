"""Batches of a small network in hardware: weights to the bit against the golden model, and against adagp's engine."""

import numpy as np
import pytest
import torch
from torch import nn

import adagp
from adagp.errors import OptionError
from adagp.hw.array import Array
from adagp.hw.predictor import PredictorShape
from adagp.rtl.chip import Blueprint
from adagp.rtl.designs import make_blueprint
from adagp.rtl.formats import FORMATS
from adagp.rtl.golden import golden_batch
from adagp.rtl.network import SmallNetwork, State, parse_network, random_state
from adagp.rtl.program import Compiler
from adagp.rtl.simulation import simulate_chip
from adagp.rtl.training import run_batch
from adagp.sources.predicted import PredictedSource
from adagp.sources.support.options import LearningOptions

pytestmark = pytest.mark.slow

NETWORK = SmallNetwork((7, 6, 5), batch=4)
WORDS = {"value_words": 256, "sum_words": 256, "predictor_words": 64, "program_words": 128}


def blueprint(design: str, name: str = "int16") -> Blueprint:
    return make_blueprint(design, Array(4, 3), FORMATS[name], predictor_array=Array(3, 2), **WORDS)


@pytest.mark.parametrize(
    ("design", "name"),
    [("baseline", "int16"), ("low", "int16"), ("efficient", "int16"), ("max", "int16"), ("max", "bf16")],
)
def test_batches_leave_the_golden_models_weights(design: str, name: str) -> None:
    number = FORMATS[name]
    state = random_state(NETWORK, number, 5)
    with simulate_chip(blueprint(design, name)) as chip:
        for phase in ("bp", "bp") if design == "baseline" else ("bp", "gp", "bp"):
            result = run_batch(chip, NETWORK, state, phase)
            assert not any(result.differences.values()), result.differences
            assert (result.counts.cycles, result.counts.predictor_cycles) == (
                result.model_cycles,
                result.model_predictor_cycles,
            )
            assert any(np.any(one != two) for one, two in zip(result.state.weights, state.weights, strict=True))
            if phase == "bp" and design != "baseline":
                assert np.any(result.state.readout != state.readout)
                assert np.any(result.state.kernel != state.kernel)
            state = result.state


def exact_state(network: SmallNetwork) -> State:
    """Return numbers so round that nothing in a batch has to be rounded in 16 bits."""
    rng = np.random.default_rng(2)
    number = FORMATS["int16"]

    def draw(*shape: int, unit: float) -> "np.typing.NDArray[np.int64]":
        return number.encode(rng.integers(-2, 3, shape) * unit)

    shape = network.predictor
    return State(
        tuple(draw(*layer, unit=0.5) for layer in network.layers),
        draw(9, shape.channels, unit=0.5),
        draw(shape.features, network.widest, unit=0.5),
        draw(network.batch, network.widths[0], unit=1.0),
        draw(network.batch, network.widths[-1], unit=1.0),
    )


def engine_after_gp(network: SmallNetwork, state: State) -> list[torch.Tensor]:
    """Return the weights that adagp's own engine leaves after a GP batch from the same state."""
    number = FORMATS["int16"]
    layers: list[nn.Module] = []
    for inputs, outputs in network.layers:
        layers += [nn.Linear(inputs, outputs, bias=False), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    sites = [one for one in model if isinstance(one, nn.Linear)]
    source = PredictedSource(LearningOptions(grid=network.predictor.grid), network.predictor.channels)
    optimizer = torch.optim.SGD(model.parameters(), lr=network.rate)
    schedule = adagp.parse_schedule("1:0", 1, 0)
    trainer = adagp.attach(
        model, optimizer, epochs=1, batches_per_epoch=1, schedule=schedule, sources={"predicted": source}
    )
    with torch.no_grad():
        for site, weight in zip(sites, state.weights, strict=True):
            site.weight.copy_(torch.tensor(number.decode(weight).T))
        predictor = source.network
        assert isinstance(predictor, adagp.predictor.network.PredictorNetwork)
        assert predictor.convolution.bias is not None
        kernel = number.decode(state.kernel).T.reshape(-1, 1, 3, 3)
        predictor.convolution.weight.copy_(torch.tensor(kernel))
        predictor.convolution.bias.zero_()
        predictor.readout.weight.copy_(torch.tensor(number.decode(state.readout).T))
    samples = torch.tensor(number.decode(state.inputs), dtype=torch.float32)
    targets = torch.tensor(number.decode(state.targets), dtype=torch.float32)
    trainer.step(samples, targets, lambda output, wanted: ((output - wanted) ** 2).sum() / 2)
    return [site.weight.detach() for site in sites]


@pytest.mark.parametrize("design", ["low", "efficient", "max"])
def test_phase_gp_leaves_what_the_engine_leaves(design: str) -> None:
    network = SmallNetwork((5, 6, 4), 4, PredictorShape(grid=2, channels=2), rate=0.25)
    number, state = FORMATS["int16"], exact_state(network)
    with simulate_chip(blueprint(design)) as chip:
        left = run_batch(chip, network, state, "gp").state
    engine = engine_after_gp(network, state)
    assert any(
        torch.count_nonzero(one - torch.tensor(number.decode(two).T))
        for one, two in zip(engine, state.weights, strict=True)
    )
    for ours, theirs in zip(left.weights, engine, strict=True):
        assert np.array_equal(number.decode(ours).T, theirs.double().numpy())


def test_golden_backprop_is_autograds() -> None:
    """In fp32 the golden model's Phase BP takes autograd's step, but for rounding."""
    number = FORMATS["fp32"]
    state = random_state(NETWORK, number, 1)
    weights = [torch.tensor(number.decode(one), requires_grad=True) for one in state.weights]
    hidden = torch.relu(torch.tensor(number.decode(state.inputs)) @ weights[0])
    loss = ((hidden @ weights[1] - torch.tensor(number.decode(state.targets))) ** 2).sum() / 2
    loss.backward()
    after = golden_batch(NETWORK, number, state, "bp").weights
    for ours, weight in zip(after, weights, strict=True):
        assert weight.grad is not None
        wanted = (weight - NETWORK.rate * weight.grad).detach().numpy()
        assert np.allclose(number.decode(ours), wanted, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_run_is_refused() -> None:
    state = random_state(NETWORK, FORMATS["int16"])
    with pytest.raises(OptionError, match=r"^the baseline has no predictor, so it has no Phase GP; choose low, "):
        Compiler(blueprint("baseline"), NETWORK, "gp").compile(state)
    with pytest.raises(OptionError, match=r"^unknown phase 'warmup'. Choose from: bp, gp.$"):
        Compiler(blueprint("max"), NETWORK, "warmup")
    with pytest.raises(
        OptionError, match=r"^the network needs more than \d+ words in each bank of column values; there are 256."
    ):
        Compiler(blueprint("low"), SmallNetwork((60, 60, 60)), "bp")
    with pytest.raises(OptionError, match=r"^cannot read the network '8'; write the widths of its layers, as 8-6-4.$"):
        parse_network("8", 4, PredictorShape(), 0.1, 0.1)
