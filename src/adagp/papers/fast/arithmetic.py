"""Compute the products of a model's sites in block floating point, without touching the model.

A `TorchFunctionMode` intercepts every call of torch's functions. Those that multiply by a site's weight (recognised by the
tensor's identity) are computed by `ConvertedProduct`; all others pass. No module is wrapped, and `state_dict` keeps its keys.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from adagp.engine.extensions import Arithmetic, ArithmeticFacts
from adagp.errors import ModelError
from adagp.layers.sites import Site
from adagp.papers.fast.precision import TENSORS, BlockPrecision, Conversion, TensorContext, Width
from adagp.papers.fast.products import ProductCall, converted_product, recognise
from adagp.papers.fast.quantise import Blocks, keyed_noise


class BlockArithmetic(Arithmetic):
    """Block floating point: `batch` computes the products of the sites in the precisions of one batch.

    Calls for which `is_training` returns False are computed in single precision.
    """

    def __init__(self, precision: BlockPrecision, facts: ArithmeticFacts, is_training: Callable[[], bool]) -> None:
        precision.check(len(facts.order))
        self.precision = precision
        self.meter = PrecisionMeter(facts.order)
        self._facts = facts
        self._site_numbers = {site: number for number, site in enumerate(facts.order)}
        self._mode = _SiteMode({id(site.weight): site for site in facts.order}, self._multiply, is_training)
        self._batch = 0
        self._calls: list[tuple[Site, QuantisedCall | None]] = []

    @contextmanager
    def batch(self, number: int) -> Iterator[None]:
        """Compute the sites' products inside the context as in batch `number` of the run, and count the widths."""
        self._batch, self._calls = number, []
        with self._mode:
            try:
                yield
            finally:
                calls, self._calls = self._calls, []
        for site, call in calls:
            self.meter.note(site, dict.fromkeys(TENSORS, FLOAT_BITS) if call is None else call.bits)

    @contextmanager
    def evaluation(self, number: int) -> Iterator[None]:
        """Compute all products of the sites inside the context as in batch `number`, without counting widths."""
        before = self._batch, self._calls
        self._batch, self._calls = number, []
        self._mode.everywhere = True
        try:
            with self._mode:
                yield
        finally:
            self._mode.everywhere = False
            self._batch, self._calls = before

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Use torch's own products inside the context."""
        before, self._mode.resting = self._mode.resting, True
        try:
            yield
        finally:
            self._mode.resting = before

    def check_called(self, called: Mapping[Site, int]) -> None:
        """Raise if a site was called whose product was not recognised: it would silently be in single precision."""
        seen = {site for site, _ in self._calls}
        for site in called:
            if site not in seen and site in self._site_numbers:
                raise ModelError(
                    f"layer '{site.name}' ({type(site.module).__name__}) does not multiply by its weight in a way "
                    f"that precision '{self.precision.text}' supports (torch's convolutions, linear and addmm); "
                    "exclude the layer, "
                    "or train in fp32."
                )

    def read_metrics(self) -> dict[str, dict[str, float]]:
        """Return the mean mantissa widths of each site, and the share of calls at each, since the last call."""
        return self.meter.read()

    def state_dict(self) -> dict[str, Any]:
        """Return the counted widths."""
        return self.meter.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.meter.load_state_dict(state)

    def _multiply(self, site: Site, product: ProductCall) -> Tensor | None:
        """Return the result of a site's product; None if it is computed in single precision."""
        widths = self._widths(site)
        if widths is None:
            self._calls.append((site, None))
            return None
        earlier = sum(other is site for other, _ in self._calls)
        key = ("noise", self._facts.seed, self._batch, site.name, earlier)
        call = QuantisedCall(widths, self.precision.conversion, key)
        if not self._mode.repeating:
            self._calls.append((site, call))
        with torch.autocast(product.inputs.device.type, enabled=False):
            inputs = product.inputs.to(product.weight.dtype)
            result = converted_product(inputs, product.weight, product.bias, product.operation, call.convert)
        return product.finish(result)

    def _widths(self, site: Site) -> dict[str, Width] | None:
        facts = self._facts
        widths: dict[str, Width] = {}
        for tensor in TENSORS:
            number = self._site_numbers[site]
            context = TensorContext(self._batch, facts.batches, number, len(facts.order), tensor, facts.seed)
            width = self.precision.width(context)
            if width is None:
                return None
            widths[tensor] = width
        return widths


class _SiteMode(TorchFunctionMode):
    """Passes the products of sites to `multiply`, unless it is `resting`: in training only, or `everywhere`.

    `repeating` is true during a backward pass, in which activation checkpointing runs forwards again.
    """

    def __init__(
        self,
        sites: Mapping[int, Site],
        multiply: Callable[[Site, ProductCall], Tensor | None],
        is_training: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._sites = sites
        self._multiply = multiply
        self._is_training = is_training
        self.resting = False
        self.repeating = False
        self.everywhere = False

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.backward:
            return self._backward(*args, **kwargs)
        product = None if self.resting else recognise(function, args, kwargs, self._sites)
        if product is not None and (self.everywhere or self._is_training()):
            result = self._multiply(self._sites[product.key], product)
            if result is not None:
                return result
        return function(*args, **kwargs)

    def _backward(self, loss: Tensor, gradient: Tensor | None = None, *args: Any, **kwargs: Any) -> None:
        """Run a backward pass with the mode on: activation checkpointing runs forwards again in it.

        A mode is off while it handles a call. A backward pass that begins at an edge of the graph is not a call to be handled.
        """
        if not loss.requires_grad:
            loss.backward(gradient, *args, **kwargs)  # raises torch's own error
            return
        edge = get_gradient_edge(loss)
        seed = torch.ones_like(loss) if gradient is None and loss.numel() == 1 else gradient
        self.repeating = True
        try:
            with self:
                torch.autograd.backward(edge, seed, *args, **kwargs)
        finally:
            self.repeating = False


class QuantisedCall:
    """Converts the tensors of one call of a site; `bits` are the mantissa bits of those that were converted so far.

    The width of a tensor is decided at its first conversion, and holds for both products that use it. The noise of a
    conversion is drawn from `key` and the tensor's axis.
    """

    def __init__(self, widths: Mapping[str, Width], conversion: Conversion, key: tuple[object, ...]) -> None:
        self._widths = widths
        self._conversion = conversion
        self._key = key
        self.bits: dict[str, int] = {}

    def convert(self, kind: str, tensor: Tensor, axis: int, parts: int) -> Tensor:
        """Return `tensor`, one of the site's weights, activations or gradients, in groups along `axis`."""
        conversion = self._conversion
        blocks = Blocks(tensor, axis, conversion.group, conversion.exponent_bits, parts)
        if kind not in self.bits:
            self.bits[kind] = self._decide(self._widths[kind], blocks)
        block_format = conversion.block_format(kind, self.bits[kind])
        noise = None
        if block_format.rounding == "stochastic":
            noise = keyed_noise(tensor.numel(), *self._key, kind, axis)
        return blocks.converted(block_format, noise)

    @staticmethod
    def _decide(width: Width, blocks: Blocks) -> int:
        if not width.measured or not blocks.finite:
            return width.high
        return width.low if blocks.improvement(width.low, width.high) < width.threshold else width.high


FLOAT_BITS = 32
"""Recorded as the width of single precision."""
LETTERS = {"weights": "w", "activations": "a", "gradients": "g"}


class PrecisionMeter:
    """Counts the calls of each site by the widths of its tensors, written as in `w4a4g2`; without `g`, it had no gradient."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self._counts: dict[str, Counter[str]] = {site.name: Counter() for site in sites}

    def note(self, site: Site, bits: Mapping[str, int]) -> None:
        """Count a call of `site` whose tensors had these mantissa bits; 32 is single precision."""
        widths = "".join(f"{letter}{bits[tensor]}" for tensor, letter in LETTERS.items() if tensor in bits)
        self._counts[site.name][widths] += 1

    def read(self) -> dict[str, dict[str, float]]:
        """Return for each site that was called since the last `read` the shares of its calls as `share_w4a4g2`, and the mean
        mantissa bits of each tensor; and start again."""
        figures = {name: _call_figures(counts) for name, counts in self._counts.items() if any(counts.values())}
        self._counts = {name: Counter() for name in self._counts}
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {name: dict(counts) for name, counts in self._counts.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Restore what `state_dict` returned."""
        self._counts = {name: Counter(state.get(name, {})) for name in self._counts}


def _call_figures(counts: Mapping[str, int]) -> dict[str, float]:
    figures = {}
    for tensor, letter in LETTERS.items():
        known = [(bits, count) for widths, count in counts.items() if (bits := _bits(widths, letter))]
        if known:
            total = sum(count for _, count in known)
            figures[f"mantissa_{tensor}"] = sum(bits * count for bits, count in known) / total
    calls = sum(counts.values())
    return figures | {f"share_{widths}": count / calls for widths, count in sorted(counts.items())}


def _bits(widths: str, letter: str) -> int:
    """Return the bits behind a letter of `w4a4g2`; 0 if it is not there."""
    _, separator, rest = widths.partition(letter)
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(digits) if separator else 0
