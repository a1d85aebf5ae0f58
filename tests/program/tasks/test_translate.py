"""The translation task on tiny text made here, from batches to BLEU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.marks import slow
from torch import Tensor

from adagp.core.plan import Phase
from adagp.data.translation import PARTS
from adagp.errors import DataError, ModelError
from adagp.models.registry import PAD
from adagp.models.transformer import greedy
from adagp.program.run.config import TrainConfig
from adagp.program.tasks.base import build_task
from adagp.program.tasks.translate import Translation, corpus_bleu
from adagp.program.train.loop import BatchStatus
from adagp.program.train.session import Session

pytestmark = pytest.mark.medium

COUNTS = {"a": "ein", "one": "ein", "the": "der"}
NOUNS = {"dog": "Hund", "man": "Mann", "tree": "Baum", "train": "Zug", "ball": "Ball"}
VERBS = {"runs": "läuft", "stands": "steht", "falls": "fällt", "shines over there": "glänzt dort drüben"}
SENTENCES = [
    (f"{count} {noun} {verb} .", f"{COUNTS[count]} {NOUNS[noun]} {VERBS[verb]} .")
    for count in COUNTS
    for noun in NOUNS
    for verb in VERBS
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for part, pairs in zip(PARTS.values(), (SENTENCES, SENTENCES[::7], SENTENCES[::5]), strict=True):
        for place, language in enumerate(("en", "de")):
            text = "".join(pair[place] + "\n" for pair in pairs)
            (folder / f"{part}.{language}").write_text(text, encoding="utf-8")
    return folder


def options(**given: Any) -> TrainConfig:
    small = {"dataset": "multi30k", "width": 1 / 64, "vocabulary": 320, "batch_size": 8, "epochs": 2, "warmup": 1}
    if given.get("method") == "bp":
        del small["warmup"]
    return TrainConfig.from_dict(small | {"ratio": None} | given, "test")


@pytest.fixture(scope="module")
def task(data: Path) -> Translation:
    made = build_task(options(), data)
    assert isinstance(made, Translation)
    return made


def test_batches_go_on_from_the_middle_of_an_epoch(task: Translation) -> None:
    whole = list(task.batches(3))
    rest = list(task.batches(3, 4))
    assert len(whole) == task.batches_per_epoch == len(SENTENCES) // 8
    assert len(rest) == len(whole) - 4
    for ((a, b), c), ((d, e), f) in zip(whole[4:], rest, strict=True):
        assert torch.equal(a, d)
        assert torch.equal(b, e)
        assert torch.equal(c, f)


def slow_loss(output: Tensor, targets: Tensor, smoothing: float) -> float:
    losses = []
    for row, aims in zip(output, targets, strict=True):
        for scores, aim in zip(row, aims, strict=True):
            if aim != PAD:
                logs = scores.log_softmax(0)
                losses.append(-(1 - smoothing) * logs[aim] - smoothing * logs.mean())
    return torch.stack(losses).mean().item()


def test_loss_counts_real_pieces_only(task: Translation) -> None:
    targets = torch.tensor([[5, 2, PAD, PAD], [7, 8, 9, 2]])
    output = torch.randn(2, 4, 20, generator=torch.Generator().manual_seed(0))
    assert task.config.label_smoothing == 0.1
    assert task.loss(output, targets).item() == pytest.approx(slow_loss(output, targets, 0.1), rel=1e-5)


def test_score_counts_real_pieces_only(task: Translation) -> None:
    targets = torch.tensor([[5, 2, PAD, PAD], [7, 8, 9, 2]])
    output = F.one_hot(torch.tensor([[5, 3, PAD, PAD], [7, 8, 1, 2]]), 20).float()
    right, answers = task.score(output, targets)
    assert (int(right), answers) == (4, 6)


def test_evaluation_is_unsmoothed_and_independent_of_batches(task: Translation, data: Path) -> None:
    model = task.build_model().train()
    figures = task.evaluate(model)
    assert model.training
    model.eval()
    losses, right = [], []
    for (source, target_in), targets in build_task(options(batch_size=1), data).test.epoch(0):  # type: ignore[attr-defined]
        scores = model(source, target_in)[0]
        losses += F.cross_entropy(scores, targets[0], reduction="none").tolist()
        right += (scores.argmax(1) == targets[0]).tolist()
    assert figures["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert figures["accuracy"] == pytest.approx(sum(right) / len(right))


def test_bleu_of_an_example_worked_by_hand() -> None:
    score, signature = corpus_bleu(["the cat sat on the mat today"], ["the cat sat on a mat today"])
    by_hand = 100 * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** (1 / 4)  # both have 7 words: no brevity penalty
    assert score == pytest.approx(by_hand)
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_bleu_is_sacrebleus() -> None:
    import sacrebleu

    translations = ["Ein Hund läuft über die Wiese.", "Zwei Männer sitzen auf einer Bank"]
    references = ["Ein Hund läuft über eine Wiese.", "Zwei Männer sitzen auf der Bank."]
    assert corpus_bleu(translations, references)[0] == sacrebleu.corpus_bleu(translations, [references]).score


def test_translations_are_compared_with_their_own_references(task: Translation) -> None:
    by_source = dict(zip(map(tuple, task.test.source), task.test.target, strict=True))

    def look_up(model: Any, source: Tensor) -> list[list[int]]:
        return [list(by_source[tuple(piece for piece in row if piece not in (PAD, 2))]) for row in source.tolist()]

    assert task.translate(task.build_model(), look_up) == list(task.references)
    assert sorted(task.references) == sorted(target for _, target in SENTENCES[::5])


class Silent:
    """An observer that stops the run after some batches."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.left = stop_after

    def on_batch(self, status: BatchStatus) -> None:
        if self.left is not None:
            self.left -= 1

    def on_epoch(self, row: dict[str, Any]) -> None: ...

    def stop(self) -> bool:
        return self.left is not None and self.left <= 0


def test_bp_and_gp_batches_change_what_they_should(data: Path) -> None:
    session = Session(options(method="adagp", ratio="1:1", predictor_lr=1e-2), data_dir=data)
    sites = {f"{site.name}.weight" for site in session.trainer.survey.sites}
    held = {name for name, _ in session.model.named_parameters()} - sites
    # Attention adds to all scores of a query what its key's bias gives: its gradient is zero but for rounding.
    pointless = {name for name in held if name.endswith("key.bias")}
    phases = []
    for epoch in range(2):
        for inputs, targets in session.task.batches(epoch):
            before = {name: one.detach().clone() for name, one in session.model.named_parameters()}
            phase = session.trainer.step(inputs, targets, session.task.loss).phase
            changed = {name for name, one in session.model.named_parameters() if not torch.equal(one, before[name])}
            assert changed - pointless == (sites if phase is Phase.GP else sites | held) - pointless
            phases.append(phase)
    assert phases.count(Phase.GP) == 4
    assert set(phases) == {Phase.WARMUP, Phase.GP, Phase.BP}


@pytest.mark.parametrize("method", [slow("bp"), "adagp"])
def test_a_stopped_run_ends_as_if_never_stopped(data: Path, tmp_path: Path, method: str) -> None:
    config = options(method=method, metrics_every=2)
    whole = Session(config, data_dir=data)
    summary = whole.run(whole.start(tmp_path / "whole"), Silent())
    first = Session(config, data_dir=data)
    observer = Silent(stop_after=10)
    assert first.run(first.start(tmp_path / "parts"), observer, observer.stop) is None
    second = Session(config, data_dir=data)
    resumed = second.run(second.resume(tmp_path / "parts"), Silent())
    assert summary is not None
    assert resumed is not None
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    for name in ("test_bleu", "test_bleu_greedy", "test_loss", "test_accuracy", "validation_loss", "bleu_signature"):
        assert summary[name] == resumed[name]


@pytest.mark.slow
def test_a_model_that_has_learned_translates(data: Path, tmp_path: Path) -> None:
    session = Session(options(method="bp", width=1 / 16, epochs=25, lr=4e-3, label_smoothing=0.0), data_dir=data)
    summary = session.run(session.start(tmp_path / "run"), Silent())
    assert summary is not None
    assert summary["test_bleu"] > 90
    assert summary["test_bleu_greedy"] > 90
    assert summary["validation_accuracy"] > 0.9
    assert summary["beam"] == 4
    task = session.task
    assert isinstance(task, Translation)
    assert task.translate(session.model, greedy)[0] in {target for _, target in SENTENCES}


@pytest.mark.parametrize("model", ["digits_cnn", "package.module:function"])
def test_models_that_cannot_translate(data: Path, model: str) -> None:
    with pytest.raises(ModelError) as error:
        build_task(options(model=model), data)
    assert str(error.value) == f"model '{model}' cannot translate; choose from: transformer."


@pytest.mark.parametrize("package", ["sacrebleu", "tokenizers"])
def test_missing_packages_show_before_training(data: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    import importlib.util

    found: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    with pytest.raises(DataError) as error:
        build_task(options(), data)
    assert str(error.value) == f"{package} is needed here and is not installed: pip install '.[text]'."
