"""Workloads of the accelerator: of a model and a data set, of a file, or of a run that was recorded."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adagp.core.cache import cached
from adagp.core.methods import find_method
from adagp.errors import OptionError, RunError
from adagp.hw import Run, Workload, load_workload, replayed_run
from adagp.hw.runs import BATCH_KINDS, RunRecording
from adagp.hw.workload import workload_from_json
from adagp.models import MODELS
from adagp.models.build import find_in_zoo
from adagp.models.registry import BYTES, LANGUAGE, TRANSLATION, is_ours
from adagp.program.run.config import CONFIG_OPTIONS, check_trusted_code
from adagp.program.run.record import RunRecord, read_whole_run

if TYPE_CHECKING:
    from adagp.data.registry import DatasetInfo


def model_workload(
    name: str,
    dataset: str,
    shape: tuple[int, ...] | None = None,
    width: float = 1.0,
    *,
    classes: int | None = None,
    length: int | None = None,
    own: Mapping[str, Any] | None = None,
) -> Workload:
    """Trace a model for a data set, or for images of another shape, other classes or sequences of another length.

    A language model takes the length of its sequences as its shape, and the tokens of its vocabulary as its classes. Where a
    set's images vary in size, the model's usual size counts, if it is larger. `own` are the model's own options. What
    was traced of our own models without them is kept (`adagp.core.cache`): torch is imported only for what is new.
    """
    info = dataset_info(dataset)
    task = _task(name, info.task)
    if task in (LANGUAGE, TRANSLATION):
        length = _text_length(name, task, shape, classes) or length
        shape, classes = None, _vocabulary(name) if classes is None else classes
    options: dict[str, Any] = {
        "classes": info.classes if classes is None else classes,
        "image": _usual_image(name, info) if shape is None else shape,
        "width": width,
        "task": info.task,
        "length": length,
    }

    def traced() -> Workload:
        from adagp.tracing.tracer import trace_model

        return trace_model(name, **options, options=own)

    if ":" in name or own or not is_ours(MODELS[name]):
        return traced()
    return cached("workload", {"name": name, **options}, traced, write=Workload.to_json, read=workload_from_json)


def _task(name: str, usual: str) -> str:
    """Return the task of a model; torch is imported only for one that is not in the table."""
    if ":" not in name:
        return MODELS[name].task
    from adagp.models.example import task_of

    return task_of(name, usual)


def _text_length(name: str, task: str, shape: tuple[int, ...] | None, classes: int | None) -> int | None:
    """Return the tokens of a sequence that `shape` sets; raise for a shape that does not fit a model of text."""
    if task == TRANSLATION and (shape is not None or classes is not None):
        raise OptionError(f"'{name}' translates sentences of a fixed length; --input and --classes do not apply to it.")
    if shape is None:
        return None
    if len(shape) != 1:
        written = "x".join(map(str, shape))
        raise OptionError(
            f"'{name}' reads text; its input is the length of a sequence, for example --input 512, not {written}."
        )
    return shape[0]


def _vocabulary(name: str) -> int:
    """Return the tokens of a language model: those of its configuration, or bytes."""
    zoo = find_in_zoo(name)
    if zoo is None or zoo.library != "hf":
        return BYTES
    from adagp.models.huggingface import configured_vocabulary

    return configured_vocabulary(zoo.name)


def _usual_image(name: str, info: "DatasetInfo") -> tuple[int, ...] | None:
    image = info.shape or None
    if image is not None and info.size_varies and name in MODELS:
        default_image = MODELS[name].image
        if default_image is not None and default_image[1] > image[1]:
            return default_image
    return image


def run_workload(
    name: str,
    dataset: str,
    image_size: int | None,
    width: float,
    length: int | None = None,
    own: Mapping[str, Any] | None = None,
) -> Workload:
    """Trace a model as a training run has it: its images have the run's size; None is the data set's own."""
    info = dataset_info(dataset)
    image = (info.shape[0], image_size, image_size) if image_size else info.shape or None
    classes = info.classes if info.task == LANGUAGE else None
    return model_workload(name, dataset, image, width, classes=classes, length=length, own=own)


def dataset_info(name: str) -> "DatasetInfo":
    """Return the table entry of a data set. `adagp.data` needs numpy, so it is imported only here."""
    from adagp.data.registry import DATASETS

    return DATASETS[name]


def _import_model(path: Path, shape: tuple[int, ...] | None) -> Workload:
    from adagp.tracing.isolated import import_model

    return import_model(path, shape)


FILES = "saved workload (.json), an ONNX model (.onnx), a torch.export program (.pt2)"
READERS: Mapping[str, Callable[[Path, tuple[int, ...] | None], Workload]] = {
    ".json": lambda path, _: load_workload(path),
    ".onnx": _import_model,
    ".pt2": _import_model,
}
"""The function that reads each type of file, by its suffix, for samples of a shape."""


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
    classes: int | None = None,
    *,
    method: str = "",
    trust: bool = False,
    target: float | None = None,
) -> Origin:
    """Return where the workload comes from: a run folder, a file, or a model's name.

    Code that a run folder names is imported only if the user names it as well, as `model` or `method`, or trusts the folder.
    Of a run with a `target` the epochs up to the first that reaches it are replayed.
    """
    if model is not None and Path(model).is_dir():
        if from_run is not None:
            raise OptionError(f"both '{model}' and --from-run name a run; give one of them.")
        return _replay(None, Path(model), shape, method, trust, target)
    if from_run is not None:
        return _replay(model, from_run, shape, method, trust, target)
    if target is not None:
        raise OptionError("--target is for a replayed run; give --from-run.")
    if model is None:
        raise OptionError(f"name a model, package.module:function, a {FILES}, or a run folder.")
    info = dataset_info(dataset)
    if Path(model).suffix in READERS and find_in_zoo(model) is None:
        workload = READERS[Path(model).suffix](Path(model), shape)
        return Origin(lambda: workload, dataset, info.train)
    return Origin(cache(lambda: model_workload(model, dataset, shape, width, classes=classes)), dataset, info.train)


def _replay(
    model: str | None, folder: Path, shape: tuple[int, ...] | None, method: str, trust: bool, target: float | None
) -> Origin:
    """Return the origin that replays the phases of a run, on its own model unless `model` names another one."""
    record = read_whole_run(folder, "replay")
    _check_sizes(record, folder)
    name, dataset, width = model or record.model, record.dataset, record.width
    check_trusted_code({**record.config, "model": name}, folder, (model or "", method), trust=trust)

    def workload() -> Workload:
        if shape is None:
            options = MODELS[name].options if model is None and name in MODELS else ()
            own = {option.name: record.config[option.name] for option in options if option.name in record.config}
            return run_workload(name, dataset, record.image_size, width, record.sequence_length, own)
        return model_workload(name, dataset, shape, width)

    length = _length(record, target)
    for number, batches in enumerate(record.phases, start=1):
        if missing := [kind for kind in BATCH_KINDS if kind not in batches]:
            raise RunError(
                f"the run in '{folder}' is damaged: in epoch {number}, '{missing[0]}' is not among its batches."
            )
    replay = replayed_run(
        record.phases[:length], record.batch_size, find_method(record.method).source, _recording(record, length)
    )
    return Origin(cache(workload), dataset, dataset_info(dataset).train, replay, length)


def _check_sizes(record: RunRecord, folder: Path) -> None:
    """Raise on sizes that no run can have: a model of any size would be traced."""
    for option in (CONFIG_OPTIONS[name] for name in ("width", "image_size", "sequence_length", "batch_size")):
        try:
            if option.name in record.config:
                option.check_type(record.config[option.name], "config.json")
                option.check(record.config[option.name], f"'{option.name}' in config.json")
        except OptionError as error:
            raise RunError(f"the run in '{folder}' is damaged: {error}") from None


def _length(record: RunRecord, target: float | None) -> int:
    """Return the epochs of a run up to the first that reaches `target`, or all of them."""
    if target is None:
        return len(record.epochs)
    record.metric.check_target(target)
    for epoch in record.epochs:
        if record.metric.reaches(epoch.test_value, target):
            return epoch.number
    best = record.metric.best(epoch.test_value for epoch in record.epochs)
    reached = "nothing" if best is None else record.metric.text(best)
    raise OptionError(
        f"the run in '{record.path}' does not reach the target of {record.metric.text(target)}: its best "
        f"{record.metric.words} is {reached}."
    )


def _recording(record: RunRecord, length: int) -> RunRecording:
    epochs = (
        (sum(epoch.batches.get(kind, 0) for kind in ("bp", "gp", "guarded")), epoch.sites)
        for epoch in record.epochs[:length]
    )
    return RunRecording(record.config, tuple(epochs))


def parse_shape(text: str | None, any_sizes: bool = False) -> tuple[int, ...] | None:
    """Return the shape that `text` (`3x64x64`) describes: an image's, or with `any_sizes` one of up to four sizes."""
    if text is None:
        return None
    more = "{0,3}" if any_sizes else "{2}"
    if re.fullmatch(rf"[1-9]\d{{0,5}}(x[1-9]\d{{0,5}}){more}", text) is None:
        raise OptionError(f"cannot read the input shape '{text}'; write CHANNELSxHEIGHTxWIDTH, for example 3x64x64.")
    return tuple(int(size) for size in text.split("x"))


def _takes_any_sizes(model: str) -> bool:
    return ":" in model or Path(model).suffix in READERS or (model in MODELS and MODELS[model].task == LANGUAGE)


def sample_shape(
    model: str | None, input_: str | None, image_size: int | None, channels: int | None, dataset: str
) -> tuple[int, ...] | None:
    """Return the shape of one sample: as it is written, or of square images; None if no option has it.

    Models of your own may take other things than images.
    """
    if image_size is None and channels is None:
        return parse_shape(input_, any_sizes=model is not None and _takes_any_sizes(model))
    if input_ is not None:
        raise OptionError("--input and --image-size or --channels both set the shape; give one or the other.")
    default_shape = dataset_info(dataset).shape or (3, 32, 32)
    side = image_size or default_shape[1]
    return (channels or default_shape[0], side, side)
