import pytest
import torch
from torch import nn

import adagp
from adagp.papers.adagp.error_experiments import DEFINITIONS, MeasuredSource, figures


def test_definitions_by_hand() -> None:
    truth, prediction = torch.tensor([1.0, -0.5, 0.0]), torch.tensor([0.5, -0.5, 0.25])
    found = dict(zip(DEFINITIONS, figures(truth, prediction).tolist(), strict=True))
    assert found == pytest.approx(
        {
            "mean of |t-p|/|t|": 25.0,  # of the two entries that are not zero
            "mean of |t-p|/max(|t|, 1.17e-6)": 100 * (0.5 + 0.25 / 1.17e-6) / 3,
            "mean |t-p| / mean |t|": 50.0,
            "difference of mean |t| and mean |p| / mean |t|": 100 * 0.25 / 1.5,
            "mean |t-p| / max |t|": 25.0,
            "mean of 2|t-p|/(|t|+|p|)": 100 * (2 / 3 + 2) / 3,
            "mean of |t-p|/(1+|t|)": 100 * 0.5 / 3,
            "mean |t-p|, no denominator": 25.0,
            "mean (t-p)^2, no denominator": 100 * (0.25 + 0.0625) / 3,
        },
        rel=1e-5,
    )


def test_predicting_zero_has_100_percent_of_the_usual_mape() -> None:
    truth = torch.randn(50, generator=torch.Generator().manual_seed(0))
    found = dict(zip(DEFINITIONS, figures(truth, torch.zeros(50)).tolist(), strict=True))
    assert found["mean of |t-p|/|t|"] == pytest.approx(100)
    assert found["mean of 2|t-p|/(|t|+|p|)"] == pytest.approx(200)


def test_errors_are_measured_while_it_learns() -> None:
    """The engine calls `prepare_learning`, not `observe`: a source that overrode the latter measured nothing."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    source = MeasuredSource(every=2)
    trainer = adagp.attach(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        steps=5,
        schedule="1:1",
        warmup=4,
        sources={"predicted": source},
    )
    for _ in range(4):
        trainer.step(torch.randn(6, 4), torch.randint(0, 3, (6,)), nn.functional.cross_entropy)
    assert {site: len(errors) for site, errors in source.errors.items()} == {"0": 2, "2": 2}
    assert source.zeros.keys() == source.errors.keys()
