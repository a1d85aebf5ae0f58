"""The options that `simulate`, `sweep` and `explore` share: the model, its data, and the run to simulate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from adagp.core.methods import DEFAULT_METHOD, find_source
from adagp.core.options import declared_options, option, switch
from adagp.errors import OptionError
from adagp.hw import Run, scheduled_run
from adagp.hw.hardware_file import PRESETS, Hardware, read_hardware
from adagp.hw.runs import check_countable
from adagp.hw.settings import PANEL
from adagp.program.workloads import Origin, find_origin, sample_shape
from adagp.schedules import Schedule, parse_schedule

MODEL, RUN = "Model", "Run"
BATCH, EPOCHS = 128, 90
"""The default samples of a batch, and epochs of a run, if they are neither given nor recorded."""
_THE_SETS = "the data set's"

BATCH_SIZE = ("--batch-size", "--batch")
"""The flags for the size of a batch; the second one is older."""
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
    list[Path] | None,
    option(
        "JSON from adagp rtl place (sets the clock) or adagp rtl power (sets the energy of a PE and equal power). Repeatable.",
        "--from-rtl",
        panel=PANEL,
        unset="none",
    ),
]


HardwareFile = Annotated[
    Path | None,
    option(
        "Hardware file, for settings that are not given: .toml, SCALE-Sim's .cfg or ZigZag's .yaml.",
        "--hardware",
        panel=PANEL,
        unset="none",
    ),
]


def chosen_hardware(preset: str | None, path: Path | None) -> Hardware | None:
    """Return the hardware of a preset or a hardware file; None without either, an error with both."""
    if preset is not None and path is not None:
        raise OptionError("--preset and --hardware both describe the accelerator; give one of them.")
    if preset is not None:
        return PRESETS[preset].hardware
    return None if path is None else read_hardware(path)


@dataclass(frozen=True)
class SampleOptions:
    """The samples that a model is simulated for: those of a data set, or of another shape and classes; and its width."""

    dataset: Annotated[
        str, option("Data set, which sets the image shape, classes and number of samples.", panel=MODEL)
    ] = "cifar10"
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
        """Return the origin of the workload: a model, or a recorded run."""
        shape = sample_shape(model, self.input_, self.image_size, self.channels, self.dataset)
        return find_origin(
            model, from_run, self.dataset, shape, self.width, self.classes, method=method, trust=trust, target=target
        )


CHIPS = "Many chips"
_many = partial(option, panel=CHIPS, unset="none")


@dataclass(frozen=True)
class ManyChipOptions:
    """Training on many chips. None means the default, which the help gives in words."""

    chips: Annotated[int | None, _many("Number of chips that train together.", low=1, high=65_536)] = None
    parallel: Annotated[
        str | None,
        _many(
            "Split over the chips, for example data=8,tensor=2,pipeline=4; zero=1, 2 or 3 shards optimizer state, "
            "gradients, weights.",
            unset="data=CHIPS",
        ),
    ] = None
    fabric: Annotated[
        str | None, _many("Network between the chips: ring, torus, torus:ROWSxCOLUMNS or switch.", unset="switch")
    ] = None
    link_bandwidth: Annotated[
        float | None,
        _many(
            "Bandwidth of a link in gigabytes per second, in each direction.",
            unset="10",
            low=1e-6,
            high=1e9,
            infinite=True,
        ),
    ] = None
    link_latency: Annotated[float | None, _many("Latency of a link in microseconds.", unset="5", low=0, high=1e9)] = (
        None
    )
    collective: Annotated[
        str | None,
        _many(
            "All-reduce algorithm: ring, tree or auto (the faster one for each exchange).",
            unset="ring",
            choices=("ring", "tree", "auto"),
        ),
    ] = None
    micro_batches: Annotated[
        int | None,
        _many(
            "Micro-batches in the batch of each data-parallel copy.", unset="stages of the pipeline", low=1, high=65_536
        ),
    ] = None
    pipeline_schedule: Annotated[str | None, _many("Pipeline schedule, as for adagp pipeline.", unset="dapple")] = None
    no_overlap: Annotated[
        bool, switch("--no-overlap", "Exchange gradients after the backward pass, not during it.", panel=CHIPS)
    ] = False
    bucket: Annotated[float | None, _many("Size of a gradient bucket in megabytes.", unset="25", above=0, high=1e9)] = (
        None
    )
    scaling: Annotated[
        str | None,
        _many(
            "Also model 1, 2, 4, ... data-parallel copies: strong (same total batch) or weak (same batch per copy).",
            choices=("strong", "weak"),
        ),
    ] = None

    def with_links_of(self, hardware: Hardware | None) -> "ManyChipOptions":
        """Return the options, with the links of a hardware file for those that are not given."""
        if hardware is None:
            return self
        links = hardware.links
        return replace(
            self,
            link_bandwidth=links.bandwidth_gb_s if self.link_bandwidth is None else self.link_bandwidth,
            link_latency=links.latency_us if self.link_latency is None else self.link_latency,
        )

    @property
    def link_bandwidth_given(self) -> float:
        """The bandwidth of a link in gigabytes per second, 10 by default."""
        return 10.0 if self.link_bandwidth is None else self.link_bandwidth

    @property
    def link_latency_given(self) -> float:
        """The latency of a link in microseconds, 5 by default."""
        return 5.0 if self.link_latency is None else self.link_latency

    @property
    def bucket_given(self) -> float:
        """The size of a gradient bucket in megabytes, 25 by default."""
        return 25.0 if self.bucket is None else self.bucket

    def check(self, others: Mapping[str, bool]) -> None:
        """Raise for options that need --chips without it, and for those of `others` that are given together with it."""
        declared = declared_options(ManyChipOptions)
        for name in declared if self.chips is None else ():
            if getattr(self, name) not in (None, False):
                raise OptionError(f"{declared[name].flag} needs --chips.")
        for flag, given in others.items() if self.chips is not None else ():
            if given:
                raise OptionError(f"{flag} cannot be combined with --chips: it is about a single chip.")


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
        """Return the number of epochs: of the recorded run, else the given one, else the default."""
        return origin.epochs or self.epochs or EPOCHS

    def run(self, origin: Origin, batch: int | None) -> Run:
        """Return the recorded run, or the scheduled one with batches of `batch` samples."""
        if origin.replay is not None:
            find_source(self.method)  # raises on an unknown name
            recorded = {"batch-size": batch, "epochs": self.epochs, "samples": self.samples, "warmup": self.warmup}
            for name in (name for name, value in recorded.items() if value is not None):
                raise OptionError(f"--{name} is set by the replayed run; leave it out.")
            return origin.replay
        epochs, samples = self.epochs_of(origin), self.samples or origin.samples
        return scheduled_run(self.schedule(epochs), epochs, samples, batch or BATCH, origin.workload())

    def schedule(self, epochs: int) -> Schedule:
        """Return the schedule of a run of `epochs`; raise if it cannot be simulated."""
        method = find_source(self.method)
        schedule = parse_schedule(self.ratio or method.schedule, epochs, self.warmup, method.source)
        check_countable(schedule)
        return schedule
