"""What `simulate` and `sweep` are asked about: a model by name, a function, a saved workload or a run folder."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from adagp.errors import OptionError
from adagp.hw import Run, Workload, load_workload, replayed_run
from adagp.methods import find_method
from adagp.run.origin import admit_code
from adagp.run.record import read_whole_run
from adagp.workloads import dataset_info, model_workload, run_workload


@dataclass(frozen=True)
class Origin:
    """Where a workload comes from; `workload` is called when all options are known to be good.

    `replay` and `epochs` are those of a training run that was recorded.
    """

    workload: Callable[[], Workload]
    dataset: str
    samples: int
    replay: Run | None = None
    epochs: int | None = None


def find_origin(
    model: str | None,
    from_run: Path | None,
    dataset: str,
    shape: tuple[int, ...] | None,
    width: float,
    *,
    method: str = "",
    trust: bool = False,
) -> Origin:
    """Tell a run folder, a workload file and a model's name apart.

    Code that a run folder names is imported only if the user names it as well, as `model` or `method`, or trusts the folder.
    """
    if model is not None and Path(model).is_dir():
        if from_run is not None:
            raise OptionError(f"both '{model}' and --from-run name a run; give one of them.")
        return _replay(None, Path(model), shape, method, trust)
    if from_run is not None:
        return _replay(model, from_run, shape, method, trust)
    if model is None:
        raise OptionError("name a model, package.module:function, a saved workload or a run folder.")
    info = dataset_info(dataset)
    if model.endswith(".json"):
        workload = load_workload(Path(model))
        return Origin(lambda: workload, dataset, info.train)
    return Origin(cache(lambda: model_workload(model, dataset, shape, width)), dataset, info.train)


def _replay(model: str | None, folder: Path, shape: tuple[int, ...] | None, method: str, trust: bool) -> Origin:
    """The run's own model, unless another is named: what would this run's phases have been worth there?"""
    record = read_whole_run(folder, "replay")
    name, dataset, width = model or record.model, record.dataset, record.width
    admit_code({**record.config, "model": name}, folder, (model or "", method), trust=trust)

    def workload() -> Workload:
        if shape is None:
            return run_workload(name, dataset, record.image_size, width)
        return model_workload(name, dataset, shape, width)

    replay = replayed_run(record.phases, record.batch_size, find_method(record.method).source)
    return Origin(cache(workload), dataset, dataset_info(dataset).train, replay, len(record.epochs))


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the shape that `text` (`3x64x64`) describes."""
    if text is None:
        return None
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*){2}", text) is None:
        raise OptionError(f"cannot read the input shape '{text}'; write CHANNELSxHEIGHTxWIDTH, for example 3x64x64.")
    return tuple(int(size) for size in text.split("x"))
