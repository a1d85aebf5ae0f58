import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adagp.core.plan import Phase, Step
from adagp.errors import ModelError, OptionError
from adagp.program.run.config import TrainConfig
from adagp.program.tasks.base import build_task
from adagp.program.tasks.detect import Detection, check_outputs
from adagp.program.train.session import Session

WriteDevkit = Callable[..., Path]
SMALL: dict[str, Any] = {
    "dataset": "voc",
    "model": "yolov3_small",
    "width": 0.25,
    "image_size": 64,
    "batch_size": 2,
    "epochs": 2,
    "lr": 1e-2,
}


class Silent:
    def on_batch(self, news: object) -> None: ...

    def on_epoch(self, row: dict[str, Any]) -> None: ...


@pytest.fixture
def data_dir(write_devkit: WriteDevkit) -> Path:
    things = [("dog", (3, 5, 30, 40), False), ("cow", (20, 10, 60, 48), False), ("cat", (40, 2, 60, 20), True)]
    pictures = {f"p{number}": things[number % 2 :] for number in range(6)}
    return write_devkit(pictures, dict(list(pictures.items())[:3])).parent


def configured(**options: Any) -> TrainConfig:
    return TrainConfig.from_dict(SMALL | options, "test")


def test_defaults_are_the_papers() -> None:
    config = TrainConfig.from_dict({"dataset": "voc"}, "test")
    assert (config.model, config.optimizer, config.lr, config.weight_decay) == ("yolov3", "adam", 3e-5, 1e-4)
    assert config.command() == "adagp train --dataset voc"
    other = TrainConfig.from_dict({"dataset": "voc", "lr": 1e-3, "image_size": 128}, "test")
    assert other.command() == "adagp train --dataset voc --lr 0.001 --image-size 128"


@pytest.mark.parametrize(("model", "width"), [("yolov3_small", 0.25), ("yolov3", 1 / 16)])
@pytest.mark.medium
def test_a_bp_batch_changes_all_and_a_gp_batch_the_sites_alone(data_dir: Path, model: str, width: float) -> None:
    config = configured(
        model=model, width=width, method="adagp", warmup=1, ratio="1:1", hold_norm=True, weight_decay=0.0
    )
    session = Session(config, data_dir=data_dir)
    trainer, task = session.trainer, session.task
    sites = {f"{site.name}.weight" for site in trainer.survey.sites}
    seen: dict[Phase, set[str]] = {}
    for epoch in range(2):
        for inputs, targets in task.batches(epoch):
            before = {name: one.detach().clone() for name, one in session.model.named_parameters()}
            result = trainer.step(inputs, targets, task.loss)
            assert result.loss.isfinite()
            after = session.model.named_parameters()
            seen[result.phase] = {name for name, one in after if not torch.equal(one, before[name])}
    assert set(seen) == {Phase.WARMUP, Phase.GP, Phase.BP}
    everything = {name for name, _ in session.model.named_parameters()}
    assert seen[Phase.WARMUP] == seen[Phase.BP] == everything
    assert seen[Phase.GP] == sites


@pytest.mark.medium
def test_a_run_stopped_inside_an_epoch_ends_with_the_same_weights(data_dir: Path, tmp_path: Path) -> None:
    config = configured(method="adagp", warmup=1, ratio="1:1")
    whole = Session(config, data_dir=data_dir)
    summary = whole.run(whole.start(tmp_path / "whole"), Silent())
    assert summary is not None
    first = Session(config, data_dir=data_dir)
    loop = first.start(tmp_path / "stopped")
    assert first.run(loop, Silent(), lambda: first.trainer.at == Step(1, 2)) is None
    second = Session(config, data_dir=data_dir)
    resumed = second.run(second.resume(tmp_path / "stopped"), Silent())
    assert resumed is not None
    for name, one in whole.model.state_dict().items():
        assert torch.equal(one, second.model.state_dict()[name]), name
    assert resumed["test_map50"] == summary["test_map50"]


def test_the_summary_has_the_mean_average_precision(data_dir: Path, tmp_path: Path) -> None:
    session = Session(configured(method="bp", epochs=1), data_dir=data_dir)
    session.run(session.start(tmp_path / "run"), Silent())
    saved = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert set(saved["test_ap50"]) == {"dog", "cow"}  # the cats are difficult
    assert saved["test_map50"] == pytest.approx(sum(saved["test_ap50"].values()) / 2)
    assert 0 <= saved["test_accuracy"] <= 1
    parts = saved["test_box_loss"] + saved["test_objectness_loss"] + saved["test_class_loss"]
    assert saved["test_loss"] == pytest.approx(parts)


class Oracle(nn.Module):
    """Answers each image with the target that it is told, as surely as may be."""

    def __init__(self, task: Detection) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))
        self.told = [targets for _, targets in task.test.epoch(0)]
        self.calls = 0

    def forward(self, images: Tensor) -> list[Tensor]:
        from adagp.program.tasks.yolo import assign, encode, pick, slots

        boxes, labels = self.told[self.calls % len(self.told)]
        self.calls += 1
        grids = [(images.shape[2] // stride, images.shape[3] // stride) for stride in (8, 16, 32)]
        all_slots = slots(grids)
        raw = torch.zeros(len(images), len(all_slots.cell), 25)
        raw[..., 4:] = -12
        for image, place in (labels >= 0).nonzero().tolist():
            slot = assign(boxes[image, place][None], grids)
            aim = encode(boxes[image, place][None], pick(all_slots, slot))
            raw[image, slot, :4] = torch.cat([aim[:, :2].logit(eps=1e-4), aim[:, 2:]], 1)
            raw[image, slot, 4] = 12
            raw[image, slot, 5 + labels[image, place]] = 12
        return [
            part.unflatten(1, (3, *grid))
            for part, grid in zip(raw.split([3 * rows * columns for rows, columns in grids], 1), grids, strict=True)
        ]


def test_a_model_that_knows_gets_full_marks(data_dir: Path) -> None:
    task = build_task(configured(), data_dir)
    assert isinstance(task, Detection)
    oracle = Oracle(task)
    figures = task.evaluate(oracle)
    assert figures["accuracy"] == 1
    assert figures["loss"] < 0.01
    assert task.final_metrics(oracle)["test_map50"] == pytest.approx(1)
    assert oracle.training  # the mode is kept
    _, targets = next(iter(task.test.epoch(0)))
    oracle.calls = 0
    right, answers = task.score(oracle(torch.zeros(2, 3, 64, 64)), targets)
    assert (int(right), answers) == (3, 3)


@pytest.mark.medium
def test_a_few_steps_of_backprop_lower_the_loss(data_dir: Path) -> None:
    session = Session(configured(method="bp", epochs=8), data_dir=data_dir)
    losses = []
    for epoch in range(8):
        for inputs, targets in session.task.batches(epoch):
            losses.append(session.trainer.step(inputs, targets, session.task.loss).loss.item())
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3])


@pytest.mark.parametrize("size", [16, 100, 65])
def test_an_image_size_that_is_no_whole_number_of_cells_is_rejected(size: int) -> None:
    with pytest.raises(OptionError) as caught:
        build_task(configured(image_size=size))
    assert str(caught.value) == f"--image-size is {size}; for detection it must be a multiple of 32 pixels."


def test_a_model_for_another_task_is_rejected(data_dir: Path) -> None:
    with pytest.raises(ModelError) as caught:
        build_task(configured(model="digits_cnn"), data_dir).build_model()
    assert (
        str(caught.value)
        == "model 'digits_cnn' is for the task images, not detection; choose from: yolov3, yolov3_small."
    )


def test_a_model_that_answers_otherwise_is_rejected() -> None:
    layer = nn.Conv2d(3, 7, 1)
    with pytest.raises(ModelError) as caught:
        check_outputs(layer, 32, 2, "mine:net")
    assert str(caught.value) == (
        "model 'mine:net' returns Tensor for a batch of 2 images; for 2 classes it must return three tensors "
        "of (2, 3, 4, 4, 7), (2, 3, 2, 2, 7), (2, 3, 1, 1, 7)."
    )
    with pytest.raises(ModelError, match=r"^model 'mine:net' cannot take images of 3x32x32: .+\.$"):
        check_outputs(nn.Conv2d(1, 7, 1), 32, 2, "mine:net")
