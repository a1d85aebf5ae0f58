"""The data that chips which train on shares of a batch exchange for a method, beyond the gradients of backprop.

A method declares it (`AcceleratorWork.exchange`); the numbers are those that the distributed runtime counts (`sent_bytes`).
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

from adagp.core.registry import import_reference
from adagp.errors import OptionError
from adagp.hw.accelerator import Accelerator
from adagp.hw.stages import source_work
from adagp.hw.workload import ArrayLayer

DOUBLE = 2
"""Words of a number in double precision."""


class ModelLayout(Enum):
    """What each chip that exchanges data has: a copy of the model, a shard of every weight, or a copy of a pipeline's stage."""

    COPIES = "copies"
    SHARDS = "shards"
    STAGES = "stages"


@dataclass(frozen=True)
class ExchangeWork:
    """The trained `sites` of a chip in a batch, for which a method exchanges something.

    With `learns` the batch has true gradients, from which the method learns; otherwise it produces gradients. `error_words` is
    the width of the network's output, `widest_row` that of the largest row of a weight in the whole model, `variant` what the
    method's `variation` has for the batch.
    """

    sites: tuple[ArrayLayer, ...]
    error_words: int
    widest_row: int
    learns: bool
    layout: ModelLayout = ModelLayout.COPIES
    variant: Hashable = None
    accelerator: Accelerator = field(default_factory=Accelerator)


@dataclass(frozen=True)
class SourceExchange:
    """Words of all-reduces in rounds that wait for each other: among the copies of the sites, and among all chips.

    `error_features` are the numbers of each row of the output's error that every stage of a pipeline needs.
    """

    copies: tuple[int, ...] = ()
    everyone: tuple[int, ...] = ()
    error_features: int = 0


def source_exchange(source: str, work: ExchangeWork) -> SourceExchange:
    """Return what chips exchange for a source: the one of a GP batch, or the one that learns in a BP batch."""
    declared = source_work(source)
    if declared.skips or declared.exchange == "none" or (work.learns and not declared.learns):
        return SourceExchange()
    if not declared.exchange:
        raise OptionError(
            f"source '{source}' does not declare what chips exchange for it, so it cannot be simulated on several. "
            "Declare it: `AcceleratorWork(exchange=...)` (see adagp.core.methods)."
        )
    if declared.exchange == "gradients":
        return SourceExchange(() if work.learns else (sum(site.weights for site in work.sites),))
    function = import_reference(declared.exchange, what="the exchange of a method", kind="function")
    return cast(Callable[[ExchangeWork], SourceExchange], function)(work)
