import pytest

from adagp.errors import OptionError
from adagp.hw import Convolution, Linear, Operation, PredictorShape, parse_predictor

LAYER = Convolution("c", 16, 32, (3, 3), (8, 8), (8, 8))


def test_products_are_those_of_the_predictor_network() -> None:
    convolution, connected = PredictorShape().products(LAYER)
    assert (convolution.rows, convolution.depth, convolution.columns) == (32 * 16, 9, 4)
    assert (connected.rows, connected.depth, connected.columns) == (32, 64, 144)
    assert PredictorShape().weights(LAYER) == 36 + 64 * 144


def test_groups_make_the_rows_of_a_gradient_shorter() -> None:
    grouped = Convolution("c", 16, 32, (3, 3), (8, 8), (8, 8), groups=16)
    assert PredictorShape().products(grouped)[1].columns == 9


def test_training_has_no_input_gradient_of_the_first_layer() -> None:
    operations = [product.operation for product in PredictorShape().training(Linear("l", 1, 100, 10))]
    assert operations == [Operation.INPUT_GRADIENT, Operation.WEIGHT_GRADIENT, Operation.WEIGHT_GRADIENT]


def test_shape_can_differ() -> None:
    assert PredictorShape(grid=2, channels=3).features == 12
    with pytest.raises(OptionError) as raised:
        PredictorShape(grid=0)
    assert str(raised.value) == "a predictor of grid 0 and 4 channels is not allowed: both must be at least 1."


def test_a_predictor_is_read_from_text() -> None:
    assert parse_predictor("8x3") == PredictorShape(8, 3)
    assert str(PredictorShape(8, 3)) == "8x3"
    with pytest.raises(OptionError) as raised:
        parse_predictor("8")
    assert str(raised.value) == "cannot read the predictor '8'; write GRIDxCHANNELS, for example 4x4."
    with pytest.raises(OptionError) as raised:
        parse_predictor("9000x9")
    assert str(raised.value) == (
        "a predictor of grid 9000 and 9 channels has 729,000,000 features; at most 1,048,576 are allowed."
    )
