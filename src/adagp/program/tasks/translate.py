"""Translation: teacher forcing, token accuracy, and BLEU at the end of a run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adagp.data.batches import Share, evaluated_on, held_out
from adagp.data.registry import DEFAULT_DATA_DIR
from adagp.data.translation import Pairs, SentenceBatch, SentenceBatches, Vocabulary, load_multi30k, require
from adagp.errors import ModelError
from adagp.layers.eval_mode import evaluation_mode
from adagp.models.build import import_function
from adagp.models.registry import MODELS, PAD, TRANSLATION
from adagp.models.transformer import beam_search, greedy
from adagp.program.run.config import TrainConfig
from adagp.program.run.metrics import Metric
from adagp.program.tasks.base import Task, facts_of_parts

Decode = Callable[[Any, Tensor], list[list[int]]]
"""From a model and source sentences to the pieces of their translations."""


class Translation(Task):
    """Translation from English to German. Accuracy counts word pieces, a sentence's end included."""

    metrics_at_end = (Metric("bleu", title="BLEU", lowest=0.0, highest=100.0),)

    def __init__(self, config: TrainConfig, data_dir: Path | None = None, download: bool = False) -> None:
        check_model(config.model)
        require("sacrebleu")  # needed at the end of the run only: too late to find out
        self.config = config
        texts = load_multi30k(data_dir or DEFAULT_DATA_DIR)
        if config.validation:
            train, test = (texts.train.chosen(part.tolist()) for part in held_out(len(texts.train), config.validation))
            texts = replace(texts, train=train, test=test)
        evaluation = (texts.validation, texts.test)
        validation, test = (pairs.chosen(evaluated_on(len(pairs), config.test_samples)) for pairs in evaluation)
        texts = replace(texts, validation=validation, test=test)
        self.vocabulary = Vocabulary.learn([*texts.train.source, *texts.train.target], config.vocabulary)
        self.train = self._batches(texts.train, "training set", shuffle=True)
        self.validation = self._batches(by_length(texts.validation), "validation set")
        self.test = self._batches(by_length(texts.test), "test set")
        self.references = by_length(texts.test).target

    def _batches(self, pairs: Pairs, part: str, *, shuffle: bool = False) -> SentenceBatches:
        source, target = self.vocabulary.encode(pairs.source), self.vocabulary.encode(pairs.target)
        return SentenceBatches(
            source, target, self.config.batch_size, seed=self.config.seed, shuffle=shuffle, part=part
        )

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches of sentence pairs in the training set."""
        return len(self.train)

    def data_facts(self) -> dict[str, Any]:
        """Return how many samples there are, and digests of them."""
        return facts_of_parts(train=self.train.facts, test=self.test.facts)

    def batches(self, epoch: int, start: int = 0) -> Iterator[SentenceBatch]:
        """Yield source and shifted target as inputs, the target as targets."""
        return self.train.epoch(epoch, start)

    def shares(self, epoch: int, start: int, share: Share) -> Iterator[SentenceBatch]:
        """Read a share of each batch."""
        return self.train.epoch(epoch, start, share)

    def fix_shapes(self) -> None:
        """Fill all sentences up to the longest of the training set."""
        self.train.fix_lengths()

    def weight(self, targets: Tensor) -> int:
        """Count the word pieces that the loss is the mean of."""
        return int((targets != PAD).sum())

    def build_model(self) -> nn.Module:
        """Return the model for the vocabulary."""
        info = MODELS[self.config.model]
        model_options = info.keywords(self.config.own_options)
        model: nn.Module = import_function(info.builder)(
            vocabulary=len(self.vocabulary), width=self.config.width, **model_options
        )
        return model

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of a word piece, with label smoothing; padding does not count."""
        return F.cross_entropy(
            output.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=self.config.label_smoothing
        )

    def score(self, output: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Count the word pieces whose first guess is right."""
        real = targets != PAD
        return ((output.argmax(2) == targets) & real).sum(), int(real.sum())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss, without label smoothing, and the accuracy of a word piece on the test set."""
        return self._evaluate(model, self.test)

    @torch.no_grad()
    def _evaluate(self, model: nn.Module, part: SentenceBatches) -> dict[str, float]:
        device = next(model.parameters()).device
        loss = right = 0.0
        count = 0
        with evaluation_mode(model):
            for (source, target_in), targets in part.epoch(0):
                output, targets = model(source.to(device), target_in.to(device)), targets.to(device)
                flat = output.flatten(0, 1), targets.flatten()
                loss += F.cross_entropy(*flat, ignore_index=PAD, reduction="sum").item()
                hits, answers = self.score(output, targets)
                right += hits.item()
                count += answers
        return {"loss": loss / count, "accuracy": right / count}

    def final_metrics(self, model: nn.Module) -> dict[str, Any]:
        """Return BLEU on the test set, greedy and with the run's beam, and the figures on the validation set."""
        validation = self._evaluate(model, self.validation)
        greedily, signature = corpus_bleu(self.translate(model, greedy), self.references)
        best = greedily
        if self.config.beam > 1:
            best, _ = corpus_bleu(self.translate(model, partial(beam_search, beam=self.config.beam)), self.references)
        return {
            **{f"validation_{name}": value for name, value in validation.items()},
            "test_bleu": best,
            "test_bleu_greedy": greedily,
            "beam": self.config.beam,
            "bleu_signature": signature,
        }

    @torch.no_grad()
    def translate(self, model: nn.Module, decode: Decode) -> list[str]:
        """Return the model's translations of the test set, in the order of `references`."""
        device = next(model.parameters()).device
        with evaluation_mode(model):
            pieces = [
                sentence for (source, _), _ in self.test.epoch(0) for sentence in decode(model, source.to(device))
            ]
        return self.vocabulary.decode(pieces)


def by_length(pairs: Pairs) -> Pairs:
    """Return held-out pairs in order of length, so that batches have little padding. No figure depends on the order."""
    order = sorted(range(len(pairs)), key=lambda pair: (len(pairs.source[pair]), pair))
    return Pairs(tuple(pairs.source[pair] for pair in order), tuple(pairs.target[pair] for pair in order))


def check_model(name: str) -> None:
    """Raise if a model cannot translate."""
    able = [model for model in MODELS if MODELS[model].task == TRANSLATION]
    if name not in able:
        raise ModelError(f"model '{name}' cannot translate; choose from: {', '.join(able)}.")


def corpus_bleu(translations: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Return the BLEU score (0 to 100) of plain text, one reference a sentence, and the signature that repeats it."""
    require("sacrebleu")
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    score = metric.corpus_score(list(translations), [list(references)])
    return float(score.score), str(metric.get_signature())
