"""The memory of a chip: weights, gradients, optimizer state and kept activations.

ZeRO (Rajbhandari et al. 2020) shards over the copies: stage 1 the optimizer's state, 2 the gradients, too, 3 the weights, too.
With weights and gradients of 2 bytes and 12 bytes of state (a weight, momentum and variance in 32 bits), N copies take
4 + 12 / N, 2 + 14 / N and 16 / N bytes for each weight.
"""

from dataclasses import dataclass

from adagp.hw import Accelerator

STATE_BITS = 32
"""Of a word of the optimizer's state, and of its copy of the weights, unless the accelerator has others."""


@dataclass(frozen=True)
class ChipMemory:
    """Bytes of the chip that has most."""

    weights: float
    gradients: float
    optimizer: float
    activations: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.activations


def weight_memory(weights: float, accelerator: Accelerator, copies: int = 1, zero: int = 0) -> ChipMemory:
    """Return the bytes of `weights` words and all that belongs to them.

    Where weights have fewer than 32 bits, the optimizer keeps a copy of them in 32, or in the accelerator's `master_bits`.
    """
    copy = accelerator.master_bits or (STATE_BITS if accelerator.width("weights") < STATE_BITS else 0)
    state = (accelerator.optimizer_words * (accelerator.state_bits or STATE_BITS) + copy) / 8
    return ChipMemory(
        weights * accelerator.width("weights") / 8 / (copies if zero == 3 else 1),
        weights * accelerator.width("gradients") / 8 / (copies if zero >= 2 else 1),
        weights * state / (copies if zero else 1),
    )
