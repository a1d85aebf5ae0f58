"""The golden model: what a batch leaves, by matrices of words, without any notion of lanes, addresses or cycles."""

from dataclasses import replace

import numpy as np

from adagp.errors import unknown_name
from adagp.rtl.formats import NumberFormat, Words
from adagp.rtl.network import TAPS, SmallNetwork, State

PHASES = ("bp", "gp")


def matmul(number: NumberFormat, left: Words, right: Words) -> Words:
    """Return the sums of a product, added one after the other from zero in the order of the shared index."""
    total = np.zeros((len(left), right.shape[1]), np.int64)
    for place in range(left.shape[1]):
        total = number.multiply_add(left[:, place, None], right[None, place], total)
    return total


def golden_batch(network: SmallNetwork, number: NumberFormat, state: State, phase: str) -> State:
    """Return the state after one batch: Phase BP trains layers and predictor, Phase GP the layers by predictions."""
    if phase not in PHASES:
        raise unknown_name("phase", phase, PHASES)
    inputs, outputs = [state.inputs], []
    for weight in state.weights:
        sums = matmul(number, shifted(network, number, inputs[-1]), by_tap(network, weight))
        outputs.append(number.convert(sums))
        inputs.append(number.convert(number.relu(sums)))
    weights = list(state.weights)
    rate = number.encode(-network.rate)
    if phase == "gp":
        for layer, output in enumerate(outputs):
            _, features = _features(network, number, state, output)
            gradient = number.convert(matmul(number, features, state.readout[:, : len(weights[layer])])).T
            weights[layer] = _update(number, weights[layer], gradient, rate)
        return replace(state, weights=tuple(weights))
    minus = number.encode(-1.0)
    error = number.convert(number.multiply_add(minus, state.targets, sums))
    for layer in reversed(range(len(weights))):
        gradient = by_input(network, number.convert(matmul(number, shifted(network, number, inputs[layer]).T, error)))
        below = matmul(number, shifted(network, number, error, -1), _turned(network, weights[layer]))
        weights[layer] = _update(number, weights[layer], gradient, rate)
        state = _learn(network, number, state, outputs[layer], gradient)
        error = np.where(number.positive(inputs[layer]), number.convert(below), number.encode(0.0))
    return replace(state, weights=tuple(weights))


def shifted(network: SmallNetwork, number: NumberFormat, matrix: Words, sign: int = 1) -> Words:
    """Return what each tap of the kernel sees of a matrix (pixels x channels) in its place: pixels x taps and channels.

    With `sign` -1 each tap looks the other way. Around the picture there are zeros.
    """
    (height, width), reach = network.picture, network.kernel // 2
    pictures = matrix.reshape(network.batch, height, width, -1)
    framed = np.pad(pictures, ((0, 0), (reach, reach), (reach, reach), (0, 0)), constant_values=int(number.encode(0.0)))
    views = [
        framed[:, reach + sign * down :, reach + sign * across :][:, :height, :width] for down, across in network.shifts
    ]
    return np.stack(views, axis=3).reshape(len(matrix), -1)


def by_tap(network: SmallNetwork, weight: Words) -> Words:
    """Return a layer's weights, taps of an input next to each other, with inputs of a tap next to each other instead."""
    return weight.reshape(-1, len(network.shifts), weight.shape[1]).transpose(1, 0, 2).reshape(weight.shape)


def by_input(network: SmallNetwork, weight: Words) -> Words:
    """Undo `by_tap`."""
    return weight.reshape(len(network.shifts), -1, weight.shape[1]).transpose(1, 0, 2).reshape(weight.shape)


def _turned(network: SmallNetwork, weight: Words) -> Words:
    """Return the weights that lead back from outputs to inputs: taps and outputs x inputs."""
    taps = len(network.shifts)
    return weight.reshape(-1, taps, weight.shape[1]).transpose(1, 2, 0).reshape(taps * weight.shape[1], -1)


def pooled_means(network: SmallNetwork, number: NumberFormat, output: Words) -> Words:
    """Return the mean of a layer's outputs (rows x channels) over batch and windows: channels x pooled x pooled.

    Outputs are added one after the other, as they leave the array: sample by sample, pixel by pixel.
    """
    side, (height, width) = network.pooled, network.window
    windows = output.reshape(network.batch, side, height, side, width, -1).transpose(0, 2, 4, 5, 1, 3)
    one, total = number.encode(1.0), np.zeros(windows.shape[3:], np.int64)
    for outputs in windows.reshape(-1, *windows.shape[3:]):
        total = number.multiply_add(one, outputs, total)
    count = network.batch * height * width
    return number.convert(number.scale(total, *number.share(count)) if count > 1 else total)


def _update(number: NumberFormat, weight: Words, gradient: Words, rate: Words) -> Words:
    return number.convert(number.multiply_add(rate, gradient, number.promote(weight)))


def _features(network: SmallNetwork, number: NumberFormat, state: State, output: Words) -> tuple[Words, Words]:
    """Return the predictor's patches (rows and cells x taps) and features (rows x channels and cells) of a layer's output."""
    grid, channels = network.predictor.grid, network.predictor.channels
    mean = pooled_means(network, number, output)
    picture = np.full((len(mean), grid + 2, grid + 2), number.encode(0.0))
    picture[:, 1:-1, 1:-1] = mean
    patches = np.stack(
        [
            picture[:, row : row + 3, column : column + 3].reshape(len(mean), TAPS)
            for row in range(grid)
            for column in range(grid)
        ],
        axis=1,
    ).reshape(-1, TAPS)
    shown = number.convert(number.relu(matmul(number, patches, state.kernel)))
    features = shown.reshape(len(mean), network.cells, channels).transpose(0, 2, 1).reshape(len(mean), -1)
    return patches, features


def _learn(network: SmallNetwork, number: NumberFormat, state: State, output: Words, gradient: Words) -> State:
    """Return the state with the predictor's weights one step nearer to predicting `gradient` (inputs x outputs)."""
    width, channels = len(gradient), network.predictor.channels
    patches, features = _features(network, number, state, output)
    rate = number.encode(-network.predictor_rate)
    readout = state.readout[:, :width]
    error = number.convert(number.multiply_add(number.encode(-1.0), gradient.T, matmul(number, features, readout)))
    at_features = number.convert(matmul(number, error, readout.T))
    at_hidden = np.where(number.positive(features), at_features, number.encode(0.0))
    at_readout = number.convert(matmul(number, features.T, error))
    rows = len(features)
    at_maps = at_hidden.reshape(rows, channels, network.cells).transpose(0, 2, 1).reshape(-1, channels)
    at_kernel = number.convert(matmul(number, patches.T, at_maps))
    new = state.readout.copy()
    new[:, :width] = _update(number, readout, at_readout, rate)
    return replace(state, readout=new, kernel=_update(number, state.kernel, at_kernel, rate))
