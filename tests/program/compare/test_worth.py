"""The worth of a GP batch: the curve, the interval and the verdict by hand."""

from math import log
from pathlib import Path
from typing import Any

import pytest

from adagp.hw import Linear, Workload
from adagp.program.compare import worth as worth_module
from adagp.program.compare.modelled_cost import AcceleratorPlatform, PipelinePlatform
from adagp.program.compare.plots import draw_worth, platform_label
from adagp.program.compare.tables import worth_sheets
from adagp.program.compare.worth import (
    Price,
    Worth,
    find_worth,
    measured_price,
    method_prices,
    platform_models,
    read_curve,
    verdict,
    worth_record,
)
from adagp.program.run import TrainConfig
from adagp.program.run.metrics import ACCURACY, Metric

CURVE = read_curve(
    {100: dict.fromkeys(range(4), 0.4), 200: dict.fromkeys(range(4), 0.5), 400: dict.fromkeys(range(4), 0.6)}, ACCURACY
)


def test_the_curve_is_linear_in_the_logarithm() -> None:
    assert CURVE.batches_for(0.4) == pytest.approx(100)
    assert CURVE.batches_for(0.55) == pytest.approx(200 * 2**0.5)
    assert CURVE.batches_for(0.6) == pytest.approx(400)
    assert CURVE.batches_for(0.61) is CURVE.batches_for(0.39) is None


def test_a_longer_run_that_is_worse_makes_the_curve_constant() -> None:
    found = read_curve({100: {0: 0.4, 1: 0.5}, 400: {0: 0.6}, 200: {0: 0.7}}, ACCURACY)
    assert found.batches == (100, 200, 400)
    assert found.values == pytest.approx((0.45, 0.7, 0.7))
    assert found.batches_for(0.7) == pytest.approx(200)
    perplexity = read_curve({100: {0: 9.0}, 200: {0: 7.0}}, Metric("perplexity", higher_is_better=False))
    assert perplexity.values == (-9.0, -7.0)


def test_worth_and_interval_by_hand() -> None:
    """Accuracy 0.55 is that of 282.8 batches: 150 of them were by backprop, the rest is the worth of 200 GP batches."""
    worth = find_worth(CURVE, {0: 0.54, 1: 0.56}, 150, 200, ACCURACY)
    assert worth.worth == pytest.approx((200 * 2**0.5 - 150) / 200)
    # Two seeds: standard error 0.01, t of one degree 12.706, so 0.423 to 0.677, which is beyond the curve.
    assert worth.low == pytest.approx((100 * 2 ** ((0.55 - 0.4 - 0.127062) / 0.1) - 150) / 200, rel=1e-4)
    assert worth.high is None
    single = find_worth(CURVE, {0: 0.7}, 150, 200, ACCURACY)
    assert (single.worth, single.low, single.high, single.beyond) == (None, None, None, "above")


def test_variation_that_seeds_share_cancels() -> None:
    """Seeds that are lucky or unlucky with both methods alike say nothing against the difference between them."""
    luck = {0: -0.02, 1: 0.0, 2: 0.02}
    plain = {batches: {seed: value + one for seed, one in luck.items()} for batches, value in ((100, 0.4), (400, 0.6))}
    curve = read_curve(plain, ACCURACY)
    paired = find_worth(curve, {0: 0.479, 1: 0.5, 2: 0.521}, 150, 200, ACCURACY)
    crossed = find_worth(curve, {2: 0.479, 1: 0.5, 0: 0.521}, 150, 200, ACCURACY)
    assert paired.worth == crossed.worth == pytest.approx((200 - 150) / 200)
    # Ahead of its own curve by -0.001, 0 and 0.001: 4.303 * 0.001 / sqrt(3).
    assert paired.low == pytest.approx((100 * 4 ** ((0.1 - 0.0024843) / 0.2) - 150) / 200, rel=1e-4)
    assert paired.high == pytest.approx((100 * 4 ** ((0.1 + 0.0024843) / 0.2) - 150) / 200, rel=1e-4)
    # By 0.041, 0 and -0.041: so wide that it leaves the curve at both ends.
    assert crossed.low is crossed.high is None


def test_seeds_without_a_backprop_run_do_not_count() -> None:
    curve = read_curve({100: {0: 0.4, 1: 0.41}, 400: {0: 0.6, 1: 0.61, 7: 0.6}}, ACCURACY)
    assert curve.seeds_at(0.505) == {0: pytest.approx(0.5, abs=0.01), 1: pytest.approx(0.51, abs=0.01)}
    assert curve.seeds_at(0.9) == {0: 0.6, 1: 0.61}
    assert curve.seeds_at(0.1) == {0: 0.4, 1: 0.41}
    alone = find_worth(curve, {0: 0.5, 7: 0.5}, 150, 200, ACCURACY)
    assert alone.worth is not None
    assert alone.low is alone.high is None
    assert read_curve({100: {0: 0.4}}, ACCURACY).seeds_at(0.7) == {0: 0.4}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.56, 0.7, "pays"),
        (0.56, None, "pays"),
        (0.5, 0.7, "too close to say"),
        (None, None, "too close to say"),
        (0.2, 0.54, "does not pay"),
        (None, 0.54, "does not pay"),
    ],
)
def test_verdicts(low: float | None, high: float | None, expected: str) -> None:
    """Two BP batches for each GP batch, so twice the overhead: the break-even is 0.35 + 2 * 0.1."""
    assert verdict(Worth(0.6, low, high, 200, 100), Price(0.35, 0.1)) == expected


def run(name: str, regime: str, batches: int, accuracy: float, seed: int, predicted: int = 0) -> dict[str, Any]:
    own = {"bp_batches": batches - predicted, "gp_batches": predicted, "guarded_batches": 0, "batches": batches}
    return {"name": name, "method": name, "regime": regime, "seed": seed, "accuracy": accuracy, **own}


def document() -> dict[str, Any]:
    runs = [run("bp", "batches", 400, 0.6 + 0.001 * seed, seed) for seed in range(3)]
    runs += [run("feedback", "batches", 400, 0.549 + 0.002 * seed, seed, 200) for seed in range(3)]
    runs += [run("feedback", "accelerator", 500, 0.58 + 0.01 * seed, seed, 250) for seed in range(3)]
    curve = [run("bp", "curve", batches, 0.4 + 0.001 * seed, seed) for batches in (100,) for seed in range(3)]
    return {"runs": runs, "curve": curve, "regimes": {"batches": {}, "accelerator": {}}}


def test_the_record_uses_the_regime_with_the_narrowest_interval(tmp_path: Path) -> None:
    prices = {"feedback": {"cpu": Price(0.5, 0.1), "accelerator": Price(0.40, 0.02, 0.5, "max,ws,12x15")}}
    found = worth_record(document(), ACCURACY, prices)
    assert [(one["batches"], one["accuracy"]) for one in found["curve"]] == [(100, pytest.approx(0.401)), (400, 0.601)]
    feedback = found["methods"]["feedback"]
    assert feedback["regime"] == "batches"
    wanted = 100 * 4 ** ((0.551 - 0.401) / 0.2)
    assert feedback["worth"] == pytest.approx((wanted - 200) / 200) == pytest.approx((100 * 2**1.5 - 200) / 200)
    assert feedback["interval"][0] < feedback["worth"] < feedback["interval"][1]
    assert list(feedback["regimes"]) == ["batches", "accelerator"]
    on_cpu, on_accelerator = (feedback["platforms"][name] for name in ("cpu", "accelerator"))
    assert (on_cpu["break_even"], on_cpu["verdict"]) == (pytest.approx(0.6), "does not pay")
    assert (on_accelerator["price_without_bubbles"], on_accelerator["verdict"]) == (0.5, "too close to say")
    assert log(wanted / 100) == pytest.approx(1.5 * log(2))

    summary, platforms = worth_sheets(found)
    # 0.551 ± 4.303 * 0.001 / sqrt(3), read off the curve
    assert summary.rows[0][:4] == ("feedback", "0.41", "0.39 to 0.44", "batches")
    assert platforms.rows[0] == ("cpu", "0.500", "0.100", "0.600", "-", "does not pay")
    assert "only cpu is measured" in platforms.note
    assert draw_worth(found, tmp_path / "worth.svg").stat().st_size > 10_000


def test_platforms_are_labelled_for_people() -> None:
    details = "best,devices=4,micro-batches=16,costs=balanced; bp: zb-v, feedback: zb-v"
    assert platform_label("pipeline-4", {"details": details}) == "pipeline, 4 devices x 16 micro-batches"
    assert platform_label("accelerator", {"details": "max,ws,12x15"}) == "accelerator"


def test_batches_of_another_size_count_by_their_samples() -> None:
    """100 batches of 128 samples are 200 of backprop's, which have 64."""
    plain = find_worth(CURVE, {0: 0.54, 1: 0.56}, 150, 200, ACCURACY)
    larger = find_worth(CURVE, {0: 0.54, 1: 0.56}, 75, 100, ACCURACY, scale=2.0)
    assert larger.worth == pytest.approx(plain.worth)
    assert larger.low == pytest.approx(plain.low)
    sizes = {"batch_sizes": {"bp": 64, "feedback": 128}, "backprop_batch_sizes": [32, 64]}
    found = worth_record({**document(), **sizes}, ACCURACY, {"feedback": {"cpu": Price(0.5, 0.1)}})
    wanted = 100 * 4 ** ((0.551 - 0.401) / 0.2)
    assert found["methods"]["feedback"]["regimes"]["batches"]["worth"] == pytest.approx((wanted / 2 - 200) / 200)
    assert worth_sheets(found)[0].note.endswith(
        "Batch sizes: bp 64, feedback 128; worth and prices are those of equally many samples. Backprop was tried with "
        "batches of 32 and 64 samples."
    )
    costs = {"bp": {"bp": 2.0, "data": 0.5}, "skip": {"bp": 4.5, "gp": 1.5, "data": 1.0}}
    timed = {
        name: {"cost": cost, "batch_size": size} for (name, cost), size in zip(costs.items(), (64, 128), strict=True)
    }
    price = measured_price({"rounds": 30, "methods": timed}, "skip", "bp")["cpu"]
    assert price.price == 0.5
    assert price.overhead == pytest.approx(0.1)


def test_only_the_reference_makes_the_curve() -> None:
    extra = [run("small", "batches", 800, 0.9, seed) | {"method": "bp"} for seed in range(3)]
    content = document()
    content["runs"] += extra
    assert sorted(worth_module.curve_points(content, ACCURACY)) == [100, 400]


NET = Workload("four layers", tuple(Linear(f"fc{place}", 1, 64, 64) for place in range(4)))


def config(method: str, **options: object) -> TrainConfig:
    warmup = {} if method == "bp" or "sites" in str(options) else {"ratio": "1:1", "warmup_batches": 2}
    return TrainConfig.from_dict({"method": method, "batches": 12, "batch_size": 128, **warmup, **options}, "test")


def test_modelled_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth_module, "PRICED_DEVICES", (4, 8))
    models = platform_models(NET, lambda config: 100, AcceleratorPlatform("efficient"), PipelinePlatform(devices=4))
    assert list(models) == ["accelerator", "pipeline", "pipeline-4", "pipeline-8"]
    feedback = method_prices(config("feedback"), config("bp"), models)
    accelerator = models["accelerator"]
    plain = accelerator.run_cost(config("bp")) / 12
    kinds = {one.phase: one.cost / plain for one in accelerator.batch_costs(config("feedback"))}
    assert feedback["accelerator"].price == pytest.approx(kinds["gp"])  # type: ignore[index]
    assert feedback["accelerator"].overhead == pytest.approx(kinds["bp"] - 1)  # type: ignore[index]
    assert feedback["accelerator"].bound is None
    for name in ("pipeline", "pipeline-4", "pipeline-8"):
        bound = feedback[name].bound
        assert bound is not None
        assert bound >= feedback[name].price > 0
    assert "; bp: zb-v, feedback: " in feedback["pipeline-8"].details
    partial = method_prices(config("zero", ratio="sites=fc1"), config("bp"), models)
    assert list(partial) == ["accelerator"]
    skipped = method_prices(config("skip"), config("bp"), models)
    assert {one.price for one in skipped.values()} == {0.0}


def test_modelled_prices_are_those_of_equally_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth_module, "PRICED_DEVICES", ())
    models = platform_models(NET, lambda config: 100, AcceleratorPlatform("efficient"), PipelinePlatform(devices=4))
    large, small = (config("feedback", batch_size=size) for size in (128, 64))
    price = method_prices(small, config("bp"), models)["accelerator"].price
    accelerator = models["accelerator"]
    costs = [cost.cost for cost in accelerator.batch_costs(small) if cost.phase == "gp"]
    assert price == pytest.approx(2 * costs[0] / (accelerator.run_cost(config("bp")) / 12))
    # Loading the weights costs as much for half as many samples.
    assert price > method_prices(large, config("bp"), models)["accelerator"].price


def test_a_pipeline_of_more_stages_than_layers_has_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth_module, "PRICED_DEVICES", ())
    models = platform_models(NET, lambda config: 100, AcceleratorPlatform(), PipelinePlatform(devices=5))
    assert list(method_prices(config("adagp"), config("bp"), models)) == ["accelerator"]


def test_measured_prices() -> None:
    costs = {
        "bp": {"bp": 2.0, "data": 0.5},
        "skip": {"bp": 2.25, "gp": 0.75, "data": 0.5},
        "never": {"bp": 2.0, "data": 0.5},
    }
    calibration = {"rounds": 30, "methods": {name: {"cost": cost} for name, cost in costs.items()}}
    price = measured_price(calibration, "skip", "bp")["cpu"]
    assert price.price == 0.5
    assert price.overhead == pytest.approx(0.1)
    assert measured_price(calibration, "never", "bp") == measured_price(None, "skip", "bp") == {}
