"""The callback against a loop of one's own, and against itself after a stop."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import adagp
from adagp.errors import UsageError
from adagp.plan import Phase

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Lightning has much to say about loaders and loggers
]


@pytest.mark.parametrize("method", ["adagp", "feedback"])
def test_it_is_the_loop_of_ones_own(method: str, tmp_path: Path) -> None:
    """With two micro-batches per step and clipping, bit by bit; and a GP batch of the predictor builds no graph."""
    from tests.integrations.lightning_training import Module, fit, loader

    module, other = Module(), Module()
    fit(module, tmp_path, method=method)
    trainer = adagp.attach(
        other.net,
        other.configure_optimizers(),
        epochs=4,
        batches_per_epoch=6,
        schedule="1:1",
        warmup=1,
        method=method,
    )
    phases = []
    for _ in range(4):
        batches = list(loader())
        for pair in zip(batches[::2], batches[1::2], strict=True):
            phases.append(trainer.phase)
            with trainer.batch() as batch:
                for place, (inputs, targets) in enumerate(pair):
                    batch.backward(F.cross_entropy(other.net(inputs), targets) / 2, more=place == 0)
                nn.utils.clip_grad_norm_(other.parameters(), 0.5)
                batch.step()
    assert all(map(torch.equal, module.net.parameters(), other.net.parameters()))
    assert phases.count(Phase.GP) == 9
    if method == "adagp":
        assert module.grown == [phase is not Phase.GP for phase in phases for _ in range(2)]
    assert not module.net._forward_hooks, "it leaves the model as it was"


def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    from tests.integrations.lightning_training import Module, fit

    whole, first, second = Module(), Module(), Module()
    fit(whole, tmp_path)
    stopped = fit(first, tmp_path, epochs=2)
    stopped.save_checkpoint(tmp_path / "half.ckpt")
    fit(second, tmp_path, resume=str(tmp_path / "half.ckpt"))
    assert all(map(torch.equal, whole.net.parameters(), second.net.parameters()))


def test_manual_optimization_is_refused(tmp_path: Path) -> None:
    from tests.integrations.lightning_training import Module, loader

    from adagp.integrations.lightning import PredictedGradientsCallback, pl

    class Manual(Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[PredictedGradientsCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    with pytest.raises(UsageError, match=r"^PredictedGradientsCallback works with automatic optimization"):
        trainer.fit(Manual(), loader())
