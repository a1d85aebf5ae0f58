"""What is timed: models with their batches, trained plainly and under adagp."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adagp
from adagp.models import build_model
from adagp.program.train.session import laid_out
from adagp.schedules import Schedule
from benchmarks.measure import Run


@dataclass(frozen=True)
class Subject:
    """A model by name with the size of its batches, in the channels-last format as `adagp train` has it.

    Images are 32x32 but for the digits. The Transformer has a quarter of its width and sentences of 20 pieces out of 4,000.
    """

    model: str
    batch: int
    width: float = 1.0

    @property
    def name(self) -> str:
        """The subject in words."""
        width = "" if self.width == 1 else f" x{self.width:g}"
        return f"{self.model}{width} b{self.batch}"

    def build(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the model and its optimizer, the same at every call."""
        torch.manual_seed(0)
        if self.model == "transformer":
            from adagp.models.transformer import transformer

            model: nn.Module = transformer(vocabulary=4000, width=self.width)
            return model, torch.optim.Adam(model.parameters(), lr=1e-3)
        model = laid_out(build_model(self.model, classes=10, image=self._image, width=self.width))
        return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    @property
    def _image(self) -> tuple[int, int, int]:
        return (1, 8, 8) if self.model == "digits_cnn" else (3, 32, 32)

    def data(self) -> tuple[Any, Tensor]:
        """Return inputs and targets of a batch."""
        torch.manual_seed(1)
        if self.model == "transformer":
            words = torch.randint(4, 4000, (3, self.batch, 20))
            return (words[0], words[1]), words[2]
        images = torch.randn(self.batch, *self._image).contiguous(memory_format=torch.channels_last)
        return images, torch.randint(0, 10, (self.batch,))

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy."""
        return F.cross_entropy(output.flatten(0, -2), targets.flatten())

    def plain(self, *, backward: bool) -> Run:
        """Return a batch of plain PyTorch: backprop, or the least of a GP batch, a forward without autograd and a step."""
        model, optimizer = self.build()
        inputs, targets = self.data()
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)  # the least a GP step moves: all gradients, ready made

        def run() -> None:
            if backward:
                optimizer.zero_grad()
                self.loss(model(*arguments), targets).backward()
            else:
                with torch.no_grad():
                    self.loss(model(*arguments), targets)
            optimizer.step()

        return run

    def under(self, schedule: Schedule, engine: adagp.EngineOptions | None = None, **options: Any) -> Run:
        """Return a batch under adagp. An epoch has two batches, so that the first one of a schedule is over soon."""
        trainer = self.trainer(schedule, engine, **options)
        inputs, targets = self.data()
        return lambda: trainer.step(inputs, targets, self.loss)

    def trainer(
        self, schedule: Schedule, engine: adagp.EngineOptions | None = None, per_epoch: int = 2, **options: Any
    ) -> adagp.Trainer:
        """Return a trainer of a fresh model."""
        model, optimizer = self.build()
        return adagp.attach(
            model,
            optimizer,
            length=adagp.Epochs(1, per_epoch),
            schedule=schedule,
            engine=engine or adagp.EngineOptions(metrics_every=0),
            **options,
        )


def after(run: Run, batches: int) -> Run:
    """Return `run` after running it `batches` times."""
    for _ in range(batches):
        run()
    return run
