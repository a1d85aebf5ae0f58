"""Interleaved 1F1B (Narayanan et al. 2021): two stages per device, so the bubble is half as long."""

from collections.abc import Iterator, Sequence

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.pipe.actions import BACKWARD, FORWARD, UPDATE, Action, Program
from adagp.pipe.generate import PIPELINES

CHUNKS = 2
"""Stages that a device holds: stage d and stage d + devices."""


@PIPELINES.register("interleaved")
def interleaved(devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return the program. Micro-batches go through in groups of as many as there are devices, one chunk after the other."""
    if micro_batches % devices:
        raise OptionError(
            f"interleaved needs a multiple of {devices} micro-batches, one group for {devices} devices; got {micro_batches}."
        )

    def row(device: int) -> Iterator[Action]:
        for batch, phase in enumerate(phases):
            yield from _batch(device, devices, micro_batches, batch * micro_batches, phase)
            yield from (Action(device + chunk * devices, UPDATE, batch) for chunk in range(CHUNKS))

    rows = tuple(tuple(row(device)) for device in range(devices))
    return Program("interleaved", micro_batches, tuple(phases), rows, stages_per_device=CHUNKS)


def _batch(device: int, devices: int, micro_batches: int, first: int, phase: Phase) -> Iterator[Action]:
    """Yield a device's forwards and backwards in a batch: some forwards ahead, then one forward, one backward."""
    total = micro_batches * CHUNKS
    forwards = [_place(index, device, devices, first) for index in range(total)]
    if phase is Phase.GP:
        yield from (Action(stage, FORWARD, number) for stage, number in forwards)
        return
    backwards = [_place(index, device, devices, first, backward=True) for index in range(total)]
    ahead = min(total, 2 * (devices - device - 1) + (CHUNKS - 1) * devices)
    for index in range(total + ahead):
        if index < total:
            yield Action(forwards[index][0], FORWARD, forwards[index][1])
        if index >= ahead:
            stage, number = backwards[index - ahead]
            yield Action(stage, BACKWARD, number)


def _place(index: int, device: int, devices: int, first: int, *, backward: bool = False) -> tuple[int, int]:
    """Return stage and micro-batch of a device's forward (or backward) number `index` in a batch."""
    group, rest = divmod(index, devices * CHUNKS)
    chunk, place = divmod(rest, devices)
    chunk = CHUNKS - 1 - chunk if backward else chunk
    return device + chunk * devices, first + group * devices + place
