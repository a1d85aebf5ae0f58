"""Reads of a memory that is sometimes wrong: embedded DRAM at the end of its retention time."""

import torch
from torch import Tensor

from adagp.errors import OptionError, unknown_name

KINDS = ("values", "bits")
MANTISSA_BITS = 23


class ReadFaults:
    """Makes a share of what is read wrong, drawn from torch's global random state.

    `values`: exactly the rounded share of a tensor's values, each replaced by normal noise of the tensor's scale. `bits`: the
    same number of values, in each of which one bit of the mantissa is turned. Whether CAMEL means values or bits is not said.
    """

    def __init__(self, share: float = 0.0, kind: str = "values") -> None:
        if not 0 <= share <= 1:
            raise OptionError(f"the share of wrong reads is {share}; it must be from 0 to 1.")
        if kind not in KINDS:
            raise unknown_name("kind of faults", kind, KINDS)
        self.share, self.kind = share, kind

    def count(self, total: int) -> int:
        """Return how many of `total` values are read wrongly."""
        return round(self.share * total)

    @torch.no_grad()
    def read(self, tensor: Tensor) -> Tensor:
        """Return what is read of `tensor`, which itself is left as it is."""
        wrong = self.count(tensor.numel())
        if not wrong:
            return tensor
        seen = tensor.detach().reshape(-1).clone()
        indices = torch.randperm(len(seen), device=seen.device)[:wrong]
        if self.kind == "values":
            seen[indices] = torch.randn(wrong, device=seen.device, dtype=seen.dtype) * seen.std()
        else:
            turned = 1 << torch.randint(MANTISSA_BITS, (wrong,), device=seen.device, dtype=torch.int32)
            bits = seen.float().view(torch.int32)
            bits[indices] ^= turned
            seen = bits.view(torch.float32).to(seen.dtype)
        return seen.view(tensor.shape)
