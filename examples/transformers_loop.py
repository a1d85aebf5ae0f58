"""Predicted gradients in the Trainer of transformers: a small BERT. Needs `pip install 'adagp[transformers]'`.

python examples/transformers_loop.py
"""

import tempfile

import torch

from adagp.integrations.transformers import PredictedGradientsMixin  # before transformers

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments  # isort: skip


class PredictingTrainer(PredictedGradientsMixin, Trainer):  # type: ignore[misc]  # transformers has no types
    """The Trainer, with predicted gradients."""


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Return sequences of 12 tokens whose first token tells their class."""
    words = torch.randint(4, 40, (count, 12))
    labels = torch.randint(0, 3, (count,))
    words[:, 0] = labels + 1
    return [{"input_ids": one, "labels": label} for one, label in zip(words, labels, strict=True)]


def main() -> None:
    """Learn to tell the first token."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=3,
    )
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=160,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
        )
        # The model computes the loss itself: the error is taken at the output of its last layer.
        options = {"method": "feedback", "features": 3, "output": "classifier"}
        PredictingTrainer(model=model, args=arguments, train_dataset=sentences(1024), adagp=options).train()
    model.eval()
    test = sentences(256)
    with torch.no_grad():
        logits = model(input_ids=torch.stack([one["input_ids"] for one in test])).logits
    right = logits.argmax(1) == torch.stack([one["labels"] for one in test])
    print(f"test accuracy {right.float().mean():.4f}")


if __name__ == "__main__":
    main()
