"""The callback against a loop of one's own, and against itself after a stop."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import adagp
from adagp.core.plan import Phase
from adagp.errors import UsageError
from adagp.integrations.lightning import PredictedGradientsCallback, pl

pytestmark = [
    pytest.mark.medium,
    pytest.mark.filterwarnings("ignore"),  # Lightning has much to say about loaders and loggers
]


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


def fit(
    module: Module, folder: Path, resume: str | None = None, epochs: int = 4, precision: Any = 32, **options: Any
) -> pl.Trainer:
    given = {"model": "net", "length": adagp.Epochs(4, 6), "schedule": "1:1", "warmup": 1, **options}
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        precision=precision,
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


@pytest.mark.parametrize("method", ["adagp", "feedback", "dni_labels", "predicted_labels"])
def test_it_is_the_loop_of_ones_own(method: str, tmp_path: Path) -> None:
    """With two micro-batches per step and clipping, bit by bit; and a GP batch of the predictor builds no graph."""
    module, other = Module(), Module()
    fit(module, tmp_path, method=method)
    trainer = adagp.attach(
        other.net,
        other.configure_optimizers(),
        length=adagp.Epochs(4, 6),
        schedule="1:1",
        warmup=1,
        method=adagp.NamedMethod(method),
    )
    phases = []
    for _ in range(4):
        batches = list(loader())
        for pair in zip(batches[::2], batches[1::2], strict=True):
            phases.append(trainer.phase)
            with trainer.batch(torch.cat([targets for _, targets in pair])) as batch:
                for place, (inputs, targets) in enumerate(pair):
                    batch.backward(F.cross_entropy(other.net(inputs), targets) / 2, more=place == 0)
                nn.utils.clip_grad_norm_(other.parameters(), 0.5)
                batch.step()
    assert all(map(torch.equal, module.net.parameters(), other.net.parameters()))
    assert phases.count(Phase.GP) == 9
    if method == "adagp":
        assert module.grown == [phase is not Phase.GP for phase in phases for _ in range(2)]
    assert not module.net._forward_hooks, "it leaves the model as it was"


@pytest.mark.parametrize(("method", "precision"), [("adagp", 32), ("feedback", "bf16-mixed"), ("dni", "bf16-mixed")])
def test_a_resumed_run_is_the_run_that_was_not_stopped(method: str, precision: Any, tmp_path: Path) -> None:
    whole, first, second = Module(), Module(), Module()
    given: dict[str, Any] = {"method": method, "precision": precision}
    fit(whole, tmp_path, **given)
    stopped = fit(first, tmp_path, epochs=2, **given)
    stopped.save_checkpoint(tmp_path / "half.ckpt")
    fit(second, tmp_path, resume=str(tmp_path / "half.ckpt"), **given)
    assert all(map(torch.equal, whole.net.parameters(), second.net.parameters()))
    assert all(one.isfinite().all() for one in whole.net.parameters())


def test_bf16_is_that_of_lightning(tmp_path: Path) -> None:
    """By backprop alone the callback changes no bit of a run in mixed precision."""
    module, plain = Module(), Module()
    fit(module, tmp_path, precision="bf16-mixed", schedule="bp", warmup=None)
    pl.Trainer(
        max_epochs=4,
        accelerator="cpu",
        precision="bf16-mixed",
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    ).fit(plain, loader())
    assert all(map(torch.equal, module.net.parameters(), plain.net.parameters()))


def test_targets_that_are_nowhere_are_asked_for(tmp_path: Path) -> None:
    class Named(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step((batch["x"], batch["y"]), batch_idx)

        def train_dataloader(self) -> Any:
            pairs: Any = loader().dataset
            return DataLoader([{"x": inputs, "y": target} for inputs, target in pairs], batch_size=4)  # type: ignore[arg-type]

    options: dict[str, Any] = {"model": "net", "method": "dni_labels", "steps": 12, "schedule": "1:1"}
    for targets in (None, lambda batch: batch["y"]):
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[PredictedGradientsCallback(targets=targets, **options)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        if targets is None:
            with pytest.raises(UsageError, match=r"^the method needs the targets: give PredictedGradientsCallback"):
                trainer.fit(Named())
        else:
            trainer.fit(Named())


def test_manual_optimization_is_rejected(tmp_path: Path) -> None:
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


def quiet(callback: PredictedGradientsCallback | None, folder: Path, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        callbacks=[] if callback is None else [callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **{"max_epochs": 2, **options},
    )


def test_a_callback_begins_again_with_another_model(tmp_path: Path) -> None:
    """Folds of a cross-validation: the second has its own warm-up and its own predictor."""
    callback = PredictedGradientsCallback("net", method="adagp", schedule="1:1", warmup=4)
    folds = [Module(), Module()]
    for module in folds:
        quiet(callback, tmp_path).fit(module, loader())
        assert all(module.grown[:4])
        assert not all(module.grown)
    assert all(map(torch.equal, folds[0].parameters(), folds[1].parameters()))


def test_a_backward_of_the_modules_own_is_called(tmp_path: Path) -> None:
    class Halving(Module):
        def backward(self, loss: Tensor, *arguments: Any, **named: Any) -> None:
            (loss / 2).backward()

    plain, ours = Halving(), Halving()
    quiet(None, tmp_path).fit(plain, loader())
    quiet(PredictedGradientsCallback("net", method="bp"), tmp_path).fit(ours, loader())
    assert all(map(torch.equal, plain.parameters(), ours.parameters()))
    assert "backward" not in vars(ours)


@pytest.mark.parametrize("method", ["adagp", "feedback"])
def test_a_training_step_may_return_nothing(method: Any, tmp_path: Path) -> None:
    class Skipping(Module):
        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx % 3 == 1 else loss

    module = Skipping()
    callback = PredictedGradientsCallback("net", method=method, schedule="1:1", warmup=2)
    quiet(callback, tmp_path).fit(module, loader())
    assert callback.state_dict()["length"]["batches"] == 24
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert all(parameter.isfinite().all() for parameter in module.parameters())


def test_a_run_of_unknown_length_is_rejected(tmp_path: Path) -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(loader().dataset)

    message = r"^the length of the run is not known \(max_epochs=-1, or data without a length\): give "
    for data, options in ((loader(), {"max_epochs": -1}), (DataLoader(Stream(), batch_size=4), {})):
        with pytest.raises(UsageError, match=message):
            quiet(PredictedGradientsCallback("net"), tmp_path, **options).fit(Module(), data)
    module = Module()
    callback = PredictedGradientsCallback("net", method="adagp", steps=24)
    quiet(callback, tmp_path).fit(module, DataLoader(Stream(), batch_size=4))
    assert not all(module.grown)
