"""A small BERT in the Trainer of transformers: in BP as without adagp, and exact resume."""

from pathlib import Path
from typing import Any

import pytest
import torch

from adagp.integrations.transformers import STATE, PredictedGradientsMixin

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class PredictingTrainer(PredictedGradientsMixin, Trainer):  # type: ignore[misc]  # transformers has no types
    pass


def model() -> Any:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=8,
            num_labels=3,
        )
    )


def samples() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "input_ids": torch.randint(0, 20, (6,), generator=generator),
            "labels": torch.randint(0, 3, (), generator=generator),
        }
        for _ in range(48)
    ]


def train(kind: type, folder: Path, resume: Path | None = None, stop: int | None = None, **more: Any) -> Any:
    arguments = TrainingArguments(
        str(folder),
        max_steps=12,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        save_steps=6,
        disable_tqdm=True,
        logging_strategy="no",
        seed=3,
    )
    one = model()
    trainer = kind(model=one, args=arguments, train_dataset=samples(), **more)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return one


def equal(one: Any, other: Any) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


OPTIONS = {"method": "feedback", "features": 3, "output": "classifier", "schedule": "1:1", "warmup_batches": 2}


def test_backprop_is_that_of_the_trainer_itself(tmp_path: Path) -> None:
    plain = train(Trainer, tmp_path / "plain")
    ours = train(PredictingTrainer, tmp_path / "ours", adagp={"schedule": "bp"})
    assert equal(plain, ours)
    assert not equal(plain, train(PredictingTrainer, tmp_path / "feedback", adagp=OPTIONS))


def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    whole = train(PredictingTrainer, tmp_path, adagp=OPTIONS)
    checkpoint = tmp_path / "checkpoint-6"
    assert (checkpoint / STATE).is_file()
    assert equal(whole, train(PredictingTrainer, tmp_path, resume=checkpoint, adagp=OPTIONS))
