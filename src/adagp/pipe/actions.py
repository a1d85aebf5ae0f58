"""The actions of each device of a pipeline, in order, as printable and parsable data.

    2F0     stage 2, forward of micro-batch 0
    2B0     stage 2, backward of micro-batch 0; or in two parts:
    2I0     stage 2, the gradient of its input, which the stage before waits for
    2W0     stage 2, the gradient of its weights, which may come later
    2U1     stage 2, update by batch 1: in a GP batch predict and step, in a BP batch train the predictor and step

Micro-batches are numbered through the whole program: with four per batch, batch 1 has the micro-batches 4 to 7. A **program**
has a list of actions for each device. Dependencies follow from the actions (`adagp.pipe.order`). With an **error
broadcast**, the update of a GP batch needs the error at the model's output (`AcceleratorWork.output_error`): every stage
waits for the last one's forwards, and keeps its own inputs until then.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast

from adagp.core.plan import Phase
from adagp.errors import OptionError

Kind = Literal["F", "B", "I", "W", "U"]
"""What an action does. Plain strings: a program may have a million actions, and an enum hashes slowly."""

MOST_ACTIONS = 200_000
"""The most actions of a program: each is an object in memory, and they are visited one by one."""

FORWARD: Kind = "F"
BACKWARD: Kind = "B"
INPUT_GRADIENT: Kind = "I"
WEIGHT_GRADIENT: Kind = "W"
UPDATE: Kind = "U"


class Action(NamedTuple):
    """One action of a device. `number` is the micro-batch; for an update, the batch."""

    stage: int
    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.number}"


_ACTION = re.compile(r"(\d{1,9})([FBIWU])(\d{1,9})")


def parse_action(text: str) -> Action:
    """Return the action that `text` names."""
    match = _ACTION.fullmatch(text)
    if match is None:
        raise OptionError(
            f"cannot read the action '{text}'; write STAGE, F, B, I, W or U, and a number, for example 2F0."
        )
    return Action(int(match[1]), cast(Kind, match[2]), int(match[3]))


@dataclass(frozen=True)
class Program:
    """A pipeline's work: the actions of each device, in their order.

    There are as many stages as devices, or `stages_per_device` times as many. `phases` has the phase of each batch,
    `micro_batches` is their number in a batch.
    """

    name: str
    micro_batches: int
    phases: tuple[Phase, ...]
    devices: tuple[tuple[Action, ...], ...]
    stages_per_device: int = 1
    broadcast: bool = False

    @property
    def stages(self) -> int:
        """Parts into which the model is cut."""
        return self.stages_per_device * len(self.devices)

    def batch_of(self, action: Action) -> int:
        """Return the batch that an action belongs to."""
        return action.number if action.kind == UPDATE else action.number // self.micro_batches

    def __str__(self) -> str:
        phases = ",".join(phase.upper() for phase in self.phases)
        several = f", {self.stages_per_device} stages per device" if self.stages_per_device > 1 else ""
        broadcast = ", error broadcast" if self.broadcast else ""
        head = f"{self.name}: {self.micro_batches} micro-batches, phases {phases}{several}{broadcast}"
        return "\n".join([head, *(" ".join(map(str, actions)) for actions in self.devices)]) + "\n"


_HEAD = re.compile(
    r"(\S+): (\d{1,9}) micro-batches, phases (\S+?)(?:, (\d{1,9}) stages per device)?(, error broadcast)?"
)


def parse_program(text: str) -> Program:
    """Return the program that `str(program)` gave: a head line, then a line of actions for each device."""
    head, *rows = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    match = _HEAD.fullmatch(head)
    if match is None:
        raise OptionError(
            f"cannot read the program's first line '{head}'; write NAME: N micro-batches, phases GP,BP,..."
        )
    devices = tuple(tuple(map(parse_action, row.split())) for row in rows)
    micro_batches, phases = int(match[2]), parse_phases(match[3])
    stages_per_device = int(match[4] or 1)
    check_sizes(len(devices), micro_batches, phases, stages_per_device)
    return Program(match[1], micro_batches, phases, devices, stages_per_device, broadcast=match[5] is not None)


def parse_phases(text: str) -> tuple[Phase, ...]:
    """Return the phases that `text` names, for example `GP,BP`."""
    names = [part.strip().lower() for part in text.split(",")]
    if any(name not in (Phase.BP, Phase.GP) for name in names):
        raise OptionError(f"cannot read the phases '{text[:100]}'; write GP and BP, separated by commas.")
    return tuple(map(Phase, names))


def check_sizes(devices: int, micro_batches: int, phases: Sequence[Phase], stages_per_device: int = 1) -> None:
    """Raise for a pipeline without devices, micro-batches or batches, and for one of more than `MOST_ACTIONS` actions."""
    counts = {"devices": devices, "micro-batches": micro_batches, "phases": len(phases), "stages": stages_per_device}
    for name, value in counts.items():
        if value < 1:
            raise OptionError(f"a pipeline of {value} {name} does nothing; give 1 or more.")
    actions = devices * stages_per_device * len(phases) * (2 * micro_batches + 1)
    if actions > MOST_ACTIONS:
        raise OptionError(
            f"a pipeline of {devices:,} devices, {micro_batches:,} micro-batches and {len(phases):,} batches has up to "
            f"{actions:,} actions; at most {MOST_ACTIONS:,} are allowed."
        )


def with_broadcast(program: Program) -> Program:
    """Return the program with an error broadcast: each device ends a batch's other work before it updates by a GP batch."""

    def order(action: Action) -> tuple[int, bool]:
        batch = program.batch_of(action)
        return batch, action.kind == UPDATE and program.phases[batch] is Phase.GP

    rows = tuple(tuple(sorted(row, key=order)) for row in program.devices)
    return replace(program, devices=rows, broadcast=True)


def forwards(stage: int, numbers: Iterable[int]) -> list[Action]:
    """Return the forward actions of a stage."""
    return [Action(stage, FORWARD, number) for number in numbers]


def backwards(stage: int, numbers: Iterable[int]) -> list[Action]:
    """Return the backward actions of a stage."""
    return [Action(stage, BACKWARD, number) for number in numbers]
