"""The configuration of a training run: everything that decides its result, as plain values."""

import shlex
import tomllib
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any, get_args, get_type_hints

from adagp.errors import OptionError, unknown_name
from adagp.run.defaults import DATASET_DEFAULTS
from adagp.run.methods import METHODS, Method
from adagp.schedules import BackpropOnly, Schedule, WarmUp, parse_schedule

OPTIMIZERS = ("sgd", "adam", "adamw")
LR_SCHEDULERS = ("plateau", "multistep", "cosine", "linear", "none")
PREDICTOR_SCHEDULERS = ("multistep", "plateau", "none")
PARALLEL = ("none", "data", "pipeline:gpipe", "pipeline:dapple", "pipeline:chimera")
HIGHEST_SEED = 2**63 - 1
"""What every generator of random numbers takes."""


@dataclass(frozen=True)
class TrainConfig:
    """Options of `adagp train`. The defaults are the ADA-GP paper's where it states them.

    `warmup`, `ratio` and `predictor_scheduler` of None mean the method's own. `batches` is the length of the run where it
    is not whole epochs; `epochs` then follows from it (`fit`). `warmup_batches` takes the place of `warmup`. Learning-rate
    milestones are at a half and three quarters of the run; `cosine` and `linear` fall to 0 from batch to batch.
    `from_dict` puts what suits the data set (`run.defaults`) in the place of these defaults. `vocabulary` (word pieces)
    and `beam` concern translation only. `image_size` is the height and width in pixels that
    pictures are brought to; None means the data set's own. `topk` (positions kept, and `published_scale`: divided by
    the batch size once more), `average` (gradients in the mean) and `remap_outputs` (numbers that remap predicts for a
    layer) concern the methods of these names; `features` (of the output's error) concerns feedback. A BP batch teaches
    ADA-GP's predictor one of `predictor_parts` parts of each layer's rows.
    `micro_batches` (parts of a batch in a pipeline) and `check_every` (batches between comparisons of the processes'
    copies) concern parallel runs only.
    """

    dataset: str = "digits"
    model: str = "digits_cnn"
    method: str = "adagp"
    epochs: int = 20
    batches: int | None = None
    warmup: int | None = None
    warmup_batches: int | None = None
    ratio: str | None = None
    batch_size: int = 32
    lr: float = 1e-3
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
    lr_scheduler: str = "plateau"
    predictor_lr: float = 1e-4
    predictor_parts: int = 1
    predictor_scheduler: str | None = None
    normalize: bool = False
    hold_norm: bool = False
    guard_limit: float = 10.0
    topk: int = 1
    published_scale: bool = False
    average: int = 4
    remap_outputs: int = 10_000
    features: int = 64
    width: float = 1.0
    label_smoothing: float = 0.0
    vocabulary: int = 8000
    beam: int = 4
    image_size: int | None = None
    seed: int = 0
    metrics_every: int = 10
    device: str = "cpu"
    compile: bool = False
    parallel: str = "none"
    micro_batches: int = 4
    check_every: int = 100

    def __post_init__(self) -> None:
        for name, options in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in options:
                raise unknown_name(name.replace("_", " "), value, options)
        for name, value in self.as_dict().items():
            if isinstance(value, float) and not isfinite(value):
                raise OptionError(f"{_option(name)} is {value}; it must be a finite number.")
        for name, (low, allowed) in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise OptionError(f"{_option(name)} is {value}; it must be {allowed}.")
        for name in ("lr", "predictor_lr", "width", "guard_limit"):
            if not getattr(self, name) > 0:
                raise OptionError(f"{_option(name)} is {getattr(self, name)}; it must be above 0.")
        if self.seed > HIGHEST_SEED:
            raise OptionError(f"--seed is {self.seed}; it must be at most {HIGHEST_SEED}.")
        if not 0 <= self.label_smoothing < 1:
            raise OptionError(f"--label-smoothing is {self.label_smoothing}; it must be 0 or more and below 1.")
        if self.warmup is not None and self.warmup_batches is not None:
            raise OptionError("--warmup and --warmup-batches say the same thing twice; give one of them.")
        # How many epochs `batches` are is known with the data; certainly no more than there are batches.
        self._read_schedule(max(self.epochs, self.batches or 0))

    @property
    def way(self) -> Method:
        """The training method that `method` names."""
        return METHODS[self.method]

    def fit(self, batches_per_epoch: int) -> "TrainConfig":
        """Return the configuration with the epochs that its batches are, the last one not always whole."""
        epochs = self.epochs if self.batches is None else -(-self.batches // batches_per_epoch)
        total = self.batches or epochs * batches_per_epoch
        if self.warmup_batches is not None and self.warmup_batches >= total:
            raise OptionError(
                f"warm-up of {self.warmup_batches} batches does not fit a run of {total}: nothing would be predicted. "
                f"Give --warmup-batches 0 to {total - 1}, or more batches."
            )
        return replace(self, epochs=epochs)

    def schedule(self, batches_per_epoch: int = 1) -> Schedule:
        """Return the schedule of the run. How many batches an epoch has matters to a warm-up in batches only."""
        schedule = self._read_schedule(self.epochs)
        batches = self.warmup_batches
        return WarmUp(schedule, batches=batches, batches_per_epoch=batches_per_epoch) if batches else schedule

    def _read_schedule(self, epochs: int) -> Schedule:
        if self.way.source is None:
            if self.ratio not in (None, "bp") or (self.warmup, self.warmup_batches) != (None, None):
                raise OptionError(f"method '{self.method}' predicts nothing: it takes no --ratio and no --warmup.")
            return BackpropOnly()
        warmup = self.warmup if self.warmup_batches is None else 0
        schedule = parse_schedule(self.ratio or self.way.ratio, epochs, warmup, self.way.source)
        if not schedule.sources <= {self.way.source}:
            raise OptionError(
                f"method '{self.method}' takes gradients from the source '{self.way.source}', but the schedule names "
                f"'{min(schedule.sources)}'. Leave out source=..., or choose the method that goes with it."
            )
        return schedule

    def as_dict(self) -> dict[str, Any]:
        """Return all values by name, ready for JSON."""
        return asdict(self)

    def command(self) -> str:
        """Return the command that repeats this run (data folder aside), quoted for a shell."""
        words = ["adagp", "train"]
        defaults = asdict(TrainConfig()) | DATASET_DEFAULTS.get(self.dataset, {})
        for field in fields(self):
            value = getattr(self, field.name)
            if value != defaults[field.name] and not (field.name == "epochs" and self.batches is not None):
                flag = _option(field.name)
                words += [flag] if value is True else [flag, str(value)]
        return shlex.join(words)

    @classmethod
    def from_dict(cls, values: dict[str, Any], origin: str) -> "TrainConfig":
        """Return the configuration with `values`; unknown names and wrong types are refused, naming `origin`."""
        check_names_and_types(values, origin)
        dataset = values.get("dataset", cls.dataset)
        return cls(**(DATASET_DEFAULTS.get(dataset, {}) | values))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the options in a TOML file, names and types checked; hyphens and underscores in names are the same."""
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise OptionError(f"cannot read the configuration file '{path}': {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"'{path}' is not valid TOML: {error}.") from None
    values: dict[str, Any] = {}
    for name, value in content.items():
        plain = name.replace("-", "_")
        if plain in values:
            raise OptionError(f"{path}: option '{plain}' is given twice, with hyphens and with underscores.")
        values[plain] = value
    check_names_and_types(values, str(path))
    return values


def check_names_and_types(values: dict[str, Any], origin: str) -> None:
    """Refuse names that are no options and values of a wrong type, naming `origin`."""
    hints = get_type_hints(TrainConfig)
    for name, value in values.items():
        if name not in hints:
            raise OptionError(f"{origin}: {unknown_name('option', name, hints)}")
        _check_type(name, value, hints[name], origin)


def _check_type(name: str, value: Any, hint: Any, origin: str) -> None:
    allowed = get_args(hint) or (hint,)
    fits = any(type(value) is kind or (kind is float and type(value) is int) for kind in allowed)
    if not fits:
        words = " or ".join("nothing" if kind is type(None) else kind.__name__ for kind in allowed)
        raise OptionError(f"{origin}: option '{name}' is {value!r}; it must be of type {words}.")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


_CHOICES: dict[str, tuple[str, ...]] = {
    "method": tuple(METHODS),
    "optimizer": OPTIMIZERS,
    "lr_scheduler": LR_SCHEDULERS,
    "predictor_scheduler": PREDICTOR_SCHEDULERS,
    "parallel": PARALLEL,
}
_LOWEST: dict[str, tuple[float, str]] = {
    "epochs": (1, "1 or more"),
    "batches": (1, "1 or more"),
    "warmup_batches": (0, "0 or more"),
    "batch_size": (1, "1 or more"),
    "momentum": (0, "0 or more"),
    "weight_decay": (0, "0 or more"),
    "beam": (1, "1 (greedy) or more"),
    "image_size": (1, "1 pixel or more"),
    "topk": (1, "1 or more"),
    "average": (1, "1 or more"),
    "predictor_parts": (1, "1 or more"),
    "remap_outputs": (1, "1 or more"),
    "features": (1, "1 or more"),
    "seed": (0, "0 or more"),
    "metrics_every": (0, "0 (never) or more"),
    "micro_batches": (1, "1 or more"),
    "check_every": (0, "0 (never) or more"),
}
