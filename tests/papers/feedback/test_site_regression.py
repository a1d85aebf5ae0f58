"""Mixed samples against the plain way: predict every sample's output gradient, then take the weight gradient of all."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.transposed import Conv1D
from torch import Tensor, nn

from adagp.layers.sites import Site, survey
from adagp.papers.feedback.error_features import rows_for
from adagp.papers.feedback.regression import FeatureRows, Moments
from adagp.papers.feedback.site_regression import SiteRegression, as_rows, from_rows, lies_channels_last
from adagp.sources.support.local import weight_gradient

DECAY = 0.9


def fresh(site: Site, features: int, gradient: Tensor, ridge: float = 1e-3) -> SiteRegression:
    return SiteRegression.fresh(site, Moments.none(features, ridge, gradient.device), gradient)


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
    fit = fresh(site, features, truth)
    rows = FeatureRows(rows_for(site, output.shape, error))
    fit.learn(rows, 8 * truth, scale=8)
    fit.regression.commit(DECAY)
    guess = fit.regression.predict(rows)
    plain = weight_gradient(site, inputs, from_rows(site, guess, output.shape, fit.channels_last))
    torch.testing.assert_close(fit.weight_gradient(inputs, rows, output.shape), plain, rtol=1e-3, atol=1e-4)


def test_the_mean_is_told_apart_from_the_differences() -> None:
    rows = FeatureRows(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    assert torch.equal(rows.differences, torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))
    assert torch.equal(rows.mean, torch.tensor([[2.0, 1.0]]))


def test_behind_a_batch_norm_the_prediction_has_no_part_of_the_mean_error() -> None:
    """Output gradients there add up to nothing over a batch, whatever the mean error is."""
    generator = torch.Generator().manual_seed(0)
    (site,) = survey(nn.Linear(3, 4)).sites
    fit = fresh(site, 2, torch.zeros(16, 4), ridge=1e-4)
    slopes = torch.randn(2, 4, generator=generator)
    for _ in range(50):
        error = torch.randn(16, 2, generator=generator) + torch.randn(1, 2, generator=generator)
        fit.learn(FeatureRows(error), (error - error.mean(0)) @ slopes, scale=1)
        fit.regression.commit(0.99)
    inputs, error = torch.randn(16, 3, generator=generator) + 5, torch.randn(16, 2, generator=generator) + 1
    truth = ((error - error.mean(0)) @ slopes).T @ inputs
    found = fit.weight_gradient(inputs, FeatureRows(error), torch.Size((16, 4)))
    torch.testing.assert_close(found, truth, rtol=1e-3, atol=1e-2)


def test_the_order_in_memory_is_noticed_kept_and_saved() -> None:
    (site,) = survey(nn.Conv2d(2, 3, 3)).sites
    plain = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5)
    last = plain.contiguous(memory_format=torch.channels_last)
    assert (lies_channels_last(plain), lies_channels_last(last)) == (False, True)
    assert as_rows(site, last, channels_last=True).data_ptr() == last.data_ptr(), "not copied"
    assert torch.equal(from_rows(site, as_rows(site, plain, True), plain.shape, True), plain)
    error = FeatureRows(torch.tensor([[1.0, 0.5], [0.2, 2.0]]))
    fits = [fresh(site, 2, one) for one in (plain, last)]
    inputs = torch.randn(2, 2, 6, 7)
    for fit in fits:
        fit.learn(error, plain, scale=1)  # also in the other order
        fit.regression.commit(DECAY)
    again = SiteRegression.restored(site, fits[1].state_dict(), fits[1].regression.moments)
    expected = fits[0].weight_gradient(inputs, error, plain.shape)
    torch.testing.assert_close(fits[1].weight_gradient(inputs, error, plain.shape), expected)
    assert torch.equal(
        again.weight_gradient(inputs, error, plain.shape), fits[1].weight_gradient(inputs, error, plain.shape)
    )


def test_a_large_batch_is_mixed_down_to_one_sample_a_feature_and_one_for_the_mean() -> None:
    layer = nn.Conv2d(1, 2, 3)
    (site,) = survey(layer).sites
    truth = torch.randn(20, 2, 4, 4)
    fit = fresh(site, 3, truth)
    rows = FeatureRows(torch.randn(20, 3))
    with torch.profiler.profile(record_shapes=True) as profile:
        fit.weight_gradient(torch.randn(20, 1, 6, 6), rows, truth.shape)
    gradients = [event for event in profile.events() or [] if event.name == "aten::convolution_backward"]
    assert [event.input_shapes[0][0] for event in gradients] == [4]
