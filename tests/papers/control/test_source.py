"""Control against backprop and against the mean over many splits."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.marks import slow
from torch import Tensor, nn

import adagp
from adagp.core.break_even import noise_limited_cost
from adagp.core.plan import Step
from adagp.engine.trainer import Trainer
from adagp.errors import OptionError, UsageError
from adagp.layers.sites import survey
from adagp.papers.control.source import (
    SMALLEST_SHARE,
    UNIFORM_SHARE,
    ControlSource,
    GradientCovariances,
    draw_by_norm,
    inclusion_chances,
    read_predictor,
    rounded_share,
    sample_norms,
)
from adagp.schedules import Ladder, Rung, WarmUp
from adagp.sources.base import RunFacts, RunningNorms, step_generator

CLASSES, SAMPLES = 3, 16


def small_model(norm: Callable[[int], nn.Module] = lambda channels: nn.GroupNorm(1, channels)) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        norm(4),
        nn.Tanh(),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(SAMPLES, 1, 8, 8, generator=generator),
            torch.randint(0, CLASSES, (SAMPLES,), generator=generator),
        )
        for _ in range(count)
    ]


def attached(
    model: nn.Module, lr: float = 0.1, warmup: int = 6, schedule: str | None = None, **options: Any
) -> Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    engine = adagp.EngineOptions(guard=adagp.Guard(1e6), metrics_every=0)
    method, length = adagp.Control(**options), f"{warmup} batches"
    return adagp.attach(model, optimizer, method, steps=1000, schedule=schedule, warmup=length, engine=engine)


def gradients(trainer: Trainer, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    trainer.step(inputs, targets, F.cross_entropy)
    return [parameter.grad.clone() for parameter in trainer.model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda channels: nn.GroupNorm(1, channels)])
def test_a_share_of_one_is_backprop_bit_for_bit(norm: Callable[[int], nn.Module]) -> None:
    ours, plain = small_model(norm), small_model(norm)
    trainer = attached(ours, true_share="1")
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in batches(12):
        result = trainer.step(inputs, targets, F.cross_entropy)
        optimizer.zero_grad()
        output = plain(inputs)
        loss = F.cross_entropy(output, targets)
        loss.backward()
        optimizer.step()
        assert torch.equal(result.loss, loss.detach())
        assert torch.equal(result.output, output)
    assert result.phase == "gp"
    for name, weight in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight), name


@pytest.mark.parametrize(
    ("predictor", "share", "select"),
    [
        ("feedback:correction=0", 0.5, "random"),
        slow("feedback:correction=0", 0.25, "error"),
        slow("dni:predictor_lr=0.01", 0.25, "random"),
        slow("adagp:predictor_lr=0.01", 0.5, "random"),
    ],
)
@pytest.mark.medium
def test_the_mean_over_many_splits_is_the_true_gradient(predictor: str, share: float, select: str) -> None:
    """The weights never move. The noise of the mean falls with the splits; a bias would not."""
    model = small_model()
    source = ControlSource(read_predictor(predictor, RunFacts()), share, coefficient=1.0, select=select)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = adagp.attach(
        model,
        optimizer,
        steps=100_000,
        schedule=WarmUp(Ladder((Rung(1, 0),), "control"), batches=8, batches_per_epoch=100_000),
        sources={"control": source},
        engine=adagp.EngineOptions(guard=adagp.Guard(1e6), metrics_every=0),
    )
    for inputs, targets in batches(8):
        trainer.step(inputs, targets, F.cross_entropy)
    inputs, targets = batches(9)[-1]
    truth = [
        one.clone() for one in torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters()))
    ]
    frozen = source.parts[0][0].state_dict()
    total, squares, splits = [torch.zeros_like(one) for one in truth], [torch.zeros_like(one) for one in truth], 400
    for _ in range(splits):
        source.parts[0][0].load_state_dict(frozen)  # the predictor stays what it is
        for sum_, square, gradient in zip(total, squares, gradients(trainer, inputs, targets), strict=True):
            sum_ += gradient
            square += gradient.square()
    for sum_, square, true in zip(total, squares, truth, strict=True):
        mean = sum_ / splits
        noise = ((square / splits - mean.square()).clamp(min=0).sum() / splits).sqrt()
        assert (mean - true).norm() < 4 * noise, "within the noise of the mean"
        assert noise < 0.2 * true.norm() + 1e-6, "which is small"


def test_selected_samples_count_by_their_weights() -> None:
    """Without predictions, the gradient is that of the weighted loss of the selected samples."""
    model = small_model()
    source = ControlSource(true_share=0.25, coefficient=0.0, select="error", seed=3)
    trainer = adagp.attach(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        steps=100,
        schedule=WarmUp(Ladder((Rung(1, 0),), "control"), batches=2, batches_per_epoch=100),
        sources={"control": source},
        engine=adagp.EngineOptions(metrics_every=0),
    )
    for inputs, targets in batches(2):
        trainer.step(inputs, targets, F.cross_entropy)
    inputs, targets = batches(3)[-1]
    outputs = model(inputs).detach().requires_grad_()
    (error,) = torch.autograd.grad(F.cross_entropy(outputs, targets), outputs)
    drawn, weights = draw_by_norm(sample_norms([error]), 4, step_generator(3, trainer.at))
    losses = F.cross_entropy(model(inputs[drawn]), targets[drawn], reduction="none")
    truth = torch.autograd.grad((losses * weights).mean(), list(model.parameters()))
    result = trainer.step(inputs, targets, F.cross_entropy)
    assert result.loss.item() == pytest.approx(F.cross_entropy(outputs, targets).item()), "that of all samples"
    assert result.output.shape == outputs.shape
    for parameter, true in zip(model.parameters(), truth, strict=True):
        torch.testing.assert_close(parameter.grad, true)


def test_selection_needs_errors_a_share_and_one_forward_pass() -> None:
    message = (
        "^select='error' needs a predictor that sees the errors at the model's output, such as feedback; this one does"
    )
    with pytest.raises(OptionError, match=message):
        attached(small_model(), select="error", predictor="adagp")
    message = "^true_share='auto' is for samples drawn at random; give a number with select='error'.$"
    with pytest.raises(OptionError, match=message):
        attached(small_model(), select="error", true_share="auto")
    trainer = attached(small_model(), select="error", warmup=1)
    (first, second) = batches(2)
    trainer.step(*first, F.cross_entropy)
    message = (
        "^8 samples were selected by their errors, but the model returned 4 rows: run them in one forward pass, without "
        "micro-batches, and let the first axis of what the model returns be the samples.$"
    )
    with pytest.raises(UsageError, match=message), trainer.batch() as batch:
        for inputs, targets in batch.parts(*second):
            half = len(inputs) // 2
            batch.backward(F.cross_entropy(trainer.model(inputs[:half]), targets[:half]) / 2, more=True)
            batch.backward(F.cross_entropy(trainer.model(inputs[half:]), targets[half:]) / 2)


@pytest.mark.medium
def test_predictions_make_the_noise_smaller() -> None:
    """The same splits with and without predictions, after the predictor has learned."""
    noise = {}
    for coefficient in (0.0, None):
        model = small_model()
        trainer = attached(model, lr=0.0, warmup=30, true_share="0.5", coefficient=coefficient)
        for inputs, targets in batches(30):
            trainer.step(inputs, targets, F.cross_entropy)
        inputs, targets = batches(31)[-1]
        truth = torch.autograd.grad(F.cross_entropy(model(inputs), targets), list(model.parameters()))
        errors = [
            sum(
                float((one - true).square().sum())
                for one, true in zip(gradients(trainer, inputs, targets), truth, strict=True)
            )
            for _ in range(40)
        ]
        noise[coefficient] = sum(errors)
    assert noise[None] < 0.8 * noise[0.0]


def test_the_result_has_the_samples_in_their_order() -> None:
    model = small_model()
    trainer = attached(model, lr=0.0, warmup=1)
    (first, *_), (inputs, targets) = batches(1), batches(2)[-1]
    trainer.step(*first, F.cross_entropy)
    expected = model(inputs).detach()
    result = trainer.step(inputs, targets, F.cross_entropy)
    torch.testing.assert_close(result.output, expected)
    torch.testing.assert_close(result.loss, F.cross_entropy(expected, targets))
    assert not result.output.requires_grad


def own_loop(trainer: Trainer, inputs: Tensor, targets: Tensor, clip: float = 1.0) -> None:
    with trainer.batch(targets) as batch:
        for part_inputs, part_targets in batch.parts(inputs, targets):
            halves = list(zip(part_inputs.chunk(2), part_targets.chunk(2), strict=True))
            for number, (half, labels) in enumerate(halves):
                batch.backward(F.cross_entropy(trainer.model(half), labels) / 2, more=number == 0)
        nn.utils.clip_grad_norm_(trainer.model.parameters(), clip)
        batch.step()


def test_own_loops_train_on_the_parts_also_in_micro_batches() -> None:
    ours, other = small_model(), small_model()
    trainers = attached(ours, warmup=3), attached(other, warmup=3)
    for inputs, targets in batches(8):
        own_loop(trainers[0], inputs, targets, clip=1e6)
        trainers[1].step(inputs, targets, F.cross_entropy)
    for one, same in zip(ours.parameters(), other.parameters(), strict=True):
        # The mean of the error is a feature: that of a half is not that of the part.
        torch.testing.assert_close(one, same, rtol=0.05, atol=0.02)


def test_a_loop_that_ignores_the_parts_is_told_so() -> None:
    trainer = attached(small_model(), warmup=1)
    first, (inputs, targets) = batches(2)
    trainer.step(*first, F.cross_entropy)
    message = "^source 'control' trains a part of each batch by backprop and predicts the rest: use trainer.step, or in a loop"
    with pytest.raises(UsageError, match=message), trainer.batch() as batch:
        batch.backward(F.cross_entropy(trainer.model(inputs), targets))
    with (
        pytest.raises(UsageError, match="^the loss of a part of the batch is missing: call backward"),
        trainer.batch() as batch,
    ):
        for _ in batch.parts(inputs, targets):
            pass
    with trainer.batch() as batch:
        for part, labels in batch.parts(inputs, targets):
            F.cross_entropy(trainer.model(part), labels)
            batch.abandon()
            break
    trainer.step(inputs, targets, F.cross_entropy)
    assert all(parameter.requires_grad for parameter in trainer.model.parameters())
    with pytest.raises(UsageError, match="one of them has the shape"), trainer.batch() as batch:
        list(batch.parts(inputs, targets[:3]))


def test_a_rehearsal_finds_nothing_wrong() -> None:
    trainer = attached(small_model())
    inputs, targets = batches(1)[0]
    rehearsal = trainer.rehearse(lambda: trainer.step(inputs, targets, F.cross_entropy))
    assert not rehearsal.moved_wrongly
    assert set(rehearsal.moved) == {name for name, _ in trainer.model.named_parameters()}


@pytest.mark.parametrize("options", [{"true_share": "auto", "price": 0.05}, {"true_share": "0.25"}])
def test_resumes_exactly(options: dict[str, Any]) -> None:
    whole = small_model()
    trainer = attached(whole, **options)
    model, again = small_model(), None
    first = attached(model, **options)
    for number, (inputs, targets) in enumerate(batches(20)):
        trainer.step(inputs, targets, F.cross_entropy)
        if number < 11:
            first.step(inputs, targets, F.cross_entropy)
            continue
        if again is None:
            again = copy.deepcopy(model)
            resumed = attached(again, **options)
            resumed.optimizer.load_state_dict(first.optimizer.state_dict())
            resumed.load_state_dict(copy.deepcopy(first.state_dict()))
        resumed.step(inputs, targets, F.cross_entropy)
    assert again is not None
    for one, same in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, same)


def test_auto_splits_where_predictions_are_good_and_cheap_only() -> None:
    shares = {}
    for price in (0.01, 0.99):
        source = ControlSource(true_share=None, price=price)
        model = small_model()
        trainer = adagp.attach(
            model,
            torch.optim.SGD(model.parameters(), lr=0.01),
            steps=1000,
            schedule=WarmUp(Ladder((Rung(1, 0),), "control"), batches=20, batches_per_epoch=1000),
            sources={"control": source},
        )
        for batch in batches(25):
            trainer.step(*batch, F.cross_entropy)
        shares[price] = source.share()
    assert shares[0.01] < 1
    assert shares[0.99] == 1


def test_covariances_against_those_of_many_samples() -> None:
    """P has half of the variance of T and a covariance of a quarter with it; both have a large mean, which does not count."""
    (site,) = survey(nn.Linear(50, 40)).sites
    covariances = GradientCovariances([site], decay=0.99)
    assert (covariances.factors(), covariances.rho_squared()) == ([0.0], 0.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        common, own, other = (torch.randn(site.weight.shape, generator=generator) for _ in range(3))
        covariances.update({site: 7 + 0.5 * common + 0.5 * other}, {site: 3 + 0.5 * common + 0.75**0.5 * own})
    assert covariances.factors()[0] == pytest.approx(0.5, abs=0.03)
    assert covariances.rho_squared() == pytest.approx(0.125, abs=0.02)


def test_the_draw_is_a_function_of_seed_and_step() -> None:
    def drawn(seed: int, step: Step) -> list[int]:
        source = ControlSource(seed=seed)
        sites = survey(small_model()).sites
        source.bind(sites, RunningNorms(sites))
        split = source.split(step, 10)
        assert split is not None
        assert sorted([*split[0].tolist(), *split[1].tolist()]) == list(range(10))
        return [int(index) for index in split[0]]

    assert drawn(0, Step(0, 3)) == drawn(0, Step(0, 3))
    assert drawn(0, Step(0, 3)) != drawn(0, Step(0, 4))
    assert drawn(0, Step(0, 3)) != drawn(1, Step(0, 3))


def test_what_control_cannot_do() -> None:
    with pytest.raises(
        OptionError, match="^control needs a predictor that learns from BP batches and predicts for others.$"
    ):
        ControlSource(read_predictor("momentum", RunFacts()))
    with pytest.raises(
        OptionError, match="^source 'control' splits whole batches: it cannot be used for only some sites of a batch.$"
    ):
        attached(small_model(), schedule="approx:1")


NORMS = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=40)


@given(NORMS, st.floats(0, 1))
def test_the_chances_add_up_and_none_is_above_one(values: list[float], share: float) -> None:
    norms = torch.tensor(values, dtype=torch.float64)
    count = max(1, round(share * len(values)))
    chances = inclusion_chances(norms, count)
    assert abs(float(chances.sum()) - count) < 1e-6
    assert float(chances.max()) <= 1 + 1e-9
    assert float(chances.min()) >= UNIFORM_SHARE * count / len(values) * (1 - 1e-9), "so weights are bounded"
    order = norms.argsort()
    assert bool((chances[order].diff() >= -1e-9).all()), "larger errors have larger chances"


@given(NORMS, st.floats(0, 1), st.integers(0, 1000))
def test_a_draw_has_as_many_samples_as_asked_for(values: list[float], share: float, seed: int) -> None:
    count = max(1, round(share * len(values)))
    drawn, weights = draw_by_norm(torch.tensor(values), count, torch.Generator().manual_seed(seed))
    assert len(drawn) == len(set(drawn.tolist())) == len(weights) == count
    assert drawn.tolist() == sorted(drawn.tolist())


@pytest.mark.medium
def test_the_mean_over_draws_is_the_mean_over_all() -> None:
    generator = torch.Generator().manual_seed(0)
    norms, values = torch.rand(20, generator=generator) ** 4, torch.randn(20, generator=generator)
    means = []
    for _ in range(4000):
        drawn, weights = draw_by_norm(norms, 5, generator)
        means.append(float((values[drawn] * weights).mean()))
    estimates = torch.tensor(means)
    error = float(estimates.std()) / len(means) ** 0.5
    assert abs(float(estimates.mean() - values.mean())) < 4 * error


def test_norms_are_over_all_outputs_of_a_sample() -> None:
    errors = [torch.tensor([[3.0], [0.0]]), None, torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]])]
    assert sample_norms(errors).tolist() == [5.0, 2.0]


@given(st.floats(0, 1), st.floats(0.01, 0.99))
def test_no_other_share_is_better(rho_squared: float, price: float) -> None:
    shares = [SMALLEST_SHARE * step for step in range(1, 9)]
    share = rounded_share(rho_squared, price)
    assert share in shares
    least = min(noise_limited_cost(rho_squared, price, other) for other in shares)
    assert noise_limited_cost(rho_squared, price, share) <= least + 1e-12


def test_the_share_is_below_1_where_the_correlation_exceeds_the_price() -> None:
    assert rounded_share(0.39, 0.4) == 1
    assert rounded_share(0.8, 0.4) < 1
    assert rounded_share(1.0, 0.4) == SMALLEST_SHARE
