"""A comparison: its options, its folder, the runs that it consists of.

Methods may have different batch sizes. Lengths given in batches (the runs', the warm-up's, the tuning runs') are in batches of
the common batch size: a method with another one gets as many samples.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from adagp.errors import OptionError, RunError, unknown_name
from adagp.program.compare.cluster import ClusterPlatform, parse_cluster
from adagp.program.compare.grid import BATCH_SIZE, Tuning, Values
from adagp.program.compare.methods import BACKPROP, Candidate, candidate_config
from adagp.program.compare.modelled_cost import parse_accelerator, parse_pipeline
from adagp.program.run.config import TrainConfig
from adagp.program.run.documents import ANYTHING, TEXT, Fields, ListOf, TableOf, read_document, record_of
from adagp.program.run.folder import MEGABYTE, RunFolder
from adagp.program.run.record import COMPARISON

BATCHES, SECONDS, ACCELERATOR, PIPELINE, CLUSTER = "batches", "seconds", "accelerator", "pipeline", "cluster"
REGIMES = (BATCHES, SECONDS, ACCELERATOR, PIPELINE, CLUSTER)
"""What is equal for all methods: batches (samples, where batch sizes differ), calibrated seconds, or modelled cycles of an
accelerator, of a pipeline of them or of a data-parallel cluster of them."""
MODELLED = (ACCELERATOR, PIPELINE, CLUSTER)
FORMER = {"epochs": BATCHES}
"""Regime names of earlier versions, still accepted and read from earlier folders."""
USUAL = (BATCHES, SECONDS)
GROWING = ("regimes", "accelerator", "pipeline", "cluster", "curve", "seeds", "aligned_seeds", "entries", "settings")
"""Fields that may change when a folder is continued: they decide which runs exist, but not the result of any run.

Methods can be added, but not dropped or changed. Once batches were timed none can be added, as all are timed interleaved."""
LONGEST_CURVE = 100
"""Upper limit of the factors of `--curve`."""
FULL_DECAY = ("cosine", "linear")
_CANDIDATE = record_of({"name": TEXT, "method": TEXT})
KEPT = Fields(
    {"entries": ListOf(_CANDIDATE), "settings": TableOf(TableOf(ANYTHING))}, ANYTHING, ("entries", "settings")
)
"""The fields of comparison.json that are read back. Candidates are stored under `entries`, the name of earlier versions."""


@dataclass(frozen=True)
class Comparison:
    """All options of a comparison that its results depend on.

    candidates      the methods to compare
    options         options of `adagp train` for all methods;  settings: for single methods, by name
    batches         length of the runs at equal batches, in batches of the common batch size
    seconds         budget of the runs at equal seconds; None: the calibrated seconds of backprop's run
    accelerator, pipeline, cluster   the modelled platforms of the regimes of these names
    curve           backprop is also trained at these multiples of `batches`
    tuning          the options that are tuned for each method first;  picked: the outcome, by method
    points          batches per run at which gradients are compared with those of `large_batch` samples
    aligned_seeds   seeds for which gradients are compared
    rounds          how often each kind of batch is timed
    """

    candidates: tuple[Candidate, ...]
    seeds: int
    options: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]
    batches: int
    regimes: tuple[str, ...] = USUAL
    seconds: float | None = None
    large_batch: int = 4096
    points: int = 5
    aligned_seeds: int = 1
    rounds: int = 30
    data_dir: str | None = None
    accelerator: str = "max,ws,12x15"
    pipeline: str = "best,devices=4,micro-batches=4"
    cluster: str = str(ClusterPlatform())
    curve: tuple[float, ...] = ()
    tuning: Tuning | None = None
    picked: Mapping[str, Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low in (("seeds", 1), ("large_batch", 0), ("points", 1), ("aligned_seeds", 0), ("rounds", 1)):
            if getattr(self, name) < low:
                flag = "--" + name.replace("_", "-")
                raise OptionError(f"{flag} is {getattr(self, name)}; it must be {low} or more.")
        if self.aligned_seeds > self.seeds:
            raise OptionError(
                f"--aligned-seeds is {self.aligned_seeds}; it must be at most the number of seeds, {self.seeds}."
            )
        self._check_regimes()
        self._check_curve()
        self._check_seconds()
        if self.tuning is not None:
            self.tuning.check(self.options, self.settings)
        self.check_each(self._check_candidate)

    @property
    def reference(self) -> Candidate:
        """Backprop, the reference for the cost and the results of the others."""
        return next(candidate for candidate in self.candidates if candidate.method == BACKPROP)

    @property
    def curve_lengths(self) -> list[int]:
        """Lengths in batches of backprop's runs for `curve`."""
        batches = self.config(self.reference, 0).batches
        assert batches is not None
        return sorted({max(1, round(factor * batches)) for factor in self.curve})

    @cached_property
    def base_config(self) -> TrainConfig:
        """Backprop with the common options alone."""
        return candidate_config(Candidate(BACKPROP, BACKPROP), self.options, {}, self.batches, 0)

    @property
    def base_batch_size(self) -> int:
        """The common batch size: lengths are given in batches of it."""
        return self.base_config.batch_size

    def equal_batches(self, batches: int, batch_size: int) -> int:
        """Return how many batches of `batch_size` samples have as many samples as `batches` of the common batch size."""
        return max(1, round(batches * self.base_batch_size / batch_size))

    def batch_sizes(self, candidate: Candidate) -> list[int]:
        """Return the batch sizes that a method's batches may have before it is tuned: those tried, and its own."""
        untuned = self.config(candidate, 0, tuned={}).batch_size
        if self.tuning is None or BATCH_SIZE not in self.tuning.options:
            return [untuned]
        tried = [int(size) for size in self.tuning.options[BATCH_SIZE]]
        # The tuning runs' budget is the cost of backprop with the common batch size, tried or not.
        return sorted({*tried, untuned}) if candidate == self.reference else sorted(tried)

    @property
    def data_folder(self) -> Path | None:
        """Folder of the data sets; None for the default."""
        return None if self.data_dir is None else Path(self.data_dir)

    def check_each(self, check: Callable[[Candidate], None]) -> None:
        """Call `check` for each candidate; an error names the method, unless backprop already fails the check."""
        check(self.reference)
        for candidate in self.candidates:
            try:
                check(candidate)
            except OptionError as error:
                raise OptionError(f"method '{candidate.name}': {error}") from None

    def _check_candidate(self, candidate: Candidate) -> None:
        config = self.config(candidate, 0)
        if BATCHES not in self.regimes and config.schedule().adapts:
            raise OptionError(
                "the number of GP batches of an adaptive schedule is known only after a run; add the regime batches, whose "
                "runs are counted."
            )

    def _check_regimes(self) -> None:
        if not self.regimes:
            raise OptionError(f"--regimes is empty; choose from: {', '.join(REGIMES)}.")
        # The defaults are valid: do not load all designs and dataflows just to check them.
        if self.accelerator != Comparison.accelerator:
            parse_accelerator(self.accelerator)
        if self.pipeline != Comparison.pipeline:
            parse_pipeline(self.pipeline)
        if self.cluster != Comparison.cluster:
            parse_cluster(self.cluster)
        for index, regime in enumerate(self.regimes):
            if regime not in REGIMES:
                raise unknown_name("regime", regime, REGIMES)
            if regime in self.regimes[:index]:
                raise OptionError(f"--regimes names '{regime}' twice.")

    def _check_curve(self) -> None:
        for index, factor in enumerate(self.curve):
            if not (isfinite(factor) and 0 < factor <= LONGEST_CURVE):
                raise OptionError(f"--curve has {factor:g}; each number must be above 0 and at most {LONGEST_CURVE}.")
            if factor in self.curve[:index]:
                raise OptionError(f"--curve has {factor:g} twice.")

    def _check_seconds(self) -> None:
        if self.seconds is not None and SECONDS not in self.regimes:
            raise OptionError("--seconds goes with the regime seconds; add it to --regimes.")
        if self.seconds is not None and not (isfinite(self.seconds) and self.seconds > 0):
            raise OptionError(f"--seconds is {self.seconds}; it must be a finite number above 0.")
        rate = self.options.get("lr_scheduler", FULL_DECAY[0])
        costly = next((regime for regime in self.regimes if regime != BATCHES), None)
        if costly is not None and rate not in FULL_DECAY:
            raise OptionError(
                f"the regime {costly} needs a learning rate that falls to 0 within each run; --lr-scheduler is {rate}, "
                f"choose from: {', '.join(FULL_DECAY)}."
            )

    def config(
        self, candidate: Candidate, seed: int, batches: int | None = None, tuned: Values | None = None
    ) -> TrainConfig:
        """Return the configuration of one run.

        `batches` defaults to the length at equal samples, `tuned` (values of tuned options) to those picked for the method.
        """
        own: dict[str, Mapping[str, Any]] = {
            name: self.settings.get(name, {}) for name in (candidate.method, candidate.name)
        }
        values = self.picked.get(candidate.name, {}) if tuned is None else tuned
        own[candidate.name] = {**own[candidate.name], **values}
        config = candidate_config(candidate, self.options, own, batches or self.batches, seed)
        if config.batch_size == self.base_batch_size:
            return config
        return replace(
            config,
            batches=batches or self.equal_batches(self.batches, config.batch_size),
            warmup_batches=config.warmup_batches and self.equal_batches(config.warmup_batches, config.batch_size),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the content of comparison.json."""
        lists = {"regimes": list(self.regimes), "curve": list(self.curve)}
        values = asdict(self) | lists
        values = {"entries": list(values.pop("candidates")), **values}
        del values["picked"]  # a result, stored in tuning.json
        if self.tuning is not None:
            values["tuning"] = self.tuning.as_dict()
        return values


@dataclass(frozen=True)
class ComparedRun:
    """One training run of a comparison in its folder."""

    candidate: Candidate
    config: TrainConfig
    folder: RunFolder

    @property
    def name(self) -> str:
        """The name shown in messages."""
        return f"{self.candidate.name} seed {self.config.seed}, {self.config.batches} batches"

    @property
    def finished(self) -> bool:
        """Whether the run wrote its summary."""
        return (self.folder.path / "summary.json").is_file()


class ComparisonFolder:
    """The files of one comparison. A run that two regimes share is trained once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, comparison: Comparison) -> None:
        """Write comparison.json, or check that the folder holds the same comparison."""
        folder, files = RunFolder(self.path), self._create()
        if COMPARISON not in files:
            if files:
                raise RunError(
                    f"'{self.path}' holds files that are not a comparison ({files[0]}, ...); give another --out."
                )
            folder.write_json(COMPARISON, comparison.as_dict())
            return
        before, now = read_document(self.path / COMPARISON, KEPT, MEGABYTE), comparison.as_dict()
        absent = {"tuning": None}  # a field that earlier versions did not write
        changed = [name for name in now if name not in GROWING and before.get(name, absent.get(name)) != now[name]]
        changed += self._changed_methods(before, now)
        if changed:
            raise RunError(
                f"'{self.path}' holds a comparison with other options ({', '.join(changed)} differ). "
                "Repeat it with the same ones to continue, or give another --out."
            )
        if before != now:
            folder.write_json(COMPARISON, now)

    def _create(self) -> list[str]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            return sorted(file.name for file in self.path.iterdir() if not file.name.startswith("."))
        except OSError as error:
            raise RunError(f"cannot write the folder '{self.path}': {error.strerror}.") from None

    def _changed_methods(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        known, current = _methods_by_name(before), _methods_by_name(now)
        if any(candidate != current.get(name) for name, candidate in known.items()):
            return ["methods"]  # not even dropped: a later method of the same name would take over its runs
        if known != current and self.timing.is_file():
            return ["methods, which were timed together,"]
        names = {*known, *(candidate["method"] for candidate in known.values())}
        old, new = ({name: values["settings"].get(name) for name in names} for values in (before, now))
        return [] if old == new else ["settings"]

    def runs(self, comparison: Comparison, batches: Mapping[str, int]) -> Iterator[ComparedRun]:
        """Yield the runs, seed by seed; `batches` has the length by method."""
        for seed in range(comparison.seeds):
            for candidate in comparison.candidates:
                yield self._run(comparison, candidate, seed, batches[candidate.name])

    def curve_runs(self, comparison: Comparison) -> Iterator[ComparedRun]:
        """Yield backprop's runs for `curve`, seed by seed."""
        for seed in range(comparison.seeds):
            for batches in comparison.curve_lengths:
                yield self._run(comparison, comparison.reference, seed, batches)

    def _run(self, comparison: Comparison, candidate: Candidate, seed: int, batches: int) -> ComparedRun:
        config = comparison.config(candidate, seed, batches)
        name = f"{candidate.folder}-{config.batches}-seed{seed}"
        return ComparedRun(candidate, config, RunFolder(self.path / "runs" / name))

    def alignment(self, candidate: Candidate, seed: int) -> Path:
        """Return the file of the gradient comparison of one run."""
        return self.path / "alignment" / f"{candidate.folder}-seed{seed}.json"

    @property
    def timing(self) -> Path:
        """The file of the seconds of single batches."""
        return self.path / "timing.json"

    @property
    def calibration(self) -> Path:
        """The file of the calibrated costs."""
        return self.path / "calibration.json"

    @property
    def tuning(self) -> Path:
        """The file of the tuned values."""
        return self.path / "tuning.json"


def _methods_by_name(document: Mapping[str, Any]) -> dict[str, Any]:
    return {method["name"]: method for method in document["entries"]}
