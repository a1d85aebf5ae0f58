"""The running fit against ordinary least squares on all rows, in double precision."""

import gc
import weakref

import pytest
import torch
from torch import Tensor

from adagp.papers.feedback.regression import FeatureRows, Moments, RunningRegression, modern

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
    return RunningRegression(Moments.none(4, ridge, CPU), 7)


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


def test_what_was_dropped_does_not_count_and_nothing_predicts_zero() -> None:
    fit = fresh()
    features, outputs = drawn(6, 0)
    fit.add(FeatureRows(features), outputs)
    fit.drop()
    fit.commit(0.9)
    assert torch.equal(fit.predict(FeatureRows(features)), torch.zeros(6, 7))


def test_features_that_depend_on_each_other_do_no_harm() -> None:
    """The errors of a softmax add up to 0."""
    features = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    features -= features.mean(1, keepdim=True)
    truth = features @ torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
    fit = taught(fresh(1e-6), [(features, truth)], decay=0.9)
    assert (fit.predict(FeatureRows(features)) - truth).norm() < 1e-3 * truth.norm()


def test_fits_that_saw_the_same_batches_share_their_moments_and_others_do_not() -> None:
    none = Moments.none(4, 1e-3, CPU)
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


def test_a_fit_that_lags_behind_keeps_no_later_moments() -> None:
    none = Moments.none(4, 1e-3, CPU)
    late, fit = RunningRegression(none, 7), RunningRegression(none, 7)
    taught(fit, [drawn(6, 0)], decay=0.9)
    passed = weakref.ref(fit.moments)
    taught(fit, [drawn(6, 1)], decay=0.9)
    gc.collect()
    assert passed() is None
    assert late.moments is none


def test_its_state_comes_back() -> None:
    fit = taught(fresh(), [drawn(6, 0)], decay=0.9)
    state = fit.state_dict()
    again = RunningRegression.restored(state, Moments(state["second"], 1e-3))
    rows = FeatureRows(drawn(2, 5)[0])
    assert torch.equal(again.predict(rows), fit.predict(rows))
    assert again.outputs == 7
    with pytest.raises(RuntimeError):
        again.predict(FeatureRows(torch.zeros(2, 9)))


def test_the_state_of_older_run_folders_is_understood() -> None:
    """They have one system for both kinds of features."""
    fit = taught(fresh(), [drawn(6, 0)], decay=0.9)
    features = centred(drawn(6, 0)[0])
    old = {"second": features.T @ features, "cross": features.T @ drawn(6, 0)[1], "channels_last": True}
    found = modern(old)
    assert found["channels_last"]
    assert modern(fit.state_dict()).keys() == fit.state_dict().keys()
    for name, tensor in fit.state_dict().items():
        torch.testing.assert_close(found[name], tensor)


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    """Two processes with a share each, which know the features of both."""
    batches = [drawn(6, seed) for seed in range(3)]
    alone, shares = taught(fresh(), batches, decay=0.9), [fresh(), fresh()]
    for features, outputs in batches:
        for fit, part in zip(shares, (slice(2), slice(2, 6)), strict=True):
            fit.add(FeatureRows(features[part], whole=features), outputs[part])
        for one, other in zip(*(fit.sums.waiting() for fit in shares), strict=True):
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
