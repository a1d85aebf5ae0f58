"""The off-chip memory of a training step, over the forward and the backward pass of a batch.

Weights, the optimizer's state and gradients are always there. What autograd saves grows during the forward pass, and shrinks
during the backward pass. The model is cut into **units**: its repeated blocks (`layers.3`, `layer2.0`), where layers have such
names, and single layers. While a unit runs, all that it keeps is there. From its forward to its backward pass a unit's tensors
are **stashed**, **recomputed** from the unit's first tensor, which costs another forward pass, or **offloaded** and fetched
back, which costs the time of both transfers. A GP batch has no backward pass. It keeps nothing, unless a source computes weight
gradients from the inputs of layers (`feedback`): then it keeps these.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import ceil

from adagp.core.plan import BACKPROP_ALL
from adagp.errors import ModelError, OptionError
from adagp.hw.accelerator import Accelerator
from adagp.hw.stages import Duty, Stage, duties, source_work, stages
from adagp.hw.workload import Elementwise, Saved, Workload, attention_pairs

RECOMPUTATIONS = ("none", "block", "selective")
"""What is computed again in the backward pass: nothing, every repeated block, or attention from its scores to its result."""
STASH, RECOMPUTE, OFFLOAD = "stash", "recompute", "offload"
LOGARITHM_BITS = 32
"""Fused attention keeps the logarithm of each row's sum of exponentials, in this width."""


@dataclass(frozen=True)
class Unit:
    """A block or a layer in a micro-batch, with its cycles and its bytes.

    kept          all that it keeps for the backward pass
    first         its first tensor
    site_inputs   the inputs of its layers
    working       its largest result and the gradients on both sides of it, which are in memory while it runs
    """

    name: str
    kept: int
    first: int
    site_inputs: int
    working: int
    forward: int
    backward: int
    is_block: bool


@dataclass(frozen=True)
class Choice:
    """What happens to a unit's tensors between its passes, the bytes that stay, and the cycles that it costs."""

    way: str
    held: int
    cycles: int


@dataclass(frozen=True)
class Moment:
    """The memory from a cycle of a step on: bytes that are always there, that are saved, and that a unit works with."""

    cycle: int
    unit: str
    fixed: int
    kept: int
    working: int

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.fixed + self.kept + self.working


@dataclass(frozen=True)
class StepMemory:
    """A step of a model on an accelerator, in `micro_batches` whose gradients are added up."""

    workload: Workload
    accelerator: Accelerator
    micro_batches: int
    samples: int
    tensors: tuple[Saved, ...]
    units: tuple[Unit, ...]
    extra_cycles: int = 0

    @property
    def fixed(self) -> dict[str, int]:
        """Bytes that are there all the time, by what they are."""
        chip, parameters = self.accelerator, self.workload.parameters
        state = chip.optimizer_words * (chip.state_bits or chip.width("weights"))
        bits = {
            "weights": chip.width("weights"),
            "copy of the weights": chip.master_bits or 0,
            "optimizer state": state,
            "gradients": chip.width("gradients"),
        }
        return {name: ceil(parameters * width / 8) for name, width in bits.items() if width}

    @cached_property
    def stashed(self) -> tuple[Choice, ...]:
        """Every unit's tensors stay."""
        return tuple(Choice(STASH, unit.kept, 0) for unit in self.units)

    def moments(self, choices: Sequence[Choice] | None = None) -> list[Moment]:
        """Return the memory during a micro-batch by backprop, unit by unit."""
        chosen = self.stashed if choices is None else choices
        fixed, cycle, held = sum(self.fixed.values()), 0, 0
        moments: list[Moment] = []
        for unit, choice in zip(self.units, chosen, strict=True):
            moments.append(Moment(cycle, unit.name, fixed, held + unit.kept, unit.working))
            held, cycle = held + choice.held, cycle + unit.forward
        for unit, choice in zip(reversed(self.units), reversed(chosen), strict=True):
            held -= choice.held
            moments.append(Moment(cycle, unit.name, fixed, held + unit.kept, unit.working))
            cycle += unit.backward + choice.cycles
        return [*moments, Moment(cycle, "", fixed, 0, 0)]

    def predicted_moments(self, source: str) -> list[Moment]:
        """Return the memory during a micro-batch whose gradients `source` supplies; no layer's gradient is kept off chip."""
        work = source_work(source)
        fixed = sum(size for name, size in self.fixed.items() if name != "gradients")
        keeps, cycle, held = work.weight_gradient != "none", 0, 0
        moments = []
        for unit in self.units:
            held += unit.site_inputs if keeps else 0
            moments.append(Moment(cycle, unit.name, fixed, held, unit.working))
            cycle += unit.forward
        return [*moments, Moment(cycle, "", fixed, held, 0), Moment(cycle, "", fixed, 0, 0)]

    def by_operation(self) -> dict[str, int]:
        """Return the kept bytes of a micro-batch by the operation that keeps them, the most first."""
        bits, totals = self.accelerator.width("activations"), dict[str, int]()
        for tensor in self.tensors:
            totals[tensor.operation] = totals.get(tensor.operation, 0) + tensor.bytes(self.samples, bits)
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def peak(moments: Sequence[Moment]) -> Moment:
    """Return the moment with the most bytes."""
    return max(moments, key=lambda moment: moment.bytes)


def step_memory(
    workload: Workload, accelerator: Accelerator, batch: int, *, micro_batches: int = 1, recompute: str = "none"
) -> StepMemory:
    """Return the memory of a step of `batch` samples; with `recompute` `selective`, without what attention keeps inside."""
    if workload.saved is None:
        raise ModelError(
            f"'{workload.name}' has no record of what autograd stores: it is an ONNX file or was saved by an older version. "
            "Give the model itself, or a torch.export program."
        )
    samples, rest = divmod(batch, micro_batches)
    if rest or not samples:
        raise OptionError(f"a batch of {batch} samples does not split into {micro_batches} equal micro-batches.")
    tensors = kept_tensors(workload, accelerator)
    chain = stages(workload, accelerator, samples)
    extra = 0
    if recompute == "selective":
        extra = _recomputed_attention(workload, accelerator, chain)
        tensors = _without_scores(workload, fused=False)
    units = _units(workload, accelerator, chain, tensors, samples)
    if recompute == "block" and not any(unit.is_block for unit in units):
        raise OptionError(f"'{workload.name}' has no repeated blocks, so there is nothing to recompute by block.")
    return StepMemory(workload, accelerator, micro_batches, samples, tensors, units, extra)


def kept_tensors(workload: Workload, accelerator: Accelerator) -> tuple[Saved, ...]:
    """Return the tensors that the workload records as kept for the backward pass; without scores, if attention is fused."""
    return _without_scores(workload, fused=True) if accelerator.fused_attention else workload.saved or ()


def recomputed_blocks(memory: StepMemory) -> tuple[Choice, ...]:
    """Return the choice to recompute every repeated block, and to stash the rest."""
    return tuple(
        Choice(RECOMPUTE, unit.first, unit.forward) if unit.is_block else Choice(STASH, unit.kept, 0)
        for unit in memory.units
    )


def cheapest_plan(memory: StepMemory, capacity: float, bytes_per_second: float) -> tuple[Choice, ...]:
    """Return the choices with the fewest cycles for which a step fits into `capacity` bytes; raise if none do.

    Units are decided in the order of the forward pass. While a unit runs, in either direction, memory holds all of its tensors
    and what is held of the units before it. So of two sets of choices for the units so far, one that holds more and costs more
    is never better and is dropped. All others are followed, so the answer is exact.
    """
    fixed = sum(memory.fixed.values())
    ways: dict[int, tuple[int, tuple[Choice, ...]]] = {0: (0, ())}  # bytes held: cycles, choices
    for unit in memory.units:
        room = capacity - fixed - unit.kept - unit.working
        following: dict[int, tuple[int, tuple[Choice, ...]]] = {}
        for held, (cycles, chosen) in ways.items():
            if held > room:
                continue
            for choice in _ways_of(unit, bytes_per_second, memory.accelerator.clock_hz):
                way = cycles + choice.cycles, (*chosen, choice)
                if held + choice.held not in following or way[0] < following[held + choice.held][0]:
                    following[held + choice.held] = way
        ways = _undominated(following)
    if not ways:
        least = fixed + _least_peak(memory)
        raise OptionError(
            f"a step of '{memory.workload.name}' does not fit into {capacity / 1e9:,.3f} GB: with everything offloaded it "
            f"takes {least / 1e9:,.3f} GB. Use smaller micro-batches."
        )
    return min(ways.values(), key=lambda way: way[0])[1]


def _ways_of(unit: Unit, bytes_per_second: float, clock_hz: float) -> list[Choice]:
    both_ways = ceil(2 * unit.kept / bytes_per_second * clock_hz)
    choices = [Choice(STASH, unit.kept, 0), Choice(OFFLOAD, 0, both_ways)]
    if unit.first < unit.kept:
        choices.append(Choice(RECOMPUTE, unit.first, unit.forward))
    return choices


def _undominated(ways: Mapping[int, tuple[int, tuple[Choice, ...]]]) -> dict[int, tuple[int, tuple[Choice, ...]]]:
    best: dict[int, tuple[int, tuple[Choice, ...]]] = {}
    fewest = None
    for held, way in sorted(ways.items()):
        if fewest is None or way[0] < fewest:
            best[held], fewest = way, way[0]
    return best


def _least_peak(memory: StepMemory) -> int:
    return max((unit.kept + unit.working for unit in memory.units), default=0)


def _without_scores(workload: Workload, *, fused: bool) -> tuple[Saved, ...]:
    """Return what is kept without attention's scores; fused attention keeps a logarithm for each row instead."""
    tensors = list(workload.saved or ())
    for first, second in attention_pairs(workload):
        scores = workload.layers[first]
        assert not isinstance(scores, Elementwise)
        inside = [
            tensor
            for tensor in tensors
            if first < tensor.layer < second or (tensor.layer == second and tensor.words == scores.output_words)
        ]
        tensors = [tensor for tensor in tensors if tensor not in inside]
        if fused:
            rows = scores.output_words // scores.product(1).columns
            tensors.append(Saved(second, scores.name, "attention", rows, LOGARITHM_BITS))
    return tuple(tensors)


def _recomputed_attention(workload: Workload, accelerator: Accelerator, chain: Sequence[Stage]) -> int:
    """Return the cycles of computing attention's scores and their softmax once more."""
    pairs = attention_pairs(workload)
    if not pairs or accelerator.fused_attention:
        reason = "keeps no scores, since it is fused" if pairs else "has no attention"
        raise OptionError(f"'{workload.name}' {reason}, so there is nothing to recompute selectively.")
    scores = (chain[workload.stage_of[first]] for first, _ in pairs)
    return sum(accelerator.with_stalls(stage.forward + stage.elementwise_forward).cycles for stage in scores)


def _units(
    workload: Workload, accelerator: Accelerator, chain: Sequence[Stage], tensors: Sequence[Saved], samples: int
) -> tuple[Unit, ...]:
    names = [stage.layer.name for stage in chain]
    blocks = {block for name in names if (block := _block_of(name))}
    groups = [
        (key, [index for index, _ in members])
        for key, members in groupby(enumerate(names), key=lambda item: _block_of(item[1]) or f"{item[0]}")
    ]
    unit_of = {index: number for number, (_, members) in enumerate(groups) for index in members}
    number_of = {key: number for number, (key, _) in reversed(list(enumerate(groups)))}
    own: list[list[Saved]] = [[] for _ in groups]
    for tensor in tensors:
        block = _block_of(f"{tensor.name}.x")  # a block's own operations have its name
        inside = block in blocks
        own[number_of[block] if inside else unit_of[workload.stage_of[tensor.layer]]].append(tensor)
    passes = duties(chain, BACKPROP_ALL, accelerator, False)
    return tuple(
        _unit(key if key in blocks else None, [passes[index] for index in members], kept, accelerator, samples)
        for (key, members), kept in zip(groups, own, strict=True)
    )


def _unit(
    block: str | None, passes: Sequence[Duty], kept: Sequence[Saved], accelerator: Accelerator, samples: int
) -> Unit:
    """Return a block, or a layer that belongs to none, with the passes through its layers and the tensors that they keep."""
    bits, gradient_bits = accelerator.width("activations"), accelerator.width("gradients")
    sizes = [tensor.bytes(samples, bits) for tensor in kept]
    layers = [unit_passes.stage.layer for unit_passes in passes]
    working = max(
        samples * (bits * layer.output_words + gradient_bits * (layer.input_words + layer.output_words)) // 8
        for layer in layers
    )
    return Unit(
        layers[0].name if block is None else block,
        sum(sizes),
        sizes[0] if sizes else 0,
        sum(size for size, tensor in zip(sizes, kept, strict=True) if tensor.of_site),
        working,
        sum(unit_passes.forward.cycles for unit_passes in passes),
        sum(unit_passes.backward.cycles for unit_passes in passes),
        block is not None,
    )


def _block_of(name: str) -> str:
    """Return the repeated block that a layer is in: up to a number in its name, or a part that ends with one; '' if none."""
    parts = name.split(".")[:-1]
    for pattern in (r"\d+", r".*\d"):
        for index, part in enumerate(parts):
            if re.fullmatch(pattern, part):
                return ".".join(parts[: index + 1])
    return ""


def parse_capacity(text: str) -> float:
    """Return the bytes that `text` (`8GB`, `512MB`) describes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])B", text.strip())
    if match is None or not float(match[1]):
        raise OptionError(
            f"cannot read the capacity '{text}'; write a number above 0 with KB, MB, GB or TB, for example 8GB."
        )
    return float(match[1]) * 1e3 ** (1 + "KMGT".index(match[2]))
