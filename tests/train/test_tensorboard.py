import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from adagp.errors import OptionError
from adagp.plan import Phase
from adagp.run import TrainConfig
from adagp.train.loop import News
from adagp.train.session import Session
from adagp.train.tensorboard import EVERY, TensorBoard, require_tensorboard

CONFIG = TrainConfig(width=0.25, batch_size=64, epochs=2, warmup=1, ratio="1:1", metrics_every=2)
PER_EPOCH = 22


@dataclass
class Until:
    """Passes everything on, and asks to stop after so many batches."""

    board: TensorBoard
    batches: float = float("inf")
    seen: int = field(default=0)

    def on_batch(self, news: News) -> None:
        self.seen += 1
        self.board.on_batch(news)

    def on_epoch(self, row: dict[str, Any]) -> None:
        self.board.on_epoch(row)

    def __call__(self) -> bool:
        return self.seen >= self.batches


def train(path: Path, batches: float = float("inf"), *, resume: bool = False) -> None:
    session = Session(CONFIG)
    loop = session.resume(path) if resume else session.start(path, force=True)
    with TensorBoard(path, loop.trainer.done, "accuracy") as board:
        observer = Until(board, batches)
        session.run(loop, observer, observer)


def scalars(path: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, list[tuple[int, float]]]:
    train(tmp_path / "whole")
    return scalars(tmp_path / "whole")


def test_scalars_of_batches_epochs_and_sites(whole: dict[str, list[tuple[int, float]]]) -> None:
    assert [step for step, _ in whole["running/loss"]] == list(range(EVERY, 2 * PER_EPOCH + 1, EVERY))
    assert [step for step, _ in whole["epoch/test_accuracy"]] == [PER_EPOCH, 2 * PER_EPOCH]
    assert [step for step, _ in whole["running/accuracy"]] == [step for step, _ in whole["running/loss"]]
    assert [value for _, value in whole["batches/gp"]] == [0, PER_EPOCH / 2]
    assert len(whole["cosine/conv1"]) == 2
    assert {"epoch/train_loss", "epoch/lr", "seconds/gp", "mse/fc"} <= whole.keys()


def test_a_resumed_run_has_no_step_twice(tmp_path: Path, whole: dict[str, list[tuple[int, float]]]) -> None:
    path = tmp_path / "parts"
    train(path, 25)
    with TensorBoard(
        path, 25, "accuracy"
    ) as lost:  # a process that dies after its last checkpoint leaves batches that do not count
        for batch in range(25, 2 * PER_EPOCH):
            lost.on_batch(News(1, batch, Phase.BP, 99.0, 0.0))
    train(path, resume=True)
    again = scalars(path)
    for name, expected in whole.items():
        if not name.startswith("seconds"):
            assert again[name] == expected, name


def test_a_new_run_in_the_same_folder_begins_anew(tmp_path: Path) -> None:
    train(tmp_path / "run", 3)
    before = set((tmp_path / "run" / "tensorboard").iterdir())
    train(tmp_path / "run", 12)
    assert not before & set((tmp_path / "run" / "tensorboard").iterdir())
    assert [step for step, _ in scalars(tmp_path / "run")["running/loss"]] == [10]


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))
    message = "^--tensorboard needs tensorboard, which is not installed: pip install 'adagp\\[tensorboard\\]'.$"
    with pytest.raises(OptionError, match=message):
        require_tensorboard()
