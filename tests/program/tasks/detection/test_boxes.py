import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagp.program.tasks.detection.boxes import non_maximum_suppression, pairwise_iou, to_corners


def slow_iou(first: list[float], second: list[float]) -> float:
    across = min(first[2], second[2]) - max(first[0], second[0])
    down = min(first[3], second[3]) - max(first[1], second[1])
    common = max(0.0, across) * max(0.0, down)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return common / (sum(areas) - common) if common else 0.0


def slow_suppression(corners: list[list[float]], groups: list[int], threshold: float) -> list[bool]:
    """Walk down the list and keep a box if no kept one of its group overlaps it too much."""
    kept: list[bool] = []
    for index, box in enumerate(corners):
        rivals = (other for other in range(index) if kept[other] and groups[other] == groups[index])
        kept.append(all(slow_iou(corners[other], box) <= threshold for other in rivals))
    return kept


def draw_boxes(seed: int, *shape: int) -> Tensor:
    drawn = torch.rand(*shape, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.cat([drawn[..., :2], drawn[..., 2:] * 0.7], -1)


@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(0, 6))
def test_iou_is_what_a_loop_finds(seed: int, first: int, second: int) -> None:
    one, other = to_corners(draw_boxes(seed, first)), to_corners(draw_boxes(seed + 1, second))
    slow = [[slow_iou(a, b) for b in other.tolist()] for a in one.tolist()]
    torch.testing.assert_close(pairwise_iou(one, other), torch.tensor(slow, dtype=torch.float64).view(first, second))


def test_iou_by_hand() -> None:
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [2.0, 0.0, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    expected = [[1.0, 1 / 7, 0.0, 0.0]]
    torch.testing.assert_close(pairwise_iou(boxes[:1], boxes), torch.tensor(expected))
    assert pairwise_iou(boxes[3:], boxes[3:]).item() == 0


def test_corners_and_centres_undo_one_another() -> None:
    boxes = draw_boxes(3, 2, 5)
    low, high = to_corners(boxes).chunk(2, -1)
    torch.testing.assert_close(torch.cat([(low + high) / 2, high - low], -1), boxes)
    assert to_corners(torch.tensor([0.5, 0.25, 0.5, 0.5])).tolist() == [0.25, 0, 0.75, 0.5]


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 3), st.sampled_from([0.0, 0.2, 0.5, 0.8]))
def test_suppression_is_what_a_loop_finds(seed: int, count: int, groups: int, threshold: float) -> None:
    corners = to_corners(draw_boxes(seed, 2, count))
    group = torch.randint(groups, (2, count), generator=torch.Generator().manual_seed(seed))
    kept = non_maximum_suppression(corners, group, threshold)
    for image in range(2):
        assert kept[image].tolist() == slow_suppression(corners[image].tolist(), group[image].tolist(), threshold)


def test_a_suppressed_box_suppresses_nothing() -> None:
    # a chain: each overlaps the next by half, so every second one stays, however long the chain
    left = torch.arange(20.0) / 3
    corners = torch.stack([left, torch.zeros(20), left + 1, torch.ones(20)], 1)
    kept = non_maximum_suppression(corners, torch.zeros(20), 0.4)
    assert kept.tolist() == [True, False] * 10


def test_nothing_comes_of_nothing() -> None:
    assert non_maximum_suppression(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist() == []
