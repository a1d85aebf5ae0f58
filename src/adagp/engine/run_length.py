"""How long a run is: epochs of some batches, or batches alone."""

from dataclasses import dataclass
from functools import cached_property

from adagp.errors import OptionError
from adagp.schedules.ladder import PAPER_EPOCHS

EPOCH_MULTIPLE = 60
"""A run without epochs is divided into some, of a multiple of this many batches: schedules restart in each epoch, and
alternations of up to six batches then continue as if there were none."""


@dataclass(frozen=True)
class Epochs:
    """The length of a run that has epochs: `adagp.Epochs(90, len(loader))`. A batch is one step of the optimizer."""

    count: int
    batches_per_epoch: int

    def __post_init__(self) -> None:
        check_whole(epochs=self.count, batches_per_epoch=self.batches_per_epoch)
        if self.count < 1 or self.batches_per_epoch < 1:
            raise OptionError(
                f"a run needs at least 1 epoch and 1 batch per epoch; got {self.count} epochs, "
                f"{self.batches_per_epoch} batches."
            )


@dataclass(frozen=True)
class RunLength:
    """Epochs and their batches; `batches` is the length of the run if its last epoch is not whole.

    A run that has no epochs of its own is divided into some, for schedules that change by epochs.
    """

    epochs: int
    batches_per_epoch: int
    batches: int | None = None
    divided: bool = False

    @cached_property
    def total(self) -> int:
        """The batches of the whole run."""
        return self.batches or self.epochs * self.batches_per_epoch

    def __str__(self) -> str:
        if self.divided:
            return f"{self.total} steps"
        words = f"{self.epochs} epochs of {self.batches_per_epoch} batches"
        return words if self.batches is None else f"{self.batches} batches, in {words}"


def read_length(length: Epochs | None, steps: int | None) -> RunLength:
    """Return the length of a run, given in one of the two ways."""
    if length is not None and steps is not None:
        raise OptionError("steps is the length of a run without epochs; leave out steps, or the epochs.")
    if steps is not None:
        return divided_run(steps)
    if length is None:
        raise OptionError("the length of the run is missing: give length=adagp.Epochs(90, len(loader)), or steps=.")
    if not isinstance(length, Epochs):
        raise OptionError(
            f"length is {length!r}; it must be epochs and their batches, as adagp.Epochs(90, len(loader)). "
            "A number of batches is given as steps=."
        )
    return RunLength(length.count, length.batches_per_epoch)


def divided_run(steps: int) -> RunLength:
    """Return the length of a run of `steps` batches without epochs of its own."""
    check_whole(steps=steps)
    if steps < 1:
        raise OptionError(f"a run needs at least 1 step; got {steps}.")
    parts = max(1, min(PAPER_EPOCHS, steps // EPOCH_MULTIPLE))
    each = min(steps, -(-steps // (parts * EPOCH_MULTIPLE)) * EPOCH_MULTIPLE)
    return RunLength(-(-steps // each), each, steps, divided=True)


def shortened_run(length: Epochs, batches: int | None) -> RunLength:
    """Return the length of a run of `batches`, which end in its last epoch."""
    epochs, each = length.count, length.batches_per_epoch
    if batches is not None and not 0 <= epochs * each - batches < each:
        raise OptionError(f"{batches} batches do not end in epoch {epochs} of a run with {each} batches per epoch.")
    return RunLength(epochs, each, batches)


def check_whole(**values: object) -> None:
    """Raise if one of the values is not a whole number."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise OptionError(f"{name} is {value!r}; it must be a whole number.")
