import pytest

from adagp.hw import Attention, Convolution, Elementwise, Linear, Operation, Workload
from adagp.hw.export.work import plain_name, training_work

STEM = Convolution("stem", 3, 16, (3, 3), (8, 8), (4, 4), (2, 2), input_gradient=False)
FROZEN = Linear("frozen", 1, 256, 20, trainable=False)
SCORES = Attention("scores", 2, 5, 6, 7)
WORKLOAD = Workload("all", (STEM, Elementwise("relu", "relu", 1, 1), SCORES, FROZEN))


def test_a_batch_of_backprop_needs_these_products_in_this_order() -> None:
    found = [(work.name, str(work.operation)) for work in training_work(WORKLOAD, 4)]
    assert found == [
        ("000_stem", "forward"),
        ("001_scores", "forward"),
        ("002_frozen", "forward"),
        ("002_frozen", "input_gradient"),
        ("001_scores", "weight_gradient"),
        ("001_scores", "input_gradient"),
        ("000_stem", "weight_gradient"),
    ]


def test_sizes_are_those_of_the_equivalent_ordinary_product() -> None:
    sizes = {(work.name, work.operation): (work.sizes, work.count) for work in training_work(WORKLOAD, 4)}
    assert sizes["000_stem", Operation.FORWARD] == ((4 * 16, 16, 27), 1)
    assert sizes["000_stem", Operation.WEIGHT_GRADIENT] == ((27, 16, 4 * 16), 1)
    assert sizes["002_frozen", Operation.INPUT_GRADIENT] == ((4, 256, 20), 1)
    assert sizes["001_scores", Operation.FORWARD] == ((5, 7, 6), 8)


@pytest.mark.parametrize(("name", "plain"), [("a.B,c", "a_b_c"), ("DP.0", "dp_0"), ("", "layer"), ("é/é", "é_é")])
def test_names_that_others_can_read(name: str, plain: str) -> None:
    assert plain_name(name) == plain
