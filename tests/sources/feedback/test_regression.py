import pytest
import torch

from adagp.sources.feedback.regression import RunningRegression

CPU = torch.device("cpu")


def drawn(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, generator=generator), torch.randn(rows, 7, generator=generator)


def test_without_forgetting_it_is_ridge_regression_on_all_rows() -> None:
    fit = RunningRegression(4, 7, decay=1.0, ridge=1e-2, device=CPU)
    batches = [drawn(6, seed) for seed in range(5)]
    for features, outputs in batches:
        fit.add(features, outputs)
        fit.commit()
    features, outputs = (torch.cat(parts).double() for parts in zip(*batches, strict=True))
    ridge = 1e-2 * features.square().sum(0).mean()  # rows that ask for zero, as many as there are features
    padded = torch.cat([features, ridge.sqrt() * torch.eye(4)])
    solution = torch.linalg.lstsq(padded, torch.cat([outputs, torch.zeros(4, 7).double()])).solution
    new = drawn(3, 99)[0]
    torch.testing.assert_close(fit.predict(new), (new.double() @ solution).float())


def test_the_past_is_forgotten_batch_by_batch() -> None:
    fit = RunningRegression(4, 7, decay=0.5, ridge=1e-6, device=CPU)
    batches = [drawn(6, seed) for seed in range(3)]
    for features, outputs in batches:
        fit.add(features[:2], outputs[:2])
        fit.add(features[2:], outputs[2:])  # micro-batches of one batch
        fit.commit()
    weights = [0.25, 0.5, 1.0]
    expected = sum(
        (weight * one[0].T @ one[1] for weight, one in zip(weights, batches, strict=True)), torch.zeros(4, 7)
    )
    torch.testing.assert_close(fit.cross, expected)


def test_what_was_dropped_does_not_count_and_nothing_predicts_zero() -> None:
    fit = RunningRegression(4, 7, decay=0.9, ridge=1e-3, device=CPU)
    features, outputs = drawn(6, 0)
    fit.add(features, outputs)
    fit.drop()
    fit.commit()
    assert torch.equal(fit.predict(features), torch.zeros(6, 7))


def test_features_that_depend_on_each_other_do_no_harm() -> None:
    """The errors of a softmax add up to 0."""
    features = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    features -= features.mean(1, keepdim=True)
    truth = features @ torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
    fit = RunningRegression(4, 7, decay=0.9, ridge=1e-6, device=CPU)
    fit.add(features, truth)
    fit.commit()
    assert (fit.predict(features) - truth).norm() < 1e-3 * truth.norm()


def test_its_state_comes_back() -> None:
    fit = RunningRegression(4, 7, decay=0.9, ridge=1e-3, device=CPU)
    fit.add(*drawn(6, 0))
    fit.commit()
    again = RunningRegression.restored(fit.state_dict(), 0.9, 1e-3, CPU)
    rows = drawn(2, 5)[0]
    assert torch.equal(again.predict(rows), fit.predict(rows))
    assert again.outputs == 7
    with pytest.raises(RuntimeError):
        again.predict(torch.zeros(2, 9))
