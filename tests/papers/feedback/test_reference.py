"""The reference against predictions that are really made, for each batch on its own."""

import pytest
import torch
from torch import Tensor, nn

from adagp.layers.sites import survey
from adagp.papers.feedback.reference import Reference, known, references_in
from adagp.papers.feedback.regression import FeatureRows, Moments
from adagp.papers.feedback.site_regression import SiteRegression, as_rows

SAMPLES, FEATURES = 20, 3


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, errors and output gradients of a convolution."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((SAMPLES, 2, 6, 6), (SAMPLES, FEATURES), (SAMPLES, 4, 4, 4))
    inputs, errors, gradients = (torch.randn(shape, generator=generator) for shape in shapes)
    return inputs + 1, errors + torch.randn(1, FEATURES, generator=generator), gradients


def taught() -> SiteRegression:
    (site,) = survey(nn.Conv2d(2, 4, 3)).sites
    fit = SiteRegression.fresh(site, Moments.none(FEATURES, 1e-2, torch.device("cpu")), drawn(0)[2])
    for seed in range(4):
        _, errors, gradients = drawn(seed)
        fit.learn(FeatureRows(errors), gradients, scale=1)
        fit.regression.commit(0.9)
    return fit


def noted(fit: SiteRegression, reference: Reference, seed: int, weight: float) -> Tensor:
    """Show a batch to a reference; return what the fit predicts for it."""
    inputs, errors, gradients = drawn(seed)
    rows = FeatureRows(errors)
    reference.sums.add(rows, as_rows(fit.site, inputs, False))
    reference.commit(torch.full_like(fit.site.weight, float(seed)), weight)
    return fit.weight_gradient(inputs, rows, gradients.shape)


def test_the_prediction_for_the_last_batch_is_subtracted_though_it_was_never_made() -> None:
    fit, reference = taught(), Reference()
    inputs, errors, gradients = drawn(9)
    rows = FeatureRows(errors)
    plain = fit.weight_gradient(inputs, rows, gradients.shape)
    assert known({fit.site.index: reference}, fit.site) is known({}, fit.site) is None, "it knows no batch yet"
    before = noted(fit, reference, 5, 0.3)
    assert known({fit.site.index: reference}, fit.site) is reference
    torch.testing.assert_close(
        fit.weight_gradient(inputs, rows, gradients.shape, reference), plain - before, rtol=1e-3, atol=1e-4
    )


def test_means_move_towards_each_batch() -> None:
    fit, reference = taught(), Reference()
    noted(fit, reference, 5, 0.3)
    first = reference.state_dict()
    noted(fit, reference, 6, 0.25)
    alone = Reference()
    noted(fit, alone, 6, 1.0)
    for name, now in reference.state_dict().items():
        torch.testing.assert_close(now, first[name].lerp(alone.state_dict()[name], 0.25))
    assert reference.truth is not None
    assert reference.truth.unique().tolist() == [5.25]


def test_what_was_dropped_or_never_added_does_not_count() -> None:
    fit, reference = taught(), Reference()
    inputs, errors, _ = drawn(5)
    reference.sums.add(FeatureRows(errors), as_rows(fit.site, inputs, False))
    reference.drop()
    reference.commit(torch.ones_like(fit.site.weight), 0.3)
    assert reference.truth is None


def test_predictions_for_many_batches_are_subtracted_but_for_how_sums_go_with_mean_errors() -> None:
    """The part that all rows have in common is a product of two means; without it the answer is exact."""
    fit, reference = taught(), Reference()
    fit.regression.mean_patterns.zero_()
    usual = noted(fit, reference, 5, 0.3)
    for seed in (6, 7, 8):
        usual = usual.lerp(noted(fit, reference, seed, 0.3), 0.3)
    inputs, errors, gradients = drawn(9)
    rows = FeatureRows(errors)
    plain = fit.weight_gradient(inputs, rows, gradients.shape)
    found = fit.weight_gradient(inputs, rows, gradients.shape, reference)
    torch.testing.assert_close(found, plain - usual, rtol=1e-3, atol=1e-4)


def test_parts_of_a_batch_subtract_their_share() -> None:
    fit, reference = taught(), Reference()
    noted(fit, reference, 5, 0.3)
    inputs, errors, gradients = drawn(9)
    whole = fit.weight_gradient(inputs, FeatureRows(errors), gradients.shape, reference)
    parts = [
        fit.weight_gradient(inputs[part], FeatureRows(errors[part], whole=errors), gradients[part].shape, reference)
        for part in (slice(5), slice(5, SAMPLES))
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("older", [False, True])
def test_states(older: bool) -> None:
    fit, reference = taught(), Reference()
    noted(fit, reference, 5, 0.3)
    truth = reference.truth
    assert truth is not None
    state = {"lacks": {7: truth}} if older else {"references": {7: reference.state_dict()}}
    again = Reference.restored(references_in(state)[7])
    for one in (reference, again):
        noted(fit, one, 6, 0.25)
    assert torch.equal(again.truth, reference.truth)  # type: ignore[arg-type]
    alone = Reference()
    noted(fit, alone, 6, 1.0)
    assert reference.inputs is not None
    assert alone.inputs is not None
    expected = 0.25 * alone.inputs if older else reference.inputs
    torch.testing.assert_close(again.inputs, expected)


def test_a_state_without_its_true_gradient_waits_for_its_parts() -> None:
    fit, reference = taught(), Reference()
    noted(fit, reference, 5, 0.3)
    state = reference.state_dict()
    del state["truth"]
    assert references_in({"references": {7: state}}) == {}
