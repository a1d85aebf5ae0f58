"""The dependencies between the actions of a program, and whether it can run at all."""

from collections.abc import Iterator, Mapping

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.pipe.actions import BACKWARD, FORWARD, INPUT_GRADIENT, UPDATE, WEIGHT_GRADIENT, Action, Kind, Program

Position = tuple[int, int]
"""A device, and the index of an action in its list."""

Visit = tuple[Position, tuple[Position, ...]]
"""An action's position, and the positions of what it waited for."""


class Order:
    """The dependencies of a valid program: `requirements` of an action, and one `walk` in which all of them are met.

    An action waits for the previous one on its device, and:

    - a forward for the forward of the stage before;
    - a backward, or an input gradient, for that of the stage after (on the last stage, for the forward), and for its forward;
    - a weight gradient for its own input gradient;
    - an update for all forwards (and, in a BP batch, backwards) of the batch on its stage, on every device that holds it;
      with an error broadcast, in a GP batch, for those of the last stage as well.

    The rule of weights is strict synchronisation: on each device, a stage's forwards of a batch come after the stage's
    update by the batch before. So forward and backward of a micro-batch use the same weights, and these are never stale.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.positions = _positions(program)
        self._holders = _holders(program)
        _check_complete(program, self.positions)
        _check_local_order(program)
        self.walk = list(self._run())

    def requirements(self, action: Action) -> Iterator[Position]:
        """Yield the positions of the actions that `action` needs, those that its own device has done anyway left out."""
        stage, kind, number = action
        if kind == FORWARD and stage > 0:
            yield self.positions[Action(stage - 1, FORWARD, number)]
        elif kind in (BACKWARD, INPUT_GRADIENT) and stage + 1 < self.program.stages:
            whole = self.positions.get(Action(stage + 1, BACKWARD, number))
            yield self.positions[Action(stage + 1, INPUT_GRADIENT, number)] if whole is None else whole
        elif kind == UPDATE:
            yield from self._holders[stage, number].values()
            last = self.program.stages - 1
            if self.program.broadcast and stage != last and self.program.phases[number] is Phase.GP:
                yield from self._holders[last, number].values()

    def _run(self) -> Iterator[Visit]:
        """Let each device go as far as it can, and wake it when what it waits for is done."""
        devices = self.program.devices
        done = [0] * len(devices)  # actions done so far, by device
        waiting: dict[Position, list[int]] = {}
        ready = list(range(len(devices)))
        while ready:
            device = ready.pop()
            while done[device] < len(devices[device]):
                action = devices[device][done[device]]
                needed = tuple(self.requirements(action))
                missing = next((position for position in needed if done[position[0]] <= position[1]), None)
                if missing is not None:
                    waiting.setdefault(missing, []).append(device)
                    break
                position = (device, done[device])
                yield position, needed
                done[device] += 1
                ready += waiting.pop(position, [])
        if any(count < len(row) for count, row in zip(done, devices, strict=True)):
            raise OptionError(f"the program never ends: {'; '.join(self._stuck(done))}.")

    def _stuck(self, done: list[int]) -> Iterator[str]:
        for device, row in enumerate(self.program.devices):
            if done[device] < len(row):
                action = row[done[device]]
                missing = next(position for position in self.requirements(action) if done[position[0]] <= position[1])
                awaited = self.program.devices[missing[0]][missing[1]]
                yield f"device {device} stands before {action} and waits for {awaited} of device {missing[0]}"


def validate(program: Program) -> None:
    """Raise for a program that lacks or repeats an action, breaks the rule of weights, or deadlocks."""
    Order(program)


def _positions(program: Program) -> dict[Action, Position]:
    """Return the position of each action; for an update, its position on the first device that holds the stage."""
    positions: dict[Action, Position] = {}
    for device, row in enumerate(program.devices):
        seen: set[Action] = set()
        for position, action in enumerate(row):
            twice = action in seen if action.kind == UPDATE else action in positions
            if twice:
                raise OptionError(f"{action} is in the program twice; each action is done once.")
            seen.add(action)
            positions.setdefault(action, (device, position))
    return positions


def _holders(program: Program) -> dict[tuple[int, int], dict[int, Position]]:
    """Return for each stage and batch the devices that work on it, each with the position of its last such action."""
    holders: dict[tuple[int, int], dict[int, Position]] = {}
    for device, row in enumerate(program.devices):
        for position, action in enumerate(row):
            if action.kind != UPDATE:
                key = (action.stage, action.number // program.micro_batches)
                holders.setdefault(key, {})[device] = (device, position)
    return holders


def _check_complete(program: Program, positions: dict[Action, Position]) -> None:
    expected = set(_expected(program, positions))
    for action in sorted(positions.keys() - expected):
        raise OptionError(f"{action} has no place in {_size(program)}.")
    for action in sorted(expected - positions.keys()):
        raise OptionError(f"{action} is missing from the program.")


def _expected(program: Program, positions: dict[Action, Position]) -> Iterator[Action]:
    """Yield all actions that the program must have; if it has one part of a backward, it must have both."""
    for stage in range(program.stages):
        for batch, phase in enumerate(program.phases):
            yield Action(stage, UPDATE, batch)
            for number in range(batch * program.micro_batches, (batch + 1) * program.micro_batches):
                yield Action(stage, FORWARD, number)
                parts = [Action(stage, kind, number) for kind in (INPUT_GRADIENT, WEIGHT_GRADIENT)]
                if phase is not Phase.GP:
                    yield from parts if any(part in positions for part in parts) else [Action(stage, BACKWARD, number)]


def _size(program: Program) -> str:
    phases = ",".join(phase.upper() for phase in program.phases)
    return f"{program.stages} stages, {program.micro_batches} micro-batches per batch and the phases {phases}"


_OWN_PASS_BEFORE: Mapping[Kind, Kind] = {BACKWARD: FORWARD, INPUT_GRADIENT: FORWARD, WEIGHT_GRADIENT: INPUT_GRADIENT}


def _check_local_order(program: Program) -> None:
    """Check what concerns one device: backward after its own forward, and the rule of weights for each copy it holds."""
    for device, row in enumerate(program.devices):
        begun: set[tuple[int, Kind, int]] = set()
        updates = dict.fromkeys((action.stage for action in row), 0)
        for action in row:
            stage, kind, number = action
            if program.batch_of(action) != updates[stage]:
                raise OptionError(_weights(program, device, action, updates[stage]))
            if kind == UPDATE:
                updates[stage] += 1
                continue
            before = _OWN_PASS_BEFORE.get(kind)
            if before is not None and (stage, before, number) not in begun:
                raise OptionError(f"device {device} does {action} before {stage}{before}{number}, or without it.")
            begun.add((stage, kind, number))
        for stage, count in updates.items():
            if count < len(program.phases):
                raise OptionError(f"device {device} holds stage {stage} but never does {stage}U{count}.")


def _weights(program: Program, device: int, action: Action, updates: int) -> str:
    had = f"after {action.stage}U{updates - 1}" if updates else "before any update"
    batch = program.batch_of(action)
    expected = f"after {action.stage}U{batch - 1}" if batch else "before any update"
    return f"device {device} does {action} {had} of its copy; with strict synchronisation it must come {expected}."
