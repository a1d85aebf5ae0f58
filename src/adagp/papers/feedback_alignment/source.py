"""Both methods change one thing in the backward pass: the gradient that a layer passes on to the layer below.

backprop     W^T g    g: the gradient at the layer's output, W: its weight
fa           B^T g    B: a fixed random tensor of W's shape
dfa          C^T e    e: the error at the model's output, C: a fixed random matrix

Everything between the layers (activations, normalisation, pooling, shortcuts) is differentiated as usual. So dfa's error passes
through the derivative of the activation below it, as published. Each weight gradient is the usual product of the input and
the gradient at the output. The last layer's gradient is exact.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import torch
from torch import Size, Tensor

from adagp.core.plan import Step
from adagp.errors import ModelError
from adagp.layers.sites import Site
from adagp.layers.weights import whole
from adagp.sources.base import BatchContext, ModelCall, RunFacts, RunningNorms, step_generator
from adagp.sources.demand import (
    NUMBER_BYTES,
    Demand,
    TrialCall,
    chain_macs,
    kept_inputs,
    weight_bytes,
    weight_gradient_macs,
)
from adagp.sources.local import Kept, LocalSource, batched, weight_gradient

MOST_ERROR_WORDS = 4096
"""Values of a sample's output at most: dfa's matrices have that many rows, and as many columns as a layer has inputs."""


class _RedirectedGradient(torch.autograd.Function):
    """A layer's output, whose gradient is passed to `receive`; what that returns is the gradient of the layer's input."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        bias: Tensor | None,
        anchor: Tensor,
        output: Tensor,
        receive: Callable[[Tensor, bool], tuple[Tensor | None, Tensor]],
    ) -> Tensor:
        ctx.receive = receive
        return output.clone()  # the layers above may change it in place

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        input_gradient, bias_gradient = ctx.receive(gradient, ctx.needs_input_grad[0])
        return input_gradient, bias_gradient if ctx.needs_input_grad[1] else None, None, None, None


class RandomFeedbackSource(LocalSource):
    """Exact local weight gradients, given a backward pass in which random matrices replace the layers' weights."""

    needs_backward = True

    def __init__(self, name: str, seed: int = 0) -> None:
        super().__init__(name)
        self.seed = seed
        self._context = BatchContext(Step(0, 0))
        self._call = ModelCall()

    def begin(self, context: BatchContext) -> None:
        """Keep the sites that are served and the loss's scale."""
        self._context = context

    def enter(self, call: ModelCall) -> None:
        """Keep the model's call, which has the error at its output later."""
        self._call = call

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Return the output with another backward pass; it also gives the weight's gradient."""
        if site not in self._context.replaced or not torch.is_grad_enabled():
            return None
        stored, scale, call, shape = Kept(site, inputs), self._context.scale, self._call, inputs[0].shape

        def receive(gradient: Tensor, wanted: bool) -> tuple[Tensor | None, Tensor]:
            values = stored.get()
            self.add(site, weight_gradient(site, values, gradient) / scale)
            flat = batched(site, gradient)
            bias_gradient = flat.sum([axis for axis in range(flat.dim()) if axis != 1])
            if not wanted:
                return None, bias_gradient
            return self.passed_down(site, gradient, values, call).reshape(shape), bias_gradient

        anchor = torch.zeros((), requires_grad=True)  # so that the first layer's output needs a gradient, too
        result: Tensor = _RedirectedGradient.apply(  # type: ignore[no-untyped-call]  # torch has no type for it
            inputs[0], getattr(site.module, "bias", None), anchor, output.detach(), receive
        )
        return result

    @abstractmethod
    def passed_down(self, site: Site, gradient: Tensor, inputs: Tensor, call: ModelCall) -> Tensor:
        """Return the gradient at the site's input, given the one at its output."""

    def draw(self, site: Site, shape: Size | tuple[int, ...], deviation: float) -> Tensor:
        """Return the site's fixed random numbers: a function of the seed and the site alone, so they need no state."""
        generator = step_generator(self.seed, Step(site.index, len(shape)))
        return (torch.randn(shape, generator=generator) * deviation).to(site.weight.device, site.weight.dtype)


class FeedbackAlignmentSource(RandomFeedbackSource):
    """Each layer passes the gradient on by a fixed random tensor of its weight's shape and initial standard deviation.

    Larger ones would let the gradient grow from layer to layer in a deep network.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__("fa", seed)
        self.matrices: dict[Site, Tensor] = {}
        self._deviations: list[Tensor | float] = []

    def bind(self, sites: Sequence[Site], norms: RunningNorms) -> None:
        """Keep the weights' standard deviations before training."""
        super().bind(sites, norms)
        # Kept as tensors: on the meta device they have no value, and none is needed before a random tensor is drawn.
        self._deviations = [whole(site.weight.detach()).float().std(correction=0) for site in sites]

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand:
        """Return a random tensor for each weight but the first one's, and the work of backprop."""
        kept = weight_bytes([call for call in calls if call.site is not calls[0].site])
        return Demand(kept, gp_bytes=kept_inputs(calls), gp_macs=chain_macs(calls) + weight_gradient_macs(calls))

    def state_dict(self) -> dict[str, Any]:
        """Return the standard deviations of the initial weights, by which the random tensors are drawn again."""
        return {"deviations": [float(deviation) for deviation in self._deviations]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._deviations = list(state["deviations"])
        self.matrices.clear()

    @classmethod
    def build(cls, run: RunFacts) -> "FeedbackAlignmentSource":  # type: ignore[override]  # it has no options
        """Return the source for a run's seed."""
        return cls(run.seed)

    @torch.no_grad()
    def passed_down(self, site: Site, gradient: Tensor, inputs: Tensor, call: ModelCall) -> Tensor:
        """Return the input gradient of the layer with the random tensor as its weight."""
        if site not in self.matrices:
            deviation = float(self._deviations[site.index]) or 1 / sqrt(site.width)
            self.matrices[site] = self.draw(site, site.weight.shape, deviation)
        matrix = self.matrices[site]
        gradient, inputs = batched(site, gradient.to(matrix.dtype)), batched(site, inputs)
        if site.rule.kind == "linear":
            return gradient @ (matrix.T if site.rule.axis else matrix)
        module: Any = site.module
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            raise ModelError(
                f"source 'fa' needs convolutions padded with a number of zeros; site '{site.name}' is a "
                f"{type(module).__name__} with padding {module.padding} ({module.padding_mode}). Exclude it."
            )
        passed, _, _ = torch.ops.aten.convolution_backward(
            gradient,
            inputs.to(matrix.dtype),
            matrix,
            None,
            module.stride,
            module.padding,
            module.dilation,
            module.transposed,
            module.output_padding,
            module.groups,
            [True, False, False],  # the input's gradient alone
        )
        return passed  # type: ignore[no-any-return]


class DirectFeedbackSource(RandomFeedbackSource):
    """The error at the model's output reaches the input of every layer by a random matrix of that layer's own."""

    needs_error = True

    def __init__(self, seed: int = 0) -> None:
        super().__init__("dfa", seed)
        self.matrices: dict[tuple[Site, Size], Tensor] = {}

    @classmethod
    def build(cls, run: RunFacts) -> "DirectFeedbackSource":  # type: ignore[override]  # it has no options
        """Return the source for a run's seed."""
        return cls(run.seed)

    def check_call(self, call: TrialCall, outputs: Sequence[Size]) -> None:
        """Raise on a site to whose samples the errors cannot be assigned."""
        super().check_call(call, outputs)
        _check_errors(call.site, call.inputs, outputs)

    def demand(self, calls: Sequence[TrialCall], outputs: Sequence[Size]) -> Demand:
        """Return a random matrix for each layer but the first, from all values of a sample's output to those of its input."""
        words = sum(output[1:].numel() for output in outputs)
        sizes = {(call.site, call.inputs[1:]): call.inputs[1:].numel() for call in calls[1:]}
        projected = words * sum(call.inputs.numel() for call in calls[1:])
        return Demand(
            NUMBER_BYTES * words * sum(sizes.values()),
            gp_bytes=kept_inputs(calls),
            gp_macs=projected + weight_gradient_macs(calls),
        )

    @torch.no_grad()
    def passed_down(self, site: Site, gradient: Tensor, inputs: Tensor, call: ModelCall) -> Tensor:
        """Return the projected error of each sample, multiplied by the loss's scale as all gradients are."""
        errors = [error for error in call.errors if error is not None]
        _check_errors(site, inputs.shape, [error.shape for error in errors])
        error = torch.cat([error.flatten(1) for error in errors], 1).to(site.weight.dtype)
        key = site, inputs.shape[1:]
        if key not in self.matrices:
            shape = error.shape[1], prod(key[1])
            self.matrices[key] = self.draw(site, shape, 1 / sqrt(error.shape[1]))
        return error @ self.matrices[key] * call.scale


def _check_errors(site: Site, inputs: Size, errors: Sequence[Size]) -> None:
    """Raise if the errors, by their sizes, are not one for each sample of a site's `inputs`, or are too many values."""
    if any(len(error) < 2 for error in errors):
        raise ModelError(
            f"source 'dfa' needs an axis that counts samples; an output of the model has the sizes {tuple(errors[0])}. Give "
            "the model a batch of one: inputs[None]."
        )
    samples, words = errors[0][0], sum(error[1:].numel() for error in errors)
    if samples != inputs[0] or words > MOST_ERROR_WORDS:
        raise ModelError(
            f"source 'dfa' needs one error of at most {MOST_ERROR_WORDS} values for each sample; the model's output has "
            f"{samples} samples of {words} values, the input of site '{site.name}' {inputs[0]} samples."
        )
