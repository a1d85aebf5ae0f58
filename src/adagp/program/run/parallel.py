"""How a run is split over processes: `--parallel` as text and as data. No torch here.

    data                      every process has the model and takes its share of each batch
    fsdp, fsdp=4              the same, with the weights sharded over the processes
    pipeline:dapple           every process has some stages of the model
    data=2,pipeline=4         two dimensions, eight processes: two copies of a pipeline of four
    data=2,pipeline:zb-v=4    the same with another pipeline than the default
    fsdp=2,pipeline=2         two copies of a pipeline of two, with each stage's weights sharded over its copies

Processes are numbered with the last dimension running fastest: those of one pipeline are neighbours.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from adagp.errors import OptionError, unknown_name
from adagp.pipe import PIPELINES, registered_name

NONE, DATA, FSDP, PIPELINE = "none", "data", "fsdp", "pipeline"
KINDS = (DATA, FSDP, PIPELINE)
"""The dimensions that there are, in the order in which they may stand."""

DEFAULT_PIPELINE = "dapple"

_PART = re.compile(r"([a-z]+)(?::([^=,]+))?(?:=([0-9]{1,6}))?")


@dataclass(frozen=True)
class Dimension:
    """One dimension: its kind, its number of processes (None: all available), and for a pipeline the schedule's name."""

    kind: str
    size: int | None = None
    schedule: str = ""

    def __str__(self) -> str:
        name = f"{self.kind}:{self.schedule}" if self.schedule else self.kind
        return name if self.size is None else f"{name}={self.size}"


@dataclass(frozen=True)
class ParallelLayout:
    """The dimensions of a run, slowest first; none for a run in one process."""

    dimensions: tuple[Dimension, ...] = ()

    def __str__(self) -> str:
        return ",".join(map(str, self.dimensions)) or NONE

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its dimensions."""
        return tuple(dimension.kind for dimension in self.dimensions)

    @property
    def schedule(self) -> str:
        """The name of its pipeline; empty, if there is none."""
        return next((dimension.schedule for dimension in self.dimensions if dimension.kind == PIPELINE), "")

    @property
    def copies(self) -> str:
        """The kind of the dimension next to a pipeline, whose processes have the same stages: data, or fsdp."""
        return FSDP if FSDP in self.kinds else DATA

    def sizes(self, processes: int) -> dict[str, int]:
        """Return the processes of each dimension by its kind; raise if `processes` is not its number of processes."""
        if len(self.dimensions) == 1 and self.dimensions[0].size is None:
            return {self.dimensions[0].kind: processes}
        sizes = {dimension.kind: dimension.size or 1 for dimension in self.dimensions}
        needed = prod(sizes.values())
        if needed != processes:
            raise OptionError(f"--parallel {self} is for {needed} processes; there are {processes}.")
        return sizes


def parse_parallel(text: str) -> ParallelLayout:
    """Return the layout that `text` names; raise if there is no such layout."""
    if text == NONE:
        return ParallelLayout()
    dimensions = tuple(_dimension(text, part) for part in text.split(","))
    kinds = [dimension.kind for dimension in dimensions]
    if sorted(set(kinds), key=KINDS.index) != kinds:
        raise OptionError(f"--parallel {text}: each dimension may appear once, in the order {', '.join(KINDS)}.")
    if len(dimensions) > 1 and any(dimension.size is None for dimension in dimensions):
        raise OptionError(f"--parallel {text}: give the processes of each dimension, for example data=2,pipeline=4.")
    if FSDP in kinds and DATA in kinds:
        raise OptionError(f"--parallel {text}: fsdp splits each batch, too, as data does; give one of the two.")
    return ParallelLayout(dimensions)


def parallel_choices() -> list[str]:
    """Return the ways of one dimension: by data, by shards, or by any pipeline that is registered."""
    return [NONE, DATA, FSDP, *(f"{PIPELINE}:{name}" for name in PIPELINES)]


def check_parallel(text: str) -> None:
    """Raise if `parse_parallel` cannot read `text`."""
    parse_parallel(text)


def _dimension(text: str, part: str) -> Dimension:
    match = _PART.fullmatch(part)
    kind, name, size = match.groups() if match else ("", None, None)
    schedule = ""
    if kind == PIPELINE:
        schedule = registered_name(name) if name else (DEFAULT_PIPELINE if size else "")
        is_known = schedule in PIPELINES
    else:
        is_known = kind in KINDS and name is None
    if not is_known:
        raise unknown_name("parallel", text, _forms())
    if size is not None and int(size) < 1:
        raise OptionError(f"--parallel {text}: a dimension needs 1 process or more.")
    return Dimension(kind, None if size is None else int(size), schedule)


def _forms() -> Iterable[str]:
    return [*parallel_choices(), "data=2,pipeline=4", "fsdp=2,pipeline=2"]
