"""Pipelines as pure generators of programs.

    gpipe       all forwards of a batch, then all its backwards
    dapple      one forward, one backward (1F1B): as early a backward as possible, so fewer activations are kept
    chimera     two pipelines in opposite directions over the same devices, half of the micro-batches each; device d holds
                stage d of the one and stage D-1-d of the other, and the two holders of a stage add up their gradients
    interleaved 1F1B with two stages per device (Narayanan et al. 2021), so the bubble is half as long
    zb-h1       1F1B whose stages take their weight gradients later, the later the stage: in the time in which others wait
                (zero bubble, Qi et al. 2023). With parts of one length the bubble is a third of 1F1B's, with as many
                activations kept
    zb-v        two stages per device, down the devices and up again (a V), so that the first device has the last stage too.
                With parts of one length a device that has begun does not wait; as many activations are kept as in 1F1B

The order of `zb-v` is that of a list scheduler with parts of one length: each device takes the first action that can begin, by
one of two priorities (`PRIORITIES`), whichever is done sooner. With a multiple of the devices as micro-batches, the devices
wait for nothing but their first forward.

A GP batch has forwards only: the next batch follows without a gap. All keep strict synchronisation: a stage begins a
batch's first forward after its update by the previous batch, so a BP batch drains the pipeline and a GP batch does not.

A pipeline of your own is a function of this form, registered under a name.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from adagp.core.plan import Phase
from adagp.core.registry import Registry
from adagp.errors import OptionError
from adagp.pipe.actions import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    UPDATE,
    WEIGHT_GRADIENT,
    Action,
    Kind,
    Program,
    backwards,
    check_sizes,
    forwards,
)

Generator = Callable[[int, int, Sequence[Phase]], Program]
"""From devices, micro-batches per batch and the batches' phases to a program."""

PIPELINES: Registry[Generator] = Registry("pipeline")
OTHER_NAMES = {"1f1b": "dapple"}
"""Names that pipelines are known by as well; they are accepted wherever a pipeline is named."""


def registered_name(name: str) -> str:
    """Return the name in `PIPELINES` of the pipeline that is called `name`."""
    return OTHER_NAMES.get(name.lower(), name)


def generate(name: str, devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return the program of the pipeline called `name`."""
    check_sizes(devices, micro_batches, phases)
    return PIPELINES[registered_name(name)](devices, micro_batches, phases)


@PIPELINES.register("gpipe")
def gpipe(devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return GPipe's program (Huang et al. 2019)."""

    def batch(stage: int, numbers: range) -> list[Action]:
        return forwards(stage, numbers) + backwards(stage, numbers)

    return one_way("gpipe", devices, micro_batches, phases, batch)


@PIPELINES.register("dapple")
def dapple(devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return DAPPLE's program (Fan et al. 2021): stage s runs D - s forwards ahead of its backwards, and no more."""

    def batch(stage: int, numbers: range) -> list[Action]:
        ahead = min(micro_batches, devices - stage)
        down, up = forwards(stage, numbers), backwards(stage, numbers)
        paired = [action for pair in zip(up, down[ahead:], strict=False) for action in pair]
        return down[:ahead] + paired + up[micro_batches - ahead :]

    return one_way("dapple", devices, micro_batches, phases, batch)


def one_way(
    name: str, devices: int, micro_batches: int, phases: Sequence[Phase], backprop: Callable[[int, range], list[Action]]
) -> Program:
    """Return a program with stage d on device d; `backprop` returns a stage's actions in a BP batch."""

    def row(stage: int) -> Iterator[Action]:
        for batch, phase in enumerate(phases):
            numbers = range(batch * micro_batches, (batch + 1) * micro_batches)
            yield from forwards(stage, numbers) if phase is Phase.GP else backprop(stage, numbers)
            yield Action(stage, UPDATE, batch)

    return Program(name, micro_batches, tuple(phases), tuple(tuple(row(stage)) for stage in range(devices)))


@PIPELINES.register("chimera")
def chimera(devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return Chimera's program (Li, Hoefler 2021). More micro-batches than devices make several units, one after the other.

    If forwards and backwards took equally long, each action would have its own time slot, and the two directions, whose slots
    differ in parity, would never collide. Each device runs its actions in the order of these slots.
    """
    if devices % 2:
        raise OptionError(f"chimera pairs its devices, two for each stage; {devices} is odd. Give an even number.")
    timed: list[list[tuple[float, Action]]] = [[] for _ in range(devices)]
    start = 0
    down = (micro_batches + 1) // 2
    for batch, phase in enumerate(phases):
        begins = [start + _begin(index, devices, phase) for index in range(down)]
        start = begins[-1] + (2 if phase is Phase.GP else 2 * devices)
        first = batch * micro_batches
        halves = (timed, first, begins), (timed[::-1], first + down, begins[: micro_batches - down])
        for rows, number, entered in halves:
            for stage, row in enumerate(rows):
                row.extend(_passes(stage, devices, phase, enumerate(entered, number)))
                # As late as the next batch allows: until then the two copies exchange what they have seen. After a BP
                # batch both stages of a device are updated together, since the predictor learns from all at once.
                last = start + stage if phase is Phase.GP else start
                row.append((last - 0.5, Action(stage, UPDATE, batch)))
    return Program("chimera", micro_batches, tuple(phases), tuple(tuple(_in_time_order(row)) for row in timed))


def _passes(
    stage: int, devices: int, phase: Phase, begins: Iterable[tuple[int, int]]
) -> Iterator[tuple[float, Action]]:
    """Yield a stage's forwards and backwards with their slots; `begins` has each micro-batch and the slot it begins in."""
    for number, begin in begins:
        yield begin + stage, Action(stage, FORWARD, number)
        if phase is not Phase.GP:
            yield begin + 2 * devices - 1 - stage, Action(stage, BACKWARD, number)


def _in_time_order(timed: Iterable[tuple[float, Action]]) -> list[Action]:
    return [action for _, action in sorted(timed)]


def _begin(index: int, devices: int, phase: Phase) -> int:
    """Return the slot in which a direction's micro-batch number `index` enters its first stage.

    Every second slot belongs to the direction. In BP batches half as many micro-batches as there are devices make a
    unit; their backwards take the second half of its slots.
    """
    if phase is Phase.GP:
        return 2 * index
    unit, rest = divmod(index, devices // 2)
    return 2 * devices * unit + 2 * rest


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
    forwards = [_stage_and_micro_batch(index, device, devices, first) for index in range(total)]
    if phase is Phase.GP:
        yield from (Action(stage, FORWARD, number) for stage, number in forwards)
        return
    backwards = [_stage_and_micro_batch(index, device, devices, first, backward=True) for index in range(total)]
    ahead = min(total, 2 * (devices - device - 1) + (CHUNKS - 1) * devices)
    for index in range(total + ahead):
        if index < total:
            yield Action(forwards[index][0], FORWARD, forwards[index][1])
        if index >= ahead:
            stage, number = backwards[index - ahead]
            yield Action(stage, BACKWARD, number)


def _stage_and_micro_batch(
    index: int, device: int, devices: int, first: int, *, backward: bool = False
) -> tuple[int, int]:
    """Return stage and micro-batch of a device's forward (or backward) number `index` in a batch."""
    group, rest = divmod(index, devices * CHUNKS)
    chunk, index = divmod(rest, devices)
    chunk = CHUNKS - 1 - chunk if backward else chunk
    return device + chunk * devices, first + group * devices + index


@PIPELINES.register("zb-h1")
def zero_bubble_h1(devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return the program: 1F1B; stage s takes weight gradients s micro-batches behind its input gradients."""

    def batch(stage: int, numbers: range) -> list[Action]:
        ahead = min(micro_batches, devices - stage)
        row = forwards(stage, numbers[:ahead])
        for index, number in enumerate(numbers):
            row.append(Action(stage, INPUT_GRADIENT, number))
            if index >= stage:
                row.append(Action(stage, WEIGHT_GRADIENT, numbers[index - stage]))
            row += forwards(stage, numbers[ahead + index : ahead + index + 1])
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
    """Return the forwards of a GP batch in the order in which they could begin if all took equally long.

    A micro-batch enters in every second slot, so that the two stages of a device are never due at once.
    """
    return _in_time_order(
        (2 * index + stage, Action(stage, FORWARD, number))
        for stage in (device, 2 * devices - 1 - device)
        for index, number in enumerate(numbers)
    )


Priority = tuple[tuple[Kind, bool], ...]
"""Kinds of actions, the most urgent first, and whether the later of a device's two stages comes first."""
PRIORITIES: tuple[Priority, ...] = (
    ((INPUT_GRADIENT, True), (FORWARD, True), (WEIGHT_GRADIENT, True)),
    ((FORWARD, True), (INPUT_GRADIENT, False), (WEIGHT_GRADIENT, False)),
)
"""Neither is the better one for all numbers of devices and micro-batches. Forwards must fit into the memory of 1F1B."""


@lru_cache(maxsize=16)
def _listed(devices: int, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
    schedules = [_ListScheduler(devices, micro_batches, priority) for priority in PRIORITIES]
    for schedule in schedules:
        while not schedule.finished:
            for device in range(devices):
                schedule.take(device)
            schedule.now += 1
    return tuple(map(tuple, min(schedules, key=lambda schedule: schedule.now).rows))


class _ListScheduler:
    """Devices that take one action each in a step. Every stage has a counter for each kind of action."""

    def __init__(self, devices: int, micro_batches: int, priority: Priority) -> None:
        self.devices, self.micro_batches, self.priority = devices, micro_batches, priority
        self.last = 2 * devices - 1
        self.now = 0
        self.rows: list[list[Action]] = [[] for _ in range(devices)]
        self.begun: dict[Kind, list[int]] = {kind: [0] * (2 * devices) for kind, _ in priority}
        self.ends: dict[Action, int] = {}

    @property
    def finished(self) -> bool:
        """Whether all weight gradients are taken."""
        return all(count == self.micro_batches for count in self.begun[WEIGHT_GRADIENT])

    def take(self, device: int) -> None:
        """Let a device begin what it can."""
        stages = (self.last - device, device)
        for kind, later_first in self.priority:
            counts = self.begun[kind]
            for stage in stages if later_first else stages[::-1]:
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
            stored = sum(self.begun[FORWARD][other] - self.begun[WEIGHT_GRADIENT][other] for other in stages)
            return stored < 2 * self.devices and (stage == 0 or self._over(stage - 1, FORWARD, number))
        if kind == WEIGHT_GRADIENT:
            return self._over(stage, INPUT_GRADIENT, number)
        forward_done = self._over(stage, FORWARD, number)
        return forward_done and (stage == self.last or self._over(stage + 1, INPUT_GRADIENT, number))

    def _over(self, stage: int, kind: Kind, number: int) -> bool:
        return self.ends.get(Action(stage, kind, number), self.now + 1) <= self.now
