"""Features of the error, and which axis counts the samples: from the sizes, from autograd, or from an attribute."""

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
import torch.nn.functional as F
from torch import Size, Tensor, nn

from adagp.errors import ModelError
from adagp.layers.sites import Site, survey
from adagp.papers.feedback.error_features import ErrorFeatures, SampleAxes, rows_for

CONVOLUTION, LINEAR = survey(nn.Sequential(nn.Conv2d(1, 2, 1), nn.Linear(4, 3))).sites


def test_few_outputs_are_used_unchanged() -> None:
    error = torch.randn(5, 10)
    assert torch.equal(ErrorFeatures(10, 0).of_several([error]), error)
    assert ErrorFeatures(10, 0).of_several([torch.randn(5)]).shape == (5, 1)
    assert ErrorFeatures(100, 0).of_several([torch.randn(5, 2, 3, 4)]).shape == (5, 24)


def test_many_outputs_are_projected_and_inner_products_kept() -> None:
    features = ErrorFeatures(400, 0)
    error = torch.randn(3, 1000, generator=torch.Generator().manual_seed(1))
    found = features.of_several([error])
    assert found.shape == (3, 400)
    torch.testing.assert_close(found @ found.T, error @ error.T, rtol=0.15, atol=150)
    assert torch.equal(found, features.of_several([error]))
    assert torch.equal(found, ErrorFeatures(400, 0).of_several([error])), "a function of the seed"
    assert not torch.equal(found, ErrorFeatures(400, 1).of_several([error]))
    assert features.of_several([torch.randn(2, 7, 1000)]).shape == (2, 7, 400)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("factor", [1.0, 0.25])
def test_error_and_class_features_span_the_label(reduction: str, factor: float) -> None:
    """However the loss is scaled: softmax and error are multiples of each other's scale, and their difference is the label."""
    outputs = torch.randn(6, 4, requires_grad=True)
    targets = torch.tensor([0, 3, 2, 2, 1, -100])
    (factor * F.cross_entropy(outputs, targets, reduction=reduction)).backward()
    assert outputs.grad is not None
    features = ErrorFeatures(4, 0, classes=True).of_several([outputs.grad], [outputs])
    assert features.shape == (6, 8)
    assert torch.equal(features[:, :4], outputs.grad)
    scale = factor * (1 / 5 if reduction == "mean" else 1)
    labels = (features[:, 4:] - features[:, :4]) / scale
    torch.testing.assert_close(labels[:5], F.one_hot(targets[:5], 4).float())
    assert not features[5].any(), "an ignored sample has no features"


def test_class_features_of_sequences_of_several_outputs_and_of_no_error() -> None:
    words, other = torch.randn(2, 3, 5), torch.randn(2, 7)
    features = ErrorFeatures(4, 0, classes=True)
    assert features.of_several([torch.randn(2, 3, 5)], [words]).shape == (2, 3, 8)
    joined = ErrorFeatures(50, 0, classes=True).of_several([torch.randn(2, 3, 5), torch.randn(2, 7)], [words, other])
    assert joined.shape == (2, 2 * (15 + 7))
    assert not features.of_several([torch.zeros(2, 7)], [other]).any()


def test_one_row_per_sample() -> None:
    features = torch.randn(5, 3)
    assert torch.equal(rows_for(CONVOLUTION, torch.Size((5, 2, 4, 4)), features), features)
    assert torch.equal(rows_for(LINEAR, torch.Size((5, 3)), features), features)


def test_one_row_per_position_of_a_sequence() -> None:
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


def site_of(model: nn.Module) -> Site:
    return survey(model).sites[0]


def found(model: Callable[[Tensor], Tensor], site: Site, inputs: Tensor) -> int:
    """Return the sample axis of the model's first site after one forward call."""
    axes, kept = SampleAxes(), []

    def keep(module: nn.Module, given: object, output: Tensor) -> None:
        axes.keep(site, output)
        kept.append(output.shape)

    handle = site.module.register_forward_hook(keep)
    output = model(inputs)
    handle.remove()
    axes.settle([output])
    return axes.of(site, kept[0], output.shape)


def test_sizes_decide_and_the_axis_is_kept() -> None:
    linear = site_of(nn.Linear(4, 3))
    for shape, output, expected in (
        ((5, 3), (5, 2), 0),
        ((5, 7, 3), (5, 2), 0),
        ((7, 5, 3), (5, 2), 1),
        ((5, 7, 3), (5, 7, 2), 0),
        ((7, 5, 3), (5, 7, 2), 1),
        ((5, 8, 9, 3), (5, 2), 0),
        ((1, 1, 3), (1, 2), 0),
    ):
        assert SampleAxes().of(linear, Size(shape), Size(output)) == expected
    axes = SampleAxes()
    axes.of(linear, Size((7, 5, 3)), Size((5, 2)))
    again = SampleAxes()
    again.load_state_dict(axes.state_dict())
    assert again.of(linear, Size((7, 7, 3)), Size((7, 2))) == 1
    with pytest.raises(ModelError, match="was called with 5 samples, but the model's output has 5"):
        again.of(linear, Size((5, 7, 3)), Size((5, 2)))


def test_a_convolution_has_its_samples_first_or_none() -> None:
    convolution = site_of(nn.Conv1d(4, 3, 1))
    assert SampleAxes().of(convolution, Size((6, 3, 6)), Size((6, 6, 2))) == 0
    with pytest.raises(ModelError):  # one picture without an axis for samples
        SampleAxes().of(convolution, Size((3, 6)), Size((3, 2)))


def test_other_numbers_of_samples_are_rejected() -> None:
    with pytest.raises(ModelError) as caught:
        SampleAxes().of(site_of(nn.Linear(4, 3)), Size((10, 3)), Size((5, 3)))
    assert str(caught.value) == (
        "site '' was called with 10 samples, but the model's output has 5: "
        "the output's error cannot be assigned to them. Exclude the site."
    )


class Mixer(nn.Module):
    """A linear layer, attention over all positions, and an output of some kind."""

    def __init__(self, answer: Callable[[Tensor], Tensor], norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.answer = nn.Linear(4, 8), nn.Linear(8, 3), answer
        self.norm = nn.BatchNorm1d(8) if norm else None
        self.sequence_first = False

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        if self.norm is not None:
            hidden = self.norm(hidden.flatten(0, 1)).view(hidden.shape)
        hidden = hidden.transpose(0, 1) if self.sequence_first else hidden
        mixed = (hidden @ hidden.transpose(1, 2)).softmax(2) @ hidden
        return self.answer(self.last(hidden + mixed)).softmax(-1)


ANSWERS: dict[str, Callable[[Tensor], Tensor]] = {
    "first word": lambda words: words[:, 0],
    "last word": lambda words: words[:, -1],
    "mean": lambda words: words.mean(1),
    "all words": lambda words: words,
}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("length", [2, 3, 6])
@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("sequence_first", [False, True])
def test_autograd_decides_where_sizes_are_ambiguous(sequence_first: bool, answer: str, length: int, norm: bool) -> None:
    model = Mixer(ANSWERS[answer], norm)
    model.sequence_first = sequence_first
    inputs = torch.randn(length, length, 4, generator=torch.Generator().manual_seed(length))
    if norm and length < 4:  # normalisation over so few samples mixes them all
        with suppress(ModelError):
            assert found(model, site_of(model), inputs) == int(sequence_first)
    else:
        assert found(model, site_of(model), inputs) == int(sequence_first)


@pytest.mark.parametrize("sequence_first", [False, True])
def test_an_output_with_sequences_first(sequence_first: bool) -> None:
    """Rows of the site and of the output lie alike if both have sequences first."""
    model = Mixer(lambda words: words.transpose(0, 1))
    model.sequence_first = sequence_first
    assert found(model, site_of(model), torch.randn(6, 6, 4)) == int(not sequence_first)


def test_an_ambiguous_axis_is_rejected_unless_batch_first_decides() -> None:
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.first(inputs).sum((0, 1)).expand(5, 3)  # type: ignore[no-any-return]

    model = Summed()
    with pytest.raises(ModelError) as caught:
        found(model, site_of(model), torch.randn(5, 5, 4))
    assert str(caught.value) == (
        "the output of site 'first' has the sizes (5, 5, 3), the model's (5, 3): adagp cannot tell which axis "
        "counts the samples. Set the attribute batch_first of the model or of a layer around the site "
        "(model.batch_first = True, or False "
        "for sequences first), or exclude the site."
    )
    for told in (True, False):
        model.batch_first = told  # type: ignore[assignment]
        assert found(model, site_of(model), torch.randn(5, 5, 4)) == int(not told)
