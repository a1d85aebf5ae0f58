import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.hw.brute_force import Matrix, row_stationary_convolution

from adagp.hw import Array, Bits, Operation, Product, Window, array_cost
from adagp.hw.row_stationary import ordinary_convolution


def convolve(inputs: Matrix, weights: Matrix, stride: int, groups: int) -> Matrix:
    """Convolve in the plainest way."""
    images, _, height, width = inputs.shape
    filters, depth, tall, wide = weights.shape
    size = (images, filters, (height - tall) // stride + 1, (width - wide) // stride + 1)
    result = np.zeros(size, dtype=np.int64)
    for image, filter_, row, column in np.ndindex(*size):
        first = filter_ // (filters // groups) * depth
        patch = inputs[
            image, first : first + depth, row * stride : row * stride + tall, column * stride : column * stride + wide
        ]
        result[image, filter_, row, column] = (patch * weights[filter_]).sum()
    return result


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(1, 2),
    st.builds(Array, st.integers(1, 6), st.integers(1, 6)),
)
def test_cycles_and_result_are_those_of_the_simulated_array(
    images: int,
    channels: int,
    filters: int,
    groups: int,
    tall: int,
    wide: int,
    more_rows: int,
    more_columns: int,
    stride: int,
    array: Array,
) -> None:
    assume(more_rows % stride == 0 and more_columns % stride == 0)
    draw = np.random.default_rng(images + 7 * channels + 31 * tall)
    inputs = draw.integers(-9, 9, (images, channels * groups, tall + more_rows, wide + more_columns))
    weights = draw.integers(-9, 9, (filters * groups, channels, tall, wide))
    result, cycles = row_stationary_convolution(inputs, weights, array, stride, groups)
    assert (result == convolve(inputs, weights, stride, groups)).all()
    output = (more_rows // stride + 1, more_columns // stride + 1)
    product = Product(
        images * output[0] * output[1],
        channels * tall * wide,
        filters,
        count=groups,
        window=Window(images, (tall, wide), output, (stride, stride)),
    )
    assert array_cost("rs", product, array).cycles == cycles


def test_a_plain_product_is_a_convolution_of_one_by_one() -> None:
    draw = np.random.default_rng(0)
    left, right = draw.integers(-9, 9, (10, 6)), draw.integers(-9, 9, (6, 5))
    array = Array(3, 4)
    inputs = left.T.reshape(1, 6, 10, 1)
    result, cycles = row_stationary_convolution(inputs, right.T.reshape(5, 6, 1, 1), array)
    assert (left @ right == result[0, :, :, 0].T).all()
    assert array_cost("rs", Product(10, 6, 5), array).cycles == cycles


def test_eyeriss_packs_and_folds() -> None:
    # 3x3 filters on 13 output rows: four sets above each other on 12 rows, one beside on 15 columns.
    product = Product(13 * 13, 9, 1, window=Window(1, (3, 3), (13, 13)))
    assert array_cost("rs", product, Array(12, 15)).cycles == 13 * 3 + 2
    # 27 output rows do not fit 15 columns: two strips of 14.
    product = Product(27 * 27, 9, 4, window=Window(1, (3, 3), (27, 27)))
    assert array_cost("rs", product, Array(12, 15)).cycles == 2 * (27 * 3 + 2)


def test_the_three_operations_take_the_same_cycles() -> None:
    product = Product(100, 18, 5, window=Window(1, (3, 3), (10, 10)))
    costs = [array_cost("rs", product.gradient(operation), Array(12, 15)) for operation in Operation]
    assert len({cost.cycles for cost in costs}) == 1


def walked_accesses(channels: int, filters: int, kernel: int, size: int, array: Array) -> tuple[int, int]:
    """Walk the groups of channels and of filters that are on the array together, for each way to share it; keep the least.

    Count the words of one image that enter the array, and the partial sums that leave it and come back; no strips, no folds.
    """
    found = []
    in_pe = min(channels, max(1, 12 // kernel))
    kept = min(filters, 16, 224 // (in_pe * kernel))
    at_once = (array.rows // kernel) * (array.columns // size)
    for together in (number for number in range(1, at_once + 1) if at_once % number == 0):
        reads = writes = 0
        for first_filter in range(0, filters, kept * (at_once // together)):
            some = min(filters - first_filter, kept * (at_once // together))
            for first_channel in range(0, channels, in_pe * together):
                few = min(channels - first_channel, in_pe * together)
                reads += few * (size + kernel - 1) ** 2 + some * few * kernel**2
                reads += some * size**2 if first_channel else 0
                writes += some * size**2
        found.append((reads, writes))
    return min(found, key=sum)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 4),
    st.builds(Array, st.integers(3, 9), st.integers(4, 9)),
)
def test_buffer_accesses_are_those_of_a_walk_over_channels_and_filters(
    channels: int, filters: int, kernel: int, size: int, array: Array
) -> None:
    window = Window(1, (kernel, kernel), (size, size))
    product = Product(size**2, channels * kernel**2, filters, window=window, bits=Bits(1, 1, 1, 1))
    cost = array_cost("rs", product, array)
    assert (cost.buffer_reads, cost.buffer_writes) == walked_accesses(channels, filters, kernel, size, array)


def test_input_rows_of_dilated_windows_are_those_that_are_needed() -> None:
    near, far = (
        array_cost("rs", Product(16, 9, 1, window=Window(1, (3, 3), (4, 4), dilation=(step, step))), Array(12, 15))
        for step in (1, 2)
    )
    assert far.buffer_reads - near.buffer_reads == 16 * (8 * 8 - 6 * 6)
    assert far.cycles == near.cycles


def test_ordinary_gradients_are_convolutions_of_their_own() -> None:
    layer = Product(2 * 100, 4 * 9, 5, window=Window(2, (3, 3), (10, 10), input_size=(10, 10)))
    back = ordinary_convolution(layer.gradient(Operation.INPUT_GRADIENT, ordinary=True))
    assert (back.rows, back.depth, back.columns) == (200, 5 * 9, 4)
    weights = ordinary_convolution(layer.gradient(Operation.WEIGHT_GRADIENT, ordinary=True))
    assert (weights.rows, weights.depth, weights.columns) == (4 * 9, 200, 5)
    assert weights.window == Window(4, (10, 10), (3, 3))
