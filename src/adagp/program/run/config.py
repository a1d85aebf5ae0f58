"""The configuration of a training run: its options, where they are declared, their defaults, and how they fit together.

The options of every run are the fields of `RunSettings`. A method, a model or a weight-update hook declares further ones of its
own. The command line, TOML files and config.json hold all of them by name, side by side.
"""

import shlex
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from adagp.core.files import read_text
from adagp.core.methods import (
    DEFAULT_METHOD,
    METHODS,
    UNRECORDED_METHOD,
    WEIGHT_UPDATE_HOOKS,
    Method,
    find_method,
    methods_with,
)
from adagp.core.options import Option, declared_options
from adagp.core.options import option as declare
from adagp.core.precision import parse_precision, precision_forms
from adagp.core.registry import load_plugin, loaded_plugins
from adagp.errors import OptionError, RunError, unknown_name
from adagp.models.registry import MODELS
from adagp.program.run.parallel import check_parallel, parallel_choices
from adagp.schedules import BackpropOnly, Schedule, WarmUp, parse_schedule
from adagp.schedules.base import check_method_schedule
from adagp.schedules.ladder import scaled_warmup
from adagp.schedules.text import schedule_forms, usual_warmup

TRAINING, PREDICTION, PARALLEL = "Training", "Prediction", "Several processes"
OPTIMIZERS = ("sgd", "adam", "adamw")
LR_SCHEDULERS = ("plateau", "multistep", "cosine", "linear", "exponential", "none")
HIGHEST_SEED = 2**63 - 1
"""The largest seed that every random number generator accepts."""


_training = partial(declare, panel=TRAINING, compared="common")
_prediction = partial(declare, panel=PREDICTION, compared="own")
_parallel = partial(declare, panel=PARALLEL, compared="fixed")


@dataclass(frozen=True)
class RunSettings:
    """Options of `adagp train`. The defaults are the ADA-GP paper's where it states them.

    `batches` is the length of a run that is not in whole epochs. Learning-rate milestones are at a half and three quarters
    of the run; `cosine` and `linear` fall to 0 from batch to batch, `exponential` to 1%. `lr_warmup` is a share of the run, so
    that runs of other batch sizes or lengths warm up alike. `own_options` are those of the method, the model and hooks.
    """

    dataset: Annotated[str, _training("Data set (digits is built in); adagp datasets lists them.")] = "digits"
    model: Annotated[
        str,
        _training(
            "Model name (adagp models lists them), timm:NAME, torchvision:NAME, hf:FILE.json, or package.module:function."
        ),
    ] = "digits_cnn"
    method: Annotated[
        str, _training("Training method, or package.module:Class for a source of your own.", compared="fixed")
    ] = DEFAULT_METHOD
    epochs: Annotated[int, _training("Length of the run in epochs.", low=1)] = 20
    batches: Annotated[
        int | None, _training("Length of the run in batches, instead of epochs.", low=1, unset="whole epochs")
    ] = None
    warmup: Annotated[
        int | None, _prediction("Epochs of backprop before the first prediction.", low=0, unset="the schedule's")
    ] = None
    warmup_batches: Annotated[
        int | None, _prediction("Length of the warm-up in batches, for short runs.", low=0, unset="as --warmup")
    ] = None
    ratio: Annotated[
        str | None, _prediction("Schedule, which alternates GP and BP batches: {forms}.", unset="the method's")
    ] = None
    batch_size: Annotated[int, _training("Samples per batch.", low=1, compared="own")] = 32
    lr: Annotated[float, _training("Learning rate of the model.", above=0, compared="own")] = 1e-3
    optimizer: Annotated[
        str, _training("Optimizer of the model: sgd, adam or adamw.", choices=OPTIMIZERS, compared="own")
    ] = "sgd"
    momentum: Annotated[float, _training("Momentum of sgd.", low=0, compared="own")] = 0.9
    weight_decay: Annotated[float, _training("Weight decay of the model.", low=0, compared="own")] = 0.0
    lr_scheduler: Annotated[
        str,
        _training(
            "Learning rate scheduler of the model: plateau, multistep, cosine, linear, exponential or none.",
            choices=LR_SCHEDULERS,
        ),
    ] = "plateau"
    lr_warmup: Annotated[
        float,
        _training(
            "Fraction of the run during which the learning rate rises linearly to the scheduler's value.",
            low=0,
            high=1,
            allowed="0 (none) to 1",
            compared="own",
        ),
    ] = 0.0
    guard_limit: Annotated[
        float, _prediction("Reject predicted gradients over this many times the usual norm.", above=0)
    ] = 10.0
    width: Annotated[float, _training("Multiplier of the model's channels.", above=0, high=1000)] = 1.0
    label_smoothing: Annotated[
        float,
        _training(
            "Label smoothing: fraction of the target distributed over all classes.",
            low=0,
            below=1,
            allowed="0 or more and below 1",
        ),
    ] = 0.0
    vocabulary: Annotated[int, _training("Size of the word-piece vocabulary (translation).", low=1, high=1_000_000)] = (
        8000
    )
    sequence_length: Annotated[
        int, _training("Sequence length in bytes (language modelling).", low=1, high=1_000_000)
    ] = 128
    beam: Annotated[
        int,
        _training("Beam width of the search for BLEU (translation).", low=1, high=1000, allowed="1 (greedy) to 1000"),
    ] = 4
    image_size: Annotated[
        int | None,
        _training(
            "Resize images to this height and width, in pixels.",
            low=1,
            high=8192,
            allowed="1 to 8192 pixels",
            unset="the data set's",
        ),
    ] = None
    augment: Annotated[bool, _training("Randomly crop and mirror the training images (colour images only).")] = True
    validation: Annotated[
        float,
        _training(
            "Fraction of the training data to hold out and evaluate on instead of the test set.",
            low=0,
            below=1,
            allowed="0 (none) or more and below 1",
            compared="fixed",
        ),
    ] = 0.0
    test_samples: Annotated[
        int | None,
        _training("Evaluate on at most N samples of the test set, the same ones in every run.", low=1, unset="all"),
    ] = None
    seed: Annotated[
        int,
        _training(
            "Random seed, for weights, data order and everything else.", low=0, high=HIGHEST_SEED, compared="fixed"
        ),
    ] = 0
    precision: Annotated[
        str,
        _training(
            "Arithmetic of the layers' products, emulated in float: {precisions}. The FAST paper does not specify "
            "the thresholds of the widths, the rounding of weights and activations, and the window of exponents: "
            "these are adagp's choices.",
            compared="own",
        ),
    ] = "fp32"
    metrics_every: Annotated[
        int,
        _prediction(
            "Measure the prediction quality every N BP batches; 0: never.",
            low=0,
            allowed="0 (never) or more",
            compared="common",
        ),
    ] = 10
    device: Annotated[str, _training("Where to train: cpu, cuda, ...")] = "cpu"
    compile: Annotated[bool, _training("Compile the model with torch.compile.")] = False
    parallel: Annotated[
        str,
        _parallel(
            "Parallel training, started by torchrun. One of: {parallel}; or two dimensions, data=2,pipeline=4 or "
            "fsdp=2,pipeline=4 (pipeline:NAME=4).",
            also=check_parallel,
        ),
    ] = "none"
    micro_batches: Annotated[int, _parallel("Micro-batches per batch in a pipeline.", low=1)] = 4
    split: Annotated[
        str,
        _parallel(
            "Modules at which to split the model into pipeline stages, separated by commas.",
            unset="stages of equal work",
        ),
    ] = ""
    runtime: Annotated[
        str,
        _parallel(
            "Pipeline runtime: programs (adagp's own), torch (torch.distributed.pipelining), or auto.",
            choices=("auto", "programs", "torch"),
        ),
    ] = "auto"
    check_every: Annotated[
        int,
        _parallel(
            "Check every N batches that all processes have the same weights; 0: never.",
            low=0,
            allowed="0 (never) or more",
        ),
    ] = 100
    own_options: Mapping[str, Any] = field(default_factory=dict)


CONFIG_OPTIONS = declared_options(RunSettings)
"""The options of every run by name, as the fields of `RunSettings` declare them."""

DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "multi30k": {
        "model": "transformer",
        "batch_size": 128,
        "lr": 1e-3,
        "optimizer": "adam",
        "lr_scheduler": "cosine",
        "label_smoothing": 0.1,
    },
    "persuasion": {"model": "decoder", "optimizer": "adamw", "lr": 1e-3, "lr_scheduler": "cosine"},
    # learning rate and weight decay are ADA-GP's for YOLO-v3; it names no optimizer for it
    "voc": {"model": "yolov3", "optimizer": "adam", "lr": 3e-5, "weight_decay": 1e-4},
}
"""Options whose defaults depend on the data set."""


def _options_by_owner() -> Iterator[tuple[str, str, Iterable[Option]]]:
    """Yield the kind and the name of all that may have options of their own, with these options."""
    yield from (("weight update hook", name, WEIGHT_UPDATE_HOOKS[name].options) for name in WEIGHT_UPDATE_HOOKS)
    yield from (("model", name, MODELS[name].options) for name in MODELS)
    yield from (("method", name, METHODS[name].options) for name in METHODS)


def known_options() -> dict[str, Option]:
    """Return all options of runs by name: those of every run, then those of single hooks, models and methods."""
    known, owners = dict(CONFIG_OPTIONS), dict.fromkeys(CONFIG_OPTIONS, "")
    for kind, name, options in _options_by_owner():
        for option in options:
            if owners.setdefault(option.name, kind) != kind:
                other = f"{owners[option.name]}s also have" if owners[option.name] else "every run has"
                raise OptionError(f"{kind} '{name}' has an option '{option.name}', as {other}; rename it.")
            known.setdefault(option.name, option)
    return known


def applicable_options(method: Method, model: str, values: Mapping[str, Any]) -> dict[str, Option]:
    """Return by name the own options of a run's method, model and hooks; for a hook that is off, only its switch."""
    options = [*method.options, *(MODELS[model].options if model in MODELS else ())]
    for hook in map(WEIGHT_UPDATE_HOOKS.__getitem__, WEIGHT_UPDATE_HOOKS):
        options += [option for option in hook.options if option.name == hook.switch or hook.is_on(values)]
    return {option.name: option for option in options}


def default_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of every option for a run with these values."""
    config = {name: option.default for name, option in CONFIG_OPTIONS.items()} | DATASET_DEFAULTS.get(
        values["dataset"], {}
    )
    options = applicable_options(find_method(values["method"]), values["model"], values)
    return config | {name: option.default for name, option in options.items()}


def help_text(option: Option) -> str:
    """Return an option's line of help, with the choices that plugins may have added and the methods that it belongs to."""
    text = option.help.replace("{forms}", schedule_forms()).replace("{parallel}", ", ".join(parallel_choices()))
    text = text.replace("{precisions}", ", ".join(precision_forms()))
    if option.name == "method":
        text += f" One of: {', '.join(METHODS)}."
    able = {name: METHODS[name].defaults[option.name] for name in methods_with(option.name)}
    if not able:
        return text
    others = "".join(f" Default for {name}: {value}." for name, value in able.items() if value != option.default)
    return f"{text} For: {', '.join(able)}.{others}"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the options in a TOML file, names and types checked; hyphens and underscores in names are the same."""
    try:
        content = tomllib.loads(read_text(path, "the configuration file"))
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"'{path}' is not valid TOML: {error}.") from None
    except RecursionError:
        raise OptionError(f"'{path}' is not valid TOML: it is nested too deeply.") from None
    values: dict[str, Any] = {}
    for name, value in content.items():
        plain = name.replace("-", "_")
        if plain in values:
            raise OptionError(f"{path}: option '{plain}' is given twice, with hyphens and with underscores.")
        values[plain] = value
    check_names_and_types(values, str(path))
    return values


def check_names_and_types(values: Mapping[str, Any], origin: str) -> None:
    """Raise on names that are not options and on values of a wrong type, naming `origin`."""
    if ":" in str(values.get("method", "")):
        find_method(str(values["method"]))  # its own options are known from here on
    known = known_options()
    for name, value in values.items():
        if name not in known:
            raise OptionError(f"{origin}: {unknown_name('option', name, known)}")
        if name in CONFIG_OPTIONS or value is not None:
            known[name].check_type(value, origin)


@dataclass(frozen=True)
class TrainConfig(RunSettings):
    """The settings of a run that fit together; the options of its method, model and hooks are complete.

    If `batches` is given, `fit` sets `epochs`. `from_dict` applies the defaults of the data set, and reads the own options of
    method, model and hooks by their names like all others.
    """

    def __post_init__(self) -> None:
        for option in CONFIG_OPTIONS.values():
            option.check(getattr(self, option.name))
        options = applicable_options(self.declaration, self.model, self.own_options)
        for name, value in self.own_options.items():
            if name not in options:
                raise _foreign_option(name, self.method, self.model)
            options[name].check(value)
        complete = {name: option.default for name, option in options.items()} | dict(self.own_options)
        object.__setattr__(self, "own_options", complete)
        if self.warmup is not None and self.warmup_batches is not None:
            raise OptionError("--warmup and --warmup-batches both set the warm-up; give one of them.")
        parse_precision(self.precision)
        # The number of epochs is known only with the data; there are at most as many as batches.
        self._read_schedule(max(self.epochs, self.batches or 0))

    @property
    def declaration(self) -> Method:
        """The training method that `method` names."""
        return find_method(self.method)

    @property
    def method_options(self) -> dict[str, Any]:
        """The method's own options."""
        return {name: self.own_options[name] for name in self.declaration.defaults}

    def fit(self, batches_per_epoch: int) -> "TrainConfig":
        """Return the configuration with `epochs` set from `batches`, rounded up.

        If the schedule's own warm-up in epochs would take more than half of the run, it becomes a warm-up in batches with the
        schedule's share of the run. A warm-up that the user set is kept; raises OptionError if it does not fit the run.
        """
        epochs = self.epochs if self.batches is None else -(-self.batches // batches_per_epoch)
        total = self.batches or epochs * batches_per_epoch
        if 2 * self._usual_warmup(epochs) * batches_per_epoch > total:
            return replace(self, epochs=epochs, warmup_batches=scaled_warmup(total) if total > 1 else 0)
        if self.warmup_batches is not None and self.warmup_batches >= total:
            raise OptionError(
                f"warm-up of {self.warmup_batches} batches does not fit a run of {total}: nothing would be predicted. "
                f"Give --warmup-batches 0 to {total - 1}, or more batches."
            )
        return replace(self, epochs=epochs)

    def _usual_warmup(self, epochs: int) -> int:
        """Return the epochs of the schedule's own warm-up, if it is a share of the run that the user did not set; else 0."""
        unset = (self.warmup, self.warmup_batches) == (None, None) and self.declaration.builds is not None
        return (unset and usual_warmup(self.ratio or self.declaration.schedule, epochs)) or 0

    def schedule(self, batches_per_epoch: int = 1) -> Schedule:
        """Return the schedule of the run. `batches_per_epoch` matters only for a warm-up in batches."""
        schedule = self._read_schedule(self.epochs)
        batches = self.warmup_batches
        return WarmUp(schedule, batches=batches, batches_per_epoch=batches_per_epoch) if batches else schedule

    def _read_schedule(self, epochs: int) -> Schedule:
        method = self.declaration
        if method.builds is None:
            if self.ratio not in (None, "bp") or (self.warmup, self.warmup_batches) != (None, None):
                raise OptionError(f"method '{self.method}' predicts nothing: it takes no --ratio and no --warmup.")
            return BackpropOnly()
        warmup = self.warmup if self.warmup_batches is None else 0
        if epochs == 1 and self._usual_warmup(epochs):
            warmup = 0  # `fit` warms a single epoch up for a share of its batches
        schedule = parse_schedule(method.schedule if self.ratio is None else self.ratio, epochs, warmup, method.source)
        check_method_schedule(method, schedule)
        return schedule

    def as_dict(self) -> dict[str, Any]:
        """Return all values by name, ready for JSON; own options stand next to the others."""
        return {name: getattr(self, name) for name in CONFIG_OPTIONS} | dict(self.own_options)

    def command(self) -> str:
        """Return the command that repeats this run (data folder aside), quoted for a shell."""
        words = ["adagp", "train"]
        values = self.as_dict()
        defaults = default_options(values)
        options = applicable_options(self.declaration, self.model, values)
        for name, option in {**CONFIG_OPTIONS, **options}.items():
            if values[name] != defaults[name] and not (name == "epochs" and self.batches is not None):
                words += option.words(values[name])
        return shlex.join(words)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str, *, foreign: str = "reject") -> "TrainConfig":
        """Return the configuration with `values`; unknown names and wrong types are rejected, naming `origin`.

        An option of another method, model or hook is rejected, or with `foreign="drop"` left out: it means nothing here.
        """
        check_names_and_types(values, origin)
        dataset = values.get("dataset", cls.dataset)
        options = {**DATASET_DEFAULTS.get(dataset, {}), **values}
        method, model = find_method(options.get("method", cls.method)), options.get("model", cls.model)
        applicable = applicable_options(method, model, options)
        own: dict[str, Any] = {}
        for name in [name for name in options if name not in CONFIG_OPTIONS]:
            value = options.pop(name)
            if name not in applicable and foreign == "reject":
                raise _foreign_option(name, method.name, model)
            if name in applicable and value is not None:  # None: its default
                own[name] = value
        return cls(**options, own_options=own)


def _foreign_option(name: str, method: str, model: str) -> OptionError:
    flag = f"--{name.replace('_', '-')}"
    owners = [(kind, owner) for kind, owner, own in _options_by_owner() if name in {option.name for option in own}]
    kind = owners[0][0] if owners else "method"
    if kind == "weight update hook":
        switch = WEIGHT_UPDATE_HOOKS[owners[0][1]].switch.replace("_", "-")
        return OptionError(f"{flag} has no effect without --{switch}; give --{switch} as well.")
    named = method if kind == "method" else model
    return OptionError(
        f"{kind} '{named}' has no option {flag}; it belongs to: {', '.join(owner for _, owner in owners)}."
    )


TRUST = "--trust"
CODE = ("model", "method")
"""Options that may name code: `package.module:name`."""
LIBRARIES = ("timm", "torchvision", "hf")
"""Prefixes of models from installed libraries (`timm:NAME`), which run no code of the run folder."""


def check_trusted_code(
    config: Mapping[str, Any], path: Path, named: Collection[str] = (), *, trust: bool = False
) -> None:
    """Raise if the configuration of the run in `path` names code that the user has not named on the command line.

    `named` are the models and methods that the user named; plugins that the user named are loaded already. With `trust` the
    user trusts the folder: its plugins are loaded here, and its model and method may be imported.
    """
    plugins = [name for name in config.get("plugins") or () if name not in loaded_plugins()]
    if not trust:
        code = [("plugin", name) for name in plugins]
        code += [(option, str(config[option])) for option in CODE if _is_code(option, config.get(option), named)]
        for option, name in code:
            raise RunError(
                f"the run in '{path}' would run code that it names itself: --{option} {name}. If you trust that "
                f"code, give --{option} {name} as well, or {TRUST}."
            )
    for name in plugins:
        load_plugin(name)


def _is_code(option: str, name: Any, named: Collection[str]) -> bool:
    """Return whether a folder's option names code the user did not name; `torchvision.models:NAME` is a library's model."""
    if not isinstance(name, str):
        return False
    package = name.partition(":")[0]
    if option == "model" and (package in LIBRARIES or package.startswith(("timm.", "torchvision."))):
        return False
    return ":" in name and name not in named and name not in METHODS


def check_same_run(before: Any, now: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Raise if the checkpoint of the run in `path` was made with other options or other data.

    `before` is what the checkpoint was made with, `now` what it would be continued with: tables `options` and `data`. A
    older checkpoint may lack it; an option that was added later than the checkpoint had its default then.
    """
    if not isinstance(before, Mapping):
        return
    words = {
        "options": "was started with other options than its config.json has now: {}. Restore them, or start a new run "
        "with --out.",
        "data": "was started with other data: {}. Restore it, or start a new run with --out.",
    }
    for kind, sentence in words.items():
        old = before.get(kind)
        if not isinstance(old, Mapping):
            continue
        names = dict.fromkeys((*old, *now[kind]))
        if kind == "options" and "method" in now[kind]:
            old = default_options(now[kind]) | {"method": UNRECORDED_METHOD} | dict(old)
            names = dict.fromkeys(now[kind])  # older checkpoints also have the options of models and hooks not in use
        changed = [
            f"{str(name).replace('_', ' ') if kind == 'data' else name} (was {old.get(name)}, now {now[kind].get(name)})"
            for name in names
            if old.get(name) != now[kind].get(name)
        ]
        if changed:
            raise RunError(f"the run in '{path}' {sentence.format(', '.join(changed))}")
