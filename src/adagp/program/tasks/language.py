"""Language modelling: the next byte of a text, judged by the perplexity of a byte."""

from collections.abc import Iterator
from math import exp
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.data.batches import Share, held_out_count
from adagp.data.byte_text import ByteBatches, read_bytes
from adagp.data.registry import DATASETS, DEFAULT_DATA_DIR, locate
from adagp.layers.eval_mode import evaluation_mode
from adagp.models.build import build_model
from adagp.models.registry import BYTES, LANGUAGE
from adagp.program.run.config import TrainConfig
from adagp.program.run.metrics import ACCURACY, Metric
from adagp.program.tasks.base import Task

EVALUATED = 8192
"""Bytes in a batch of the test set, whatever a training batch has."""


class LanguageModelling(Task):
    """Language modelling: predict each byte from those before it in its sequence."""

    metrics = (Metric("perplexity", higher_is_better=False, lowest=1.0), ACCURACY)

    def __init__(self, config: TrainConfig, data_dir: Path | None = None, download: bool = False) -> None:
        self.config = config
        train, test = read_bytes(locate(DATASETS[config.dataset], data_dir or DEFAULT_DATA_DIR, download))
        if config.validation:  # the end of the training text: its pieces belong together
            cut = len(train) - held_out_count(len(train), config.validation)
            train, test = train[:cut], train[cut:]
        length = config.sequence_length
        if config.test_samples is not None:  # the first sequences, each with the byte after it
            test = test[: config.test_samples * length + 1]
        self.train = ByteBatches(train, length, config.batch_size, seed=config.seed, shuffle=True)
        self.test = ByteBatches(test, length, max(1, EVALUATED // length), part="test set")

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches of sequences in the training set."""
        return len(self.train)

    def batches(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield bytes, and the byte after each."""
        return self.train.epoch(epoch, start)

    def shares(self, epoch: int, start: int, share: Share) -> Iterator[tuple[Tensor, Tensor]]:
        """Read a share of each batch."""
        return self.train.epoch(epoch, start, share)

    def build_model(self) -> nn.Module:
        """Return the model for bytes."""
        return build_model(
            self.config.model,
            classes=BYTES,
            width=self.config.width,
            task=LANGUAGE,
            length=self.config.sequence_length,
            options=self.config.own_options,
        )

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of a byte, in nats."""
        return F.cross_entropy(output.flatten(0, 1), targets.flatten(), label_smoothing=self.config.label_smoothing)

    def score(self, output: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Return the sum of the bytes' cross-entropies; `average` makes a perplexity of it."""
        return F.cross_entropy(output.flatten(0, 1), targets.flatten(), reduction="sum"), targets.numel()

    def average(self, total: float, answers: int) -> float:
        """Return the perplexity: e to the mean cross-entropy; infinite if that overflows."""
        return perplexity(super().average(total, answers))

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return loss (without label smoothing), perplexity and accuracy of a byte on the test set."""
        device = next(model.parameters()).device
        loss = right = 0.0
        count = 0
        with evaluation_mode(model):
            for tokens, targets in self.test.epoch(0):
                output, targets = model(tokens.to(device)), targets.to(device)
                total, answers = self.score(output, targets)
                loss += total.item()
                right += (output.argmax(2) == targets).sum().item()
                count += answers
        return {"loss": loss / count, "perplexity": perplexity(loss / count), "accuracy": right / count}


def perplexity(loss: float) -> float:
    """Return e to the `loss`."""
    try:
        return exp(loss)
    except OverflowError:
        return float("inf")
