"""Prices of batches on platforms."""

import pytest

from adagp.hw import Linear, Workload
from adagp.program.compare import prices
from adagp.program.compare.accelerator_cost import AcceleratorPlatform
from adagp.program.compare.pipeline_cost import PipelinePlatform
from adagp.program.compare.prices import measured_price, method_prices, platform_models
from adagp.program.run import TrainConfig

NET = Workload("four layers", tuple(Linear(f"fc{place}", 1, 64, 64) for place in range(4)))


def run(method: str, **options: object) -> TrainConfig:
    warmup = {} if method == "bp" or "sites" in str(options) else {"ratio": "1:1", "warmup_batches": 2}
    return TrainConfig.from_dict({"method": method, "batches": 12, "batch_size": 128, **warmup, **options}, "test")


def test_modelled_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "DEVICES", (4, 8))
    models = platform_models(NET, 100, AcceleratorPlatform("efficient"), PipelinePlatform(devices=4))
    assert list(models) == ["accelerator", "pipeline", "pipeline-4", "pipeline-8"]
    feedback = method_prices(run("feedback"), run("bp"), models)
    accelerator = models["accelerator"]
    plain = accelerator.run_cost(run("bp")) / 12
    kinds = {one.phase: one.cost / plain for one in accelerator.batch_costs(run("feedback"))}
    assert feedback["accelerator"].price == pytest.approx(kinds["gp"])  # type: ignore[index]
    assert feedback["accelerator"].overhead == pytest.approx(kinds["bp"] - 1)  # type: ignore[index]
    assert feedback["accelerator"].bound is None
    for name in ("pipeline", "pipeline-4", "pipeline-8"):
        bound = feedback[name].bound
        assert bound is not None
        assert bound >= feedback[name].price > 0
    assert "; bp: zb-v, feedback: " in feedback["pipeline-8"].details
    partial = method_prices(run("zero", ratio="sites=fc1"), run("bp"), models)
    assert list(partial) == ["accelerator"]
    skipped = method_prices(run("skip"), run("bp"), models)
    assert {one.price for one in skipped.values()} == {0.0}


def test_a_pipeline_of_more_stages_than_layers_has_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "DEVICES", ())
    models = platform_models(NET, 100, AcceleratorPlatform(), PipelinePlatform(devices=5))
    assert list(method_prices(run("adagp"), run("bp"), models)) == ["accelerator"]


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
