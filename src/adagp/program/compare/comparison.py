"""What is asked for, the folder that keeps it, and the runs that it consists of."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from adagp.errors import OptionError, RunError, unknown_name
from adagp.program.compare.accelerator_cost import parse_accelerator
from adagp.program.compare.contenders import BACKPROP, Entry, entry_config
from adagp.program.compare.pipeline_cost import parse_pipeline
from adagp.program.compare.tuning_choice import Tuning
from adagp.program.run.config import TrainConfig
from adagp.program.run.documents import ANYTHING, TEXT, Fields, ListOf, TableOf, read_document, record_of
from adagp.program.run.folder import MEGABYTE, RunFolder

BATCHES, SECONDS, ACCELERATOR, PIPELINE = "batches", "seconds", "accelerator", "pipeline"
REGIMES = (BATCHES, SECONDS, ACCELERATOR, PIPELINE)
"""What is equal for all: batches; seconds, as calibrated; modelled cycles of an accelerator, or of a pipeline of them."""
MODELLED = (ACCELERATOR, PIPELINE)
FORMER = {"epochs": BATCHES}
"""Names that regimes once had."""
USUAL = (BATCHES, SECONDS)
GROWING = ("regimes", "accelerator", "pipeline", "curve", "seeds", "aligned_seeds", "entries", "settings")
"""What a comparison in a folder may be continued with other values of: no run depends on them, only which ones there are.

Methods that are there stay, as they are and with their settings. Those that were timed in turns stay among themselves."""
LONGEST_CURVE = 100
"""Times as long as its other runs that backprop's may be for its curve."""
FULL_DECAY = ("cosine", "linear")
FILE = "comparison.json"
_ENTRY = record_of({"name": TEXT, "method": TEXT})
KEPT = Fields({"entries": ListOf(_ENTRY), "settings": TableOf(TableOf(ANYTHING))}, ANYTHING, ("entries", "settings"))
"""The shape of what a folder says that it compares, as far as it is looked into."""


@dataclass(frozen=True)
class Comparison:
    """Everything that decides the figures of a comparison.

    `options` are those of `adagp train`, the same for all entries; `settings` those of single methods. `batches` is the
    length of the runs at equal batches. `seconds` is the time at equal seconds, None for what backprop takes; `accelerator`
    and `pipeline` are those whose cycles are equal. Backprop is trained at `curve` times
    its batches too. `tuning` says which option is chosen for each method before the runs;
    `picked` has what was. Alignment is measured at `points` batches of the runs of the first `aligned_seeds` seeds, against
    `large_batch` samples. `rounds` is how often each kind of batch is timed.
    """

    entries: tuple[Entry, ...]
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
    curve: tuple[float, ...] = ()
    tuning: Tuning | None = None
    picked: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, low in (("seeds", 1), ("large_batch", 0), ("points", 1), ("aligned_seeds", 0), ("rounds", 1)):
            if getattr(self, name) < low:
                flag = "--" + name.replace("_", "-")
                raise OptionError(f"{flag} is {getattr(self, name)}; it must be {low} or more.")
        if self.aligned_seeds > self.seeds:
            raise OptionError(
                f"--aligned-seeds is {self.aligned_seeds}; it must be at most the number of seeds, {self.seeds}."
            )
        if not self.regimes:
            raise OptionError(f"--regimes is empty; choose from: {', '.join(REGIMES)}.")
        parse_accelerator(self.accelerator)
        parse_pipeline(self.pipeline)
        for place, regime in enumerate(self.regimes):
            if regime not in REGIMES:
                raise unknown_name("regime", regime, REGIMES)
            if regime in self.regimes[:place]:
                raise OptionError(f"--regimes names '{regime}' twice.")
        self._check_curve()
        self._check_seconds()
        if self.tuning is not None:
            self.tuning.check(self.options, self.settings)
        self.check_each(self._check_entry)

    @property
    def reference(self) -> Entry:
        """The entry of backprop, by which time and results of the others are measured."""
        return next(entry for entry in self.entries if entry.method == BACKPROP)

    @property
    def curve_lengths(self) -> list[int]:
        """The batches of backprop's runs for its curve."""
        return sorted({max(1, round(factor * self.batches)) for factor in self.curve})

    @property
    def data_folder(self) -> Path | None:
        """Where the data sets are, None for the usual place."""
        return None if self.data_dir is None else Path(self.data_dir)

    def check_each(self, check: Callable[[Entry], None]) -> None:
        """Check every entry; what is wrong with backprop is wrong with all, anything else with a method."""
        check(self.reference)
        for entry in self.entries:
            try:
                check(entry)
            except OptionError as error:
                raise OptionError(f"method '{entry.name}': {error}") from None

    def _check_entry(self, entry: Entry) -> None:
        config = self.config(entry, 0)
        if BATCHES not in self.regimes and config.schedule().adapts:
            raise OptionError(
                "how many batches an adaptive schedule predicts is not known before it ran; add the regime batches, from "
                "which it is taken."
            )

    def _check_curve(self) -> None:
        for place, factor in enumerate(self.curve):
            if not (isfinite(factor) and 0 < factor <= LONGEST_CURVE):
                raise OptionError(f"--curve has {factor:g}; each number must be above 0 and at most {LONGEST_CURVE}.")
            if factor in self.curve[:place]:
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

    def config(self, entry: Entry, seed: int, batches: int | None = None) -> TrainConfig:
        """Return the configuration of a run of an entry, at equal batches unless its number is given."""
        own = {name: self.settings.get(name, {}) for name in (entry.method, entry.name)}
        if self.tuning is not None and entry.name in self.picked:
            own[entry.name] = {**own[entry.name], self.tuning.option: self.picked[entry.name]}
        return entry_config(entry, self.options, own, batches or self.batches, seed)

    def as_dict(self) -> dict[str, Any]:
        """Return all values by name, ready for JSON."""
        lists = {"regimes": list(self.regimes), "curve": list(self.curve)}
        values = asdict(self) | lists | {"entries": [asdict(entry) for entry in self.entries]}
        del values["picked"]  # found on the way
        if self.tuning is not None:
            values["tuning"]["values"] = list(self.tuning.values)
        return values


@dataclass(frozen=True)
class ComparedRun:
    """One training run of a comparison in its folder."""

    entry: Entry
    config: TrainConfig
    folder: RunFolder

    @property
    def name(self) -> str:
        """The name under which people are told of it."""
        return f"{self.entry.name} seed {self.config.seed}, {self.config.batches} batches"

    @property
    def finished(self) -> bool:
        """Whether it has a result."""
        return (self.folder.path / "summary.json").is_file()


class ComparisonFolder:
    """The files of one comparison. Runs that two regimes have in common exist once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, comparison: Comparison) -> None:
        """Write down what is compared; refuse a folder that holds something else."""
        folder = RunFolder(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            held = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
        except OSError as error:
            raise RunError(f"cannot write the folder '{self.path}': {error.strerror}.") from None
        if FILE not in held:
            if held:
                raise RunError(
                    f"'{self.path}' holds files that are not a comparison ({held[0]}, ...); give another --out."
                )
            folder.write_json(FILE, comparison.as_dict())
            return
        before, now = read_document(self.path / FILE, KEPT, MEGABYTE), comparison.as_dict()
        unchanged = {"tuning": None}  # what a folder of before does not name
        changed = [name for name in now if name not in GROWING and before.get(name, unchanged.get(name)) != now[name]]
        changed += self._changed_methods(before, now)
        if changed:
            raise RunError(
                f"'{self.path}' holds a comparison with other options ({', '.join(changed)} differ). "
                "Repeat it with the same ones to continue, or give another --out."
            )
        if before != now:
            folder.write_json(FILE, now)

    def _changed_methods(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        """Return what of the methods must not be changed, and is."""
        known, wanted = ({one["name"]: one for one in values["entries"]} for values in (before, now))
        if any(entry != wanted.get(name) for name, entry in known.items()):
            return ["methods"]  # none is dropped: another one of its name would be taken for it later
        if known != wanted and self.timing.is_file():
            return ["methods, which were timed in turns,"]
        names = {name for entry in known.values() for name in (entry["name"], entry["method"])}
        old, new = ({name: values["settings"].get(name) for name in names} for values in (before, now))
        return [] if old == new else ["settings"]

    def runs(self, comparison: Comparison, batches: Mapping[str, int]) -> Iterator[ComparedRun]:
        """Yield the runs with the number of batches that each entry has, seed by seed."""
        for seed in range(comparison.seeds):
            for entry in comparison.entries:
                config = comparison.config(entry, seed, batches[entry.name])
                name = f"{entry.folder}-{config.batches}-seed{seed}"
                yield ComparedRun(entry, config, RunFolder(self.path / "runs" / name))

    def curve_runs(self, comparison: Comparison) -> Iterator[ComparedRun]:
        """Yield the runs of backprop at other lengths, seed by seed."""
        reference = comparison.reference
        for seed in range(comparison.seeds):
            for batches in comparison.curve_lengths:
                config = comparison.config(reference, seed, batches)
                yield ComparedRun(
                    reference, config, RunFolder(self.path / "runs" / f"{reference.folder}-{batches}-seed{seed}")
                )

    def alignment(self, entry: Entry, seed: int) -> Path:
        """Return where the alignment of an entry's gradients is kept."""
        return self.path / "alignment" / f"{entry.folder}-seed{seed}.json"

    @property
    def timing(self) -> Path:
        """Where the seconds of single batches are kept."""
        return self.path / "timing.json"

    @property
    def calibration(self) -> Path:
        """Where the calibrated costs are kept."""
        return self.path / "calibration.json"

    @property
    def tuning(self) -> Path:
        """Where it is kept what was chosen for each method."""
        return self.path / "tuning.json"
