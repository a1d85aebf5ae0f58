"""A gradient source of your own in twenty lines: replay each site's last true gradient, shrunk by a half.

python examples/own_source.py
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adagp
from adagp.layers.sites import Site


class HalfReplay(adagp.Source):
    """Gives half of the last true gradient."""

    learns = True

    def __init__(self) -> None:
        self._last: dict[int, Tensor] = {}

    def observe(self, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
        """Keep the truth."""
        for site, gradient in zip(sites, gradients, strict=True):
            self._last[site.index] = gradient.detach().clone()

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        """Return half of what was kept, in new memory: clipping may change it in place."""
        return [self._last[site.index] / 2 if site.index in self._last else None for site in sites]


def main() -> None:
    """Fit a line with two GP batches to each BP batch."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = adagp.WarmUp(adagp.Ladder((adagp.Rung(2, 1),), "half_replay"), epochs=1)
    sources = {"half_replay": HalfReplay()}
    trainer = adagp.attach(model, optimizer, length=adagp.Epochs(4, 50), schedule=schedule, sources=sources)
    aim = torch.tensor([[1.0, -2.0, 0.5, 3.0]])
    for _ in range(200):
        inputs = torch.randn(32, 4)
        result = trainer.step(inputs, inputs @ aim.T, F.mse_loss)
    print(f"last batch: {result.phase}, loss {result.loss:.1e}")


if __name__ == "__main__":
    main()
