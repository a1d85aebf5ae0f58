import pytest
import torch

from adagp.errors import DataError
from adagp.layers.sites import Site
from adagp.sources.support.labels import class_count, class_shares


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
