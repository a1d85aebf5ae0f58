"""A predictor network with its optimizer and the schedule of its learning rate."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, ReduceLROnPlateau

from adagp.sources.base import RunFacts, Source
from adagp.sources.support.options import LEARNING, LearningOptions


class Learner:
    """Trains `network` with Adam, one step per batch, and lowers the learning rate by epochs."""

    def __init__(self, network: nn.Module, options: LearningOptions) -> None:
        self.network = network
        self.options = options
        device = next(network.parameters()).device.type
        fused = device in ("cpu", "cuda")  # one pass over memory: six times as fast for the large read-out
        self.optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate, fused=fused)
        self.scheduler: LRScheduler
        if options.plateau:
            self.scheduler = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=3)
        else:
            self.scheduler = MultiStepLR(self.optimizer, list(options.milestones), gamma=options.gamma)
        self.epoch_loss = torch.zeros(())  # on the model's device after the first batch: no transfer per batch
        self.epoch_batches = 0
        self.on_gradients: Callable[[list[Tensor]], None] = lambda tensors: None
        """Called with the network's gradients and, last, its loss, before the optimizer steps. A run that is spread over
        processes adds them up here, in place."""

    def differentiate(self, loss: Tensor) -> Tensor:
        """Put the gradients of `loss` into the parameters' `.grad` by autograd; return the loss without its graph."""
        loss.backward()
        return loss.detach()

    def step(self, loss: Tensor) -> None:
        """Take one step of Adam with the gradients of `loss`, which are in the parameters' `.grad`."""
        gradients = [parameter.grad for parameter in self.network.parameters() if parameter.grad is not None]
        self.on_gradients([*gradients, loss])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # a GP batch needs no room for them
        self.epoch_loss = self.epoch_loss.to(loss.device) + loss
        self.epoch_batches += 1

    def end_epoch(self) -> None:
        """Let the learning rate follow its schedule, once the predictor has begun to learn."""
        if not self.options.plateau:
            if self.optimizer.state:
                self.scheduler.step()
        elif self.epoch_batches:  # an epoch without BP batches says nothing about the predictor
            self.scheduler.step(self.epoch_loss.item() / self.epoch_batches)  # type: ignore[arg-type]  # the metric
        self.epoch_loss = torch.zeros(())
        self.epoch_batches = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the network, its optimizer and scheduler, and the running loss of the epoch."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": plain_state(self.scheduler),
            "epoch_loss": self.epoch_loss,
            "epoch_batches": self.epoch_batches,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.epoch_loss = state["epoch_loss"]
        self.epoch_batches = state["epoch_batches"]


class TrainedSource(Source):
    """A source with a `learner`, which `bind` makes."""

    learns = True
    learner: Learner

    @classmethod
    def build(cls, run: RunFacts, **options: Any) -> Self:
        """Return the source for a run: every source of this kind takes the options of learning first, then its own."""
        learning = {name: options.pop(name) for name in LEARNING}
        make: Any = cls
        source: Self = make(LearningOptions.of_run(run, **learning), **options)
        return source

    def end_epoch(self) -> None:
        """Let the learning rate follow its schedule, once the predictor has begun to learn."""
        self.learner.end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the network, its optimizer and scheduler, and the running loss of the epoch."""
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.learner.load_state_dict(state)


def plain_state(scheduler: LRScheduler) -> dict[str, Any]:
    """Return a scheduler's state as plain values only, so that it can be saved and loaded with `weights_only=True`."""
    state = scheduler.state_dict()
    if "milestones" in state:  # a Counter, which the safe loader refuses
        state["milestones"] = dict(state["milestones"])
    return state
