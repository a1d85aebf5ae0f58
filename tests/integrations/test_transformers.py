"""A small BERT in the Trainer of transformers: in BP as without adagp, and exact resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.marks import slow

import adagp
from adagp.errors import UsageError
from adagp.integrations.transformers import STATE, PredictedGradientsMixin

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments  # isort: skip

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore")]


class PredictingTrainer(PredictedGradientsMixin, Trainer):  # type: ignore[misc]  # transformers has no types
    pass


def model(dropout: float = 0.1) -> Any:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=2 if dropout else 1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=8,
            num_labels=3,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
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


def train(
    kind: type,
    folder: Path,
    resume: Path | None = None,
    bf16: bool = False,
    labels: str = "labels",
    compiled: str | None = None,
    dropout: float = 0.1,
    **more: Any,
) -> Any:
    arguments = TrainingArguments(
        str(folder),
        max_steps=12,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        use_cpu=True,
        bf16=bf16,
        label_names=[labels],
        report_to=[],
        save_steps=6,
        disable_tqdm=True,
        logging_strategy="no",
        seed=3,
        torch_compile=compiled is not None,
        torch_compile_backend=compiled,
    )
    one = model(dropout)
    trainer = kind(model=one, args=arguments, train_dataset=samples(), **more)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return one


def equal(one: Any, other: Any) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


OPTIONS = {"method": adagp.Feedback(features=3), "output": "classifier", "schedule": "1:1", "warmup": 2}


@pytest.mark.parametrize("bf16", [False, slow(True)])
def test_backprop_is_that_of_the_trainer_itself(bf16: bool, tmp_path: Path) -> None:
    plain = train(Trainer, tmp_path / "plain", bf16=bf16)
    ours = train(PredictingTrainer, tmp_path / "ours", bf16=bf16, adagp={"schedule": "bp"})
    assert equal(plain, ours)
    assert not equal(plain, train(PredictingTrainer, tmp_path / "feedback", bf16=bf16, adagp=OPTIONS))


@pytest.mark.parametrize(("method", "bf16"), [("feedback", False), slow("feedback", True), slow("dni_labels", False)])
def test_a_resumed_run_is_the_run_that_was_not_stopped(method: str, bf16: bool, tmp_path: Path) -> None:
    options = OPTIONS if method == "feedback" else {"method": method, "schedule": "1:1", "warmup": 2}
    whole = train(PredictingTrainer, tmp_path, bf16=bf16, adagp=options)
    checkpoint = tmp_path / "checkpoint-6"
    assert (checkpoint / STATE).is_file()
    assert equal(whole, train(PredictingTrainer, tmp_path, resume=checkpoint, bf16=bf16, adagp=options))


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "dropout"), [("eager", 0.1), ("inductor", 0.0)])
def test_a_model_that_the_trainer_compiles_is_trained_as_without(backend: str, dropout: float, tmp_path: Path) -> None:
    """`inductor` is the Trainer's default; it draws random numbers of its own, so that it is compared without dropout."""
    torch._dynamo.reset()
    eager, compiled = (
        train(PredictingTrainer, tmp_path / str(name), compiled=name, dropout=dropout, adagp=OPTIONS)
        for name in (None, backend)
    )
    torch._dynamo.reset()
    for one, other in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_labels_that_are_nowhere_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        train(PredictingTrainer, tmp_path, adagp={"method": "dni_labels", "schedule": "1:1"}, labels="start_positions")
    assert str(caught.value) == (
        "the method needs the targets, and a batch has no 'start_positions' (see label_names)."
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_run_that_breaks_off_leaves_the_model_as_it_was(error: type[BaseException], tmp_path: Path) -> None:
    """In a GP batch, in which everything is frozen."""
    trained: list[Any] = []

    class Breaking(PredictingTrainer):
        def compute_loss(self, model: Any, *arguments: Any, **named: Any) -> Any:
            trained.append(model)
            if not any(parameter.requires_grad for parameter in model.parameters()):
                raise error
            return super().compute_loss(model, *arguments, **named)

    with pytest.raises(error):
        train(Breaking, tmp_path, adagp={**OPTIONS, "warmup": 1})
    model = trained[-1]
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
