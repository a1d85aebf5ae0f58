"""A small module of Lightning and its training. Lightning takes seconds to import, so tests import this file when they run."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from adagp.integrations.lightning import PredictedGradientsCallback, pl


class Module(pl.LightningModule):  # type: ignore[misc]  # it has no types here
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        self.grown: list[bool] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.grown.append(loss.requires_grad)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    samples = TensorDataset(torch.randn(48, 5, generator=generator), torch.randint(0, 3, (48,), generator=generator))
    return DataLoader(samples, batch_size=4)


def fit(module: Module, folder: Path, resume: str | None = None, epochs: int = 4, **options: Any) -> pl.Trainer:
    given = {"model": "net", "epochs": 4, "batches_per_epoch": 6, "schedule": "1:1", "warmup": 1, **options}
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        callbacks=[PredictedGradientsCallback(**given)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, loader(), ckpt_path=resume)
    return trainer
