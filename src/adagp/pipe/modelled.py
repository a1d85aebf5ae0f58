"""The costs of a pipeline of accelerators: each stage some layers of a model, costed by `adagp.hw`.

A stage's forward and backward are its layers' cycles for a micro-batch. The update is what a whole batch has to do besides: the
optimizer's traffic and the predictor's work, as far as they do not hide behind the last micro-batch's pass. It is the
difference between a micro-batch under the design with all duties and one with forward and backward alone.

The bytes that cross a cut are those of the one output at the cut. Where several branches or shortcuts cross it, more would.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

from adagp.errors import OptionError
from adagp.hw import DESIGNS, Accelerator, Elementwise, Stage, Workload, stages
from adagp.hw.designs import run_baseline
from adagp.hw.product import NOTHING, total
from adagp.hw.stages import duties
from adagp.pipe.costs import Costs, StageCosts
from adagp.pipe.partition import partition
from adagp.plan import BACKPROP_ALL, Plan
from adagp.schedules.base import predicted_plan


@dataclass(frozen=True)
class Link:
    """What joins two devices: bytes per second, and seconds before the first of them arrives."""

    bandwidth: float = inf
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise OptionError(
                f"a link of {self.bandwidth / 1e9:g} gigabytes per second carries nothing; give more than 0."
            )
        if not (self.latency >= 0 and isfinite(self.latency)):
            raise OptionError(f"a link's latency is {self.latency * 1e6:g} microseconds; it must be 0 or more.")


def modelled_costs(
    workload: Workload,
    accelerator: Accelerator,
    devices: int,
    samples: int,
    *,
    design: str = "max",
    link: Link | None = None,
) -> Costs:
    """Return costs in cycles for micro-batches of `samples`, the model cut so that forward and backward are balanced.

    `design` says how the predictor shares the hardware; with `baseline` there is none.
    """
    link = link or Link()
    layers = stages(workload, accelerator, samples)
    passes = [_passes(layer, accelerator) for layer in layers]
    outputs = output_words(workload)
    cuts = partition([forward + backward for forward, backward in passes], devices)
    return Costs(
        tuple(_stage([layers[place] for place in cut], outputs[cut[-1]], accelerator, samples, design) for cut in cuts),
        bandwidth=link.bandwidth / accelerator.clock_hz,
        latency=link.latency * accelerator.clock_hz,
    )


def _stage(layers: Sequence[Stage], outputs: int, accelerator: Accelerator, samples: int, design: str) -> StageCosts:
    passes = [_passes(layer, accelerator) for layer in layers]
    sites = [layer.layer for layer in layers if layer.is_site]
    word, gradient = (accelerator.width(what) / 8 for what in ("activations", "gradients"))
    return StageCosts(
        forward=sum(forward for forward, _ in passes),
        backward=sum(backward for _, backward in passes),
        update_bp=_beyond_passes(layers, BACKPROP_ALL, accelerator, design),
        update_gp=_beyond_passes(layers, predicted_plan("predicted"), accelerator, design),
        output_bytes=samples * word * outputs,
        kept_bytes=samples * word * sum(layer.layer.input_words for layer in layers),
        gradient_bytes=gradient * sum(site.weights - site.shared_weights for site in sites),
        summary_bytes=word * accelerator.predictor.grid**2 * sum(site.samples for site in sites),
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


def _passes(stage: Stage, accelerator: Accelerator) -> tuple[int, int]:
    """Return the cycles of a layer's forward and backward of a micro-batch, which updates nothing."""
    (duty,) = duties([replace(stage, update=NOTHING, read_back=NOTHING)], BACKPROP_ALL, accelerator, False)
    return duty.forward.cycles, duty.backward.cycles


def _beyond_passes(layers: Sequence[Stage], plan: Plan, accelerator: Accelerator, design: str) -> int:
    """Return the cycles by which a micro-batch under `plan` exceeds its passes: update and predictor."""
    shape = DESIGNS[design]
    whole = total(shape.step(duties(layers, plan, accelerator, shape.predicts)))
    plain = [replace(stage, update=NOTHING, read_back=NOTHING) for stage in layers]
    return whole.cycles - total(run_baseline(duties(plain, plan, accelerator, False))).cycles
