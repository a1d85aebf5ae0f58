"""The instrument: exact where the truth is produced, silent where nothing is, and without influence on training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp import EngineOptions
from adagp.core.plan import Epochs, shortened_run
from adagp.engine.attach import attach_run
from adagp.layers.sites import Site
from adagp.program.compare.alignment import (
    FIGURES,
    AlignedLoop,
    AlignmentJob,
    NoiseStatistics,
    align,
    choose_points,
    compare,
    gradients_of,
    true_gradients,
    two_batch_sizes,
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


def sample_gradients(samples: int) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Return the gradients of each sample: of a small network, and of the same one with other weights at its end."""
    generator = torch.Generator().manual_seed(0)
    first, last = nn.Linear(5, 7), nn.Linear(7, 3)
    net = nn.Sequential(first, nn.Tanh(), last)
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    inputs = torch.randn(samples, 5, generator=generator)
    labels = torch.randint(0, 3, (samples,), generator=generator)
    weights = [first.weight, last.weight]

    def gradients(index: int) -> list[Tensor]:
        loss = nn.functional.cross_entropy(net(inputs[index : index + 1]), labels[index : index + 1])
        return list(torch.autograd.grad(loss, weights))

    truths = [gradients(index) for index in range(samples)]
    with torch.no_grad():
        last.weight.add_(torch.randn(last.weight.shape, generator=generator))
    return truths, [gradients(index) for index in range(samples)]


def flat(gradients: Sequence[Sequence[Tensor]]) -> Tensor:
    return torch.stack([torch.cat([part.flatten() for part in sample]) for sample in gradients]).double()


def statistics(truths: list[list[Tensor]], predictions: list[list[Tensor]], batch: int) -> NoiseStatistics:
    found = NoiseStatistics(batch)
    for start in range(0, len(truths), batch):
        means = [
            [torch.stack(parts).mean(0) for parts in zip(*samples[start : start + batch], strict=True)]
            for samples in (truths, predictions)
        ]
        found.add(*means)
    return found


def test_single_samples_by_hand() -> None:
    truths, predictions = sample_gradients(40)
    found = statistics(truths, predictions, 1)
    true, predicted = (flat(each) - flat(each).mean(0) for each in (truths, predictions))
    correlation = (true * predicted).sum() / (true.square().sum() * predicted.square().sum()).sqrt()
    assert 0.1 < correlation < 0.95
    assert found.correlation() == pytest.approx(float(correlation))
    variance = flat(truths).var(0).sum()
    square = flat(truths).mean(0).square().sum() - variance / 40
    assert found.noise_scale() == pytest.approx(float(variance / square))


@pytest.mark.medium
def test_minibatches_estimate_the_same_figures() -> None:
    """A minibatch's gradient is the mean of its samples': the correlation and the noise scale are those of samples."""
    truths, predictions = sample_gradients(6000)
    single, batches = (statistics(truths, predictions, batch) for batch in (1, 20))
    assert batches.correlation() == pytest.approx(single.correlation(), abs=0.06)
    assert batches.noise_scale() == pytest.approx(single.noise_scale(), rel=0.15)


def test_what_is_predicted_exactly_or_not_at_all() -> None:
    truths, predictions = sample_gradients(20)
    assert statistics(truths, truths, 2).correlation() == pytest.approx(1)
    negative = [[-part for part in sample] for sample in truths]
    assert statistics(truths, negative, 2).correlation() == pytest.approx(-1)
    alone = NoiseStatistics(2)
    alone.add(truths[0], predictions[0])
    assert alone.figures() == {"correlation": None, "noise_scale": None}, "one minibatch has no variance"
    alone.add(truths[1], None)
    assert alone.correlation() is None
    constant = NoiseStatistics(4)
    for sample in truths[:3]:
        constant.add(sample, predictions[0])
    assert constant.correlation() is None
    opposite = NoiseStatistics(4)
    for sample in (truths[0], negative[0]):
        opposite.add(sample, None)
    assert opposite.noise_scale() is None, "the mean gradient is zero"


@given(gradient=st.floats(0.1, 10), noise=st.floats(0.1, 1000), small=st.integers(1, 64), factor=st.integers(2, 50))
def test_two_batch_sizes_recover_gradient_and_noise(gradient: float, noise: float, small: int, factor: int) -> None:
    """A gradient of b samples has the expected squared norm |G|^2 + tr(S) / b."""
    large = small * factor
    found_gradient, found_noise = two_batch_sizes(gradient + noise / small, gradient + noise / large, small, large)
    assert found_gradient == pytest.approx(gradient, rel=1e-6, abs=1e-6)
    assert found_noise == pytest.approx(noise, rel=1e-6, abs=1e-6)
