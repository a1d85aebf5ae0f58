"""Reversible blocks: a chain whose backward pass finds the activations again from its output instead of keeping them.

    y2 = x2 + F1(x1, tap)            x1 = y1 - F2(y2)
    y1 = x1 + F2(y2)                 x2 = y2 - F1(x1, tap)

One autograd function goes over the whole chain: it keeps its output, and what it was given from outside (taps), whatever its
depth. Each block of the backward pass runs F2 and F1 once more, so that a batch costs four units of work instead of three.
The order of a block's backward pass is CAMEL's (Zhang et al., HPCA 2024, arXiv 2305.03148).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from adagp.errors import ModelError
from adagp.papers.camel.faults import ReadFaults
from adagp.papers.camel.streams import Stream, find_stream

MEASURED_EVERY = 10
"""Of so many batches one is compared with what its inputs were."""


class ReversibleBlock(nn.Module):
    """Two functions between two halves of a stream; the first may take a tap as a second argument.

    Layers whose answer to the same input may differ (dropout), or that are changed by a forward pass (normalisation with
    running statistics), are refused: recomputing would not find the same activations.
    """

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second
        for name, layer in self.named_modules():
            kind = type(layer).__name__
            if "Dropout" in kind or "BatchNorm" in kind:
                raise ModelError(
                    f"layer '{name}' ({kind}) cannot be part of a reversible block: run again, it would not give the same."
                )


class ReversibleChain(nn.Module):
    """A chain of reversible blocks. `recompute=False` keeps all activations as usual: the control.

    `stream` is the arithmetic of the residual stream (`float`, `bfp`, `fixed`), `faults` are wrong reads of activations and
    gradients in training. `block_taps` says which of the taps each block is given. The buffer `measured` holds the sum of the
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

    def reset_parameters(self) -> None:
        """Reset the measurements."""
        self.measured.zero_()

    def forward(self, first: Tensor, second: Tensor, *taps: Tensor) -> tuple[Tensor, Tensor]:
        """Return both halves of the stream after the last block."""
        if not self.recompute or first.is_meta:  # tracing has shapes alone, and looks at the graph of single layers
            return self._plainly(first, second, taps)
        parameters = [one for block in self.blocks for one in block.parameters()]
        found: tuple[Tensor, Tensor] = _Chain.apply(self, len(taps), first, second, *taps, *parameters)  # type: ignore[no-untyped-call]
        return found

    def read_figures(self) -> dict[str, float]:
        """Return the mean relative error of recomputed inputs since the last call, if any was measured."""
        total, count, _ = self.measured.tolist()
        self.measured[:2] = 0
        return {"reconstruction_error": total / count} if count else {}

    def block(self, place: int) -> ReversibleBlock:
        """Return one of the blocks."""
        found = self.blocks[place]
        assert isinstance(found, ReversibleBlock)
        return found

    def call_first(self, place: int, values: Tensor, tap: Tensor | None) -> Tensor:
        """Return F1 of a block."""
        first = self.block(place).first
        result: Tensor = first(values) if tap is None else first(values, tap)
        return result

    def call_second(self, place: int, values: Tensor) -> Tensor:
        """Return F2 of a block."""
        result: Tensor = self.block(place).second(values)
        return result

    def tap_of(self, place: int, taps: Sequence[Tensor]) -> Tensor | None:
        """Return the tap that a block is given, if it is given one."""
        number = self.block_taps[place]
        return None if number < 0 else taps[number]

    def read(self, stream: Tensor) -> Tensor:
        """Return what is read of a half of the stream, wrong values among it in training."""
        values = self.stream.read(stream)
        return self.faults.read(values) if self.training else values

    def _plainly(self, first: Tensor, second: Tensor, taps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Do the same by autograd, which keeps all activations; roundings are passed by gradients as if they were none."""
        first, second = self._rounded(first), self._rounded(second)
        for place in range(len(self.blocks)):
            second = self._rounded(second + self.call_first(place, self._seen(first), self.tap_of(place, taps)))
            first = self._rounded(first + self.call_second(place, self._seen(second)))
        return first, second

    def _rounded(self, values: Tensor) -> Tensor:
        return _straight_through(values, self.stream.read(self.stream.enter(values.detach())))

    def _seen(self, values: Tensor) -> Tensor:
        return _straight_through(values, self.faults.read(values)) if self.training else values

    def due(self) -> bool:
        """Return whether the inputs of this pass are stored for comparison, and count the pass."""
        self.measured[2] += 1
        return int(self.measured[2]) % MEASURED_EVERY == 1

    def note(self, kept: Tensor, found: Tensor) -> None:
        """Note how far a recomputed input is from what it was."""
        error = (found.double() - kept.double()).norm() / kept.double().norm().clamp(min=1e-300)
        self.measured[0] += error
        self.measured[1] += 1


def _straight_through(values: Tensor, changed: Tensor) -> Tensor:
    """Return `changed`; the gradient passes to `values` as it is."""
    return values if changed is values else values + (changed - values).detach()


class _Chain(torch.autograd.Function):
    """The whole chain as one function of its inputs, the taps and the parameters."""

    @staticmethod
    def forward(ctx: Any, chain: ReversibleChain, taps: int, *given: Tensor) -> tuple[Tensor, Tensor]:
        stream = chain.stream
        first, second, tapped = stream.enter(given[0]), stream.enter(given[1]), given[2 : 2 + taps]
        needed = any(ctx.needs_input_grad)
        ctx.kept = (first, second) if needed and chain.training and chain.due() else None
        finite = first.new_zeros((), dtype=torch.float32)
        for place in range(len(chain.blocks)):
            change = chain.call_first(place, chain.read(first), chain.tap_of(place, tapped))
            second, finite = stream.add(second, change), finite + change.sum() * 0
            change = chain.call_second(place, chain.read(second))
            first, finite = stream.add(first, change), finite + change.sum() * 0
        ctx.chain, ctx.taps = chain, taps
        ctx.save_for_backward(first, second, *tapped)
        # Infinity and NaN have no place on a fixed grid: `finite` is 0, or else NaN, and passes that on.
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
        for place in reversed(range(len(chain.blocks))):
            block, tap = chain.block(place), chain.tap_of(place, taps)
            seen = chain.read(second).detach().requires_grad_()
            with torch.enable_grad():
                change = chain.call_second(place, seen)
            first = stream.subtract(first, change.detach())
            of_second, (moved,) = _products(change, read(d_first), [seen], block.second)
            d_second = read(d_second) + moved
            seen = chain.read(first).detach().requires_grad_()
            number = chain.block_taps[place]
            wanted = [seen]
            if tap is not None:
                tap = tap.detach().requires_grad_(needs[2 + number])
                wanted += [tap] if tap.requires_grad else []
            with torch.enable_grad():
                change = chain.call_first(place, seen, tap)
            second = stream.subtract(second, change.detach())
            of_first, moves = _products(change, read(d_second), wanted, block.first)
            d_first = d_first + moves[0]
            if len(moves) > 1:
                before = d_taps[number]
                d_taps[number] = moves[1] if before is None else before + moves[1]
            d_parameters.insert(0, of_first + of_second)
        if ctx.kept is not None:
            for kept, found in zip(ctx.kept, (first, second), strict=True):
                chain.note(kept, found)
        inputs = [one if wanted else None for one, wanted in zip((d_first, d_second), needs, strict=False)]
        return (None, None, *inputs, *d_taps, *(one for block in d_parameters for one in block))


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _products(
    result: Tensor, gradient: Tensor, inputs: list[Tensor], module: nn.Module
) -> tuple[list[Tensor | None], list[Tensor]]:
    """Return the gradients of a module's parameters, None for those that need none, and of `inputs`."""
    parameters = list(module.parameters())
    wanted = [one for one in parameters if one.requires_grad]
    found = torch.autograd.grad(result, [*inputs, *wanted], gradient, allow_unused=True, materialize_grads=True)
    own = iter(found[len(inputs) :])
    return [next(own) if one.requires_grad else None for one in parameters], list(found[: len(inputs)])
