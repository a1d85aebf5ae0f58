import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.hw.brute_force import Matrix, row_stationary_convolution

from adagp.hw import Array, Operation, Product, Window, array_cost


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
    assert len(set(costs)) == 1
