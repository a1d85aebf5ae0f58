"""Precision schedules: pure functions of the batch and the site."""

from dataclasses import replace

import pytest

from adagp.core.precision import SinglePrecision, parse_precision, precision_forms
from adagp.errors import OptionError
from adagp.papers.fast.precision import ByLayer, Conversion, Fast, Fixed, RandomChoice, Temporal, TensorContext, Width

CONTEXT = TensorContext(0, 101, 0, 11)


def test_fixed_precision_is_the_same_everywhere() -> None:
    assert Fixed("bfp4", bits=4).width(CONTEXT) == Width(4, 4)
    assert Fixed("bfp2", bits=2).width(replace(CONTEXT, batch=100, site=10)) == Width(2, 2)


@pytest.mark.parametrize(
    ("batch", "site", "threshold"),
    [(0, 0, 0.6), (50, 0, 0.45), (100, 0, 0.3), (0, 5, 0.45), (0, 10, 0.3), (50, 5, 0.3), (100, 10, 0.0)],
)
def test_the_threshold_of_fast(batch: int, site: int, threshold: float) -> None:
    place = replace(CONTEXT, batch=batch, site=site)
    assert Fast("fast").threshold(place) == pytest.approx(threshold)
    assert Fast("fast").width(place) == Width(2, 4, Fast("fast").threshold(place))


def test_the_threshold_falls_with_time_and_depth_to_alpha_less_twice_beta() -> None:
    fast = Fast("fast", alpha=0.9, beta=0.2)
    over_time = [fast.threshold(replace(CONTEXT, batch=batch, site=3)) for batch in range(101)]
    over_depth = [fast.threshold(replace(CONTEXT, batch=3, site=site)) for site in range(11)]
    for found in (over_time, over_depth):
        assert found == sorted(found, reverse=True)
        assert len(set(found)) == len(found)
    assert fast.threshold(replace(CONTEXT, batch=100, site=10)) == pytest.approx(0.5)


def test_one_batch_and_one_site_are_the_first() -> None:
    assert Fast("fast").threshold(TensorContext(0, 1, 0, 1)) == 0.6


def test_temporal_precision_changes_at_its_share_of_the_run() -> None:
    low_first = Temporal("temporal:2-4@0.5", first=2, second=4, share=0.5)
    widths = [low_first.width(TensorContext(batch, 10, 0, 1)) for batch in range(10)]
    assert widths == [Width(2, 2)] * 5 + [Width(4, 4)] * 5
    float_first = Temporal("temporal:fp32-4@0.3", first=None, second=4, share=0.3)
    assert [float_first.width(TensorContext(batch, 10, 0, 1)) for batch in (0, 2, 3)] == [None, None, Width(4, 4)]


def test_precision_by_layer_counts_the_first_ones() -> None:
    layers = ByLayer("layers:2-4@3", first=2, second=4, count=3)
    assert [layers.width(replace(CONTEXT, site=site)) for site in (0, 2, 3)] == [Width(2, 2), Width(2, 2), Width(4, 4)]
    layers.check(4)
    with pytest.raises(OptionError) as rejected:
        layers.check(3)
    assert str(rejected.value) == (
        "the precision 'layers:2-4@3' cuts the model after layer 3; it has 3 layers, so that it must be 1 to 2."
    )


def test_a_random_choice_has_its_share_and_no_memory() -> None:
    precision = RandomChoice("random:2-4@0.3", share=0.3)
    places = [replace(CONTEXT, batch=batch, site=site) for batch in range(101) for site in range(11)]
    found = [precision.width(place) for place in places]
    assert found == [precision.width(place) for place in places]
    assert found.count(Width(4, 4)) / len(found) == pytest.approx(0.3, abs=0.05)
    assert found != [precision.width(replace(place, seed=1)) for place in places]
    assert found != [precision.width(replace(place, tensor="gradients")) for place in places]


def test_forms() -> None:
    usual = Conversion()
    assert parse_precision("fp32") == SinglePrecision()
    assert parse_precision("bfp2") == Fixed("bfp2", usual, 2)
    assert parse_precision("bfp:g=8,e=3,m=6") == Fixed("bfp:g=8,e=3,m=6", Conversion(8, 3), 6)
    assert parse_precision("bfp4:g=32") == Fixed("bfp4:g=32", Conversion(32), 4)
    assert parse_precision("temporal:4-2@0.25") == Temporal("temporal:4-2@0.25", usual, 4, 2, 0.25)
    assert parse_precision("temporal:fp32-4@1") == Temporal("temporal:fp32-4@1", usual, None, 4, 1.0)
    assert parse_precision("layers:2-fp32@10") == ByLayer("layers:2-fp32@10", usual, 2, None, 10)
    assert parse_precision("fast") == Fast("fast", usual)
    assert parse_precision("fast:alpha=0.5,beta=0.1,high=6") == Fast(
        "fast:alpha=0.5,beta=0.1,high=6", usual, 0.5, 0.1, 2, 6
    )
    assert parse_precision("random:2-4@0.7,e=8") == RandomChoice("random:2-4@0.7,e=8", Conversion(16, 8), 2, 4, 0.7)
    text = "bfp4:rounding=truncate,gradients=nearest,overflow=raise"
    assert parse_precision(text) == Fixed(text, Conversion(16, 4, "truncate", "nearest", "raise"), 4)


def test_all_forms_of_the_help_can_be_read() -> None:
    assert [parse_precision(text).text for text in precision_forms()] == precision_forms()


FORMS_WORDS = f"Allowed forms: {', '.join(precision_forms())}."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bfp0", "the precision 'bfp0' has 0 mantissa bits; it must be 1 to 24, or fp32."),
        ("bfp:m=25", "the precision 'bfp:m=25' has 25 mantissa bits; it must be 1 to 24, or fp32."),
        ("bfp:m=x", "the precision 'bfp:m=x' has m=x; it must be a whole number."),
        ("bfp:g=0", "group of block floating point: 0 was given; it must be 1 to 65536."),
        ("bfp4:m=4", "the precision 'bfp4:m=4' gives the mantissa bits twice, as bfp4 and as m."),
        ("bfp:g=4,g=5", "the precision 'bfp:g=4,g=5' gives g twice."),
        ("float", f"cannot read the precision 'float'. {FORMS_WORDS}"),
        ("", f"cannot read the precision ''. {FORMS_WORDS}"),
        ("fast:x", f"cannot read the precision 'fast:x'. {FORMS_WORDS}"),
        ("temporal", f"cannot read the precision 'temporal'. {FORMS_WORDS}"),
        ("temporal:2@0.5", f"cannot read the precision 'temporal:2@0.5'. {FORMS_WORDS}"),
        ("temporal:2-4@2", "the precision 'temporal:2-4@2' has the share of the run 2; it must be 0 to 1."),
        ("temporal:2-4@x", "the precision 'temporal:2-4@x' has share of the run=x; it must be a number."),
        ("layers:2-4@0", "the precision 'layers:2-4@0' changes after layer 0; it must be 1 or more."),
        ("fp32:g=4", "the precision 'fp32:g=4' is single precision, which takes no options: write fp32."),
        ("fast:low=4,high=4", "the precision 'fast:low=4,high=4' has low=4 and high=4; low must be below high."),
        (
            "fast:beta=-1",
            "the precision 'fast:beta=-1' has alpha=0.6 and beta=-1; they must be -100 to 100 and 0 to 100.",
        ),
        (
            "bfp4:rounding=stochastic",
            "rounding is 'stochastic'; weights and activations take nearest or truncate, gradients all.",
        ),
        ("bfp4:gradients=up", "unknown rounding 'up'. Choose from: nearest, stochastic, truncate."),
        (
            "bfp4:alpha=1",
            "unknown option of the precision 'bfp4:alpha=1' 'alpha'. Choose from: e, g, gradients, m, overflow, rounding.",
        ),
    ],
)
def test_texts_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(OptionError) as rejected:
        parse_precision(text)
    assert str(rejected.value) == message
