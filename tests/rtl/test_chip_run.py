"""Runs of several batches, with weights that stay on the chip, against the golden model; digits as pictures of blocks."""

from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch
from tests.rtl.test_training import blueprint

from adagp.rtl.chip_run import CLASSES, ChipRun, accuracy, class_targets, digit_pictures
from adagp.rtl.formats import FORMATS
from adagp.rtl.network import SmallNetwork, golden_batch, random_state
from adagp.rtl.simulation import simulate_chip

NETWORK = SmallNetwork((4, 3, CLASSES), batch=2, rate=2**-6, picture=(4, 4), kernel=3)


@pytest.mark.medium
def test_weights_stay_on_the_chip_from_batch_to_batch() -> None:
    number, network = (
        FORMATS["int16"],
        replace(NETWORK, widths=(4, 3, 2)),
    )  # two classes: a small chip has room for them
    state = golden = random_state(network, number, 1)
    pictures, classes = digit_pictures("train")
    with simulate_chip(blueprint("low")) as chip:
        run = ChipRun(chip, network, state)
        for place, phase in enumerate(("bp", "bp", "gp", "bp")):
            chosen = slice(2 * place, 2 * place + 2)
            drawn = (pictures[chosen], class_targets(classes[chosen])[..., :2])
            inputs, targets = (number.encode(one.reshape(network.rows, -1)) for one in drawn)
            counts = run.batch(phase, inputs, targets)
            golden = golden_batch(network, number, replace(golden, inputs=inputs, targets=targets), phase)
            assert (counts.cycles, counts.predictor_cycles) == run.model_cycles(phase)
        trained = run.state()
    for ours, wanted, before in zip(trained.weights, golden.weights, state.weights, strict=True):
        assert np.array_equal(ours, wanted)
        assert not np.array_equal(ours, before)
    assert np.array_equal(trained.kernel, golden.kernel)
    assert np.array_equal(trained.readout, golden.readout)


def test_a_pixel_is_a_block_of_the_digit() -> None:
    pictures, classes = digit_pictures("test")
    with np.load(str(files("adagp.data") / "digits.npz")) as archive:
        pixels, mean = archive["x_test"][..., 0], archive["x_train"].mean()
    assert pictures.shape == (len(pixels), 16, 4)
    for line, column, down, across in ((0, 0, 0, 0), (1, 3, 1, 0), (3, 2, 0, 1)):
        seen = pixels[:, 2 * line + down, 2 * column + across]
        assert np.allclose(16 * pictures[:, 4 * line + column, 2 * down + across] + mean, seen)
    targets = class_targets(classes[:3])
    assert targets.shape == (3, 16, CLASSES)
    assert np.array_equal(targets.argmax(axis=2), np.repeat(classes[:3, None], 16, axis=1))


def test_accuracy_is_that_of_torchs_convolutions() -> None:
    number = FORMATS["fp32"]
    state = random_state(NETWORK, number, 2)
    pictures, classes = digit_pictures("test")
    values = torch.tensor(pictures, dtype=torch.float32).reshape(-1, 4, 4, 4).permute(0, 3, 1, 2)
    for place, weight in enumerate(state.weights):
        inputs, outputs = NETWORK.layers[place]
        kernel = torch.tensor(number.decode(weight).T.reshape(outputs, inputs, 3, 3), dtype=torch.float32)
        values = torch.nn.functional.conv2d(values.relu() if place else values, kernel, padding=1)
    found = (values.sum(dim=(2, 3)).argmax(dim=1).numpy() == classes).mean()
    assert accuracy(NETWORK, number, state) == pytest.approx(found, abs=1e-12)
