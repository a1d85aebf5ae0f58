"""What a GP batch costs on an accelerator beyond its forward pass. No torch here."""

from adagp.hw import Cost, SiteWork

MAGNITUDE_BITS = 32


def kept_bits(weights: int) -> int:
    """Return the bits that are kept for a layer: a sign per weight, and one magnitude."""
    return weights + MAGNITUDE_BITS


def read_signs(site: SiteWork) -> Cost:
    """Cost of reading them from off-chip memory; multiplying signs by a magnitude takes no multiplier."""
    return Cost(0, 0).moving(kept_bits(site.layer.weights), 0)
