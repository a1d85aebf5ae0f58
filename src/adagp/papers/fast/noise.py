"""Noise for stochastic rounding: eight bits for each number, as a pure function of a key, so that nothing is stored."""

import hashlib

import numpy as np
import torch
from torch import Tensor

LEVELS = 256
"""Values of the noise: eight bits. A remainder below 1/256 of a step is never rounded up."""


def keyed_noise(count: int, *key: object) -> Tensor:
    """Return `count` bytes of noise on the CPU: those of a counter-based generator (Philox) under the digest of `key`.

    Keys are seeds, steps, names: the same key gives the same noise in a resumed run, another key unrelated noise.
    """
    digest = hashlib.blake2b(" ".join(map(str, key)).encode(), digest_size=16).digest()
    words = np.random.Philox(key=int.from_bytes(digest, "big")).random_raw(-(-count // 8))
    return torch.from_numpy(words.view(np.uint8)[:count])
