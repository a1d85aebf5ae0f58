"""The slow check of the timeline: a clock that ticks and devices that look around. Whole-number times, small programs."""

from adagp.core.plan import Phase
from adagp.pipe.actions import Action, Program
from adagp.pipe.timeline import Costs

Finished = dict[tuple[int, Action], int]
"""The end of each finished action, by device and action."""


def last_tick(program: Program, costs: Costs) -> int:
    """Return the tick at which the last action ends. The program must be valid."""
    finished: Finished = {}
    queues = [list(row) for row in program.devices]
    running: list[tuple[Action, int] | None] = [None] * len(queues)
    tick = 0
    while any(queues) or any(running):
        for device, job in enumerate(running):
            if job is not None and job[1] == tick:
                finished[device, job[0]] = tick
                running[device] = None
        started = True
        while started:  # work of no length ends in the tick in which it begins
            started = False
            for device, queue in enumerate(queues):
                if running[device] is None and queue and may_begin(program, costs, finished, device, queue[0], tick):
                    action = queue.pop(0)
                    phase = program.phases[program.batch_of(action)]
                    length = int(costs.stages[action.stage].time(action, phase))
                    started = True
                    if length == 0:
                        finished[device, action] = tick
                    else:
                        running[device] = (action, tick + length)
        tick += 1
    return max(finished.values())


def may_begin(program: Program, costs: Costs, finished: Finished, device: int, action: Action, tick: int) -> bool:
    """Tell whether all that `action` needs has arrived at its device."""
    stage, kind, number = action
    here = costs.stages[stage]
    if kind == "F":
        if stage == 0:
            return True
        return arrived(
            costs, finished, device, Action(stage - 1, "F", number), costs.stages[stage - 1].output_bytes, tick
        )
    if kind == "W":
        return (device, Action(stage, "I", number)) in finished
    if kind in ("B", "I"):
        if (device, Action(stage, "F", number)) not in finished:
            return False
        above = [Action(stage + 1, own, number) for own in ("B", "I")]
        return stage == program.stages - 1 or any(
            arrived(costs, finished, device, one, here.output_bytes, tick) for one in above
        )
    predicted = program.phases[number] is Phase.GP
    amount = here.summary_bytes if predicted else here.gradient_bytes
    members = range(number * program.micro_batches, (number + 1) * program.micro_batches)
    needed = [Action(stage, "F", member) for member in members]
    there = {action for row in program.devices for action in row}
    needed += [Action(stage, own, member) for own in "BIW" for member in members if (stage, own, member) in there]  # type: ignore[arg-type]
    last = program.stages - 1
    error = (
        [Action(last, "F", member) for member in members] if program.broadcast and predicted and stage < last else []
    )
    return all(arrived(costs, finished, device, one, amount, tick) for one in needed) and all(
        arrived(costs, finished, device, one, here.error_bytes, tick) for one in error
    )


def arrived(costs: Costs, finished: Finished, device: int, needed: Action, amount: float, tick: int) -> bool:
    """Tell whether the `amount` of bytes that `needed` made is at `device`."""
    for (where, action), end in finished.items():
        if action == needed:
            return tick >= end + (0 if where == device else costs.transfer(amount))
    return False
