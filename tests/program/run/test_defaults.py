"""What suits a data set takes the place of the general defaults, and only where nothing is given."""

import pytest

from adagp.errors import OptionError
from adagp.program.run.config import TrainConfig
from adagp.program.run.defaults import DATASET_DEFAULTS


def test_a_data_set_brings_its_defaults() -> None:
    config = TrainConfig.from_dict({"dataset": "multi30k"}, "test")
    assert {name: getattr(config, name) for name in DATASET_DEFAULTS["multi30k"]} == DATASET_DEFAULTS["multi30k"]
    assert config.command() == "adagp train --dataset multi30k"


def test_given_options_win() -> None:
    config = TrainConfig.from_dict({"dataset": "multi30k", "lr": 0.5, "optimizer": "sgd", "beam": 2}, "test")
    assert (config.lr, config.optimizer, config.beam) == (0.5, "sgd", 2)
    assert config.command() == "adagp train --dataset multi30k --lr 0.5 --optimizer sgd --beam 2"


def test_general_defaults_can_be_asked_for() -> None:
    config = TrainConfig.from_dict({"dataset": "multi30k", "label_smoothing": 0.0}, "test")
    assert config.label_smoothing == 0.0
    assert config.command() == "adagp train --dataset multi30k --label-smoothing 0.0"


def test_other_data_sets_keep_the_general_defaults() -> None:
    assert TrainConfig.from_dict({}, "test") == TrainConfig()
    assert TrainConfig().command() == "adagp train"


def test_a_saved_configuration_is_taken_as_it_is() -> None:
    saved = TrainConfig(dataset="multi30k", model="transformer", lr=1e-4)
    assert TrainConfig.from_dict(saved.as_dict(), "test") == saved


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.0}, "--label-smoothing is 1.0; it must be 0 or more and below 1."),
        ({"label_smoothing": -0.1}, "--label-smoothing is -0.1; it must be 0 or more and below 1."),
        ({"beam": 0}, "--beam is 0; it must be 1 (greedy) to 1000."),
    ],
)
def test_values_that_are_not_allowed(options: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError) as error:
        TrainConfig.from_dict(options, "test")
    assert str(error.value) == message
