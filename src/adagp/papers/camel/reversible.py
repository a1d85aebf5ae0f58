"""Reversible blocks: a chain whose backward pass finds the activations again from its output instead of keeping them.

    y2 = x2 + F1(x1, tap)            x1 = y1 - F2(y2)
    y1 = x1 + F2(y2)                 x2 = y2 - F1(x1, tap)

One autograd function goes over the whole chain: it keeps its output, and what it was given from outside (taps), whatever its
depth. Each block of the backward pass runs F2 and F1 once more, so that a batch costs four units of work instead of three.
The order of a block's backward pass is CAMEL's (Zhang et al., HPCA 2024, arXiv 2305.03148).
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adagp.errors import ModelError
from adagp.papers.camel.streams import ReadFaults, Stream, find_stream

MEASURED_EVERY = 10
"""Every Nth batch is compared with its true inputs."""


class ReversibleBlock(nn.Module):
    """Two functions between two halves of a stream; the first may take a tap as a second argument.

    Layers whose output for the same input may differ (dropout), or that a forward pass changes (normalisation with running
    statistics), are an error: recomputing would not give the same activations.
    """

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second
        for name, layer in self.named_modules():
            kind = type(layer).__name__
            if "Dropout" in kind or "BatchNorm" in kind:
                raise ModelError(
                    f"layer '{name}' ({kind}) cannot be part of a reversible block: recomputing it would not give "
                    "the same result."
                )


class ReversibleChain(nn.Module):
    """A chain of reversible blocks. `recompute=False` keeps all activations as usual: the control.

    `stream` is the arithmetic of the residual stream (`float`, `bfp`, `fixed`), `faults` are wrong reads of activations and
    gradients in training. `block_taps` has the tap that each block gets. The buffer `measured` holds the sum of the
    relative errors of recomputed inputs, their number, and the passes so far.
    """

    measured: Tensor

    def __init__(
        self,
        blocks: Sequence[ReversibleBlock],
        *,
        stream: str = "float",
        recompute: bool = True,
        faults: ReadFaults | None = None,
        block_taps: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.stream: Stream = find_stream(stream)
        self.recompute = recompute
        self.faults = faults or ReadFaults()
        self.block_taps = list(block_taps) if block_taps is not None else [-1] * len(blocks)
        self.register_buffer("measured", torch.zeros(3, dtype=torch.float64))

    @property
    def recomputes_layers(self) -> bool:
        """Whether layers run again in the backward pass: no gradient is seen at their outputs, which some methods need."""
        return self.recompute

    def reset_parameters(self) -> None:
        """Reset the measurements."""
        self.measured.zero_()

    def forward(self, first: Tensor, second: Tensor, *taps: Tensor) -> tuple[Tensor, Tensor]:
        """Return both halves of the stream after the last block."""
        if not self.recompute or first.is_meta:  # tracing has shapes alone, and looks at the graph of single layers
            return self._plainly(first, second, taps)
        parameters = [parameter for block in self.blocks for parameter in block.parameters()]
        outputs: tuple[Tensor, Tensor] = _Chain.apply(self, len(taps), first, second, *taps, *parameters)  # type: ignore[no-untyped-call]
        return outputs

    def read_figures(self) -> dict[str, float]:
        """Return the mean relative error of recomputed inputs since the last call, if any was measured."""
        total, count, _ = self.measured.tolist()
        self.measured[:2] = 0
        return {"reconstruction_error": total / count} if count else {}

    def block(self, index: int) -> ReversibleBlock:
        """Return one of the blocks."""
        block = self.blocks[index]
        assert isinstance(block, ReversibleBlock)
        return block

    def call_first(self, index: int, values: Tensor, tap: Tensor | None) -> Tensor:
        """Return F1 of a block."""
        first = self.block(index).first
        result: Tensor = first(values) if tap is None else first(values, tap)
        return result

    def call_second(self, index: int, values: Tensor) -> Tensor:
        """Return F2 of a block."""
        result: Tensor = self.block(index).second(values)
        return result

    def tap_of(self, index: int, taps: Sequence[Tensor]) -> Tensor | None:
        """Return the tap that a block is given, if it is given one."""
        number = self.block_taps[index]
        return None if number < 0 else taps[number]

    def read(self, stream: Tensor) -> Tensor:
        """Return the values of a half of the stream as read from memory; in training some are wrong (`ReadFaults`)."""
        values = self.stream.read(stream)
        return self.faults.read(values) if self.training else values

    def _plainly(self, first: Tensor, second: Tensor, taps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the same with autograd, which keeps all activations. Gradients pass through roundings unchanged."""
        first, second = self._rounded(first), self._rounded(second)
        for index in range(len(self.blocks)):
            second = self._rounded(second + self.call_first(index, self._seen(first), self.tap_of(index, taps)))
            first = self._rounded(first + self.call_second(index, self._seen(second)))
        return first, second

    def _rounded(self, values: Tensor) -> Tensor:
        return _straight_through(values, self.stream.read(self.stream.enter(values.detach())))

    def _seen(self, values: Tensor) -> Tensor:
        return _straight_through(values, self.faults.read(values)) if self.training else values

    def due(self) -> bool:
        """Return whether the inputs of this pass are stored for comparison, and count the pass."""
        self.measured[2] += 1
        return int(self.measured[2]) % MEASURED_EVERY == 1

    def note(self, stored: Tensor, recomputed: Tensor) -> None:
        """Note how far a recomputed input is from what it was."""
        error = (recomputed.double() - stored.double()).norm() / stored.double().norm().clamp(min=1e-300)
        self.measured[0] += error
        self.measured[1] += 1


def _straight_through(values: Tensor, changed: Tensor) -> Tensor:
    """Return `changed`; the gradient passes to `values` as it is."""
    return values if changed is values else values + (changed - values).detach()


class _Chain(torch.autograd.Function):
    """The whole chain as one function of its inputs, the taps and the parameters."""

    @staticmethod
    def forward(ctx: Any, chain: ReversibleChain, taps: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        stream = chain.stream
        first, second, tapped = stream.enter(tensors[0]), stream.enter(tensors[1]), tensors[2 : 2 + taps]
        needed = any(ctx.needs_input_grad)
        ctx.stored_inputs = (first, second) if needed and chain.training and chain.due() else None
        finite = first.new_zeros((), dtype=torch.float32)
        for index in range(len(chain.blocks)):
            change = chain.call_first(index, chain.read(first), chain.tap_of(index, tapped))
            second, finite = stream.add(second, change), finite + change.sum() * 0
            change = chain.call_second(index, chain.read(second))
            first, finite = stream.add(first, change), finite + change.sum() * 0
        ctx.chain, ctx.taps = chain, taps
        ctx.save_for_backward(first, second, *tapped)
        # A fixed grid has no infinity and NaN: `finite` is 0, or NaN if a value was not finite, and is added to the output.
        return stream.read(first) + finite, stream.read(second) + finite

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        chain: ReversibleChain = ctx.chain
        stream = chain.stream
        first, second, *taps = ctx.saved_tensors
        d_first, d_second = gradients
        needs = ctx.needs_input_grad[2:]
        d_taps: list[Tensor | None] = [None] * ctx.taps
        d_parameters: list[list[Tensor | None]] = []
        read = chain.faults.read if chain.training else _as_it_is
        for index in reversed(range(len(chain.blocks))):
            block, tap = chain.block(index), chain.tap_of(index, taps)
            # y1 = x1 + F2(y2): run F2 again, find x1, and add F2's share to the gradient at y2.
            block_input = chain.read(second).detach().requires_grad_()
            with torch.enable_grad():
                change = chain.call_second(index, block_input)
            first = stream.subtract(first, change.detach())
            of_second, (through_second,) = _products(change, read(d_first), [block_input], block.second)
            d_second = read(d_second) + through_second
            # y2 = x2 + F1(x1, tap): the same with F1, for x2 and the gradients at x1 and the tap.
            block_input = chain.read(first).detach().requires_grad_()
            number = chain.block_taps[index]
            differentiable = [block_input]
            if tap is not None:
                tap = tap.detach().requires_grad_(needs[2 + number])
                differentiable += [tap] if tap.requires_grad else []
            with torch.enable_grad():
                change = chain.call_first(index, block_input, tap)
            second = stream.subtract(second, change.detach())
            of_first, through_first = _products(change, read(d_second), differentiable, block.first)
            d_first = d_first + through_first[0]
            if len(through_first) > 1:
                d_taps[number] = _added(d_taps[number], through_first[1])
            d_parameters.insert(0, of_first + of_second)
        if ctx.stored_inputs is not None:
            for stored, recomputed in zip(ctx.stored_inputs, (first, second), strict=True):
                chain.note(stored, recomputed)
        inputs = [gradient if needed else None for gradient, needed in zip((d_first, d_second), needs, strict=False)]
        return (None, None, *inputs, *d_taps, *itertools.chain.from_iterable(d_parameters))


def _added(total: Tensor | None, gradient: Tensor) -> Tensor:
    return gradient if total is None else total + gradient


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _products(
    result: Tensor, gradient: Tensor, inputs: list[Tensor], module: nn.Module
) -> tuple[list[Tensor | None], list[Tensor]]:
    """Return the gradients of a module's parameters, None for those that need none, and of `inputs`."""
    parameters = list(module.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = torch.autograd.grad(result, [*inputs, *trainable], gradient, allow_unused=True, materialize_grads=True)
    parameter_gradients = iter(gradients[len(inputs) :])
    by_parameter = [next(parameter_gradients) if parameter.requires_grad else None for parameter in parameters]
    return by_parameter, list(gradients[: len(inputs)])
