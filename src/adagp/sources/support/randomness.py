"""Random numbers as a pure function of seed and step: a resumed run draws what the unbroken one drew."""

import hashlib

import torch

from adagp.core.plan import Step


def step_generator(seed: int, step: Step, device: torch.device | None = None) -> torch.Generator:
    """Return a generator for the batch at `step`; near steps are unrelated, and so are other users of the same seed."""
    place = f"source {seed} {step.epoch} {step.batch}"
    number = int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "big")
    return torch.Generator(device or "cpu").manual_seed(number)
