"""Zero-bubble pipelines (Qi et al. 2023): the backward is done in two parts, and only the first of them hurries.

    zb-h1    1F1B whose stages take their weight gradients later, the later the stage: in the time in which others wait.
             With parts of one length the bubble is a third of 1F1B's, with as many activations kept
    zb-v     two stages per device, down the devices and up again (a V), so that the first device has the last stage too.
             With parts of one length a device that has begun does not wait; as many activations are kept as in 1F1B

The order of `zb-v` is that of a list scheduler with parts of one length: each device takes the first of these that can begin:
an input gradient, a forward if there is memory, a weight gradient; of two stages the later one.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from adagp.core.plan import Phase
from adagp.pipe.actions import FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, Action, Kind, Program, forwards
from adagp.pipe.generate import PIPELINES, one_way


@PIPELINES.register("zb-h1")
def zero_bubble_h1(devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return the program: 1F1B; stage s takes weight gradients s micro-batches behind its input gradients."""

    def batch(stage: int, numbers: range) -> list[Action]:
        ahead = min(micro_batches, devices - stage)
        row = forwards(stage, numbers[:ahead])
        for place, number in enumerate(numbers):
            row.append(Action(stage, INPUT_GRADIENT, number))
            if place >= stage:
                row.append(Action(stage, WEIGHT_GRADIENT, numbers[place - stage]))
            row += forwards(stage, numbers[ahead + place : ahead + place + 1])
        return row + [Action(stage, WEIGHT_GRADIENT, number) for number in numbers[max(0, micro_batches - stage) :]]

    return one_way("zb-h1", devices, micro_batches, phases, batch)


@PIPELINES.register("zb-v")
def zero_bubble_v(devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return the program: device d holds stage d and stage 2D-1-d."""
    backprop = _listed(devices, micro_batches)

    def row(device: int) -> Iterator[Action]:
        stages = (device, 2 * devices - 1 - device)
        for batch, phase in enumerate(phases):
            first = batch * micro_batches
            if phase is Phase.GP:
                yield from _streamed(device, devices, range(first, first + micro_batches))
            else:
                yield from (Action(stage, kind, first + number) for stage, kind, number in backprop[device])
            yield from (Action(stage, UPDATE, batch) for stage in stages)

    rows = tuple(tuple(row(device)) for device in range(devices))
    return Program("zb-v", micro_batches, tuple(phases), rows, stages_per_device=2)


def _streamed(device: int, devices: int, numbers: range) -> list[Action]:
    """Return the forwards of a GP batch in the order in which they can begin, were all of one length.

    A micro-batch enters in every second slot, so that the two stages of a device are never due at once.
    """
    timed = [
        (2 * place + stage, Action(stage, FORWARD, number))
        for stage in (device, 2 * devices - 1 - device)
        for place, number in enumerate(numbers)
    ]
    return [action for _, action in sorted(timed)]


@lru_cache(maxsize=16)
def _listed(devices: int, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
    """Return the actions of a BP batch by device, as the list scheduler finds them."""
    schedule = _ListScheduler(devices, micro_batches)
    while not schedule.finished:
        for device in range(devices):
            schedule.take(device)
        schedule.now += 1
    return tuple(map(tuple, schedule.rows))


class _ListScheduler:
    """Devices that take one action each in a step. Every stage has a counter for each kind of action."""

    def __init__(self, devices: int, micro_batches: int) -> None:
        self.devices, self.micro_batches = devices, micro_batches
        self.last = 2 * devices - 1
        self.now = 0
        self.rows: list[list[Action]] = [[] for _ in range(devices)]
        kinds: tuple[Kind, ...] = (INPUT_GRADIENT, FORWARD, WEIGHT_GRADIENT)
        self.begun: dict[Kind, list[int]] = {kind: [0] * (2 * devices) for kind in kinds}
        self.ends: dict[Action, int] = {}

    @property
    def finished(self) -> bool:
        """Tell whether all weight gradients are taken."""
        return all(count == self.micro_batches for count in self.begun[WEIGHT_GRADIENT])

    def take(self, device: int) -> None:
        """Let a device begin what it can."""
        stages = (self.last - device, device)
        for kind, counts in self.begun.items():
            for stage in stages:
                action = Action(stage, kind, counts[stage])
                if self._can_begin(action, stages):
                    counts[stage] += 1
                    self.ends[action] = self.now + 1
                    self.rows[device].append(action)
                    return

    def _can_begin(self, action: Action, stages: tuple[int, int]) -> bool:
        stage, kind, number = action
        if number >= self.micro_batches:
            return False
        if kind == FORWARD:
            kept = sum(self.begun[FORWARD][one] - self.begun[WEIGHT_GRADIENT][one] for one in stages)
            return kept < 2 * self.devices and (stage == 0 or self._over(stage - 1, FORWARD, number))
        if kind == WEIGHT_GRADIENT:
            return self._over(stage, INPUT_GRADIENT, number)
        own = self._over(stage, FORWARD, number)
        return own and (stage == self.last or self._over(stage + 1, INPUT_GRADIENT, number))

    def _over(self, stage: int, kind: Kind, number: int) -> bool:
        return self.ends.get(Action(stage, kind, number), self.now + 1) <= self.now
