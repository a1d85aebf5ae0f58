"""The costs of a pipeline of accelerators: each stage some layers of a model, costed by `adagp.hw`.

A stage's forward and backward are its layers' cycles for a micro-batch. The update is the rest of a batch's work: the
optimizer's traffic and the predictor's work, as far as they do not hide behind the last micro-batch's pass. It is the
difference between a micro-batch under the design with all duties and one with forward and backward alone; for sources whose
work grows with the samples (all but the accelerator's own predictor), the same difference for a whole batch.

The bytes that cross a cut are those of the one output at the cut, although a model with branches or shortcuts sends more.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from adagp.core.plan import BACKPROP_ALL, Phase, Plan, predicted_plan
from adagp.errors import OptionError
from adagp.hw import DESIGNS, Accelerator, Attention, Elementwise, Stage, Workload, stages
from adagp.hw.memory import kept_tensors
from adagp.hw.product import NOTHING, total
from adagp.hw.simulate import run_baseline
from adagp.hw.stages import OWN_PREDICTOR, SUPPLIED, duties, error_width, source_work, with_sharded_updates
from adagp.pipe.partition import partition
from adagp.pipe.timeline import Costs, Link, StageCosts


def modelled_costs(
    workload: Workload,
    accelerator: Accelerator,
    devices: int,
    samples: int,
    *,
    design: str = "max",
    link: Link | None = None,
    source: str = OWN_PREDICTOR,
    micro_batches: int = 1,
    variant: Hashable = None,
    shards: int = 1,
) -> Costs:
    """Return costs in cycles for micro-batches of `samples`, the model cut so that forward and backward are balanced.

    `design` is how the predictor shares the hardware; with `baseline` there is none. GP batches take their gradients from
    `source`; `micro_batches` make a batch, which matters to sources whose work grows with the samples. `variant` is what
    the source's cost functions get for a batch. Each of `shards` copies of a stage updates its part of the weights.
    """
    if source_work(source).splits:
        raise OptionError(f"source '{source}' splits batches: its cost in a pipeline of devices is not modelled.")
    link = link or Link()
    layers = stages(workload, accelerator, samples)
    shared = source_work(source).predictor
    whole = layers if shared else stages(workload, accelerator, samples * micro_batches)
    whole = with_sharded_updates(whole, accelerator, shards)
    work = _StageWork(accelerator, samples, design, source, samples * micro_batches * error_width(workload), variant)
    outputs, kept = output_words(workload), kept_bytes(workload, accelerator, samples)
    cuts = balanced_cuts(layers, accelerator, devices)
    return Costs(
        tuple(
            replace(
                _stage([layers[index] for index in cut], [whole[index] for index in cut], outputs[cut[-1]], work),
                kept_bytes=sum(kept[index] for index in cut),
            )
            for cut in cuts
        ),
        bandwidth=link.bandwidth / accelerator.clock_hz,
        latency=link.latency * accelerator.clock_hz,
    )


def balanced_cuts(layers: Sequence[Stage], accelerator: Accelerator, parts: int) -> list[range]:
    """Return the layers of each of `parts` stages: the largest forward and backward is as short as can be."""
    return partition([sum(passes(layer, accelerator)) for layer in layers], parts)


@dataclass(frozen=True)
class _StageWork:
    """What all stages have in common."""

    accelerator: Accelerator
    samples: int
    design: str
    source: str
    error_words: int
    variant: Hashable


def _stage(layers: Sequence[Stage], whole: Sequence[Stage], outputs: int, work: _StageWork) -> StageCosts:
    """Return a stage's costs: `layers` have a micro-batch, `whole` what an update is made of."""
    accelerator, samples = work.accelerator, work.samples
    forward, backward = map(sum, zip(*(passes(layer, accelerator) for layer in layers), strict=True))
    input_gradient, weight_gradient = map(sum, zip(*(_parts(layer, accelerator) for layer in layers), strict=True))
    sites = [layer.layer for layer in layers if layer.is_site]
    word, gradient = (accelerator.width(what) / 8 for what in ("activations", "gradients"))
    return StageCosts(
        forward=forward,
        backward=backward,
        update_bp=_beyond_passes(whole, BACKPROP_ALL, work),
        update_gp=_beyond_passes(whole, predicted_plan(work.source), work),
        output_bytes=samples * word * outputs,
        gradient_bytes=gradient * sum(site.weights - site.shared_weights for site in sites),
        summary_bytes=word * accelerator.predictor.grid**2 * sum(site.samples for site in sites),
        input_gradient=input_gradient,
        weight_gradient=weight_gradient,
        error_bytes=gradient * work.error_words,
    )


def output_words(workload: Workload) -> list[int]:
    """Return for each layer of the array the words of a sample that leave it and the element-wise work after it."""
    words: list[int] = []
    for layer in workload.layers:
        if not isinstance(layer, Elementwise):
            words.append(layer.output_words)
        elif words:
            words[-1] = layer.output_words
    return words


def kept_bytes(workload: Workload, accelerator: Accelerator, samples: int) -> list[int]:
    """Return for each layer of the array the bytes that it and the element-wise work after it keep for the backward pass.

    They are those of `adagp.hw.memory`. If it is not known what autograd keeps, they are the inputs of the layers; a product of
    two activations has two.
    """
    activation_bits = accelerator.width("activations")
    if workload.saved is None:
        words = (
            layer.input_words + (layer.weights if isinstance(layer, Attention) else 0)
            for layer in workload.array_layers
        )
        return [samples * count * activation_bits // 8 for count in words]
    kept = [0] * len(workload.array_layers)
    stage_of = workload.stage_of
    for tensor in kept_tensors(workload, accelerator):
        kept[stage_of[tensor.layer]] += tensor.bytes(samples, activation_bits)
    return kept


def passes(stage: Stage, accelerator: Accelerator) -> tuple[int, int]:
    """Return the cycles of a layer's forward and backward of a micro-batch, which updates nothing."""
    (duty,) = duties(_without_update([stage]), BACKPROP_ALL, accelerator, False)
    return duty.forward.cycles, duty.backward.cycles


def _parts(stage: Stage, accelerator: Accelerator) -> tuple[int, int]:
    """Return the cycles of the two parts of a layer's backward, done separately: the gradients of its input and weights."""
    (duty,) = duties(_without_update([stage]), _CHAIN_ALONE, accelerator, False)
    weights = accelerator.with_stalls(stage.weight_gradient).cycles if stage.is_site else 0
    return duty.backward.cycles, weights


def _without_update(layers: Sequence[Stage]) -> list[Stage]:
    return [replace(stage, update=NOTHING, read_back=NOTHING, table_update=NOTHING) for stage in layers]


_FORWARD_ALONE = predicted_plan(SUPPLIED)
"""The passes of a GP batch without the work of its source."""
_CHAIN_ALONE = Plan(Phase.BP, default=SUPPLIED)
"""All gradients but those of the sites' weights."""


def _beyond_passes(layers: Sequence[Stage], plan: Plan, work: _StageWork) -> int:
    """Return the cycles by which a batch under `plan` exceeds its passes: update and predictor."""
    shape, accelerator = DESIGNS[work.design], work.accelerator
    learns = shape.predicts and source_work(work.source).learns
    learning = learns, work.source if learns else None, work.variant
    whole = total(shape.step(duties(layers, plan, accelerator, *learning), accelerator))
    passes = plan if plan is BACKPROP_ALL else _FORWARD_ALONE
    plain = duties(_without_update(layers), passes, accelerator, False)
    return whole.cycles - total(run_baseline(plain, accelerator)).cycles
