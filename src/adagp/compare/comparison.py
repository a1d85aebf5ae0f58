"""What is asked for, the folder that keeps it, and the runs that it consists of."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from adagp.compare.contenders import BACKPROP, Entry, entry_config
from adagp.errors import OptionError, RunError, unknown_name
from adagp.run.config import TrainConfig
from adagp.run.documents import ANYTHING, TableOf, read_document
from adagp.run.folder import MEGABYTE, RunFolder

EPOCHS, SECONDS = "epochs", "seconds"
REGIMES = (EPOCHS, SECONDS)
"""Equal batches for all; equal seconds for all, as calibrated."""
FULL_DECAY = ("cosine", "linear")
FILE = "comparison.json"


@dataclass(frozen=True)
class Comparison:
    """Everything that decides the figures of a comparison.

    `options` are those of `adagp train`, the same for all entries; `settings` those of single methods. `batches` is the
    length of the runs at equal batches. `seconds` is the time at equal seconds, None for what backprop takes. Alignment is
    measured at `points` batches of the runs of the first `aligned_seeds` seeds, against `large_batch` samples. `rounds` is
    how often each kind of batch is timed.
    """

    entries: tuple[Entry, ...]
    seeds: int
    options: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]
    batches: int
    regimes: tuple[str, ...] = REGIMES
    seconds: float | None = None
    large_batch: int = 4096
    points: int = 5
    aligned_seeds: int = 1
    rounds: int = 30
    data_dir: str | None = None

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
        for place, regime in enumerate(self.regimes):
            if regime not in REGIMES:
                raise unknown_name("regime", regime, REGIMES)
            if regime in self.regimes[:place]:
                raise OptionError(f"--regimes names '{regime}' twice.")
        self._check_seconds()
        self.check_each(self._check_entry)

    @property
    def reference(self) -> Entry:
        """The entry of backprop, by which time and results of the others are measured."""
        return next(entry for entry in self.entries if entry.method == BACKPROP)

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
        if self.regimes == (SECONDS,) and config.schedule().adapts:
            raise OptionError(
                "how many batches an adaptive schedule predicts is not known before it ran; add the regime epochs, from "
                "which it is taken."
            )

    def _check_seconds(self) -> None:
        if self.seconds is not None and SECONDS not in self.regimes:
            raise OptionError("--seconds goes with the regime seconds; add it to --regimes.")
        if self.seconds is not None and not (isfinite(self.seconds) and self.seconds > 0):
            raise OptionError(f"--seconds is {self.seconds}; it must be a finite number above 0.")
        rate = self.options.get("lr_scheduler", FULL_DECAY[0])
        if SECONDS in self.regimes and rate not in FULL_DECAY:
            raise OptionError(
                f"the regime seconds needs a learning rate that falls to 0 within each run; --lr-scheduler is {rate}, "
                f"choose from: {', '.join(FULL_DECAY)}."
            )

    def config(self, entry: Entry, seed: int, batches: int | None = None) -> TrainConfig:
        """Return the configuration of a run of an entry, at equal batches unless its number is given."""
        return entry_config(entry, self.options, self.settings, batches or self.batches, seed)

    def as_dict(self) -> dict[str, Any]:
        """Return all values by name, ready for JSON."""
        entries = [asdict(entry) for entry in self.entries]
        return asdict(self) | {"entries": entries, "regimes": list(self.regimes)}


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
        before, now = read_document(self.path / FILE, TableOf(ANYTHING), MEGABYTE), comparison.as_dict()
        changed = [name for name in now if before.get(name) != now[name]]
        if changed:
            raise RunError(
                f"'{self.path}' holds a comparison with other options ({', '.join(changed)} differ). "
                "Repeat it with the same ones to continue, or give another --out."
            )

    def runs(self, comparison: Comparison, batches: Mapping[str, int]) -> Iterator[ComparedRun]:
        """Yield the runs with the number of batches that each entry has, seed by seed."""
        for seed in range(comparison.seeds):
            for entry in comparison.entries:
                config = comparison.config(entry, seed, batches[entry.name])
                name = f"{entry.folder}-{config.batches}-seed{seed}"
                yield ComparedRun(entry, config, RunFolder(self.path / "runs" / name))

    def alignment(self, entry: Entry, seed: int) -> Path:
        """Return where the alignment of an entry's gradients is kept."""
        return self.path / "alignment" / f"{entry.folder}-seed{seed}.json"

    @property
    def calibration(self) -> Path:
        """Where the calibrated costs are kept."""
        return self.path / "calibration.json"
