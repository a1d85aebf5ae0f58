"""Predicted gradients in the Trainer of transformers: a small BERT reads a novel. Needs `pip install '.[transformers]'`.

python examples/transformers_loop.py
"""

import tempfile

import torch
from torch import Tensor

import adagp
from adagp.data import DATASETS
from adagp.data.byte_text import read_bytes
from adagp.data.registry import DEFAULT_DATA_DIR, locate
from adagp.integrations.transformers import AttachOptions, PredictedGradientsMixin  # before transformers

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments  # isort: skip

LENGTH = 8


class PredictingTrainer(PredictedGradientsMixin, Trainer):  # type: ignore[misc]  # transformers has no types
    """The Trainer, with predicted gradients."""


def passages(text: Tensor, count: int) -> list[dict[str, Tensor]]:
    """Return pieces of the text, a byte a token; the label says what comes next: a vowel, another letter, or no letter."""
    starts = torch.randint(0, len(text) - LENGTH, (count,)).tolist()
    kinds = torch.full((256,), 2)
    kinds[list(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")] = 1
    kinds[list(b"aeiouAEIOU")] = 0
    return [
        {"input_ids": text[start : start + LENGTH].long(), "labels": kinds[text[start + LENGTH].long()]}
        for start in starts
    ]


def main() -> None:
    """Learn what kind of letter comes next; always saying the most frequent kind is right in 48 % of all cases."""
    torch.manual_seed(0)
    training, test = read_bytes(locate(DATASETS["persuasion"], DEFAULT_DATA_DIR))  # the novel is part of the package
    config = BertConfig(
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
    )
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=400,
            per_device_train_batch_size=32,
            learning_rate=5e-3,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        )
        # The model computes the loss itself: the error is taken at the logits, the output of its last layer.
        options: AttachOptions = {"method": adagp.Feedback(features=3), "output": "classifier", "schedule": "1:1"}
        PredictingTrainer(model=model, args=arguments, train_dataset=passages(training, 6400), adagp=options).train()
    model.eval()
    unseen = passages(test, 3000)
    with torch.no_grad():
        logits = model(input_ids=torch.stack([one["input_ids"] for one in unseen])).logits
    right = logits.argmax(1) == torch.stack([one["labels"] for one in unseen])
    print(f"test accuracy {right.float().mean():.4f}")


if __name__ == "__main__":
    main()
