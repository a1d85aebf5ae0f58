"""The instrument: exact where the truth is produced, silent where nothing is, and without influence on training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adagp import EngineOptions
from adagp.engine.attach import attach_run
from adagp.engine.run_length import Epochs, shortened_run
from adagp.layers.sites import Site
from adagp.program.compare.alignment import (
    FIGURES,
    AlignedLoop,
    AlignmentJob,
    align,
    choose_points,
    compare,
    gradients_of,
    true_gradients,
)
from adagp.program.jobs import Stopped
from adagp.program.run import RunFolder, TrainConfig
from adagp.program.train.loop import Loop
from adagp.program.train.session import Session, Silent
from adagp.sources.base import BatchContext, Source

NET = """
from torch import nn

def lively(classes, image):
    return nn.Sequential(
        nn.Conv2d(image[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
        nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes),
    )

def plain(classes, image):
    return nn.Sequential(nn.Conv2d(image[0], 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes))
"""


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alignment_nets.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)


def config(method: str, model: str = "lively", **options: Any) -> TrainConfig:
    common = {
        "model": f"alignment_nets:{model}",
        "batch_size": 200,
        "batches": 16,
        "lr": 0.05,
        "lr_scheduler": "cosine",
    }
    schedule = {} if method == "bp" else {"warmup_batches": 4, "ratio": "1:1"}
    return TrainConfig.from_dict({**common, **schedule, "method": method, **options}, "test")


class Truth(Source):
    """Gives the true gradient, found by running the model again as it ran."""

    needs_targets = True

    def __init__(self, session: Session) -> None:
        self.session = session

    def begin(self, context: BatchContext) -> None:
        self.targets = context.targets
        self.random = torch.get_rng_state()

    def watch(self, site: Site, inputs: tuple[Any, ...], output: Tensor) -> None:
        if site.index == 0:
            self.inputs = inputs[0]

    def produce(self, sites: Sequence[Site]) -> list[Tensor | None]:
        after = torch.get_rng_state()
        torch.set_rng_state(self.random)
        with torch.enable_grad():
            loss = self.session.task.loss(self.session.model(self.inputs), self.targets)
            found = torch.autograd.grad(loss, [site.weight for site in sites])
        torch.set_rng_state(after)
        return list(found)


def test_a_source_of_the_truth_has_cosine_and_norm_ratio_1() -> None:
    session = Session(config("replay"))
    session.trainer.detach()
    session.trainer = attach_run(
        session.model,
        session.optimizer,
        shortened_run(Epochs(session.config.epochs, session.task.batches_per_epoch), 16),
        session.config.schedule(session.task.batches_per_epoch),
        {"replay": Truth(session)},
        engine=EngineOptions(),
    )
    found = align(session, 600, 3)
    assert [point["done"] for point in found["points"]] == [6, 9, 13]
    for point in found["points"]:
        assert list(point["sites"]) == ["0", "4", "7"]
        assert point["noise"]["noise_scale"] > 0
        for figures in point["sites"].values():
            assert figures["cosine_true"] == pytest.approx(1, abs=1e-6)
            assert figures["norm_ratio_true"] == pytest.approx(1, abs=1e-6)
            assert figures["cosine_large_batch"] == pytest.approx(figures["ceiling_large_batch"], abs=1e-6)
            assert -1 <= figures["ceiling_minibatch"] < 0.999


METHODS = ("bp", "adagp", "dni", "feedback", "feedback_replay", "zero", "noise", "replay", "random", "topk", "skip")


@pytest.mark.medium
@pytest.mark.parametrize("method", METHODS)
def test_measuring_changes_nothing_and_every_source_is_measured(method: str, tmp_path: Path) -> None:
    ordinary = Session(config(method))
    loop = Loop(
        ordinary.trainer,
        ordinary.task,
        ordinary.rate,
        RunFolder.create(tmp_path / "run"),
        epochs=ordinary.config.epochs,
    )
    loop.run(Silent())
    measured = Session(config(method))
    aligned = AlignedLoop(measured, 600, choose_points(measured, 3))
    aligned.run(Silent())
    one, other = loop.state_dict(), aligned.state_dict()
    for name, tensor in one["model"].items():
        assert torch.equal(tensor, other["model"][name]), name
    assert torch.equal(one["random"], other["random"])
    assert str(one["trainer"]) == str(other["trainer"])

    assert len(aligned.measured) == 3
    for point in aligned.measured:
        for figures in point["sites"].values():
            assert tuple(figures) == FIGURES
            assert figures["ceiling_large_batch"] is not None
            if method == "skip":
                assert [figures[name] for name in FIGURES[:4]] == [None] * 4
            elif method == "zero":
                assert [figures[name] for name in FIGURES[:4]] == [None, 0.0, None, 0.0]
            else:
                assert all(figures[name] is not None for name in FIGURES)
            if method == "bp":
                assert figures["cosine_true"] == pytest.approx(1, abs=1e-6)


def test_only_the_sites_that_come_from_a_source_are_measured() -> None:
    found = align(Session(config("topk", ratio="sites=2nd conv; batches=every 2nd")), 600, 2)
    assert [list(point["sites"]) for point in found["points"]] == [["4"], ["4"]]


def test_the_large_batch_is_the_mean_of_other_minibatches() -> None:
    """In a net without batch norm and dropout that is the gradient of all their samples at once."""
    session = Session(config("replay", "plain"))
    trainer, task = session.trainer, session.task
    sites = trainer.survey.sites
    batch = next(iter(task.batches(0)))
    truth, other, large = true_gradients(trainer, task, sites, batch, 3)
    samples = [pair for _, pair in zip(range(3), task.batches(1_000_000), strict=False)]
    inputs, targets = (torch.cat(part) for part in zip(*samples, strict=True))
    for found, expected in (
        (truth, gradients_of(trainer, task, sites, *batch)),
        (other, gradients_of(trainer, task, sites, *samples[0])),
        (large, gradients_of(trainer, task, sites, inputs, targets)),
    ):
        for one, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-6)
    assert all(site.weight.grad is None for site in sites)


def test_figures_by_hand() -> None:
    gradient, truth = torch.tensor([[3.0, 0.0]]), torch.tensor([[3.0, 4.0]])
    other, large = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]])
    found = compare(gradient, truth, other, large)
    assert found == pytest.approx(dict(zip(FIGURES, (0.6, 0.6, 1.0, 3.0, 0.8, 0.6), strict=True)))
    assert compare(None, truth, other, large)["cosine_true"] is None
    assert compare(torch.zeros(1, 2), truth, other, large)["norm_ratio_large_batch"] == 0


def test_points_are_spread_over_the_predicted_batches() -> None:
    assert choose_points(Session(config("skip")), 100) == [4, 6, 7, 9, 11, 13, 14]
    assert choose_points(Session(config("skip")), 2) == [6, 13]
    assert choose_points(Session(config("bp")), 4) == [2, 6, 10, 14]
    adaptive = Session(config("feedback", ratio="adaptive:1-2"))
    assert choose_points(adaptive, 4) == [2, 6, 10, 14]
    found = align(adaptive, 400, 4)["points"]
    assert 2 <= len(found) <= 4
    assert found[0]["done"] == 4  # the first after the warm-up


def test_a_job_leaves_its_figures_or_nothing_if_it_is_stopped(tmp_path: Path) -> None:
    measure = AlignmentJob(config("replay"), 400, 2, tmp_path / "new" / "result.json")
    with pytest.raises(Stopped):
        measure(lambda: True)
    assert not measure.result.exists()
    measure()
    found = json.loads(measure.result.read_text())
    assert found == align(Session(config("replay")), 400, 2)
    assert (found["method"], found["batches"], found["minibatches_in_large_batch"]) == ("replay", 16, 2)
