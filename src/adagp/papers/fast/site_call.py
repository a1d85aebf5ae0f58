"""One call of a site under a precision: which widths its tensors get, and how they are converted."""

from collections.abc import Mapping

from torch import Tensor

from adagp.papers.fast.noise import keyed_noise
from adagp.papers.fast.precision import Conversion, Width
from adagp.papers.fast.quantise import Blocks


class SiteCall:
    """Converts the tensors of one call of a site; `bits` are the mantissa bits of those that were converted so far.

    The width of a tensor is decided where it is first converted, and holds for both products that it enters. `key` is that
    of the noise, to which the tensor's axis is added.
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
