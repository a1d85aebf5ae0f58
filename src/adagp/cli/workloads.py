"""What `simulate` and `sweep` are asked about: a model by name, a function, a saved workload or a run folder."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from adagp.errors import OptionError
from adagp.hw import Recorded, Workload, load_workload, recorded_run
from adagp.workloads import dataset_info, model_workload


@dataclass(frozen=True)
class Origin:
    """Where a workload comes from; `workload` is called when all options are known to be good."""

    workload: Callable[[], Workload]
    dataset: str
    samples: int
    recorded: Recorded | None = None


def find_origin(
    model: str | None, from_run: Path | None, dataset: str, shape: tuple[int, ...] | None, width: float
) -> Origin:
    """Tell a run folder, a workload file and a model's name apart."""
    if model is not None and Path(model).is_dir():
        if from_run is not None:
            raise OptionError(f"both '{model}' and --from-run name a run; give one of them.")
        return _replay(None, recorded_run(Path(model)), shape)
    if from_run is not None:
        return _replay(model, recorded_run(from_run), shape)
    if model is None:
        raise OptionError("name a model, package.module:function, a saved workload or a run folder.")
    info = dataset_info(dataset)
    if model.endswith(".json"):
        workload = load_workload(Path(model))
        return Origin(lambda: workload, dataset, info.train)
    return Origin(cache(lambda: model_workload(model, dataset, shape, width)), dataset, info.train)


def _replay(model: str | None, recorded: Recorded, shape: tuple[int, ...] | None) -> Origin:
    """The run's own model, unless another is named: what would this run's phases have been worth there?"""
    config = recorded.config
    dataset, name, width = str(config["dataset"]), model or str(config["model"]), float(config.get("width", 1.0))
    workload = cache(lambda: model_workload(name, dataset, shape, width))
    return Origin(workload, dataset, dataset_info(dataset).train, recorded)


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the shape that `text` (`3x64x64`) describes."""
    if text is None:
        return None
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", text) is None:
        raise OptionError(f"cannot read the input shape '{text}'; write CHANNELSxHEIGHTxWIDTH, for example 3x64x64.")
    return tuple(int(size) for size in text.split("x"))
