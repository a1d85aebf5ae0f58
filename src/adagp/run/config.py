"""The configuration of a training run: everything that decides its result, as plain values.

A field declares its option: default, help, range and choices. The command line, configuration files and checks all come
from there (`CONFIG_OPTIONS`); what a method has of its own comes from the table of methods.
"""

import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from adagp.errors import OptionError, unknown_name
from adagp.files import read_text
from adagp.methods import METHODS, Method, find_method, method_options, methods_with
from adagp.options import Option
from adagp.run.defaults import DATASET_DEFAULTS
from adagp.run.parallel import check_parallel, parallel_choices
from adagp.schedules import BackpropOnly, Schedule, WarmUp, parse_schedule
from adagp.schedules.precision_text import FORMS, parse_precision
from adagp.schedules.text import schedule_forms, usual_warmup
from adagp.schedules.warmup import scaled_warmup

TRAINING, PREDICTION, PARALLEL = "Training", "Prediction", "Several processes"
SPARSE, DUPLEX = "Sparse training", "Duplex model"
OPTIMIZERS = ("sgd", "adam", "adamw")
LR_SCHEDULERS = ("plateau", "multistep", "cosine", "linear", "none")
HIGHEST_SEED = 2**63 - 1
"""What every generator of random numbers takes."""


def setting(default: Any, text: str, panel: str = TRAINING, **more: Any) -> Any:
    """Return a field of a configuration that declares its option."""
    return field(default=default, metadata={"help": text, "panel": panel, "compared": "common", **more})


@dataclass(frozen=True)
class TrainConfig:
    """Options of `adagp train`. The defaults are the ADA-GP paper's where it states them.

    `batches` is the length of the run where it is not whole epochs; `epochs` then follows from it (`fit`). Learning-rate
    milestones are at a half and three quarters of the run; `cosine` and `linear` fall to 0 from batch to batch.
    `method_options` are the method's own. `from_dict` puts what suits the data set (`run.defaults`) in the place of these
    defaults, and takes the method's own options by their names like all others.
    """

    dataset: str = setting("digits", "Data set (digits is built in); adagp datasets lists them.")
    model: str = setting(
        "digits_cnn",
        "Model name (adagp models lists them), timm:NAME, torchvision:NAME, hf:FILE.json, or package.module:function.",
    )
    method: str = setting(
        "adagp", "Training method, or package.module:Class for a source of your own.", compared="fixed"
    )
    epochs: int = setting(20, "Length of the run in epochs.", low=1)
    batches: int | None = setting(None, "Length of the run in batches, instead of epochs.", low=1, unset="whole epochs")
    warmup: int | None = setting(
        None,
        "Epochs of backprop before the first prediction.",
        PREDICTION,
        low=0,
        compared="own",
        unset="the schedule's",
    )
    warmup_batches: int | None = setting(
        None, "The same in batches, for short runs.", PREDICTION, low=0, compared="own", unset="warmup decides"
    )
    ratio: str | None = setting(
        None,
        "The schedule: how GP and BP batches alternate. {forms}.",
        PREDICTION,
        compared="own",
        unset="the method's",
    )
    batch_size: int = setting(32, "Samples per batch.", low=1)
    lr: float = setting(1e-3, "Learning rate of the model.", above=0, compared="own")
    optimizer: str = setting("sgd", "Optimizer of the model: sgd, adam or adamw.", choices=OPTIMIZERS, compared="own")
    momentum: float = setting(0.9, "Momentum of sgd.", low=0, compared="own")
    weight_decay: float = setting(0.0, "Weight decay of the model.", low=0, compared="own")
    lr_scheduler: str = setting(
        "plateau",
        "How the model's learning rate falls: plateau, multistep, cosine, linear or none.",
        choices=LR_SCHEDULERS,
    )
    guard_limit: float = setting(
        10.0, "Refuse predictions over this many times the usual norm.", PREDICTION, above=0, compared="own"
    )
    width: float = setting(1.0, "Factor on the model's channels.", above=0, high=1000)
    label_smoothing: float = setting(
        0.0, "Share of the target spread over all classes.", low=0, below=1, allowed="0 or more and below 1"
    )
    vocabulary: int = setting(8000, "Word pieces to learn (translation).", low=1, high=1_000_000)
    sequence_length: int = setting(128, "Bytes in a sample (language modelling).", low=1, high=1_000_000)
    beam: int = setting(
        4, "Hypotheses of beam search for BLEU (translation).", low=1, high=1000, allowed="1 (greedy) to 1000"
    )
    image_size: int | None = setting(
        None,
        "Height and width in pixels that pictures are brought to.",
        low=1,
        high=8192,
        allowed="1 to 8192 pixels",
        unset="the data set's",
    )
    validation: float = setting(
        0.0,
        "Share of the training data that is held out and takes the test set's place.",
        low=0,
        below=1,
        allowed="0 (none) or more and below 1",
        compared="fixed",
    )
    test_samples: int | None = setting(
        None,
        "Evaluate on so many samples of the test set at most, the same ones in every run.",
        low=1,
        unset="all",
    )
    seed: int = setting(
        0, "Seed of weights, data order and everything random.", low=0, high=HIGHEST_SEED, compared="fixed"
    )
    precision: str = setting(
        "fp32",
        "Arithmetic of the layers' products, emulated in float: {precisions}. Widths' thresholds, the rounding of weights and "
        "activations and the exponents' window are our choice; FAST's paper does not say.",
        compared="own",
    )
    metrics_every: int = setting(
        10,
        "Sample the predictions' quality every N BP batches; 0: never.",
        PREDICTION,
        low=0,
        allowed="0 (never) or more",
    )
    keep: float | None = setting(
        None,
        "Share of the weights that may differ from their decaying initial values (DropBack).",
        SPARSE,
        above=0,
        high=1,
        allowed="above 0 and at most 1",
        compared="own",
        unset="all",
    )
    keep_decay: float = setting(
        0.9,
        "Factor on the initial weights in each batch; 1: no decay.",
        SPARSE,
        low=0,
        high=1,
        allowed="from 0 to 1",
        compared="own",
    )
    keep_threshold: str | None = setting(
        None,
        "How the smallest kept weight is found: estimate (one pass) or sort (exact).",
        SPARSE,
        choices=("estimate", "sort"),
        compared="own",
        unset="sort below 100,000 weights",
    )
    keep_rule: str = setting(
        "accumulated",
        "What is ranked: accumulated (updates, as printed) or magnitude (as in the published code).",
        SPARSE,
        choices=("accumulated", "magnitude"),
        compared="own",
    )
    keep_over: str = setting(
        "sites",
        "Which parameters are ranked: the weights of sites, or all. Our choice: as published it is all.",
        SPARSE,
        choices=("sites", "all"),
        compared="own",
    )
    backbone: str = setting(
        "resnet20",
        "Frozen part of --model duplex: a model name, torchvision:NAME, timm:NAME, or none.",
        DUPLEX,
        compared="own",
    )
    backbone_weights: str | None = setting(
        None,
        "Its weights: a run's model.pt, or a state_dict of torchvision.",
        DUPLEX,
        compared="own",
        unset="random",
    )
    backbone_width: float = setting(
        1.0, "Factor on the backbone's channels.", DUPLEX, above=0, high=1000, compared="own"
    )
    branch: int = setting(6, "Reversible blocks of the branch.", DUPLEX, low=1, high=1000, compared="own")
    branch_channels: int = setting(
        16,
        "Channels of each half of the branch. Our choice; not published.",
        DUPLEX,
        low=1,
        high=10_000,
        compared="own",
    )
    stream: str = setting(
        "float",
        "Arithmetic of the branch's stream: float, bfp (6 bits) or fixed (its inverse is exact).",
        DUPLEX,
        choices=("float", "bfp", "fixed"),
        compared="own",
    )
    recompute: bool = setting(
        True, "Find activations again from outputs instead of keeping them.", DUPLEX, compared="own"
    )
    read_faults: float = setting(
        0.0, "Share of the branch's values that memory reads wrongly.", DUPLEX, low=0, high=1, compared="own"
    )
    trained: str = setting(
        "branch",
        "What learns: branch; classifier (a new last layer on the backbone); all (with the backbone).",
        DUPLEX,
        choices=("branch", "classifier", "all"),
        compared="own",
    )
    device: str = setting("cpu", "Where to train: cpu, cuda, ...")
    compile: bool = setting(False, "Compile the model with torch.compile.")
    parallel: str = setting(
        "none",
        "Under torchrun. One of: {parallel}; or two dimensions, data=2,pipeline=4 or fsdp=2,pipeline=4 (pipeline:NAME=4).",
        PARALLEL,
        also=check_parallel,
        compared="fixed",
    )
    micro_batches: int = setting(4, "Parts of a batch in a pipeline.", PARALLEL, low=1, compared="fixed")
    split: str = setting(
        "",
        "Modules at which a pipeline's model is cut, separated by commas.",
        PARALLEL,
        compared="fixed",
        unset="into equal work",
    )
    runtime: str = setting(
        "auto",
        "What runs a pipeline: programs (our own), torch (torch.distributed.pipelining), or auto.",
        PARALLEL,
        choices=("auto", "programs", "torch"),
        compared="fixed",
    )
    check_every: int = setting(
        100,
        "Compare the processes' copies every N batches; 0: never.",
        PARALLEL,
        low=0,
        allowed="0 (never) or more",
        compared="fixed",
    )
    method_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for option in CONFIG_OPTIONS.values():
            option.check(getattr(self, option.name))
        own = {option.name: option for option in self.declaration.options}
        for name, value in self.method_options.items():
            if name not in own:
                raise _foreign_option(name, self.method)
            own[name].check(value)
        object.__setattr__(self, "method_options", self.declaration.defaults | dict(self.method_options))
        if self.warmup is not None and self.warmup_batches is not None:
            raise OptionError("--warmup and --warmup-batches say the same thing twice; give one of them.")
        parse_precision(self.precision)
        # How many epochs `batches` are is known with the data; certainly no more than there are batches.
        self._read_schedule(max(self.epochs, self.batches or 0))

    @property
    def declaration(self) -> Method:
        """The training method that `method` names."""
        return find_method(self.method)

    def fit(self, batches_per_epoch: int) -> "TrainConfig":
        """Return the configuration with the epochs that its batches are, the last one not always whole.

        Where a warm-up in epochs would take more than half of them, and nobody said how long it is to be, it is as large a
        share of the batches.
        """
        epochs = self.epochs if self.batches is None else -(-self.batches // batches_per_epoch)
        total = self.batches or epochs * batches_per_epoch
        if self.batches is not None and 2 * self._usual_warmup(epochs) * batches_per_epoch > total:
            return replace(self, epochs=epochs, warmup_batches=scaled_warmup(total) if total > 1 else 0)
        if self.warmup_batches is not None and self.warmup_batches >= total:
            raise OptionError(
                f"warm-up of {self.warmup_batches} batches does not fit a run of {total}: nothing would be predicted. "
                f"Give --warmup-batches 0 to {total - 1}, or more batches."
            )
        return replace(self, epochs=epochs)

    def _usual_warmup(self, epochs: int) -> int:
        """Return the epochs of the schedule's own warm-up, if it is a share of the run that nobody has changed; else 0."""
        own = (self.warmup, self.warmup_batches) == (None, None) and self.declaration.builds is not None
        return (own and usual_warmup(self.ratio or self.declaration.schedule, epochs)) or 0

    def schedule(self, batches_per_epoch: int = 1) -> Schedule:
        """Return the schedule of the run. How many batches an epoch has matters to a warm-up in batches only."""
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
        schedule = parse_schedule(method.schedule if self.ratio is None else self.ratio, epochs, warmup, method.source)
        if not schedule.sources <= {method.source}:
            raise OptionError(
                f"method '{self.method}' takes gradients from the source '{method.source}', but the schedule names "
                f"'{min(schedule.sources)}'. Leave out source=..., or choose the method that goes with it."
            )
        return schedule

    def as_dict(self) -> dict[str, Any]:
        """Return all values by name, ready for JSON; the method's own options stand beside the others."""
        return {name: getattr(self, name) for name in CONFIG_OPTIONS} | dict(self.method_options)

    def command(self) -> str:
        """Return the command that repeats this run (data folder aside), quoted for a shell."""
        words = ["adagp", "train"]
        defaults = default_options(self.declaration, self.dataset)
        for option in (*CONFIG_OPTIONS.values(), *self.declaration.options):
            value = self.method_options.get(option.name, getattr(self, option.name, None))
            if value != defaults[option.name] and not (option.name == "epochs" and self.batches is not None):
                words += option.words(value)
        return shlex.join(words)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str, *, foreign: str = "refuse") -> "TrainConfig":
        """Return the configuration with `values`; unknown names and wrong types are refused, naming `origin`.

        An option of another method is refused, or with `foreign="drop"` left out: it means nothing to this one.
        """
        check_names_and_types(values, origin)
        dataset = values.get("dataset", cls.dataset)
        given = {**DATASET_DEFAULTS.get(dataset, {}), **values}
        method = find_method(given.get("method", cls.method))
        own: dict[str, Any] = {}
        for name in [name for name in given if name not in CONFIG_OPTIONS]:
            value = given.pop(name)
            if name not in method.defaults and foreign == "refuse":
                raise _foreign_option(name, method.name)
            if name in method.defaults and value is not None:  # None: the method's own default
                own[name] = value
        return cls(**given, method_options=own)


def _config_options() -> dict[str, Option]:
    """Return the options that the fields of the configuration declare, in their order."""
    hints = get_type_hints(TrainConfig)
    found = {}
    for one in fields(TrainConfig):
        if one.metadata:
            kinds = get_args(hints[one.name]) or (hints[one.name],)
            more: dict[str, Any] = {**one.metadata, "optional": type(None) in kinds}
            found[one.name] = Option(one.name, kinds[0], one.default, more.pop("help"), **more)
    return found


CONFIG_OPTIONS = _config_options()
"""The options of every run by name, as the fields of `TrainConfig` declare them."""


def default_options(method: Method, dataset: str) -> dict[str, Any]:
    """Return what every option of a run with this method and data set is where it is not given."""
    defaults = {option.name: option.default for option in CONFIG_OPTIONS.values()}
    return defaults | method.defaults | DATASET_DEFAULTS.get(dataset, {})


def refuse_idle_options(given: Mapping[str, Any]) -> None:
    """Refuse options of sparse training where nothing says that the run is sparse, and of duplex models with other models."""
    foreign = [name for name in given if CONFIG_OPTIONS.get(name) and CONFIG_OPTIONS[name].panel == DUPLEX]
    if foreign and given.get("model") != "duplex":
        raise OptionError(f"{CONFIG_OPTIONS[foreign[0]].flag} is about the duplex model; give --model duplex.")
    idle = [name for name in given if name.startswith("keep_")]
    if idle and given.get("keep") is None:
        raise OptionError(
            f"{CONFIG_OPTIONS[idle[0]].flag} is about sparse training; give --keep, the share of weights to keep."
        )


def known_options() -> dict[str, Option]:
    """Return all options of runs by name: those of every run, then those of single methods."""
    own = method_options()
    for name in own.keys() & CONFIG_OPTIONS.keys():
        raise OptionError(f"method '{methods_with(name)[0]}' has an option '{name}', as every run has; rename it.")
    return {**CONFIG_OPTIONS, **own}


def help_text(option: Option) -> str:
    """Return an option's line of help, with the choices that plugins may have added and the methods that it belongs to."""
    text = option.help.replace("{forms}", schedule_forms()).replace("{parallel}", ", ".join(parallel_choices()))
    text = text.replace("{precisions}", ", ".join(FORMS))
    if option.name == "method":
        text += f" One of: {', '.join(METHODS)}."
    if option.name in CONFIG_OPTIONS:
        return text
    able = {name: METHODS[name].defaults[option.name] for name in methods_with(option.name)}
    if not able:
        return text
    others = "".join(f" {name}: {value}." for name, value in able.items() if value != option.default)
    return f"{text} For: {', '.join(able)}.{others}"


def _foreign_option(name: str, method: str) -> OptionError:
    return OptionError(
        f"method '{method}' has no option --{name.replace('_', '-')}; it belongs to: {', '.join(methods_with(name))}."
    )


def read_toml(path: Path) -> dict[str, Any]:
    """Return the options in a TOML file, names and types checked; hyphens and underscores in names are the same."""
    try:
        content = tomllib.loads(read_text(path, "the configuration file"))
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"'{path}' is not valid TOML: {error}.") from None
    values: dict[str, Any] = {}
    for name, value in content.items():
        plain = name.replace("-", "_")
        if plain in values:
            raise OptionError(f"{path}: option '{plain}' is given twice, with hyphens and with underscores.")
        values[plain] = value
    check_names_and_types(values, str(path))
    return values


def check_names_and_types(values: Mapping[str, Any], origin: str) -> None:
    """Refuse names that are no options and values of a wrong type, naming `origin`."""
    if ":" in str(values.get("method", "")):
        find_method(str(values["method"]))  # its own options are known from here on
    known = known_options()
    for name, value in values.items():
        if name not in known:
            raise OptionError(f"{origin}: {unknown_name('option', name, known)}")
        if name in CONFIG_OPTIONS or value is not None:
            known[name].check_type(value, origin)
