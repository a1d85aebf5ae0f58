"""The settings of a training run: a field each, which declares its option with default, help, range and choices.

The command line, configuration files and checks all come from here (`CONFIG_OPTIONS`); what a method has of its own comes
from the table of methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

from adagp.core.options import Option
from adagp.program.run.parallel import check_parallel

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
class RunSettings:
    """Options of `adagp train`. The defaults are the ADA-GP paper's where it states them.

    `batches` is the length of the run where it is not whole epochs. Learning-rate milestones are at a half and three quarters
    of the run; `cosine` and `linear` fall to 0 from batch to batch. `method_options` are the method's own.
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


def _config_options() -> dict[str, Option]:
    """Return the options that the fields of the configuration declare, in their order."""
    hints = get_type_hints(RunSettings)
    found = {}
    for one in fields(RunSettings):
        if one.metadata:
            kinds = get_args(hints[one.name]) or (hints[one.name],)
            more: dict[str, Any] = {**one.metadata, "optional": type(None) in kinds}
            found[one.name] = Option(one.name, kinds[0], one.default, more.pop("help"), **more)
    return found


CONFIG_OPTIONS = _config_options()
"""The options of every run by name, as the fields of `RunSettings` declare them."""
