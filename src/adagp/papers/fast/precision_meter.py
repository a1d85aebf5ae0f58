"""How often the tensors of each site had which mantissa width."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from adagp.layers.sites import Site

FLOAT_BITS = 32
"""What stands for single precision."""
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
        found = {}
        for name, counts in self._counts.items():
            total = sum(counts.values())
            if not total:
                continue
            figures = {}
            for tensor, letter in LETTERS.items():
                known = [(bits, count) for widths, count in counts.items() if (bits := _bits(widths, letter))]
                if known:
                    figures[f"mantissa_{tensor}"] = sum(bits * count for bits, count in known) / sum(
                        count for _, count in known
                    )
            found[name] = figures | {f"share_{widths}": count / total for widths, count in sorted(counts.items())}
        self._counts = {name: Counter() for name in self._counts}
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {name: dict(counts) for name, counts in self._counts.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Take over what `state_dict` returned."""
        self._counts = {name: Counter(state.get(name, {})) for name in self._counts}


def _bits(widths: str, letter: str) -> int:
    """Return the bits behind a letter of `w4a4g2`; 0 if it is not there."""
    _, found, rest = widths.partition(letter)
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(digits) if found else 0
