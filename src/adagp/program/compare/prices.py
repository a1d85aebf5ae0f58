"""What the batches of compared methods cost on platforms, in batches by plain backprop: this CPU, accelerators, pipelines."""

from collections.abc import Mapping

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.hw import Workload
from adagp.program.compare.accelerator_cost import AcceleratorCost, AcceleratorPlatform, BatchCost
from adagp.program.compare.pipeline_cost import BALANCED, BEST, PipelineCost, PipelinePlatform
from adagp.program.compare.records import Record
from adagp.program.compare.worth import Price
from adagp.program.run.config import TrainConfig

DEVICES = (4, 8, 16, 32, 64)
"""Of the pipelines that are always asked about, with as many micro-batches."""
QUICKEST = ("chimera", "zb-h1", "zb-v")
"""The exact pipelines that are ahead of the others where stages are equal and micro-batches as many as devices."""


def platform_models(
    workload: Workload, batches_per_epoch: int, accelerator: AcceleratorPlatform, pipeline: PipelinePlatform
) -> dict[str, AcceleratorCost | PipelineCost]:
    """Return the modelled platforms by name: the accelerator, the pipeline, and balanced pipelines of 4 to 64 devices."""
    found: dict[str, AcceleratorCost | PipelineCost] = {
        "accelerator": AcceleratorCost(accelerator, workload, batches_per_epoch),
        "pipeline": PipelineCost(pipeline, accelerator, workload, batches_per_epoch),
    }
    for devices in DEVICES:
        platform = PipelinePlatform(BEST, devices, devices, BALANCED)
        found[f"pipeline-{devices}"] = PipelineCost(platform, accelerator, workload, batches_per_epoch, QUICKEST)
    return found


def method_prices(
    config: TrainConfig,
    reference: TrainConfig,
    models: Mapping[str, AcceleratorCost | PipelineCost],
    share: float | None = None,
) -> dict[str, Price]:
    """Return a method's prices on modelled platforms; those that it cannot be costed on are left out."""
    found = {}
    for name, model in models.items():
        try:
            plain, own = model.batch_costs(reference), model.batch_costs(config, share)
        except OptionError:
            continue  # too many stages for the model, or a schedule that a pipeline cannot run
        unit = _mean(plain, predicted=False)
        price, learning = _mean(own, predicted=True) / unit, _mean(own, predicted=False) / unit
        details, bound = model.text, None
        if isinstance(model, PipelineCost):
            bound = price * unit / model.bound(reference)
            details += f"; bp: {model.best(reference)[0]}, {config.method}: {model.best(config, share)[0]}"
        found[name] = Price(price, learning - 1, bound, details)
    return found


def measured_price(calibration: Record | None, name: str, reference: str) -> dict[str, Price]:
    """Return a method's price on this CPU, if its batches were timed; fetching the data is a part of every batch."""
    if calibration is None:
        return {}
    own, plain = (calibration["methods"][one]["cost"] for one in (name, reference))
    if "gp" not in own:
        return {}
    unit = plain["bp"] + plain["data"]
    price = (own["gp"] + own["data"]) / unit
    learning = (own.get("bp", plain["bp"]) + own["data"]) / unit
    return {"cpu": Price(price, learning - 1, None, f"medians of {calibration['rounds']} timings, one thread")}


def _mean(costs: list[BatchCost], *, predicted: bool) -> float:
    """Return the mean cost of the GP batches, or of the others."""
    chosen = [one for one in costs if (one.phase is Phase.GP) is predicted]
    batches = sum(one.batches for one in chosen)
    return sum(one.batches * one.cost for one in chosen) / batches if batches else 0.0
