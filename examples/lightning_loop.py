"""Predicted gradients in Lightning: one callback. Needs `pip install '.[lightning]'`.

python examples/lightning_loop.py
"""

import logging
import tempfile
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import adagp
from adagp.data import load_images
from adagp.integrations.lightning import PredictedGradientsCallback, pl


class Classifier(pl.LightningModule):  # type: ignore[misc]  # its types are not read here
    """A small net; nothing in it depends on adagp."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss."""
        inputs, targets = batch
        return F.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main() -> None:
    """Train on the embedded digits."""
    warnings.filterwarnings("ignore", module="lightning|torch.utils.data")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    digits = load_images("digits")
    samples = TensorDataset(torch.from_numpy(digits.x_train).float() / 16, torch.from_numpy(digits.y_train))
    model = Classifier()
    trainer = pl.Trainer(
        max_epochs=12,
        accelerator="cpu",
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        callbacks=[PredictedGradientsCallback(model="net", method=adagp.Feedback(features=10))],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.gettempdir(),
    )
    trainer.fit(model, DataLoader(samples, batch_size=32, shuffle=True))
    with torch.no_grad():
        right = model.net(torch.from_numpy(digits.x_test).float() / 16).argmax(1) == torch.from_numpy(digits.y_test)
    print(f"test accuracy {right.float().mean():.4f}")


if __name__ == "__main__":
    main()
