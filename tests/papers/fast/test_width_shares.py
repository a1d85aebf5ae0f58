"""Runs in block floating point, replayed in their own widths."""

import pytest

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.hw import Accelerator, Workload, simulate
from adagp.hw.runs import Run, RunRecording, replayed_run
from adagp.hw.workload import Convolution, Linear
from adagp.papers.fast.hardware import BlockWidths, WidthShares, mean_shares, recorded_widths

LAYERS = (
    Convolution("first", 3, 16, (3, 3), (8, 8), (8, 8), input_gradient=False),
    Convolution("second", 16, 32, (3, 3), (8, 8), (8, 8)),
    Linear("last", 1, 64, 10),
)
WORKLOAD = Workload("small", LAYERS)
FOUR, TWO, MIXED = BlockWidths(), BlockWidths(2, 2, 2), BlockWidths(4, 2, 4)


SINGLE = RunRecording({"precision": "fp32"}, ((10, {"first": {"cosine": 0.1}}),))


def run_with(recorded: object, gp: int = 0) -> Run:
    return replayed_run([{"bp": 10, "gp": gp}], 32, "predicted" if gp else "", recorded)


def everywhere(widths: BlockWidths) -> WidthShares:
    return WidthShares({layer.name: {widths: 1.0} for layer in LAYERS}, {})


def test_shares_are_read_from_a_runs_figures() -> None:
    epochs = [
        (30, {"first": {"share_w2a2g2": 1.0, "cosine": 0.3, "mantissa_weights": 2.0}}),
        (10, {"first": {"share_w2a2g2": 0.5, "share_w4a2g4": 0.25, "share_w4a4": 0.25}}),
    ]
    found = recorded_widths(epochs, 16, 4)
    assert found is not None
    assert found.backward == {"first": {TWO: pytest.approx(35 / 37.5), MIXED: pytest.approx(2.5 / 37.5)}}
    assert found.forward == {"first": {FOUR: 1.0}}
    assert found.of("first", Phase.GP) == {FOUR: 1.0}
    assert found.of("unknown", Phase.BP) == found.backward["first"]
    assert recorded_widths([(3, {"first": {"cosine": 0.1}})], 16, 4) is None


def test_a_recording_is_computed_in_its_own_widths() -> None:
    figures = {layer.name: {"share_w2a2g2": 1.0} for layer in LAYERS}
    recording = RunRecording({"precision": "bfp2"}, ((10, figures),))
    recorded, shares = (
        simulate(WORKLOAD, Accelerator(), run_with(run), ("fast",)).outcomes["fast"].cost
        for run in (recording, everywhere(TWO))
    )
    assert recorded == shares


def test_a_run_costs_as_much_as_its_mean_batch() -> None:
    accelerator = Accelerator()
    cycles = {
        name: simulate(WORKLOAD, accelerator, run_with(shares), ("fast",)).outcomes["fast"].cost
        for name, shares in {
            "two": everywhere(TWO),
            "four": everywhere(FOUR),
            "half": WidthShares({layer.name: {TWO: 0.5, FOUR: 0.5} for layer in LAYERS}, {}),
        }.items()
    }
    for half, two, four in zip(cycles["half"], cycles["two"], cycles["four"], strict=True):
        assert half == pytest.approx((two + four) / 2, rel=1e-3, abs=100)
    assert cycles["two"].macs * 4 == cycles["four"].macs


@pytest.mark.parametrize("widths", [TWO, MIXED, FOUR])
def test_computing_gains_between_one_and_four_over_four_bits(widths: BlockWidths) -> None:
    accelerator = Accelerator(bandwidth=float("inf"))
    ours, fixed = (
        simulate(WORKLOAD, accelerator, run_with(everywhere(one)), ("fast",)).outcomes["fast"].cost.cycles
        for one in (widths, FOUR)
    )
    assert 1 <= fixed / ours <= 12 / widths.training_passes + 1e-9
    assert 1 <= 12 / widths.training_passes <= 4


def test_words_of_dense_designs() -> None:
    found = simulate(WORKLOAD, Accelerator(word_bits=8), run_with(SINGLE), ("dense-16", "dense-32"))
    sixteen, thirty_two = (found.outcomes[name] for name in ("dense-16", "dense-32"))
    assert thirty_two.cost.dram_bits == pytest.approx(2 * sixteen.cost.dram_bits, rel=0.2)
    assert thirty_two.energy.arithmetic / sixteen.energy.arithmetic == pytest.approx(4.6 / 1.5)
    assert sixteen.cost.dram_bits > found.baseline.cost.dram_bits


def test_predicted_batches_in_block_floating_point() -> None:
    shares = WidthShares(everywhere(FOUR).backward, {layer.name: {TWO: 1.0} for layer in LAYERS})
    found = simulate(WORKLOAD, Accelerator(), run_with(shares, gp=10), ("fast", "dense-16")).outcomes["fast"]
    assert found.by_phase[Phase.GP].cycles < found.by_phase[Phase.BP].cycles


def test_single_precision_is_rejected() -> None:
    message = (
        "the run was trained in single precision, at least in part, which the design 'fast' does not support; replay a run "
        "that was trained with --precision bfp4, fast or the like."
    )
    for shares in (SINGLE, everywhere(BlockWidths(32, 32, 32))):
        with pytest.raises(OptionError) as rejected:
            simulate(WORKLOAD, Accelerator(), run_with(shares), ("fast",))
        assert str(rejected.value) == message


def test_the_mean_of_shares() -> None:
    assert mean_shares([{TWO: 1.0}, {TWO: 0.5, FOUR: 0.5}]) == {TWO: 0.75, FOUR: 0.25}
