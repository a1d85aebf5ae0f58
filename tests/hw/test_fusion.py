import pytest

from adagp.hw import Elementwise
from adagp.hw.fusion import COPIES, NORMALISATIONS, POINTWISE, SMOOTH, Moved, moved_words


@pytest.mark.parametrize(
    ("operation", "words", "moved"),
    [
        ("relu_", (100, 100), Moved()),
        ("add_", (200, 100), Moved(reads=100, backward_reads=100)),
        ("cat", (300, 300), Moved()),
        ("gelu", (100, 100), Moved(writes=100, backward_reads=100)),
        ("native_batch_norm", (100, 104), Moved(0, 0, 204, 100)),
        ("max_pool2d_with_indices", (100, 50), Moved(100, 50, 150, 100)),
    ],
)
def test_fused_work_moves_only_what_is_not_on_chip(operation: str, words: tuple[int, int], moved: Moved) -> None:
    work = Elementwise("e", operation, *words)
    assert moved_words(work, fused=True) == moved
    assert moved_words(work, fused=False) == Moved(words[0], words[1], sum(words), words[0])


def test_an_operation_is_of_one_kind() -> None:
    kinds = (COPIES, POINTWISE, SMOOTH, NORMALISATIONS)
    assert len(frozenset().union(*kinds)) == sum(map(len, kinds))
