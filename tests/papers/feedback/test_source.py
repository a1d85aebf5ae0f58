"""Feedback against batch least squares and autograd, through the engine."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.transposed import Conv1D
from torch import Tensor, nn

import adagp
from adagp.engine.trainer import Trainer
from adagp.errors import ModelError, OptionError, UsageError
from adagp.papers.feedback.source import EveryN, FeedbackReplaySource, FeedbackSource
from adagp.schedules import Ladder, Rung, WarmUp
from adagp.sources import ReplaySource
from adagp.sources.local import weight_gradient


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 4, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def batches(count: int, size: int = 12) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 1, 8, 8, generator=generator), torch.randint(0, 3, (size,), generator=generator))
        for _ in range(count)
    ]


def attached(model: nn.Module, source: FeedbackSource, warmup: int = 4, **options: Any) -> Trainer:
    """Return a trainer that learns for `warmup` batches and then predicts; the weights never move."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    schedule = WarmUp(Ladder((Rung(1, 0),), "feedback"), epochs=1)
    return adagp.attach(
        model, optimizer, length=adagp.Epochs(9, warmup), schedule=schedule, sources={"feedback": source}, **options
    )


def predicted(trainer: Trainer, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """Run one GP batch and return the gradients of the sites."""
    with trainer.batch() as batch:
        loss = F.cross_entropy(trainer.model(inputs), targets)
        batch.backward(loss)
        gradients = [site.weight.grad.clone() for site in trainer.survey.sites if site.weight.grad is not None]
        batch.step()
    trainer.optimizer.zero_grad()
    return gradients


def slow_feedback(
    model: nn.Sequential, seen: list[tuple[Tensor, Tensor]], now: tuple[Tensor, Tensor], *, classes: bool = False
) -> list[Tensor]:
    """All batches at once: collect errors and output gradients, solve the normal equations, take local gradients.

    With `classes` the features are the error and the softmax, which is as much smaller than a loss's own by its mean.
    """

    def errors_and_slopes(inputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[int, Tensor], dict[int, Tensor]]:
        hidden, outputs, entries = inputs, {}, {}
        for place, layer in enumerate(model):
            entries[place] = hidden.detach().clone()
            hidden = layer(hidden)
            if isinstance(layer, nn.Conv2d | nn.Linear):
                hidden.retain_grad()
                outputs[place] = hidden
                hidden = hidden.clone()
        hidden.retain_grad()
        F.cross_entropy(hidden, targets).backward()
        assert hidden.grad is not None
        slopes = {place: one.grad for place, one in outputs.items() if one.grad is not None}
        softmax = hidden.detach().softmax(1) / len(hidden)
        return torch.cat([hidden.grad, softmax], dim=1) if classes else hidden.grad, slopes, entries

    decay, ridge = 0.9, 1e-2
    moments: dict[int, tuple[Tensor, Tensor]] = {}
    for age, batch in enumerate(reversed(seen)):
        error, slopes, _ = errors_and_slopes(*batch)
        error = torch.cat([error - error.mean(0), error.mean(0).expand_as(error)], dim=1)
        for place, slope in slopes.items():
            second, cross = error.T @ error, error.T @ slope.flatten(1)
            before = moments.get(place, (torch.zeros_like(second), torch.zeros_like(cross)))
            moments[place] = before[0] + decay**age * second, before[1] + decay**age * cross
    error, slopes, entries = errors_and_slopes(*now)
    error = torch.cat([error - error.mean(0), error.mean(0).expand_as(error)], dim=1)
    sites = {int(site.name): site for site in adagp.validate(model, torch.optim.SGD(model.parameters())).survey.sites}
    gradients = []
    for place, (second, cross) in moments.items():
        steadied = second + ridge * second.diagonal().mean() * torch.eye(len(second))
        guess = (error @ torch.linalg.inv(steadied) @ cross).view(slopes[place].shape)
        gradients.append(weight_gradient(sites[place], entries[place], guess))
    return gradients


@pytest.mark.parametrize("classes", [False, True])
def test_equals_least_squares_over_all_batches(classes: bool) -> None:
    model = small_model()
    by_hand = copy.deepcopy(model)
    trainer = attached(model, FeedbackSource(decay=0.9, ridge=1e-2, correction=0, class_features=classes))
    *seen, now = batches(5)
    for inputs, targets in seen:
        trainer.step(inputs, targets, F.cross_entropy)
    found = predicted(trainer, *now)
    for one, other in zip(found, slow_feedback(by_hand, seen, now, classes=classes), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_the_model_runs_without_autograd_and_the_loss_with_it() -> None:
    model = small_model()
    trainer = attached(model, FeedbackSource())
    for inputs, targets in batches(4):
        trainer.step(inputs, targets, F.cross_entropy)
    grown: list[bool] = []
    for layer in model:
        layer.register_forward_hook(lambda module, inputs, output: grown.append(output.requires_grad))
    inputs, targets = batches(1)[0]
    with trainer.batch() as batch:
        output = model(inputs)
        assert output.requires_grad
        loss = F.cross_entropy(output, targets)
        assert grown == [False] * 6
        batch.backward(loss)
        batch.step()
    assert torch.is_grad_enabled()


def test_the_last_layer_gets_its_true_gradient() -> None:
    """The error at the output is the gradient at the last layer's output."""
    model = small_model()
    trainer = attached(model, FeedbackSource(ridge=1e-7, correction=0))
    *seen, now = batches(5)
    for inputs, targets in seen:
        trainer.step(inputs, targets, F.cross_entropy)
    last = predicted(trainer, *now)[-1]
    trainer.optimizer.zero_grad()
    F.cross_entropy(model(now[0]), now[1]).backward()
    truth = model[5].weight.grad
    assert isinstance(truth, Tensor)
    torch.testing.assert_close(last, truth, rtol=1e-3, atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize(
    "last",
    [
        lambda: nn.ConvTranspose2d(4, 1, 3, stride=2, padding=1, output_padding=1),
        lambda: nn.ConvTranspose2d(4, 2, 2, groups=2),
        lambda: nn.Sequential(nn.Flatten(), Conv1D(3, 64)),
    ],
    ids=["transposed", "transposed in groups", "Conv1D"],
)
@pytest.mark.parametrize("seed", range(2))
def test_a_last_layer_with_its_outputs_on_axis_1_gets_its_true_gradient(
    last: Callable[[], nn.Module], seed: int
) -> None:
    """The fit of a last layer is exact: an error of at most 128 numbers is its own feature."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Tanh(), last())
    trainer = attached(model, FeedbackSource(features=128, ridge=1e-9, decay=0.999, correction=0), warmup=160)

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        return (output.sigmoid() - targets.view(-1, *[1] * (output.dim() - 1))).square().mean()

    *seen, now = batches(161)
    for inputs, targets in seen:
        trainer.step(inputs, targets.float(), loss_of)
    with trainer.batch() as batch:
        batch.backward(loss_of(model(now[0]), now[1].float()))
        site = trainer.survey.sites[-1]
        found = site.weight.grad
        batch.step()
    trainer.optimizer.zero_grad()
    loss_of(model(now[0]), now[1].float()).backward()
    assert found is not None
    assert site.weight.grad is not None
    torch.testing.assert_close(found, site.weight.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("samples", [12, 3], ids=["more samples than features", "fewer"])
@pytest.mark.filterwarnings("ignore:the model, or a part of it, is already attached to another trainer")
def test_gp_batches_add_the_prediction_error_of_the_last_bp_batch(samples: int) -> None:
    """With EMA rate 1 the correction is that of the last BP batch: its true gradient minus today's prediction for it."""
    model = small_model()
    *seen, last, now = batches(5, samples)
    trainers = [attached(copy.deepcopy(model), FeedbackSource(correction=rate)) for rate in (0, 1)]
    for trainer in trainers:
        for inputs, targets in (*seen, last):
            trainer.step(inputs, targets, F.cross_entropy)
            trainer.optimizer.zero_grad()
    F.cross_entropy(model(last[0]), last[1]).backward()
    truth = [value.grad for name, value in model.named_parameters() if "weight" in name and value.grad is not None]
    plain, guessed, corrected = (predicted(trainers[which], *batch) for which, batch in ((0, now), (0, last), (1, now)))
    assert (truth[0] - guessed[0]).norm() > 0.05 * plain[0].norm()
    for one, guess, true, found in zip(plain, guessed, truth, corrected, strict=True):
        torch.testing.assert_close(found, one + true - guess, rtol=1e-3, atol=1e-5)


def test_recent_batches_are_subtracted_once_per_batch_not_per_call() -> None:
    model = small_model()
    source = FeedbackSource(correction=1)
    trainer = attached(model, source)
    *seen, (inputs, targets) = batches(5)
    for batch in seen:
        trainer.step(*batch, F.cross_entropy)

    def in_two_calls() -> list[Tensor]:
        with trainer.batch() as batch:
            for part, more in ((slice(0, 4), True), (slice(4, 12), False)):
                batch.backward(F.cross_entropy(model(inputs[part]), targets[part], reduction="sum") / 12, more=more)
            found = [site.weight.grad.clone() for site in trainer.survey.sites if site.weight.grad is not None]
            batch.step()
        trainer.optimizer.zero_grad()
        return found

    corrected = in_two_calls()
    source._corrections.clear()
    plain, guessed = in_two_calls(), predicted(trainer, *seen[-1])
    F.cross_entropy(model(seen[-1][0]), seen[-1][1]).backward()
    for found, one, guess, site in zip(corrected, plain, guessed, trainer.survey.sites, strict=True):
        assert site.weight.grad is not None
        torch.testing.assert_close(found - one, site.weight.grad - guess, rtol=1e-3, atol=1e-5)


def test_updates_every_n_batches_forget_as_much_as_n_updates() -> None:
    model = small_model()
    rare = FeedbackSource(correction=0.3, learn_every=3, correct_every=2)
    often = FeedbackSource(correction=0.3)
    trainers = [attached(copy.deepcopy(model), source, warmup=8) for source in (rare, often)]
    for place, (inputs, targets) in enumerate(batches(8)):
        trainers[0].step(inputs, targets, F.cross_entropy)
        often.decay = 0.95 if place == 0 else 0.95**3
        if place in (0, 3, 6):  # the first, and every third after it
            trainers[1].step(inputs, targets, F.cross_entropy)
        for site, fit in often._fits.items():
            assert torch.equal(rare._fits[site].regression.patterns, fit.regression.patterns)
    again = FeedbackSource(learn_every=3, correct_every=2)
    again.bind(trainers[0].survey.sites, trainers[0].norms)
    again.load_state_dict(rare.state_dict())
    assert [every.since_last for every in (again._learning, again._correcting)] == [1, 1], (
        "a resumed run continues counting"
    )
    assert len({fit.regression.moments for fit in again._fits.values()}) == 1, "sites that saw the same share moments"


class Twins(nn.Module):
    """Calls its layers twice in one call of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small_model()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs) + self.layers(0.5 * inputs)  # type: ignore[no-any-return]


@pytest.mark.parametrize("correction", [0.0, 0.3])
@pytest.mark.parametrize("calls", [1, 2], ids=["one call", "two calls of the model"])
@pytest.mark.parametrize("build", [small_model, Twins])
@pytest.mark.medium
def test_micro_batches_give_what_the_whole_batch_gives(
    build: Callable[[], nn.Module], calls: int, correction: float
) -> None:
    """BP and GP batches in micro-batches of other sizes: the same state and the same gradients."""
    found = []
    for cuts in ([12], [3, 4, 5], [1, 11]):
        torch.manual_seed(0)
        model = build()
        trainer = attached(model, FeedbackSource(decay=0.9, ridge=1e-2, correction=correction), warmup=3)
        for inputs, targets in batches(4):
            with trainer.batch() as batch:
                for number, (part, labels) in enumerate(zip(inputs.split(cuts), targets.split(cuts), strict=True)):
                    outputs = [model(part * (1 + 0.2 * call)) for call in range(calls)]
                    losses = [F.cross_entropy(output, labels, reduction="sum") / 12 for output in outputs]
                    batch.backward(torch.stack(losses).sum(), more=number + 1 < len(cuts))
                gradients = [site.weight.grad.clone() for site in trainer.survey.sites if site.weight.grad is not None]
                batch.step()
        assert batch.phase == "gp"
        fits = trainer.state_dict()["sources"]["feedback"]["fits"]
        found.append(
            (gradients, [fit[name] for fit in fits.values() for name in ("second", "patterns", "mean_patterns")])
        )
    (whole, learned), *others = found
    assert all(gradient.any() for gradient in whole)
    for gradients, state in others:
        torch.testing.assert_close(gradients, whole, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(state, learned, rtol=1e-3, atol=1e-5)


def test_micro_batches_keep_no_inputs() -> None:
    """Of a micro-batch that is over only sums are left, as large for many micro-batches as for one."""
    model, source = small_model(), FeedbackSource()
    trainer = attached(model, source)
    *seen, (inputs, targets) = batches(5)
    for batch in seen:
        trainer.step(*batch, F.cross_entropy)
    with trainer.batch() as gp_batch:
        for number in range(3):
            gp_batch.backward(F.cross_entropy(model(inputs), targets) / 3, more=number < 2)
            if number < 2:
                assert not source._pending
                assert {tuple(mixed.mixed.shape) for mixed in source._mixed.values()} == {(4, 64), (4, 108), (4, 16)}
        gp_batch.step()


def test_sequences_are_regressed_word_by_word() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 9))
    trainer = attached(model, FeedbackSource(ridge=1e-7, correction=0), warmup=16)

    def loss_of(output: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), targets.flatten())

    for _ in range(16):  # more batches than words: each has but one mean error
        words = torch.randint(0, 9, (6, 7))
        trainer.step(words, words, loss_of)
    words = torch.randint(0, 9, (6, 5))  # another length
    with trainer.batch() as batch:
        batch.backward(loss_of(model(words), words))
        last = trainer.survey.sites[-1].weight.grad
        batch.step()
    trainer.optimizer.zero_grad()
    loss_of(model(words), words).backward()
    torch.testing.assert_close(last, model[3].weight.grad, rtol=1e-3, atol=1e-6)


def test_without_a_fit_it_predicts_zero() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = adagp.attach(model, optimizer, length=adagp.Epochs(2, 2), schedule=Ladder((Rung(1, 0),), "feedback"))
    assert all(not one.any() for one in predicted(trainer, *batches(1)[0]))


def test_a_batch_without_an_error_or_a_loss_is_rejected() -> None:
    model = small_model()
    trainer = attached(model, FeedbackSource())
    for inputs, targets in batches(4):
        trainer.step(inputs, targets, F.cross_entropy)
    inputs, targets = batches(1)[0]
    with pytest.raises(UsageError) as caught, trainer.batch() as batch:
        hidden = inputs
        for layer in model:
            hidden = layer(hidden)
        batch.backward(F.cross_entropy(hidden, targets))
    assert str(caught.value) == (
        "source 'feedback' needs the error at the model's output, but none reached it: call the model itself (not parts of "
        "it, and not its forward()), and compute the loss from what it returns. A model that was compiled and called before "
        "adagp.attach runs without its hooks: attach first. If the model computes the loss itself, name the layer whose "
        "output the loss is computed from: adagp.attach(output='head') if that is model.head."
    )
    with (
        pytest.raises(UsageError, match=r"^a GP batch needs the loss: call backward\(loss\)\.$"),
        trainer.batch() as batch,
    ):
        model(inputs)
        batch.backward()


def test_inputs_of_another_size_are_rejected() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    trainer = attached(model, FeedbackSource())
    for inputs, targets in batches(4):
        trainer.step(inputs, targets, F.cross_entropy)
    with pytest.raises(ModelError) as caught:
        trainer.step(torch.randn(12, 1, 9, 9), targets, F.cross_entropy)
    assert str(caught.value) == (
        "the output of site '0' had 108 numbers per sample and now has 147: feedback needs inputs of one size."
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "feedback uses 0 features of the error; it must use 1 or more."),
        ({"decay": 1.0}, "feedback's decay is 1.0; it must be 0 or more and below 1."),
        ({"ridge": 0.0}, "feedback's ridge is 0.0; it must be above 0."),
        ({"learn_every": 0}, "feedback's learn_every is 0; it must be 1 or more."),
        ({"correct_every": 0}, "feedback's correct_every is 0; it must be 1 or more."),
        ({"correction": 1.5}, "feedback's correction is 1.5; it must be 0 (none) to 1."),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        FeedbackSource(**options)
    assert str(caught.value) == message


def test_a_correction_every_two_batches_moves_as_much_as_two() -> None:
    model = small_model()
    source = FeedbackSource(correction=0.3, correct_every=2)
    trainer = attached(model, source, warmup=3, engine=adagp.EngineOptions(metrics_every=0))
    (first, second, third) = batches(3)
    trainer.step(*first, F.cross_entropy)
    before = {index: one.state_dict() for index, one in source._corrections.items()}
    assert len(before) == 3
    trainer.step(*second, F.cross_entropy)
    for index, one in source._corrections.items():
        for name, tensor in one.state_dict().items():
            assert torch.equal(before[index][name], tensor), "not due"
    with trainer.batch() as batch:
        batch.backward(F.cross_entropy(model(third[0]), third[1]))
        truths = {site.index: site.weight.grad.clone() for site in trainer.survey.sites}  # type: ignore[union-attr]
        batch.step()
    for index, truth in truths.items():
        expected = before[index]["truth"].lerp(truth, 1 - 0.7**2)
        torch.testing.assert_close(source._corrections[index].gradient, expected)


def test_corrections_of_older_checkpoints_still_load() -> None:
    """They have the mean prediction error, and add it without subtracting anything."""
    model = small_model()
    source = FeedbackSource(correction=0.3)
    trainer = attached(model, source)
    *seen, now = batches(5)
    for batch in seen:
        trainer.step(*batch, F.cross_entropy)
    state = source.state_dict()
    lacks = {index: torch.full_like(one.pop("truth"), 1e-3) for index, one in state.pop("references").items()}
    source.load_state_dict({**state, "references": {}})
    plain = predicted(trainer, *now)
    source.load_state_dict({**state, "lacks": lacks})
    for one, other in zip(plain, predicted(trainer, *now), strict=True):
        torch.testing.assert_close(other, one + 1e-3)


def test_the_first_batch_is_due_then_every_nth() -> None:
    every = EveryN(3)
    assert [(every.due, every.advance()) for _ in range(8)] == [
        (True, 1),
        (False, 0),
        (False, 0),
        (True, 3),
        (False, 0),
        (False, 0),
        (True, 3),
        (False, 0),
    ]
    assert every.since_last == 1


def test_every_batch_is_due() -> None:
    every = EveryN(1)
    assert [every.advance() for _ in range(3)] == [1, 1, 1]


def test_feedback_and_replay() -> None:
    mixture = FeedbackReplaySource(share=0.75)
    assert [(type(source), weight) for source, weight in mixture.parts] == [
        (FeedbackSource, 0.75),
        (ReplaySource, 0.25),
    ]
    with pytest.raises(OptionError, match=r"^feedback's share in the mixture is 1\.5; it must be 0 to 1\.$"):
        FeedbackReplaySource(share=1.5)


class Translator(nn.Module):
    """An encoder and a decoder of sequences that differ in length, with positions first in memory or samples."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.batch_first = batch_first
        self.embed = nn.Linear(4, 8)
        self.transform = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=batch_first)
        self.head = nn.Linear(8, 5)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the scores `(samples, positions, 5)`, or with positions first."""
        if not self.batch_first:
            source, target = source.transpose(0, 1), target.transpose(0, 1)
        return self.head(self.transform(self.embed(source), self.embed(target)))  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_an_encoder_of_other_length_is_predicted_with_positions_first_as_with_samples_first() -> None:
    batches_drawn = [(torch.randn(3, 6, 4), torch.randn(3, 4, 4), torch.randint(5, (3, 4))) for _ in range(4)]
    weights = []
    for batch_first in (True, False):
        model = Translator(batch_first)
        trainer = adagp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "feedback", steps=8, schedule="1:1")

        def loss(scores: Tensor, labels: Tensor, first: bool = batch_first) -> Tensor:
            return F.cross_entropy((scores if first else scores.transpose(0, 1)).flatten(0, 1), labels.flatten())

        for source, target, labels in batches_drawn:
            trainer.step((source, target), labels, loss)
        weights.append([parameter.detach() for parameter in model.parameters()])
    for first, second in zip(*weights, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)


class Flattened(Translator):
    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return one row for each position of each sample."""
        return super().forward(source, target).flatten(0, 1)


def test_joined_samples_and_positions_are_named() -> None:
    model = Flattened(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = adagp.attach(model, optimizer, "feedback", steps=8, schedule="1:1", warmup="1 batches")
    inputs, labels = (torch.randn(3, 4, 4), torch.randn(3, 4, 4)), torch.randint(5, (12,))
    with pytest.raises(ModelError) as caught:
        trainer.step(inputs, labels, F.cross_entropy)
    assert str(caught.value) == (
        "the output of site 'head' has the sizes (3, 4, 5), the model's (12,): samples and positions were joined. Name the "
        "layer that computes the model's output, before that is reshaped: if it is this one, adagp.attach(output='head')."
    )
    trainer.detach()
    trainer = adagp.attach(model, optimizer, "feedback", steps=8, schedule="1:1", output="head")
    for _ in range(3):
        trainer.step(inputs, labels, F.cross_entropy)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.first, self.second = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(inputs).tanh()
        return self.first(hidden), self.second(hidden)


def test_a_loss_at_another_output_later_begins_a_new_fit() -> None:
    model = TwoHeads()
    trainer = adagp.attach(
        model, torch.optim.SGD(model.parameters(), lr=0.1), "feedback", steps=40, schedule="1:1", warmup="2 batches"
    )
    inputs = torch.randn(6, 5)

    def first(outputs: Any, _: Any) -> Tensor:
        return outputs[0].square().mean()  # type: ignore[no-any-return]

    def both(outputs: Any, _: Any) -> Tensor:
        return outputs[0].square().mean() + outputs[1].square().mean()  # type: ignore[no-any-return]

    phases = [trainer.step(inputs, None, first).phase for _ in range(4)]
    while trainer.phase == "gp":
        trainer.step(inputs, None, both)  # the new output is left out until a BP batch
    with pytest.warns(adagp.errors.AdagpWarning) as caught:
        trainer.step(inputs, None, both)
    assert str(caught[0].message) == (
        "the loss depends on output number 2 of the model now, but did not before: feedback starts to learn "
        "again. A longer warm-up avoids predictions from few batches."
    )
    assert "gp" in phases
    for _ in range(4):
        trainer.step(inputs, None, both)


def test_a_gradient_penalty_on_another_call_is_trained_but_not_learned_from() -> None:
    """As in Wasserstein GANs: the call at interpolated samples reaches the loss by its gradients only."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(5, 8), nn.Softplus(), nn.Linear(8, 1))
    trainer = adagp.attach(critic, torch.optim.SGD(critic.parameters(), lr=0.01), "feedback", steps=6, schedule="1:1")
    phases = []
    for _ in range(6):
        with trainer.batch() as batch:
            inputs = torch.randn(6, 5).requires_grad_()
            (slope,) = torch.autograd.grad(critic(inputs).sum(), inputs, create_graph=True)
            batch.backward(critic(torch.randn(6, 5)).mean() + (slope.norm(dim=1) - 1).square().mean())
            batch.step()
        phases.append(batch.phase)
    assert {"bp", "gp"} <= set(phases)


def test_a_sample_without_a_batch_axis_is_named() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(0), nn.Linear(64, 3))
    trainer = adagp.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "feedback", steps=6, schedule="1:1")
    with pytest.raises(ModelError) as caught:
        trainer.step(torch.randn(2, 6, 6), torch.tensor(1), F.cross_entropy)
    assert str(caught.value) == (
        "site '3' was called with a single sample, without an axis that counts samples (its output has the sizes (3,)): "
        "feedback needs that axis. Give the model a batch of one: inputs[None]."
    )


def wide_maps() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 4, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


def test_memory_above_the_limit_is_warned_of_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adagp.papers.feedback.pooling.SMALL_MEMORY", 1)
    model = wide_maps()
    trainer = attached(model, FeedbackSource(memory_limit=6.0))
    first, *rest = batches(5)
    with pytest.warns(adagp.errors.AdagpWarning) as caught:
        trainer.step(*first, F.cross_entropy)
    # Weights: 36 + 144 + 192. Of 4 x 8 x 8, 4 x 4 x 4 and 3 outputs: 8 x (256 + 64 + 3); of the inputs 4 x (64 + 256 + 64):
    # 4,492 / 372 = 12.1. With 4 x 4 positions: 8 x (64 + 64 + 3) + 4 x (16 + 64 + 64), and 1,996 / 372 = 5.4.
    assert str(caught[0].message) == (
        "feedback would keep 0 MB for 3 features of the error, 12.1 times as much as the weights. It averages maps to at most "
        "4 positions per axis, and keeps 0 MB, 5.4 times as much. Fewer features leave more positions "
        "(features=16); memory_limit=12 allows more memory than 6 times the weights."
    )
    for batch in rest:
        trainer.step(*batch, F.cross_entropy)
    state = trainer.state_dict()["sources"]["feedback"]
    kept = [fit[name].numel() for fit in state["fits"].values() for name in ("patterns", "mean_patterns")]
    kept += [means[name].numel() for means in state["references"].values() for name in ("truth", "inputs")]
    assert sum(kept) <= 6 * 372


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_maps_that_are_constant_in_blocks_lose_nothing(monkeypatch: pytest.MonkeyPatch, last: bool) -> None:
    """Inputs and output gradients that are the same at all positions of a block are predicted as without a limit."""
    found = []
    for limit in (100.0, 6.0):
        monkeypatch.setattr("adagp.papers.feedback.pooling.SMALL_MEMORY", 1)
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(1, 4, 1), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(16, 3))
        model = layers.to(memory_format=torch.channels_last) if last else layers  # type: ignore[call-overload]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", adagp.errors.AdagpWarning)
            source = FeedbackSource(memory_limit=limit)
            trainer = attached(model, source)
            for images, targets in batches(5)[:4]:
                trainer.step(F.interpolate(images[..., :2, :2], scale_factor=4.0), targets, F.cross_entropy)
        images, targets = batches(5)[4]
        found.append(predicted(trainer, F.interpolate(images[..., :2, :2], scale_factor=4.0), targets))
        assert source._fits[0].side == (2 if limit < 100 else 0)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-6)


def test_a_state_of_averaged_maps_goes_on_and_an_older_one_keeps_whole_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adagp.papers.feedback.pooling.SMALL_MEMORY", 1)
    *seen, now = batches(5)
    whole, limited = (attached(wide_maps(), FeedbackSource(memory_limit=limit)) for limit in (100.0, 4.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", adagp.errors.AdagpWarning)
        for batch in seen:
            whole.step(*batch, F.cross_entropy)
            limited.step(*batch, F.cross_entropy)
    older = whole.state_dict()
    for fit in older["sources"]["feedback"]["fits"].values():
        del fit["side"]
    for trained, state in ((whole, older), (limited, limited.state_dict())):
        again = attached(wide_maps(), FeedbackSource(memory_limit=4.0))
        again.load_state_dict(state)
        assert all(torch.equal(*pair) for pair in zip(predicted(again, *now), predicted(trained, *now), strict=True))


def test_the_limit_must_not_be_negative() -> None:
    with pytest.raises(OptionError) as caught:
        FeedbackSource(memory_limit=-1)
    assert str(caught.value) == "feedback's memory_limit is -1; it must be 0 or more."
