import sys
from math import exp, inf, log
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.marks import slow
from torch import Tensor, nn

from adagp.core.methods import METHODS
from adagp.errors import ModelError
from adagp.program.run import TrainConfig
from adagp.program.tasks.language import LanguageModelling, perplexity
from adagp.program.train.session import Session

SMALL: dict[str, Any] = {
    "dataset": "persuasion",
    "width": 0.125,
    "sequence_length": 16,
    "batch_size": 4,
    "batches": 12,
    "metrics_every": 1,
    "seed": 3,
}


class Uniform(nn.Module):
    """Finds every byte equally likely."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Parameter(torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.score.expand(*tokens.shape, 256)


def config(**options: Any) -> TrainConfig:
    return TrainConfig.from_dict(SMALL | options, "test")


def test_perplexity_of_a_model_that_knows_nothing_is_the_number_of_bytes() -> None:
    task = LanguageModelling(config())
    found = task.evaluate(Uniform())
    assert found == pytest.approx({"loss": log(256), "perplexity": 256, "accuracy": 0.0}, rel=1e-5)
    assert (task.metric.name, task.metric.higher_is_better) == ("perplexity", False)
    assert (perplexity(800.0), perplexity(0.0)) == (inf, 1.0)


@pytest.mark.medium
def test_the_figures_are_means_over_the_bytes_of_the_test_set() -> None:
    task = LanguageModelling(config(batch_size=100))
    torch.manual_seed(0)
    model = task.build_model().eval()
    tokens, targets = (torch.cat(parts) for parts in zip(*task.test.epoch(0), strict=True))
    with torch.no_grad():
        scores = model(tokens)
    found = task.evaluate(model)
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten()).item()
    assert found["loss"] == pytest.approx(loss, rel=1e-4)
    assert found["perplexity"] == exp(found["loss"])
    assert found["accuracy"] == pytest.approx((scores.argmax(2) == targets).float().mean().item())


class Watch:
    """Keeps what a run tells, and asks to stop after so many batches."""

    def __init__(self, batches: float = inf) -> None:
        self.batches, self.scores, self.rows = batches, list[float](), list[dict[str, Any]]()

    def on_batch(self, news: Any) -> None:
        self.scores.append(news.score)

    def on_epoch(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def __call__(self) -> bool:
        return len(self.scores) >= self.batches


@pytest.mark.medium
def test_a_run_reports_the_perplexity_of_all_its_bytes(tmp_path: Path) -> None:
    session, watch = Session(config(method="bp")), Watch()
    summary = session.run(session.start(tmp_path / "run"), watch)
    assert summary is not None
    assert watch.rows[0]["train_perplexity"] == pytest.approx(exp(watch.rows[0]["train_loss"]))
    assert watch.scores[-1] == watch.rows[0]["train_perplexity"]
    assert watch.scores[0] > 200  # near 256 before the first update
    assert summary["best_test_perplexity"] == summary["test_perplexity"] < 256


@pytest.mark.medium
@pytest.mark.parametrize("method", [name if name in ("bp", "adagp", "feedback") else slow(name) for name in METHODS])
def test_every_method_trains(method: str, tmp_path: Path) -> None:
    predicting = {} if method == "bp" else {"ratio": "1:1", "warmup_batches": 4}
    session = Session(config(method=method, **predicting))
    summary = session.run(session.start(tmp_path / "run"), Watch())
    assert summary is not None
    assert summary["batches"]["gp"] + summary["batches"]["guarded"] == (0 if method == "bp" else 4)
    assert summary["test_perplexity"] < 270


@pytest.mark.medium
@pytest.mark.parametrize("method", [slow("bp"), slow("adagp"), "feedback"])
def test_resume_is_exact(method: str, tmp_path: Path) -> None:
    options = config(method=method, **({} if method == "bp" else {"ratio": "1:1", "warmup_batches": 4}))

    def weights(session: Session) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in session.model.state_dict().items()}

    whole = Session(options)
    assert whole.run(whole.start(tmp_path / "whole"), Watch()) is not None
    stopped, stop = Session(options), Watch(7)
    assert stopped.run(stopped.start(tmp_path / "parts"), stop, stop) is None
    again = Session(options)
    assert again.run(again.resume(tmp_path / "parts"), Watch()) is not None
    for name, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(again)[name]), name


def test_a_model_of_another_task_is_rejected() -> None:
    message = "^model 'digits_cnn' is for the task images, not language; choose from: decoder.$"
    with pytest.raises(ModelError, match=message):
        LanguageModelling(config(model="digits_cnn")).build_model()


USERS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, vocabulary, shift=0, keep=True):
        super().__init__()
        self.embedding, self.shift, self.keep = nn.Embedding(vocabulary, vocabulary), shift, keep

    def forward(self, tokens):
        scores = self.embedding(tokens).roll(-self.shift, 1)
        return scores if self.keep else scores[:, 0]

def bigram(vocabulary):
    return Net(vocabulary)

def cheat(vocabulary, length):
    assert length == 16
    return Net(vocabulary, shift=1)

def last(vocabulary):
    return Net(vocabulary, keep=False)
"""


def test_models_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_text.py").write_text(USERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def build(name: str) -> nn.Module:
        return LanguageModelling(config(model=f"users_text:{name}", width=1.0)).build_model()

    assert build("bigram").get_submodule("embedding").weight.shape == (256, 256)
    with pytest.raises(
        ModelError, match="^'users_text:cheat' is not causal: its scores before the last token depend on that token.$"
    ):
        build("cheat")
    message = r"^'users_text:last' returns \(2, 256\) for two sequences of 16; it must return \(2, 16, 256\).$"
    with pytest.raises(ModelError, match=message):
        build("last")
    sys.modules.pop("users_text")
