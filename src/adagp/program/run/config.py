"""The configuration of a training run: everything that decides its result, as plain values, checked."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from adagp.core.methods import Method, find_method, methods_with
from adagp.core.precision import parse_precision
from adagp.errors import OptionError
from adagp.program.run.defaults import DATASET_DEFAULTS
from adagp.program.run.known_options import check_names_and_types, default_options
from adagp.program.run.settings import CONFIG_OPTIONS, RunSettings
from adagp.schedules import BackpropOnly, Schedule, WarmUp, parse_schedule
from adagp.schedules.text import usual_warmup
from adagp.schedules.warmup import scaled_warmup


@dataclass(frozen=True)
class TrainConfig(RunSettings):
    """The settings of a run that fit together; the method's own options are complete.

    `epochs` follows from `batches` where these are given (`fit`). `from_dict` puts what suits the data set (`run.defaults`) in
    the place of the settings' defaults, and takes the method's own options by their names like all others.
    """

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


def _foreign_option(name: str, method: str) -> OptionError:
    return OptionError(
        f"method '{method}' has no option --{name.replace('_', '-')}; it belongs to: {', '.join(methods_with(name))}."
    )
