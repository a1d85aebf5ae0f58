"""Pipelines as pure generators of programs; `interleaved.py` and `zero_bubble.py` have more of them.

    gpipe       all forwards of a batch, then all its backwards
    dapple      one forward, one backward (1F1B): as early a backward as possible, so fewer activations are kept
    chimera     two pipelines in opposite directions over the same devices, half of the micro-batches each; device d holds
                stage d of the one and stage D-1-d of the other, and the two holders of a stage add up their gradients

A GP batch has forwards only: the next batch follows without a gap. All keep strict synchronisation: a stage begins a
batch's first forward after its update by the batch before, so a BP batch drains the pipeline and a GP batch does not.

A pipeline of your own is a function of this form, registered under a name.
"""

from collections.abc import Callable, Iterator, Sequence

from adagp.core.plan import Phase
from adagp.core.registry import Registry
from adagp.errors import OptionError
from adagp.pipe.actions import BACKWARD, FORWARD, UPDATE, Action, Program, backwards, check_sizes, forwards

Generator = Callable[[int, int, Sequence[Phase]], Program]
"""From devices, micro-batches per batch and the batches' phases to a program."""

PIPELINES: Registry[Generator] = Registry("pipeline")


def generate(name: str, devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return the program of the pipeline called `name`."""
    check_sizes(devices, micro_batches, phases)
    return PIPELINES[name](devices, micro_batches, phases)


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
    name: str,
    devices: int,
    micro_batches: int,
    phases: Sequence[Phase],
    backprop: Callable[[int, range], list[Action]],
) -> Program:
    """Return a program with stage d on device d; `backprop` gives a stage's actions in a BP batch."""

    def row(stage: int) -> Iterator[Action]:
        for batch, phase in enumerate(phases):
            numbers = range(batch * micro_batches, (batch + 1) * micro_batches)
            yield from forwards(stage, numbers) if phase is Phase.GP else backprop(stage, numbers)
            yield Action(stage, UPDATE, batch)

    return Program(name, micro_batches, tuple(phases), tuple(tuple(row(stage)) for stage in range(devices)))


@PIPELINES.register("chimera")
def chimera(devices: int, micro_batches: int, phases: Sequence[Phase]) -> Program:
    """Return Chimera's program (Li, Hoefler 2021), its units concatenated where there are more micro-batches than devices.

    Were forwards and backwards of equal length, each action would have its slot of time, and the slots of the two
    directions, which differ in parity, would never meet. The order of the slots is the order of the actions.
    """
    if devices % 2:
        raise OptionError(f"chimera pairs its devices, two for each stage; {devices} is odd. Give an even number.")
    timed: list[list[tuple[float, Action]]] = [[] for _ in range(devices)]
    start = 0
    down = (micro_batches + 1) // 2
    for batch, phase in enumerate(phases):
        begins = [start + _begin(place, devices, phase) for place in range(down)]
        start = begins[-1] + (2 if phase is Phase.GP else 2 * devices)
        for direction, count in enumerate((down, micro_batches - down)):
            first = batch * micro_batches + direction * down
            for stage in range(devices):
                row = timed[devices - 1 - stage if direction else stage]
                for number, begin in enumerate(begins[:count], first):
                    row.append((begin + stage, Action(stage, FORWARD, number)))
                    if phase is not Phase.GP:
                        row.append((begin + 2 * devices - 1 - stage, Action(stage, BACKWARD, number)))
                # As late as the next batch allows: until then the two copies exchange what they have seen. After a BP
                # batch both stages of a device are updated together, since the predictor learns from all at once.
                last = start + stage if phase is Phase.GP else start
                row.append((last - 0.5, Action(stage, UPDATE, batch)))
    rows = (tuple(action for _, action in sorted(row)) for row in timed)
    return Program("chimera", micro_batches, tuple(phases), tuple(rows))


def _begin(place: int, devices: int, phase: Phase) -> int:
    """Return the slot in which a direction's micro-batch number `place` enters its first stage.

    Every second slot belongs to the direction. In BP batches half as many micro-batches as there are devices make a
    unit; their backwards take the second half of its slots.
    """
    if phase is Phase.GP:
        return 2 * place
    unit, rest = divmod(place, devices // 2)
    return 2 * devices * unit + 2 * rest
