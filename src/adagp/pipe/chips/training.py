"""The time of a training step on many chips, term by term, under backprop and under predicted gradients.

Each chip has its part of the model (`parallel.py`), costed on the accelerator for a micro-batch. The passes of micro-batches
follow a pipeline's program. What else a batch exchanges precedes the update of each stage, so stages that are done earlier
hide it in their bubble. The terms are found one after the other, each with those before it:

    compute     the work of a chip: passes, the optimizer's traffic, predictor
    bubble      waiting for other stages
    tensor      sums of a tensor group, which passes wait for
    pipeline    outputs and their gradients on the way to the next stage, and the output's error to all stages
    weights     sharded weights that are gathered (ZeRO), as far as passes do not hide it
    gradients   gradients of the copies, as far as the backward pass does not hide it
    source      what the method exchanges

A GP batch has no backward pass and no gradients of backprop to exchange. In a pipeline its time is what it adds to a BP batch
after it. Links are shared within a term, not between terms: a gradient never waits for an activation.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, isclose
from typing import NamedTuple

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.hw import Accelerator, Linear, Stage, Workload, stages
from adagp.hw.exchange import ExchangeWork, ModelLayout, SourceExchange, source_exchange
from adagp.hw.stages import SUPPLIED, error_width, source_work
from adagp.pipe.actions import Program, with_broadcast
from adagp.pipe.chips.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Bucket,
    Fabric,
    after_backward,
    buckets,
    waiting_backward,
    waiting_for_weights,
)
from adagp.pipe.chips.parallel import ChipMemory, Parallelism, TensorSplit, shared_equally, split_tensors, weight_memory
from adagp.pipe.generate import generate
from adagp.pipe.modelled import balanced_cuts, modelled_costs, passes
from adagp.pipe.timeline import Costs, StageCosts, Timeline, simulate

BUCKET = 25e6
"""Bytes of a bucket of gradients: DDP's default."""
EXCHANGED = ("tensor", "pipeline", "weights", "gradients", "source")
TERMS = ("compute", "bubble", *EXCHANGED)
TERM_NAMES = dict(zip(TERMS, TERMS, strict=True)) | {term: f"exchange: {term}" for term in EXCHANGED}
TERM_NAMES["source"] = "exchange: method"
"""What the terms are called in tables and pictures; the source is what the method itself exchanges."""


@dataclass(frozen=True)
class ChipTraining:
    """The model, the chips, and how the model is split over them.

    `source` produces the gradients of GP batches; its costs depend on `variant`.
    """

    workload: Workload
    accelerator: Accelerator
    parallel: Parallelism
    fabric: Fabric
    batch: int
    micro_batches: int = 1
    schedule: str = "dapple"
    design: str = "max"
    source: str = SUPPLIED
    variant: Hashable = None
    overlap: bool = True
    bucket: float = BUCKET

    def __post_init__(self) -> None:
        if self.fabric.topology.chips != self.parallel.chips:
            raise OptionError(f"a fabric of {self.fabric.topology.chips} chips does not fit {self.parallel}.")

    @property
    def samples(self) -> int:
        """Samples of a micro-batch of a copy."""
        share = shared_equally(self.batch, self.parallel.data, f"data={self.parallel.data}")
        return shared_equally(
            share, self.micro_batches, f"{self.micro_batches} micro-batches for each of {self.parallel.data}"
        )


class BatchTime(NamedTuple):
    """A batch in seconds, term by term, and the bytes that a chip puts into collectives and messages, by kind."""

    terms: Mapping[str, float]
    sent: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """All terms."""
        return sum(self.terms.values())


@dataclass(frozen=True)
class _Extra:
    """Cycles that a term adds to a stage: to a pass of a micro-batch, and to an update."""

    forward: float = 0.0
    backward: float = 0.0
    update_bp: float = 0.0
    update_gp: float = 0.0


@dataclass(frozen=True)
class _StagePart:
    """A stage's layers for a micro-batch, the words of a sample that its tensor group sums, and the cycles of its passes."""

    layers: tuple[Stage, ...]
    tensor_forward: tuple[int, ...]
    tensor_backward: tuple[int, ...]
    passes: tuple[tuple[int, int], ...]
    extra: dict[str, _Extra] = field(default_factory=dict, compare=False)

    @property
    def weights(self) -> int:
        """Trained weights of the stage, each counted once."""
        return sum(layer.layer.weights - layer.layer.shared_weights for layer in self.layers if layer.is_site)


class ManyChips:
    """The costs of a training on many chips; `method` has the batches of the source, `plain` those of backprop alone."""

    def __init__(self, training: ChipTraining) -> None:
        self.training = training
        self.accelerator, self.parallel, self.fabric = training.accelerator, training.parallel, training.fabric
        self.program = partial(generate, training.schedule, self.parallel.pipeline, training.micro_batches)
        samples = training.samples
        split = split_tensors(training.workload, self.parallel.tensor)
        parts = self.program([Phase.BP]).stages
        layers = stages(split.workload, self.accelerator, samples)
        cuts = balanced_cuts(layers, self.accelerator, parts)
        self.split = split
        self.parts = [self._part(layers, split, cut) for cut in cuts]
        cost = partial(
            modelled_costs,
            split.workload,
            self.accelerator,
            parts,
            samples,
            micro_batches=training.micro_batches,
            shards=self.parallel.shards,
        )
        self.plain = cost(design="baseline", source=SUPPLIED)
        self.method = self.plain
        if training.source != SUPPLIED and not source_work(training.source).skips:
            self.method = cost(design=training.design, source=training.source, variant=training.variant)

    def _part(self, layers: Sequence[Stage], split: TensorSplit, cut: range) -> _StagePart:
        chosen = tuple(layers[index] for index in cut)
        forward, backward = (tuple(words[index] for index in cut) for words in (split.forward, split.backward))
        return _StagePart(chosen, forward, backward, tuple(passes(layer, self.accelerator) for layer in chosen))

    # Batches.

    @cached_property
    def backprop(self) -> BatchTime:
        """A batch by backprop alone."""
        return self._batch((Phase.BP,), (), source=SUPPLIED)

    @cached_property
    def learning(self) -> BatchTime:
        """A batch by backprop from which the source learns."""
        return self._batch((Phase.BP,), (), source=self.training.source)

    @cached_property
    def predicted(self) -> BatchTime:
        """A batch with predicted gradients."""
        if source_work(self.training.source).skips:
            return BatchTime(dict.fromkeys(TERMS, 0.0), {})
        return self._batch((Phase.GP, Phase.BP), (Phase.BP,), source=self.training.source)

    def timeline(self, phases: Sequence[Phase], source: str, included: Sequence[str] = EXCHANGED) -> Timeline:
        """Return the dry run of batches, with the exchanges that are `included`."""
        base = self.plain if source == SUPPLIED else self.method
        costs = tuple(
            self._with_extras(stage, part, source, included)
            for stage, part in zip(base.stages, self.parts, strict=True)
        )
        bandwidth, latency = inf, 0.0
        if "pipeline" in included and self.parallel.pipeline > 1:
            traffic = self.fabric.topology.traffic(self.parallel.next_stages)
            clock, link = self.accelerator.clock_hz, self.fabric.link
            bandwidth, latency = link.bandwidth / clock / traffic.sharing, link.latency * clock * traffic.hops
        return simulate(self._program(phases, source), Costs(costs, bandwidth, latency))

    def _program(self, phases: Sequence[Phase], source: str) -> Program:
        program = self.program(phases)
        return with_broadcast(program) if source_work(source).output_error and self.parallel.pipeline > 1 else program

    def _batch(self, phases: Sequence[Phase], without: Sequence[Phase], source: str) -> BatchTime:
        """Return the time of the batches `phases`, less that of the batches `without`, in terms.

        Each term is the growth of the time if its exchange is included in addition to those of the terms before it.
        """
        clock = self.accelerator.clock_hz
        steps, terms = 0.0, dict.fromkeys(TERMS, 0.0)
        for number in range(len(EXCHANGED) + 1):
            included = EXCHANGED[:number]
            if number and not self._applies(included[-1]):
                continue
            whole = self.timeline(phases, source, included)
            rest = self.timeline(without, source, included) if without else None
            total = whole.steps - (rest.steps if rest else 0.0)
            if number and not isclose(total, steps, rel_tol=1e-12):  # a rounding error is no term
                terms[included[-1]] = (total - steps) / clock
            elif not number:
                busy = _busy(whole) - (_busy(rest) if rest else 0.0)
                terms["compute"], terms["bubble"] = busy / clock, (total - busy) / clock
            steps = total
        return BatchTime(terms, self._sent(phases[0], source))

    def _applies(self, term: str) -> bool:
        parallel = self.parallel
        return {
            "tensor": parallel.tensor > 1,
            "pipeline": parallel.pipeline > 1,
            "weights": parallel.zero > 0,
            "gradients": parallel.data > 1,
            "source": parallel.chips > 1 and self.training.source != SUPPLIED,
        }[term]

    # What each term adds to a stage.

    def _with_extras(self, stage: StageCosts, part: _StagePart, source: str, included: Sequence[str]) -> StageCosts:
        extras = [self._extra(part, term, source) for term in included if term != "pipeline"]
        backward = sum(extra.backward for extra in extras)
        error = self._error_words(source) * self.accelerator.width("gradients") / 8 if "pipeline" in included else 0.0
        return replace(
            stage,
            forward=stage.forward + sum(extra.forward for extra in extras),
            backward=stage.backward + backward,
            input_gradient=None if stage.input_gradient is None else stage.input_gradient + backward,
            update_bp=stage.update_bp + sum(extra.update_bp for extra in extras),
            update_gp=stage.update_gp + sum(extra.update_gp for extra in extras),
            gradient_bytes=0.0,  # the copies' exchange is part of the update
            summary_bytes=0.0,
            error_bytes=error,
        )

    def _extra(self, part: _StagePart, term: str, source: str) -> _Extra:
        key = f"{term} {source}"
        if key not in part.extra:
            seconds = _TERM_COSTS[term](self, part, source) if self._applies(term) else _Extra()
            clock = self.accelerator.clock_hz
            part.extra[key] = _Extra(
                seconds.forward * clock, seconds.backward * clock, seconds.update_bp * clock, seconds.update_gp * clock
            )
        return part.extra[key]

    def _tensor(self, part: _StagePart, source: str) -> _Extra:
        """Return the sums of a tensor group in seconds; a source with a backward pass in GP batches sums there, too."""
        forward, backward = (
            self.fabric.all_reduce(self.parallel.tensor_groups, [amount for amount in amounts if amount])
            for amounts in self._tensor_bytes(part)
        )
        chained = self.training.micro_batches * backward if source_work(source).input_gradients else 0.0
        return _Extra(forward, backward, update_gp=chained)

    def _tensor_bytes(self, part: _StagePart) -> tuple[list[float], list[float]]:
        activation, gradient = (
            self.training.samples * self.accelerator.width(what) / 8 for what in ("activations", "gradients")
        )
        return [words * activation for words in part.tensor_forward], [
            words * gradient for words in part.tensor_backward
        ]

    def _gathered(self, part: _StagePart, source: str) -> _Extra:
        """Return what gathering weights adds in seconds: after the update (ZeRO 1 and 2), or before the passes (3)."""
        gather = partial(self.fabric.seconds, ALL_GATHER, self.parallel.data_groups)
        if self.parallel.zero < 3:
            amount = part.weights * self.accelerator.width("weights") / 8
            return _Extra(update_bp=gather(amount), update_gp=gather(amount))
        overlap, times = self.training.overlap, self._gathers
        forward = waiting_for_weights(self._buckets(part, 0, "weights"), gather, overlap=overlap)
        if self.parallel.pipeline > 1:
            return _Extra(update_bp=forward, update_gp=forward)
        backward = waiting_for_weights(self._buckets(part, 1, "weights"), gather, overlap=overlap)
        return _Extra(update_bp=times * (forward + backward), update_gp=times * forward)

    @property
    def _gathers(self) -> int:
        """How often sharded weights are gathered for a pass: for each micro-batch, but once for a pipeline's batch."""
        return 1 if self.parallel.pipeline > 1 else self.training.micro_batches

    def _reduced(self, part: _StagePart, source: str) -> _Extra:
        """Return what the gradients of the copies add in seconds after the last backward pass."""
        fabric, groups = self.fabric, self.parallel.data_groups
        operation = REDUCE_SCATTER if self.parallel.zero else ALL_REDUCE
        scatter = partial(fabric.seconds, operation, groups)
        parts, overlap = self._buckets(part, 1, "gradients"), self.training.overlap
        if self.parallel.zero < 3 or self.parallel.pipeline > 1:
            return _Extra(update_bp=after_backward(parts, scatter, overlap=overlap))
        gather = partial(fabric.seconds, ALL_GATHER, groups)
        both = waiting_backward(parts, gather, scatter, overlap=overlap)
        # The term `weights` already has the wait for the weights alone.
        return _Extra(update_bp=both - waiting_for_weights(parts, gather, overlap=overlap))

    def _buckets(self, part: _StagePart, direction: int, what: str) -> list[Bucket]:
        """Return a stage's layers in the order of a pass (0: forward, 1: backward), joined to buckets, in seconds."""
        width, clock = self.accelerator.width(what) / 8, self.accelerator.clock_hz
        single = [
            Bucket(
                cycles[direction] / clock, width * (layer.layer.weights - layer.layer.shared_weights) * layer.is_site
            )
            for layer, cycles in zip(part.layers, part.passes, strict=True)
        ]
        return buckets(single[::-1] if direction else single, self.training.bucket)

    def _exchanged(self, part: _StagePart, source: str) -> _Extra:
        """Return the rounds of the method in seconds, which wait for the passes, as the update waits for them."""
        return _Extra(
            update_bp=self._round_seconds(part, source, True), update_gp=self._round_seconds(part, source, False)
        )

    def _round_seconds(self, part: _StagePart, source: str, learns: bool) -> float:
        copies, everyone, error = self._rounds(part, source, learns)
        return (
            self.fabric.all_reduce(self.parallel.data_groups, copies)
            + self.fabric.all_reduce(self.parallel.everyone, everyone)
            + self.fabric.all_reduce(self.parallel.tensor_groups, error)
        )

    def _rounds(self, part: _StagePart, source: str, learns: bool) -> tuple[list[float], list[float], list[float]]:
        """Return the bytes of the method's rounds: among the copies, among all chips, and of a tensor group."""
        exchange, width = self._exchange(part, source, learns), self.accelerator.width("gradients") / 8
        copies = [words * width for words in exchange.copies if self.parallel.data > 1]
        everyone = [words * width for words in exchange.everyone]
        error = [self._error_words(source) * width] if self.parallel.tensor > 1 and exchange.error_features else []
        return copies, everyone, error

    def _exchange(self, part: _StagePart, source: str, learns: bool) -> SourceExchange:
        if source == SUPPLIED:
            return SourceExchange()
        parallel = self.parallel
        sharded = parallel.tensor > 1 or parallel.zero > 0
        layout = ModelLayout.STAGES if parallel.pipeline > 1 else ModelLayout.SHARDS if sharded else ModelLayout.COPIES
        sites = tuple(replace(layer.layer, name="") for layer in part.layers if layer.is_site)
        trained = [layer for layer in self.split.workload.array_layers if layer.trainable]
        widest = max((layer.weights // layer.samples for layer in trained), default=0)
        width = error_width(self.training.workload)
        work = ExchangeWork(sites, width, widest, learns, layout, self.training.variant, self.accelerator)
        return source_exchange(source, work)

    def _error_words(self, source: str) -> int:
        """Return the words of a share's features of the output's error."""
        features = self._exchange(self.parts[-1], source, False).error_features
        if not features:
            return 0
        last = [layer for layer in self.split.workload.array_layers if layer.trainable][-1]
        rows = last.rows if isinstance(last, Linear) else 1
        return self.training.samples * self.training.micro_batches * rows * features

    # What is sent and kept.

    def _sent(self, phase: Phase, source: str) -> dict[str, float]:
        """Return the bytes that a chip of the stage that sends most puts into exchanges, as the distributed runtime counts."""
        sums = [dict(self._sent_by(part, index, phase, source)) for index, part in enumerate(self.parts)]
        kinds = dict.fromkeys(kind for stage in sums for kind in stage)
        most = {kind: max(stage.get(kind, 0.0) for stage in sums) for kind in kinds}
        return {kind: amount for kind, amount in most.items() if amount}

    def _sent_by(self, part: _StagePart, index: int, phase: Phase, source: str) -> Iterator[tuple[str, float]]:
        parallel, learns, batches = self.parallel, phase is Phase.BP, self.training.micro_batches
        weights, gradients = (part.weights * self.accelerator.width(what) / 8 for what in ("weights", "gradients"))
        if parallel.tensor > 1:
            forward, backward = map(sum, self._tensor_bytes(part))
            yield "tensor", batches * (forward + backward * learns)
        if parallel.pipeline > 1 and index + 1 < len(self.parts):
            outputs = self.plain.stages[index].output_bytes
            yield "activations", batches * outputs
            yield "input gradients", batches * outputs * learns
        if parallel.zero:
            passes_of = 1 + (learns and parallel.pipeline == 1) if parallel.zero == 3 else 1
            yield "weights", weights / parallel.data * passes_of * (self._gathers if parallel.zero == 3 else 1)
        if parallel.data > 1 and learns:
            yield "gradients", gradients
        if source != SUPPLIED and parallel.chips > 1:
            copies, everyone, error = self._rounds(part, source, learns)
            yield "summaries", sum(copies)
            yield "predictor", sum(everyone)
            yield "error features", sum(error)

    @property
    def memory(self) -> ChipMemory:
        """The bytes of the chip that has most: with the activations that it keeps at most for the backward pass."""
        parallel = self.parallel
        kept = self.timeline((Phase.BP,), SUPPLIED).peak_bytes
        weights = dict.fromkeys(range(parallel.pipeline), 0)
        program = self.program([Phase.BP])
        for device, row in enumerate(program.devices):
            weights[device] = sum(self.parts[stage].weights for stage in {action.stage for action in row})
        chips = [weight_memory(weights[device], self.accelerator, parallel.data, parallel.zero) for device in weights]
        return max(
            (replace(chip, activations=kept[device]) for device, chip in enumerate(chips)), key=lambda chip: chip.total
        )


def _busy(timeline: Timeline) -> float:
    """Return the mean time in which a chip works."""
    return sum(end - begin for row in timeline.spans for begin, end in row) / len(timeline.spans)


_TERM_COSTS: Mapping[str, Callable[[ManyChips, _StagePart, str], _Extra]] = {
    "tensor": ManyChips._tensor,
    "weights": ManyChips._gathered,
    "gradients": ManyChips._reduced,
    "source": ManyChips._exchanged,
}
