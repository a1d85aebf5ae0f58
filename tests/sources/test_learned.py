"""What both learning sources do alike: learn, scale, average, save themselves."""

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, ReduceLROnPlateau

from adagp.errors import DataError, OptionError
from adagp.layers.sites import Site, survey
from adagp.layers.summaries import pool_average, pool_maximum
from adagp.layers.weights import gradient_norms
from adagp.papers.adagp.source import PredictedSource
from adagp.papers.remap.source import RemappedSource
from adagp.sources import LearnedSource, LearningOptions, RunningNorms
from adagp.sources.learned import class_count, class_shares, plain_state

Make = Callable[..., LearnedSource]
Bind = Callable[[LearnedSource], LearnedSource]
Watch = Callable[..., list[Tensor]]
Sites = tuple[Site, ...]


@pytest.fixture(params=["predicted", "remapped"])
def make(request: pytest.FixtureRequest) -> Make:
    """Return a function that makes a small source with options."""

    def source(**options: Any) -> LearnedSource:
        settings = LearningOptions(**{"learning_rate": 1e-2, "grid": 2, "seed": 7, **options})
        if request.param == "predicted":
            return PredictedSource(settings, channels=3)
        return RemappedSource(settings, outputs=20, channels=3)

    return source


def truths(sites: Sequence[Site], seed: int, scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(site.weight.shape, generator=generator).to(site.weight.dtype) for site in sites]


def observe(source: LearnedSource, sites: Sequence[Site], gradients: Sequence[Tensor]) -> None:
    """Do as the engine does: the running norms take the gradients in, then the source."""
    source._norms.update(sites, gradient_norms(gradients))
    source.observe(sites, gradients)


class SlowAdam:
    """Adam, written from its formulas."""

    def __init__(self, parameters: Sequence[nn.Parameter], rate: float) -> None:
        self.parameters, self.rate, self.steps = parameters, rate, 0
        self.means = [torch.zeros_like(one) for one in parameters]
        self.squares = [torch.zeros_like(one) for one in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        self.steps += 1
        for one, gradient, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            mean.mul_(0.9).add_(0.1 * gradient)
            square.mul_(0.999).add_(0.001 * gradient**2)
            corrected = square / (1 - 0.999**self.steps)
            one.sub_(self.rate * mean / (1 - 0.9**self.steps) / (corrected.sqrt() + 1e-8))


def sum_of_errors(source: LearnedSource, sites: Sites, network: nn.Module, aims: Sequence[Tensor]) -> Tensor:
    """Return the sum over sites of the mean squared error of `network`, its numbers one by one."""
    own, source.network = source.network, network
    predictions = source.predict(sites, source.shared(sites))
    source.network = own
    loss = torch.zeros(())
    for prediction, aim in zip(predictions, aims, strict=True):
        errors = [(one - other) ** 2 for one, other in zip(prediction.flatten(), aim.flatten(), strict=True)]
        loss = loss + sum(errors) / len(errors)
    return loss


@pytest.mark.parametrize("normalize", [False, True])
def test_observe_is_a_step_of_adam_on_the_sum_of_mean_squared_errors(
    make: Make, bound: Bind, watch: Watch, sites: Sites, normalize: bool
) -> None:
    source = bound(make(normalize=normalize))
    slow = copy.deepcopy(source.network)
    adam = SlowAdam(list(slow.parameters()), rate=1e-2)
    scales = [0.5 / 54**0.5, 2.0 / 540**0.5] if normalize else [1.0, 1.0]
    for batch in range(2):
        watch(source, sites, seed=batch)
        gradients = truths(sites, seed=100 + batch)
        aims = [gradient / scale for gradient, scale in zip(gradients, scales, strict=True)]
        slow_gradients = torch.autograd.grad(sum_of_errors(source, sites, slow, aims), list(slow.parameters()))
        adam.step(slow_gradients)
        source.observe(sites, gradients)
        source.forget()
    compared = 0
    for (name, parameter), gradient in zip(source.network.named_parameters(), slow_gradients, strict=True):
        if gradient.abs().max() > 1e-5:  # a bias before a batch norm has no gradient but rounding, which Adam blows up
            torch.testing.assert_close(parameter, slow.get_parameter(name), rtol=1e-3, atol=1e-4, msg=name)
            compared += parameter.numel()
    assert compared > 500
    before = bound(make()).network.get_parameter("readout.bias")
    assert (source.network.get_parameter("readout.bias") - before).abs().max() > 1e-2


def test_observing_leaves_the_true_gradients_alone(make: Make, bound: Bind, watch: Watch, sites: Sites) -> None:
    source = bound(make(normalize=True))
    watch(source, sites, seed=0)
    gradients = truths(sites, seed=1)
    before = copy.deepcopy(gradients)
    with torch.no_grad():  # as after a backward pass: the source switches autograd on by itself
        source.observe(sites, gradients)
    assert all(torch.equal(one, other) for one, other in zip(gradients, before, strict=True))


def test_normalize_multiplies_predictions_by_the_scale_of_the_site(
    make: Make, bound: Bind, watch: Watch, sites: Sites
) -> None:
    plain, scaled = bound(make()), bound(make(normalize=True))
    for source in (plain, scaled):
        watch(source, sites, seed=0)
    scales = [0.5 / 54**0.5, 2.0 / 540**0.5]  # running norm over the root of the number of weights
    for one, other, scale in zip(plain.produce(sites), scaled.produce(sites), scales, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(other, one * scale)


@pytest.mark.parametrize("normalize", [False, True])
def test_hold_norm_gives_predictions_the_running_norm(
    make: Make, bound: Bind, watch: Watch, sites: Sites, normalize: bool
) -> None:
    plain, held = bound(make()), bound(make(hold_norm=True, normalize=normalize))
    for source in (plain, held):
        watch(source, sites, seed=0)
    for one, other, norm in zip(plain.produce(sites), held.produce(sites), [0.5, 2.0], strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(other, one * (norm / one.norm()))


@pytest.mark.parametrize(("normalize", "hold_norm"), [(False, False), (True, False), (False, True), (True, True)])
def test_the_norms_of_predictions_are_known(
    make: Make, bound: Bind, watch: Watch, sites: Sites, normalize: bool, hold_norm: bool
) -> None:
    source = bound(make(normalize=normalize, hold_norm=hold_norm))
    watch(source, sites, seed=0)
    for asked in (sites, sites[1:]):
        given = [one for one in source.produce(asked) if one is not None]
        torch.testing.assert_close(source.sizes(given), gradient_norms(given))


def test_what_a_lower_precision_cannot_hold_shows_in_the_norms(
    make: Make, bound: Bind, watch: Watch, sites: Sites
) -> None:
    source = bound(make())
    watch(source, sites, seed=0)
    given = [(1e6 * one).half() for one in source.produce(sites) if one is not None]
    assert not source.sizes(given).isfinite().all()


def test_hold_norm_keeps_a_prediction_of_zero(make: Make, watch: Watch, sites: Sites) -> None:
    source = make(hold_norm=True)
    norms = RunningNorms(sites)
    norms.update(sites, torch.tensor([1.0, 1.0]))
    source.bind(sites, norms)
    watch(source, sites, seed=0)
    assert [one is not None and not one.any() for one in source.produce(sites)] == [True, True]


def test_processes_join_to_the_whole_batch(make: Make, bound: Bind, watch: Watch, sites: Sites) -> None:
    """Each has a share of the samples; the engine adds up what they yield, round by round."""
    sources = [bound(make()) for _ in range(2)]
    calls = [
        watch(source, sites, seed=samples, samples=samples) for source, samples in zip(sources, (2, 6), strict=True)
    ]
    for rounds in zip(*(source.join(sites) for source in sources), strict=True):
        for tensors in zip(*rounds, strict=True):
            total = torch.stack(tensors).sum(0)
            for tensor in tensors:
                tensor.copy_(total)
    pool = pool_average if isinstance(sources[0], PredictedSource) else pool_maximum
    for place, site in enumerate(sites):
        whole = torch.cat([outputs[place] for outputs in calls])
        for source in sources:
            torch.testing.assert_close(source.shared([site])[0], pool(site.rule.samples(site.module, whole), 2))


def test_several_calls_are_those_of_the_whole_batch(make: Make, bound: Bind, watch: Watch, sites: Sites) -> None:
    """Micro-batches, for instance: the mean over all samples is pooled, which for maxima is not a mean of pooled means."""
    source = bound(make())
    calls = [watch(source, sites, seed=samples, samples=samples) for samples in (2, 6, 1)]
    pool = pool_average if isinstance(source, PredictedSource) else pool_maximum
    for place, site in enumerate(sites):
        whole = torch.cat([outputs[place] for outputs in calls])
        torch.testing.assert_close(source.shared([site])[0], pool(site.rule.samples(site.module, whole), 2))


def test_sites_that_were_not_called_get_nothing(make: Make, bound: Bind, watch: Watch, sites: Sites) -> None:
    source = bound(make())
    assert source.produce(sites) == [None, None]
    watch(source, sites[1:], seed=0)
    first, second = source.produce(sites)
    assert first is None
    assert second is not None
    alone = source.produce(sites[1:])[0]
    assert alone is not None
    assert torch.equal(second, alone)


def test_nothing_is_learned_from_sites_that_were_not_called(
    make: Make, bound: Bind, watch: Watch, sites: Sites
) -> None:
    source, other = bound(make()), bound(make())
    source.observe(sites, truths(sites, seed=1))
    assert not source.learner.optimizer.state
    watch(source, sites[1:], seed=0)
    watch(other, sites[1:], seed=0)
    source.observe(sites, truths(sites, seed=1))
    other.observe(sites[1:], truths(sites, seed=1)[1:])
    assert equal_states(source, other)


def test_producing_changes_nothing(make: Make, bound: Bind, watch: Watch, sites: Sites) -> None:
    source, other = bound(make()), bound(make())
    watch(source, sites, seed=0)
    source.produce(sites)
    source.forget()
    assert equal_states(source, other)
    assert source.produce(sites) == [None, None]


def test_binding_leaves_the_global_random_state_alone(make: Make, sites: Sites) -> None:
    before = torch.get_rng_state()
    source, same, other = make(), make(), make(seed=8)
    for one in (source, same, other):
        one.bind(sites, RunningNorms(sites))
    assert torch.equal(torch.get_rng_state(), before)
    first = [next(one.network.parameters()) for one in (source, same, other)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_gradients_have_the_dtype_of_the_weight(make: Make, watch: Watch, dtype: torch.dtype) -> None:
    sites = survey(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(3, 5)).to(dtype)).sites
    source = make(normalize=True, hold_norm=True)
    norms = RunningNorms(sites)
    norms.update(sites, torch.tensor([1.0, 1.0]))
    source.bind(sites, norms)
    watch(source, sites, seed=0)
    source.observe(sites, truths(sites, seed=1))
    assert [(one.dtype, one.shape) for one in source.produce(sites) if one is not None] == [
        (dtype, (3, 2, 3, 3)),
        (dtype, (5, 3)),
    ]


def equal_states(source: LearnedSource, other: LearnedSource) -> bool:
    return flat(source.state_dict()) == flat(other.state_dict())


def flat(state: Any, prefix: str = "") -> dict[str, Any]:
    """Return a state with tensors as their bytes, so that it can be compared bit by bit."""
    if isinstance(state, Tensor):
        return {prefix: (state.shape, state.dtype, state.detach().numpy().tobytes())}
    if isinstance(state, dict | list):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return {name: value for key, one in items for name, value in flat(one, f"{prefix}/{key}").items()}
    return {prefix: state}


@pytest.mark.medium
@pytest.mark.parametrize("options", [{"milestones": (2, 4)}, {"plateau": True}], ids=["multistep", "plateau"])
@pytest.mark.parametrize("stop_at", [0, 1, 8])
def test_a_saved_source_goes_on_bit_by_bit(
    make: Make, sites: Sites, watch: Watch, options: dict[str, Any], stop_at: int
) -> None:
    """Through a file, read without running foreign code; in mid-epoch and at the end of one."""

    def train(source: LearnedSource, batches: range) -> None:
        for batch in batches:
            watch(source, sites, seed=batch % 2)
            observe(source, sites, truths(sites, seed=50 + batch, scale=1 + batch))  # so that the loss rises
            source.forget()
            if batch % 2:
                source.end_epoch()

    whole, first, second = (make(learning_rate=0.1, **options) for _ in range(3))
    for source in (whole, first, second):
        source.bind(sites, RunningNorms(sites))
    train(whole, range(14))
    train(first, range(stop_at))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    train(second, range(stop_at, 14))
    assert equal_states(second, whole)
    assert whole.learner.optimizer.param_groups[0]["lr"] < 0.1


def rate(source: LearnedSource) -> float:
    return float(source.learner.optimizer.param_groups[0]["lr"])


def rates(source: LearnedSource, sites: Sites, watch: Watch, scales: Sequence[float]) -> list[float]:
    """Return the rate after each of some epochs of one batch; the larger its scale, the larger the loss."""
    found = []
    for scale in scales:
        watch(source, sites, seed=0)
        observe(source, sites, truths(sites, seed=1, scale=scale))
        source.forget()
        source.end_epoch()
        found.append(rate(source))
    return found


def test_the_rate_falls_at_milestones_counted_from_the_first_step(
    make: Make, sites: Sites, watch: Watch, bound: Bind
) -> None:
    source = bound(make(learning_rate=1.0, milestones=(2, 3), gamma=0.5))
    source.end_epoch()
    source.end_epoch()
    assert rate(source) == 1.0
    assert rates(source, sites, watch, scales=[1, 1, 1, 1]) == [1.0, 0.5, 0.25, 0.25]


def test_the_rate_is_halved_on_a_plateau_of_epochs_with_bp_batches(
    make: Make, sites: Sites, watch: Watch, bound: Bind
) -> None:
    source = bound(make(learning_rate=0.125, plateau=True))
    assert rates(source, sites, watch, scales=[1, 2, 4, 8]) == [0.125] * 4
    for _ in range(10):
        source.end_epoch()  # no BP batch: nothing is known, nothing counted
    assert rates(source, sites, watch, scales=[16]) == [0.0625]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "the predictor's learning rate is 0.0; it must be above 0."),
        ({"learning_rate": float("nan")}, "the predictor's learning rate is nan; it must be above 0."),
        ({"grid": 0}, "the predictor's grid is 0; it must be 1 or more."),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        LearningOptions(**options)
    assert str(caught.value) == message


def test_states_of_schedulers_are_plain() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedulers = [
        MultiStepLR(optimizer, [1, 1, 2]),
        ReduceLROnPlateau(optimizer),
        CosineAnnealingLR(optimizer, 5),
    ]
    for scheduler in schedulers:
        file = io.BytesIO()
        torch.save(plain_state(scheduler), file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
        assert state == scheduler.state_dict()


def test_one_label_a_sample_is_one_hot() -> None:
    assert class_shares(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_many_labels_a_sample_are_averaged_without_the_missing() -> None:
    shares = class_shares(torch.tensor([[0, 1, 1, -100], [-100, -100, -100, -100]]), 2)
    torch.testing.assert_close(shares, torch.tensor([[1 / 3, 2 / 3], [0, 0]]))


def test_the_classes_are_the_last_sites_rows_unless_given(sites: tuple[Site, ...]) -> None:
    assert class_count(sites, None) == 5
    assert class_count(sites, 7) == 7


@pytest.mark.parametrize(
    ("targets", "given"), [(torch.zeros(3), "torch.float32"), ([1, 2], "list"), (None, "NoneType")]
)
def test_targets_that_are_no_labels(targets: object, given: str) -> None:
    with pytest.raises(DataError) as caught:
        class_shares(targets, 3)
    assert str(caught.value) == (
        f"a source that sees labels needs whole numbers, one or more a sample; the targets are {given}."
    )


def test_labels_beyond_the_classes() -> None:
    with pytest.raises(DataError) as caught:
        class_shares(torch.tensor([0, 9]), 5)
    assert str(caught.value) == (
        "label 9 is not among the 5 classes that the source was made for "
        "(the outputs of the model's last layer, unless label_classes=... says otherwise)."
    )
