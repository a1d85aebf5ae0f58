"""What users get wrong: arguments that disagree or are swapped, states of other runs, backward passes of their own."""

import re
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.engine.small_nets import LABELS, Net, draw
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import adagp
from adagp.errors import AdagpError, AdagpWarning, ModelError, OptionError, UsageError
from adagp.schedules import Ladder, Rung, WarmUp


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def attach(model: nn.Module | None = None, **options: Any) -> adagp.Trainer:
    model = net() if model is None else model
    return adagp.attach(model, sgd(model), **{"length": adagp.Epochs(9, 10), **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "bp", "schedule": "1:1"}, "method 'bp' predicts nothing: it takes no schedule and no warmup."),
        ({"method": "bp", "warmup": 1}, "method 'bp' predicts nothing: it takes no schedule and no warmup."),
        (
            {"method": adagp.Feedback(features=3), "schedule": Ladder((Rung(1, 1),))},
            "method 'feedback' takes gradients from the source 'feedback', but the schedule names 'predicted'. Give the "
            "schedule the same source, or choose the method that goes with it.",
        ),
        (
            {"method": adagp.Feedback(features=3), "schedule": "sites=2nd layer; source=zero"},
            "method 'feedback' takes gradients from the source 'feedback', but the schedule names 'zero'. Give the "
            "schedule the same source, or choose the method that goes with it.",
        ),
        (
            {"method": "feedback", "schedule": "bp"},
            "schedule 'bp' has only batches by backprop: method 'feedback' would not be used. Leave out the method, or the "
            "schedule.",
        ),
        (
            {"method": "feedback", "sources": {"feedback": adagp.FeedbackSource()}},
            "sources has 'feedback', which method 'feedback' creates itself. Leave out one of the two.",
        ),
    ],
)
def test_the_method_is_the_one_authority(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        attach(**options)
    assert str(caught.value) == message


ARGUMENTS: list[tuple[Callable[[nn.Module], Any], str]] = [
    (
        lambda model: adagp.attach(sgd(model), model, steps=9),  # type: ignore[arg-type]
        "model is of type SGD; it must be a torch.nn.Module. The arguments are swapped: the model comes first, then the "
        "optimizer.",
    ),
    (
        lambda model: adagp.attach(model, model.parameters(), steps=9),  # type: ignore[arg-type]
        "optimizer has a Parameter; it must be a torch.optim.Optimizer or a list of these, for example "
        "torch.optim.SGD(model.parameters(), lr=0.1).",
    ),
    (
        lambda model: adagp.attach(model, 0.1, steps=9),  # type: ignore[arg-type]
        "optimizer is of type float; it must be a torch.optim.Optimizer or a list of these, for example "
        "torch.optim.SGD(model.parameters(), lr=0.1).",
    ),
    (
        lambda model: adagp.attach(model, sgd(net()), steps=9),
        "none of the optimizer's 4 parameters belongs to the model: it is the optimizer of another model, or the model was "
        "copied or converted after the optimizer was made.",
    ),
    (
        lambda model: attach(model, schedule=(1, 1)),
        "schedule is (1, 1); it must be text, for example '1:1', or a Schedule, for example "
        "adagp.Ladder((adagp.Rung(1, 1),)).",
    ),
    (
        lambda model: adagp.EngineOptions(guard=10.0),  # type: ignore[arg-type]
        "guard is 10.0; it must be an adagp.Guard, for example adagp.Guard(10.0).",
    ),
    (
        lambda model: attach(model, exclude="head"),
        "exclude is 'head'; it must be a list of name patterns, for example ['head'].",
    ),
    (lambda model: attach(model, output=3), "output is 3; it must be a name, or a function of what the model returns."),
    (
        lambda model: attach(model, schedule="ladder", warmup=9),
        "warm-up of 9 epochs does not fit a run of 9: nothing would be predicted. Give a warm-up of 0 to 8, or more epochs.",
    ),
]


def test_validate_checks_the_same_arguments() -> None:
    model: Any = net()
    for arguments, message in (
        ((sgd(model), model), r"^model is of type SGD; .* The arguments are swapped"),
        ((model, model.parameters()), r"^optimizer has a Parameter; it must be a torch\.optim\.Optimizer"),
        ((model, sgd(model), "head"), r"^exclude is 'head'; it must be a list of name patterns"),
    ):
        with pytest.raises(OptionError, match=message):
            adagp.validate(*arguments)


@pytest.mark.parametrize(("build", "message"), ARGUMENTS)
def test_arguments_of_another_kind_are_named(build: Callable[[nn.Module], Any], message: str) -> None:
    with pytest.raises(AdagpError) as caught:
        build(net())
    assert str(caught.value) == message
    assert "--" not in message, "flags of the command line mean nothing here"


def test_a_state_belongs_to_a_length() -> None:
    """It was saved at batch 8 of 10: with 5 batches an epoch would never end."""
    trainer = attach()
    for _ in range(8):
        trainer.advance()
    state = trainer.state_dict()
    message = (
        "the state was saved in a run of 9 epochs of 10 batches; this one has 18 epochs of 5 batches, which has "
        "no such position. Give attach the length that the saved run had."
    )
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        attach(length=adagp.Epochs(18, 5)).load_state_dict(state)
    with pytest.warns(
        AdagpWarning, match=r"^the state was saved in a run of 9 epochs of 10 batches; this one has 12 epochs"
    ):
        attach(length=adagp.Epochs(12, 10)).load_state_dict(state)
    old = {name: value for name, value in state.items() if name not in ("length", "sites")}
    with pytest.raises(
        UsageError, match=r"^the state was saved at batch 9 of an epoch, but an epoch of this run has 5"
    ):
        attach(length=adagp.Epochs(18, 5)).load_state_dict(old)
    again = attach()
    again.load_state_dict(old)  # states of earlier versions load
    assert again.at == trainer.at


def test_a_state_belongs_to_a_model(tmp_path: Path) -> None:
    trainer = attach()
    torch.save(trainer.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    attach().load_state_dict(state)
    with pytest.raises(UsageError) as caught:
        attach(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))).load_state_dict(state)
    assert str(caught.value) == (
        "the state was saved with a model of other predicted layers (2; this one has 2): the saved '2' is missing and '1' is "
        "new. Was another layer excluded, or is it another model?"
    )
    with pytest.raises(UsageError) as caught:
        attach(nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 3))).load_state_dict(state)
    assert str(caught.value) == (
        "the state was saved with a model whose layer '0' has a weight of the shape (4, 5); here it is (9, 5). Is it another "
        "model?"
    )
    old = {name: value for name, value in state.items() if name not in ("length", "sites")}
    with pytest.raises(UsageError, match=r"^the state was saved with a model of 2 predicted layers; this one has 1\.$"):
        attach(nn.Sequential(nn.Linear(5, 3))).load_state_dict(old)


OWN_BACKWARD = (
    r"^the loss of this batch was differentiated by loss\.backward\(\) or accelerator\.backward\(loss\)\. Call batch\."
)


@pytest.mark.parametrize("method", ["adagp", "feedback"])
@pytest.mark.parametrize("warmup", [0, 1])
def test_a_backward_pass_of_the_users_own_is_named(method: Any, warmup: int) -> None:
    model = net()
    trainer = attach(model, method=method, schedule="1:1", warmup=warmup)
    with pytest.raises(UsageError, match=OWN_BACKWARD), trainer.batch():
        F.cross_entropy(model(draw()), LABELS).backward()
        trainer.optimizer.step()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_other_errors_of_the_body_are_the_users() -> None:
    trainer = attach(method="adagp", schedule="1:1", warmup=0)
    with pytest.raises(RuntimeError, match=r"^out of paper$"), trainer.batch():
        raise RuntimeError("out of paper")


def train(trainer: adagp.Trainer) -> None:
    trainer.step(draw(), LABELS, F.cross_entropy)


def test_a_detached_model_can_be_attached_again() -> None:
    model = net()
    first = attach(model)
    train(first)
    with pytest.warns(AdagpWarning, match=r"^the model, or a part of it, is already attached to another trainer\."):
        attach(model).detach()
    first.detach()
    second = attach(model)  # without a warning
    train(second)
    assert second.done == 1


def test_gradients_may_be_clipped_for_their_norm_alone() -> None:
    model = net()
    trainer = attach(model, schedule="1:1", warmup=1)
    for _ in range(12):
        train(trainer)
        nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
    train(trainer)
    nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
    trainer.detach()
    assert all(parameter.grad is None for parameter in model.parameters()), "they were its own"
    trainer = attach(model)
    train(trainer)
    F.cross_entropy(model(draw()), LABELS).backward()  # which accumulates
    with pytest.raises(UsageError, match="^parameters still have gradients from before this batch"):
        train(trainer)


class Answer:
    """What a model returns, neither a tuple nor a dataclass."""

    def __init__(self, logits: Tensor, hidden: Tensor) -> None:
        self.logits = logits
        self.hidden = hidden


class Answering(Net):
    def forward(self, inputs: Tensor) -> Any:
        hidden = self.first(inputs).tanh()
        return Answer(self.last(hidden), hidden)


def loss_of(answer: Any, labels: Tensor) -> Tensor:
    return F.cross_entropy(answer if isinstance(answer, Tensor) else answer.logits, labels)


@pytest.mark.parametrize("output", ["logits", lambda answer: answer.logits], ids=["name", "function"])
def test_an_output_of_a_class_of_ones_own(output: Any) -> None:
    weights = []
    for model, chosen in ((Net(), None), (Answering(), output)):
        schedule = WarmUp(Ladder((Rung(1, 0),), "feedback"), batches=3, batches_per_epoch=10)
        trainer = attach(model, method="feedback", schedule=schedule, output=chosen)
        torch.manual_seed(1)
        for _ in range(6):
            trainer.step(draw(), LABELS, loss_of)
        weights.append(model.first.weight)
    torch.testing.assert_close(*weights)


def test_an_output_that_a_function_computes_is_rejected() -> None:
    trainer = attach(Net(), method="feedback", output=lambda logits: logits * 2)
    with pytest.raises(ModelError, match=r"^output=\.\.\. must select tensors that are part of what the model returns"):
        train(trainer)


def test_a_run_that_is_longer_than_announced_is_noticed_once() -> None:
    trainer = attach(length=adagp.Epochs(2, 2), warmup=1)
    for _ in range(4):
        train(trainer)
    with pytest.warns(
        AdagpWarning, match=r"^the run goes on beyond the length given to attach, 2 epochs of 2 batches\."
    ):
        train(trainer)
    train(trainer)


@pytest.mark.parametrize("method", ["feedback", "dfa"])
def test_a_single_sample_without_an_axis_for_samples_is_named(method: Any) -> None:
    trainer = attach(Net(), method=method, schedule="1:1", warmup=0)
    with pytest.raises(ModelError, match=r" Give the model a batch of one: inputs\[None\]\.$"):
        for _ in range(2):
            trainer.step(draw()[0], LABELS[0], F.cross_entropy)


@pytest.mark.parametrize("method", ["adagp", "dni", "topk", "fa", "random"])
def test_a_single_sample_is_a_batch_of_one(method: Any) -> None:
    weights = []
    for one in (False, True):
        torch.manual_seed(0)
        model = net()
        trainer = attach(model, method=method, schedule="1:1", warmup=0)
        for _ in range(4):
            inputs, labels = draw()[:1], LABELS[:1]
            trainer.step(inputs[0] if one else inputs, labels[0] if one else labels, F.cross_entropy)
        weights.append([*model.parameters()])
    torch.testing.assert_close(*weights)


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.head(self.transformer(source, target))  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["adagp", "feedback"])
def test_a_transformer_whose_source_and_target_differ_in_length(method: Any) -> None:
    trainer = attach(Translator(), method=method, schedule="1:1", warmup=1)
    for _ in range(12):
        sentences = torch.randn(6, 5, 8), torch.randn(6, 4, 8)
        trainer.step(sentences, LABELS, lambda output, labels: F.cross_entropy(output.mean(1), labels))
    assert trainer.done == 12


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(5, 4), nn.Linear(4, 3)

    def forward(self, packed: nn.utils.rnn.PackedSequence) -> Tensor:
        return self.head(self.cells(packed)[1][0][-1])  # type: ignore[no-any-return]


def test_a_packed_sequence_is_one_argument() -> None:
    sequences = nn.utils.rnn.pack_sequence([torch.randn(3, 5), torch.randn(2, 5)])
    trainer = attach(Packed(), schedule="1:1", warmup=1, sample=sequences)
    for _ in range(12):
        trainer.step(sequences, LABELS[:2], F.cross_entropy)
    assert trainer.done == 12


Pair = namedtuple("Pair", "left right")  # as users write them


def test_a_named_tuple_is_one_argument() -> None:
    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, pair: Any) -> Tensor:
            return self.layer(pair.left - pair.right)  # type: ignore[no-any-return]

    trainer = attach(Difference())
    trainer.step(Pair(draw(), draw()), LABELS, F.cross_entropy)
    assert trainer.done == 1


def test_checkpointing_of_outputs_that_a_source_hooks_is_rejected() -> None:
    class Checkpointed(Net):
        def forward(self, inputs: Tensor) -> Tensor:
            return self.last(checkpoint(lambda share: self.first(share).tanh(), inputs, use_reentrant=False))  # type: ignore[no-any-return]

    schedule = Ladder((Rung(1, 0),), "topk")
    with pytest.raises(
        UsageError, match=r"^source 'topk' hooks the outputs of its layers, so activation checkpointing"
    ):
        train(attach(Checkpointed(), method="topk", schedule=schedule))
