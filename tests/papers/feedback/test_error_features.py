import pytest
import torch
from torch import Tensor, nn

from adagp.layers.sites import survey
from adagp.papers.feedback.error_features import ErrorFeatures, rows_for

CONVOLUTION, LINEAR = survey(nn.Sequential(nn.Conv2d(1, 2, 1), nn.Linear(4, 3))).sites


def test_few_outputs_are_used_as_they_are() -> None:
    error = torch.randn(5, 10)
    assert torch.equal(ErrorFeatures(10, 0).of(error), error)
    assert ErrorFeatures(10, 0).of(torch.randn(5)).shape == (5, 1)
    assert ErrorFeatures(100, 0).of(torch.randn(5, 2, 3, 4)).shape == (5, 24)


def test_many_outputs_are_projected_and_inner_products_kept() -> None:
    features = ErrorFeatures(400, 0)
    error = torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    found = features.of(error)
    assert found.shape == (3, 400)
    torch.testing.assert_close(found @ found.T, error @ error.T, rtol=0.15, atol=150)
    assert torch.equal(found, features.of(error))
    assert torch.equal(found, ErrorFeatures(400, 0).of(error)), "a function of the seed"
    assert not torch.equal(found, ErrorFeatures(400, 1).of(error))
    assert features.of(torch.randn(2, 7, 1000)).shape == (2, 7, 400)


def test_a_row_a_sample() -> None:
    features = torch.randn(5, 3)
    assert torch.equal(rows_for(CONVOLUTION, torch.Size((5, 2, 4, 4)), features), features)
    assert torch.equal(rows_for(LINEAR, torch.Size((5, 3)), features), features)


def test_a_row_a_position_of_a_sequence() -> None:
    words = torch.randn(2, 4, 3)
    assert torch.equal(rows_for(LINEAR, torch.Size((2, 4, 3)), words), words.reshape(8, 3))
    other = rows_for(LINEAR, torch.Size((2, 5, 3)), words)  # another length: the sample's own, for each position
    assert torch.equal(other, words.sum(1).repeat_interleave(5, dim=0))
    assert torch.equal(rows_for(LINEAR, torch.Size((2, 5, 3)), words[:, 0]), words[:, 0].repeat_interleave(5, dim=0))
    assert torch.equal(rows_for(CONVOLUTION, torch.Size((2, 1, 1, 1)), words), words.sum(1))


@pytest.mark.parametrize("words", [torch.randn(4, 2, 3), torch.randn(4, 3)])
def test_sequences_first(words: Tensor) -> None:
    """Rows of (positions, samples) are those of (samples, positions), in another order."""
    expected = rows_for(LINEAR, torch.Size((4, 2, 3)), words).view(4, 2, 3).transpose(0, 1).reshape(8, 3)
    assert torch.equal(rows_for(LINEAR, torch.Size((2, 4, 3)), words, axis=1), expected)
