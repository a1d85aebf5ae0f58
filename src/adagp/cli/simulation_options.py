"""The options that `simulate`, `sweep` and `explore` share: which model and data are simulated, and which run of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from adagp.core.methods import DEFAULT_METHOD, find_source
from adagp.core.options import option
from adagp.errors import OptionError
from adagp.hw import Run, scheduled_run
from adagp.hw.runs import check_countable
from adagp.hw.settings import PANEL, PRESETS
from adagp.program.workloads import Origin, find_origin, sample_shape
from adagp.schedules import Schedule, parse_schedule

MODEL, RUN = "Model", "Run"
BATCH, EPOCHS = 128, 90
"""Samples of a batch, and epochs of a run, where neither is given nor recorded."""
_THE_SETS = "the data set's"

BATCH_SIZE = ("--batch-size", "--batch")
"""How the size of a batch is written; the second way is an older one."""
BatchSize = Annotated[int | None, option("Samples per batch.", *BATCH_SIZE, panel=RUN, unset=f"{BATCH}", low=1)]
Width = Annotated[float, option("Multiplier of the model's channels.", panel=MODEL, above=0, high=1000)]
InputShape = Annotated[
    str | None,
    option(
        "Input shape, for example 3x64x64; for text the length of a sequence.", "--input", panel=MODEL, unset=_THE_SETS
    ),
]
ImageSize = Annotated[
    int | None, option("Height and width of the images.", panel=MODEL, unset=_THE_SETS, low=1, high=65_536)
]
PresetName = Annotated[
    str | None,
    option(f"Accelerator preset, for settings that are not given: {', '.join(PRESETS)}.", panel=PANEL, unset="none"),
]

FromRtl = Annotated[
    Path | None,
    option(
        "JSON of adagp rtl place (its slowest clock) or of adagp rtl power (equal power), for settings that are not given.",
        panel=PANEL,
        unset="none",
    ),
]


@dataclass(frozen=True)
class SampleOptions:
    """What a model is simulated for: a data set, or samples of another shape and other classes; and its width."""

    dataset: Annotated[str, option("Data set: image shape, classes and samples.", panel=MODEL)] = "cifar10"
    input_: InputShape = None
    image_size: ImageSize = None
    channels: Annotated[
        int | None, option("Channels of the images.", panel=MODEL, unset=_THE_SETS, low=1, high=65_536)
    ] = None
    classes: Annotated[
        int | None,
        option(
            "Number of classes, or tokens of a vocabulary.",
            panel=MODEL,
            unset=_THE_SETS,
            low=2,
            high=1_000_000,
            allowed="2 to 1,000,000",
        ),
    ] = None
    width: Width = 1.0

    def origin(
        self,
        model: str | None,
        from_run: Path | None = None,
        *,
        method: str = "",
        trust: bool = False,
        target: float | None = None,
    ) -> Origin:
        """Return where the workload of `model`, or of a run that was recorded, comes from."""
        shape = sample_shape(model, self.input_, self.image_size, self.channels, self.dataset)
        return find_origin(
            model, from_run, self.dataset, shape, self.width, self.classes, method=method, trust=trust, target=target
        )


@dataclass(frozen=True)
class RunOptions:
    """The run that is simulated; None means the default, or the value of a recorded run."""

    epochs: Annotated[
        int | None,
        option(
            "Number of epochs.",
            panel=RUN,
            unset=f"{EPOCHS}",
            low=1,
            high=100_000,
            allowed="1 to 100,000, since they are counted one by one",
        ),
    ] = None
    samples: Annotated[int | None, option("Number of training samples.", panel=RUN, unset=_THE_SETS, low=1)] = None
    ratio: Annotated[
        str | None, option("Schedule, as for adagp train (adaptive ones excepted).", panel=RUN, unset="the method's")
    ] = None
    warmup: Annotated[
        int | None, option("Epochs of warm-up (backprop only).", panel=RUN, unset="the schedule's own", low=0)
    ] = None
    method: Annotated[
        str,
        option(
            "Method that provides the gradients of GP batches, or package.module:Class.",
            "--method",
            "--source",
            panel=RUN,
        ),
    ] = DEFAULT_METHOD

    def epochs_of(self, origin: Origin) -> int:
        """Return the number of epochs."""
        return origin.epochs or self.epochs or EPOCHS

    def run(self, origin: Origin, batch: int | None) -> Run:
        """Return the recorded run, or the scheduled one with batches of `batch` samples."""
        if origin.replay is not None:
            find_source(self.method)  # raises on an unknown name
            recorded = {"batch-size": batch, "epochs": self.epochs, "samples": self.samples, "warmup": self.warmup}
            for name in (name for name, value in recorded.items() if value is not None):
                raise OptionError(f"--{name} is recorded in the run that is replayed; leave it out.")
            return origin.replay
        epochs, samples = self.epochs_of(origin), self.samples or origin.samples
        return scheduled_run(self.schedule(epochs), epochs, samples, batch or BATCH, origin.workload())

    def schedule(self, epochs: int) -> Schedule:
        """Return the schedule of a run of `epochs`; raise if it cannot be simulated."""
        method = find_source(self.method)
        schedule = parse_schedule(self.ratio or method.schedule, epochs, self.warmup, method.source)
        check_countable(schedule)
        return schedule
