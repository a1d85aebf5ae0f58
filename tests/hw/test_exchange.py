"""What methods make chips exchange, by hand; processes of a real run are in tests/program/distributed."""

from dataclasses import replace

import pytest

from adagp.core.methods import AcceleratorWork, find_source
from adagp.errors import OptionError
from adagp.hw import Accelerator, Convolution, Linear
from adagp.hw.exchange import ExchangeWork, ModelLayout, SourceExchange, source_exchange

CONVOLUTION = Convolution("", 8, 16, (3, 3), (4, 4), (4, 4))
CLASSIFIER = Linear("", 1, 256, 10)
WORK = ExchangeWork((CONVOLUTION, CLASSIFIER), error_words=10, widest_row=256, learns=False)


def test_predictors_exchange_summaries_and_gradients_of_their_own_where_weights_are_sharded() -> None:
    summaries = 26 * 16
    assert source_exchange("predicted", WORK) == SourceExchange((2 + summaries,))
    learning = replace(WORK, learns=True)
    assert source_exchange("predicted", learning) == SourceExchange((2 + summaries,))
    own = Accelerator().predictor.parameters(256)
    assert source_exchange("predicted", replace(learning, layout=ModelLayout.SHARDS)).everyone == (own,)
    assert source_exchange("predicted", replace(learning, layout=ModelLayout.STAGES)) == SourceExchange(
        (summaries,), (own,)
    )


def test_vgg13s_predictor_has_the_gradients_that_were_measured() -> None:
    """docs/distributed.md: FSDP2 adds 1.39 - 0.19 = 1.20 MB to a BP batch of VGG13, whose widest row has 4,608 numbers."""
    assert 4 * Accelerator().predictor.parameters(4608) / 1e6 == pytest.approx(1.20, abs=0.005)


def test_feedback_exchanges_the_fewest_numbers() -> None:
    """Ten features: mixed inputs of 11 rows for a wide site, weight gradients for a site with few weights."""
    counts, means = 2 * (4 * 2 + 1), 2 * 2 * 11
    few_inputs, few_weights = 11 * 128, 2560
    assert CONVOLUTION.weights < few_inputs
    sums = CONVOLUTION.weights + few_weights
    assert source_exchange("feedback", WORK) == SourceExchange((counts, means, sums), error_features=10)
    wide = replace(WORK, sites=(replace(CONVOLUTION, out_channels=64),))
    assert source_exchange("feedback", wide).copies[-1] == few_inputs
    learning = source_exchange("feedback", replace(WORK, learns=True))
    patterns = 11 * (256 + 128 + 10 + 256)
    assert learning == SourceExchange((counts, 2 * means, patterns + 100), error_features=10)
    stages = replace(WORK, layout=ModelLayout.STAGES)
    assert source_exchange("feedback", stages) == SourceExchange((sums,), error_features=10)
    assert source_exchange("feedback", replace(stages, learns=True)).copies == (patterns,)


@pytest.mark.parametrize("source", ["zero", "replay", "noise", "skip"])
def test_controls_exchange_nothing(source: str) -> None:
    for learns in (False, True):
        assert source_exchange(find_source(source).source, replace(WORK, learns=learns)) == SourceExchange()


def test_produced_gradients_are_averaged_unless_declared_otherwise() -> None:
    assert source_exchange("topk", WORK) == SourceExchange((CONVOLUTION.weights + 2560,))
    assert source_exchange("topk", replace(WORK, learns=True)) == SourceExchange()
    with pytest.raises(OptionError, match="^source 'remapped' does not declare what chips exchange for it"):
        source_exchange("remapped", WORK)
    with pytest.raises(OptionError, match="^unknown exchange 'much'"):
        AcceleratorWork(exchange="much")
