"""A pipeline: breadth first (Lamy-Poirier 2023), two stages per device; all micro-batches go through one before the other.

adagp pipeline --plugin examples.plugins.breadth_first --schedule breadth-first --devices 4 --micro-batches 8 --phases BP
"""

from collections.abc import Iterator, Sequence

from adagp.core.plan import Phase
from adagp.pipe import PIPELINES, Action, Program
from adagp.pipe.actions import UPDATE, backwards, forwards

CHUNKS = 2
"""Stages that a device holds: stage d and stage d + devices."""


@PIPELINES.register("breadth-first")
def breadth_first(devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return the program: the forwards of the lower stage, of the upper one, and back again."""

    def row(device: int) -> Iterator[Action]:
        stages = [device + chunk * devices for chunk in range(CHUNKS)]
        for batch, phase in enumerate(phases):
            numbers = range(batch * micro_batches, (batch + 1) * micro_batches)
            for stage in stages:
                yield from forwards(stage, numbers)
            for stage in reversed(stages) if phase is not Phase.GP else ():
                yield from backwards(stage, numbers)
            yield from (Action(stage, UPDATE, batch) for stage in stages)

    rows = tuple(tuple(row(device)) for device in range(devices))
    return Program("breadth-first", micro_batches, tuple(phases), rows, stages_per_device=CHUNKS)
