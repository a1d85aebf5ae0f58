"""The mathematics of feedback against ordinary least squares, predictions that are really made, and autograd."""

import gc
import weakref
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transposed import Conv1D
from torch import Tensor, nn

from adagp.layers.sites import Site, survey
from adagp.papers.feedback.error_features import rows_for
from adagp.papers.feedback.regression import (
    BLOCK_ROWS,
    LONG_THREADS,
    ROWS_PER_FEATURE,
    BiasCorrection,
    FeatureRows,
    GlobalRows,
    Moments,
    RunningRegression,
    SiteRegression,
    as_rows,
    correction_states,
    from_rows,
    im2col_weight_gradient,
    is_channels_last,
    suits_im2col,
    upgraded_regression_state,
    usable_correction,
    weight_of_past,
    weighted_sums,
)
from adagp.sources.local import weight_gradient

# Regression, in double precision.

CPU = torch.device("cpu")
Drawn = tuple[Tensor, Tensor]


def drawn(rows: int, seed: int) -> Drawn:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator), torch.randn(rows, 7, generator=generator)


def centred(rows: Tensor) -> Tensor:
    """Return the features that are fitted, one by one: each row's difference from the mean, and the mean."""
    mean = rows.mean(0, keepdim=True)
    return torch.cat([rows - mean, mean.expand_as(rows)], dim=1)


def fresh(ridge: float = 1e-3) -> RunningRegression:
    return RunningRegression(Moments.zero(4, ridge, CPU), 7)


def taught(fit: RunningRegression, batches: list[Drawn], decay: float) -> RunningRegression:
    for features, outputs in batches:
        fit.add(FeatureRows(features), outputs)
        fit.commit(decay)
    return fit


def test_without_forgetting_it_is_ridge_regression_on_all_rows() -> None:
    batches = [drawn(6, seed) for seed in range(5)]
    fit = taught(fresh(1e-2), batches, decay=1.0)
    features = torch.cat([centred(one) for one, _ in batches]).double()
    outputs = torch.cat([one for _, one in batches]).double()
    ridge = 1e-2 * features.square().sum(0).mean()  # rows that ask for zero, as many as there are features
    padded = torch.cat([features, ridge.sqrt() * torch.eye(8)])
    solution = torch.linalg.lstsq(padded, torch.cat([outputs, torch.zeros(8, 7).double()])).solution
    new = drawn(3, 99)[0]
    torch.testing.assert_close(fit.predict(FeatureRows(new)), (centred(new).double() @ solution).float())


def test_the_past_is_forgotten_batch_by_batch() -> None:
    fit = fresh()
    batches = [drawn(6, seed) for seed in range(3)]
    for features, outputs in batches:
        fit.add(FeatureRows(features[:2]), 4 * outputs[:2], 0.25)
        fit.add(FeatureRows(features[2:]), outputs[2:])  # micro-batches of one batch, each with a mean of its own
        fit.commit(0.5)
    second, cross = torch.zeros(8, 8), torch.zeros(8, 7)
    for weight, (features, outputs) in zip([0.25, 0.5, 1.0], batches, strict=True):
        apart = torch.cat([centred(features[:2]), centred(features[2:])])
        second += weight * apart.T @ apart
        cross += weight * apart.T @ outputs
    torch.testing.assert_close(torch.block_diag(*fit.moments.second), second)
    torch.testing.assert_close(torch.cat([fit.patterns, fit.mean_patterns]), cross)


@pytest.mark.parametrize(("rows", "weight"), [(1, 0.9), (130, 0.9), (260, 0.81), (1300, 0.9**10)])
def test_a_large_batch_forgets_as_much_as_several_small_ones(rows: int, weight: float) -> None:
    assert weight_of_past(0.9, rows, features=10) == pytest.approx(weight)
    assert weight_of_past(1.0, rows, features=10) == 1.0
    assert weight_of_past(0.0, rows, features=10) == 0.0


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_fit_counts_the_rows_of_all_its_calls_and_processes(in_parts: bool) -> None:
    size = 4 * ROWS_PER_FEATURE * 3  # three times what counts as one batch, for four features
    fit = taught(fresh(), [drawn(6, 0)], decay=0.9)
    before = fit.moments.second.clone()
    features, outputs = drawn(size, 1)
    if in_parts:  # this process has the first rows; their features become those of all processes
        rows = FeatureRows(features[:5])
        fit.add(rows, outputs[:5])
        fit.sums.rows = [GlobalRows(rows.exact_mean, size, rows.second[0])]
    else:
        for part in (slice(10), slice(10, size)):
            fit.add(FeatureRows(features[part]), outputs[part])
    new = sum(rows.second for rows in fit.sums.rows)
    fit.commit(0.9)
    torch.testing.assert_close(fit.moments.second, 0.9**3 * before + new)


def test_dropped_rows_do_not_count_and_without_data_it_predicts_zero() -> None:
    fit = fresh()
    features, outputs = drawn(6, 0)
    fit.add(FeatureRows(features), outputs)
    fit.drop()
    fit.commit(0.9)
    assert torch.equal(fit.predict(FeatureRows(features)), torch.zeros(6, 7))


def test_linearly_dependent_features_are_fitted() -> None:
    """The errors of a softmax add up to 0."""
    features = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    features -= features.mean(1, keepdim=True)
    truth = features @ torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
    fit = taught(fresh(1e-6), [(features, truth)], decay=0.9)
    assert (fit.predict(FeatureRows(features)) - truth).norm() < 1e-3 * truth.norm()


def test_fits_that_saw_the_same_batches_share_their_moments_and_others_do_not() -> None:
    none = Moments.zero(4, 1e-3, CPU)
    first, second, late = (RunningRegression(none, outputs) for outputs in (7, 5, 7))
    for seed in range(3):
        features, outputs = drawn(6, seed)
        rows = FeatureRows(features)
        fits = [(first, outputs), (second, outputs[:, :5])] + ([(late, outputs)] if seed == 1 else [])
        for fit, part in fits:
            fit.add(rows, part)
        for fit, _ in fits:
            fit.commit(0.9)
        assert first.moments is second.moments
    assert late.moments is not first.moments
    alone = taught(fresh(), [drawn(6, 1)], decay=0.9)
    assert torch.equal(late.moments.second, alone.moments.second)


@pytest.mark.medium
def test_a_fit_that_lags_behind_keeps_no_later_moments() -> None:
    none = Moments.zero(4, 1e-3, CPU)
    late, fit = RunningRegression(none, 7), RunningRegression(none, 7)
    taught(fit, [drawn(6, 0)], decay=0.9)
    passed = weakref.ref(fit.moments)
    taught(fit, [drawn(6, 1)], decay=0.9)
    gc.collect()
    assert passed() is None
    assert late.moments is none


def test_regression_state_round_trip() -> None:
    fit = taught(fresh(), [drawn(6, 0)], decay=0.9)
    state = fit.state_dict()
    again = RunningRegression.from_state(state, Moments(state["second"], 1e-3))
    rows = FeatureRows(drawn(2, 5)[0])
    assert torch.equal(again.predict(rows), fit.predict(rows))
    assert again.outputs == 7
    with pytest.raises(RuntimeError):
        again.predict(FeatureRows(torch.zeros(2, 9)))


def test_regression_states_of_older_checkpoints_still_load() -> None:
    """They have one system of equations for mean and deviations."""
    fit = taught(fresh(), [drawn(6, 0)], decay=0.9)
    features = centred(drawn(6, 0)[0])
    old = {"second": features.T @ features, "cross": features.T @ drawn(6, 0)[1], "channels_last": True}
    found = upgraded_regression_state(old)
    assert found["channels_last"]
    assert upgraded_regression_state(fit.state_dict()).keys() == fit.state_dict().keys()
    for name, tensor in fit.state_dict().items():
        torch.testing.assert_close(found[name], tensor)


@pytest.mark.parametrize("size", [6, 200])
def test_parts_of_a_batch_sum_to_the_whole(size: int) -> None:
    """Two processes with a share each, and the features of both."""
    batches = [drawn(size, seed) for seed in range(3)]
    alone, shares = taught(fresh(), batches, decay=0.9), [fresh(), fresh()]
    for features, outputs in batches:
        for fit, part in zip(shares, (slice(2), slice(2, size)), strict=True):
            fit.add(FeatureRows(features[part], whole=features), outputs[part])
        for one, other in zip(*(fit.sums.tensors() for fit in shares), strict=True):
            one += other
            other.copy_(one)
        for fit in shares:
            fit.commit(0.9)
    new = drawn(5, 99)[0]
    predicted = [
        fit.predict(FeatureRows(new[part], whole=new))
        for fit, part in zip(shares, (slice(3), slice(3, 5)), strict=True)
    ]
    torch.testing.assert_close(torch.cat(predicted), alone.predict(FeatureRows(new)))


# A site's weight gradient: mixed samples against the weight gradient of every predicted sample.

DECAY = 0.9


def fresh_site(site: Site, features: int, gradient: Tensor, ridge: float = 1e-3) -> SiteRegression:
    return SiteRegression.fresh(site, Moments.zero(features, ridge, gradient.device), gradient)


@settings(max_examples=60)
@given(
    layer=st.sampled_from(
        [
            nn.Conv2d(4, 6, 3, padding=1),
            nn.Conv2d(4, 6, 3, stride=2, dilation=2, groups=2),
            nn.Conv2d(4, 6, 3, stride=2, padding=(1, 2), dilation=(2, 1)),
            nn.Conv2d(4, 5, (3, 5), padding="same"),
            nn.Conv2d(4, 2, 1),
            nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"),
            nn.Conv1d(4, 3, 3),
            nn.Linear(4, 5),
            nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
            nn.ConvTranspose1d(4, 3, 2, dilation=2),
            Conv1D(5, 4),
        ]
    ),
    samples=st.integers(1, 12),
    features=st.integers(1, 5),
    last=st.booleans(),
)
def test_equals_the_weight_gradient_of_every_predicted_sample(
    layer: nn.Module, samples: int, features: int, last: bool
) -> None:
    generator = torch.Generator().manual_seed(samples + 100 * features)
    spatial = (7, 6)[: len(getattr(layer, "kernel_size", ()))]
    inputs = torch.randn(samples, 4, *spatial, generator=generator)
    if last and spatial:
        inputs = inputs.movedim(1, -1).contiguous().movedim(-1, 1)
    (site,) = survey(layer).sites
    output = layer(inputs).detach()
    error = torch.randn(samples, features, generator=generator)
    truth = torch.randn(output.shape, generator=generator)
    fit = fresh_site(site, features, truth)
    rows = FeatureRows(rows_for(site, output.shape, error))
    fit.learn(rows, 8 * truth, scale=8)
    fit.regression.commit(DECAY)
    guess = fit.regression.predict(rows)
    plain = weight_gradient(site, inputs, from_rows(site, guess, output.shape, fit.channels_last))
    torch.testing.assert_close(fit.weight_gradient(inputs, rows, output.shape), plain, rtol=1e-3, atol=1e-4)


def test_features_are_split_into_mean_and_deviations() -> None:
    rows = FeatureRows(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    assert torch.equal(rows.deviations, torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))
    assert torch.equal(rows.mean, torch.tensor([[2.0, 1.0]]))


def test_behind_a_batch_norm_the_prediction_has_no_part_of_the_mean_error() -> None:
    """Output gradients there add up to nothing over a batch, whatever the mean error is."""
    generator = torch.Generator().manual_seed(0)
    (site,) = survey(nn.Linear(3, 4)).sites
    fit = fresh_site(site, 2, torch.zeros(16, 4), ridge=1e-4)
    slopes = torch.randn(2, 4, generator=generator)
    for _ in range(50):
        error = torch.randn(16, 2, generator=generator) + torch.randn(1, 2, generator=generator)
        fit.learn(FeatureRows(error), (error - error.mean(0)) @ slopes, scale=1)
        fit.regression.commit(0.99)
    inputs, error = torch.randn(16, 3, generator=generator) + 5, torch.randn(16, 2, generator=generator) + 1
    truth = ((error - error.mean(0)) @ slopes).T @ inputs
    found = fit.weight_gradient(inputs, FeatureRows(error), torch.Size((16, 4)))
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-2)


def test_channels_last_memory_is_used_without_copies_and_saved() -> None:
    (site,) = survey(nn.Conv2d(2, 3, 3)).sites
    plain = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5)
    last = plain.contiguous(memory_format=torch.channels_last)
    assert (is_channels_last(plain), is_channels_last(last)) == (False, True)
    assert as_rows(site, last, channels_last=True).data_ptr() == last.data_ptr(), "not copied"
    assert torch.equal(from_rows(site, as_rows(site, plain, True), plain.shape, True), plain)
    error = FeatureRows(torch.tensor([[1.0, 0.5], [0.2, 2.0]]))
    fits = [fresh_site(site, 2, one) for one in (plain, last)]
    inputs = torch.randn(2, 2, 6, 7)
    for fit in fits:
        fit.learn(error, plain, scale=1)  # also in the other order
        fit.regression.commit(DECAY)
    again = SiteRegression.from_state(site, fits[1].state_dict(), fits[1].regression.moments)
    expected = fits[0].weight_gradient(inputs, error, plain.shape)
    torch.testing.assert_close(fits[1].weight_gradient(inputs, error, plain.shape), expected)
    assert torch.equal(
        again.weight_gradient(inputs, error, plain.shape), fits[1].weight_gradient(inputs, error, plain.shape)
    )


def test_a_large_batch_is_mixed_down_to_features_plus_one_samples() -> None:
    layer = nn.Conv2d(1, 2, 3)
    (site,) = survey(layer).sites
    truth = torch.randn(20, 2, 4, 4)
    fit = fresh_site(site, 3, truth)
    rows = FeatureRows(torch.randn(20, 3))
    with torch.profiler.profile(record_shapes=True) as profile:
        fit.weight_gradient(torch.randn(20, 1, 6, 6), rows, truth.shape)
    gradients = [event for event in profile.events() or [] if event.name == "aten::convolution_backward"]
    assert [event.input_shapes[0][0] for event in gradients] == [4]


# Bias correction, against predictions for each batch on its own.

SAMPLES, FEATURES = 20, 3


def drawn_calls(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, errors and output gradients of a convolution."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((SAMPLES, 2, 6, 6), (SAMPLES, FEATURES), (SAMPLES, 4, 4, 4))
    inputs, errors, gradients = (torch.randn(shape, generator=generator) for shape in shapes)
    return inputs + 1, errors + torch.randn(1, FEATURES, generator=generator), gradients


def taught_site() -> SiteRegression:
    (site,) = survey(nn.Conv2d(2, 4, 3)).sites
    fit = SiteRegression.fresh(site, Moments.zero(FEATURES, 1e-2, torch.device("cpu")), drawn_calls(0)[2])
    for seed in range(4):
        _, errors, gradients = drawn_calls(seed)
        fit.learn(FeatureRows(errors), gradients, scale=1)
        fit.regression.commit(0.9)
    return fit


def noted(fit: SiteRegression, correction: BiasCorrection, seed: int, weight: float) -> Tensor:
    """Show a batch to a correction; return what the fit predicts for it."""
    inputs, errors, gradients = drawn_calls(seed)
    rows = FeatureRows(errors)
    correction.sums.add(rows, as_rows(fit.site, inputs, False))
    correction.commit(correction.mean_with(torch.full_like(fit.site.weight, float(seed)), weight), weight)
    return fit.weight_gradient(inputs, rows, gradients.shape)


def test_the_prediction_for_the_last_batch_is_subtracted_without_computing_it() -> None:
    fit, correction = taught_site(), BiasCorrection()
    inputs, errors, gradients = drawn_calls(9)
    rows = FeatureRows(errors)
    plain = fit.weight_gradient(inputs, rows, gradients.shape)
    assert usable_correction({fit.site.index: correction}, fit.site) is usable_correction({}, fit.site) is None, (
        "it knows no batch yet"
    )
    before = noted(fit, correction, 5, 0.3)
    assert usable_correction({fit.site.index: correction}, fit.site) is correction
    torch.testing.assert_close(
        fit.weight_gradient(inputs, rows, gradients.shape, correction), plain - before, rtol=1e-3, atol=1e-4
    )


def test_means_move_towards_each_batch() -> None:
    fit, correction = taught_site(), BiasCorrection()
    noted(fit, correction, 5, 0.3)
    first = correction.state_dict()
    noted(fit, correction, 6, 0.25)
    alone = BiasCorrection()
    noted(fit, alone, 6, 1.0)
    for name, now in correction.state_dict().items():
        torch.testing.assert_close(now, first[name].lerp(alone.state_dict()[name], 0.25))
    assert correction.gradient is not None
    assert correction.gradient.unique().tolist() == [5.25]


def test_a_dropped_batch_does_not_change_the_correction() -> None:
    fit, correction = taught_site(), BiasCorrection()
    inputs, errors, _ = drawn_calls(5)
    correction.sums.add(FeatureRows(errors), as_rows(fit.site, inputs, False))
    correction.drop()
    correction.commit(torch.ones_like(fit.site.weight), 0.3)
    assert correction.gradient is None


def test_predictions_for_many_batches_are_subtracted_up_to_the_mean_part() -> None:
    """The common part of all rows is a product of two means; without it the result is exact."""
    fit, correction = taught_site(), BiasCorrection()
    fit.regression.mean_patterns.zero_()
    usual = noted(fit, correction, 5, 0.3)
    for seed in (6, 7, 8):
        usual = usual.lerp(noted(fit, correction, seed, 0.3), 0.3)
    inputs, errors, gradients = drawn_calls(9)
    rows = FeatureRows(errors)
    plain = fit.weight_gradient(inputs, rows, gradients.shape)
    found = fit.weight_gradient(inputs, rows, gradients.shape, correction)
    torch.testing.assert_close(found, plain - usual, rtol=1e-3, atol=1e-4)


def test_parts_of_a_batch_subtract_their_fraction() -> None:
    fit, correction = taught_site(), BiasCorrection()
    noted(fit, correction, 5, 0.3)
    inputs, errors, gradients = drawn_calls(9)
    whole = fit.weight_gradient(inputs, FeatureRows(errors), gradients.shape, correction)
    parts = [
        fit.weight_gradient(inputs[part], FeatureRows(errors[part], whole=errors), gradients[part].shape, correction)
        for part in (slice(5), slice(5, SAMPLES))
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("older", [False, True])
def test_states(older: bool) -> None:
    fit, correction = taught_site(), BiasCorrection()
    noted(fit, correction, 5, 0.3)
    truth = correction.gradient
    assert truth is not None
    state = {"lacks": {7: truth}} if older else {"references": {7: correction.state_dict()}}
    again = BiasCorrection.from_state(correction_states(state)[7])
    for one in (correction, again):
        noted(fit, one, 6, 0.25)
    assert torch.equal(again.gradient, correction.gradient)  # type: ignore[arg-type]
    alone = BiasCorrection()
    noted(fit, alone, 6, 1.0)
    assert correction.inputs is not None
    assert alone.inputs is not None
    expected = 0.25 * alone.inputs if older else correction.inputs
    torch.testing.assert_close(again.inputs, expected)


def test_a_correction_state_without_its_true_gradient_is_left_out() -> None:
    fit, correction = taught_site(), BiasCorrection()
    noted(fit, correction, 5, 0.3)
    state = correction.state_dict()
    del state["truth"]
    assert correction_states({"references": {7: state}}) == {}


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("rows", [1, BLOCK_ROWS, BLOCK_ROWS + 1, 5 * BLOCK_ROWS - 3])
@pytest.mark.medium
def test_weighted_sums_equal_one_product(rows: int) -> None:
    for length, step, into_out in product((5, LONG_THREADS, LONG_THREADS + 1), (1, 3), (False, True)):
        case = f"length {length}, step {step}, out {into_out}"
        generator = torch.Generator().manual_seed(0)
        many = torch.randn(rows * step, length, generator=generator)[::step]
        weights = torch.randn(11, rows, generator=generator)
        out = torch.full((12, length), torch.nan)[:11] if into_out else None
        found = weighted_sums(weights, many, out)
        wanted = (weights.double() @ many.double()).float()
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4), case
        assert out is None or found.data_ptr() == out.data_ptr(), case


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 5, 3, padding=1),
        nn.Conv2d(3, 5, (3, 2), stride=(1, 2), padding=(2, 0), dilation=(2, 1)),
        nn.Conv2d(3, 5, 1, stride=2),
        nn.Conv2d(3, 5, 3, padding="same"),
        nn.Conv2d(3, 5, 3, padding=1, padding_mode="reflect"),
    ],
)
def test_im2col_equals_autograd(layer: nn.Conv2d) -> None:
    (site,) = survey(layer).sites
    inputs = torch.randn(4, 3, 7, 8).contiguous(memory_format=torch.channels_last)
    output = layer(inputs)
    gradient = torch.randn_like(output)
    (expected,) = torch.autograd.grad(output, layer.weight, gradient)
    assert suits_im2col(site, inputs, output.shape)
    torch.testing.assert_close(im2col_weight_gradient(site, inputs, gradient), expected, rtol=1e-4, atol=1e-4)


def test_im2col_is_not_used_for_other_layers_and_large_maps() -> None:
    for layer, inputs in (
        (nn.Conv2d(2, 4, 3, groups=2), torch.randn(1, 2, 5, 5)),
        (nn.ConvTranspose2d(2, 4, 3), torch.randn(1, 2, 5, 5)),
        (nn.Conv1d(2, 4, 3), torch.randn(1, 2, 5)),
        (nn.Conv2d(2, 4, 3), torch.randn(1, 2, 11, 11)),
        (nn.Linear(2, 4), torch.randn(3, 2)),
    ):
        (site,) = survey(layer).sites
        assert not suits_im2col(site, inputs, layer(inputs).shape)
