import importlib.util
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagp.data.detection import Objects
from adagp.errors import OptionError
from adagp.program.tasks.yolo import (
    ANCHORS,
    Detections,
    Grid,
    assign,
    average_precisions,
    decode,
    detect,
    encode,
    flatten,
    grids_of,
    loss_parts,
    non_maximum_suppression,
    pairwise_iou,
    pick,
    require_pycocotools,
    right_classes,
    slots,
    to_corners,
)


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


def draw_double_boxes(seed: int, *shape: int) -> Tensor:
    drawn = torch.rand(*shape, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.cat([drawn[..., :2], drawn[..., 2:] * 0.7], -1)


@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(0, 6))
def test_iou_is_what_a_loop_finds(seed: int, first: int, second: int) -> None:
    one, other = to_corners(draw_double_boxes(seed, first)), to_corners(draw_double_boxes(seed + 1, second))
    slow = [[slow_iou(a, b) for b in other.tolist()] for a in one.tolist()]
    torch.testing.assert_close(pairwise_iou(one, other), torch.tensor(slow, dtype=torch.float64).view(first, second))


def test_iou_by_hand() -> None:
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 3.0, 3.0], [2.0, 0.0, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    expected = [[1.0, 1 / 7, 0.0, 0.0]]
    torch.testing.assert_close(pairwise_iou(boxes[:1], boxes), torch.tensor(expected))
    assert pairwise_iou(boxes[3:], boxes[3:]).item() == 0


def test_corners_and_centres_undo_one_another() -> None:
    boxes = draw_double_boxes(3, 2, 5)
    low, high = to_corners(boxes).chunk(2, -1)
    torch.testing.assert_close(torch.cat([(low + high) / 2, high - low], -1), boxes)
    assert to_corners(torch.tensor([0.5, 0.25, 0.5, 0.5])).tolist() == [0.25, 0, 0.75, 0.5]


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 3), st.sampled_from([0.0, 0.2, 0.5, 0.8]))
def test_suppression_is_what_a_loop_finds(seed: int, count: int, groups: int, threshold: float) -> None:
    corners = to_corners(draw_double_boxes(seed, 2, count))
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


GRIDS: list[Grid] = [(8, 8), (4, 4), (2, 2)]


def slow_assign(box: list[float], grids: list[Grid]) -> tuple[int, int, int, int]:
    """Return scale, anchor, row and column by looking at one anchor after the other."""
    best, found = -1.0, (0, 0)
    for scale, shapes in enumerate(ANCHORS):
        for anchor, (width, height) in enumerate(shapes):
            common = min(width, box[2]) * min(height, box[3])
            overlap = common / (width * height + box[2] * box[3] - common)
            if overlap > best:
                best, found = overlap, (scale, anchor)
    rows, columns = grids[found[0]]
    return (*found, min(int(box[1] * rows), rows - 1), min(int(box[0] * columns), columns - 1))


def draw_boxes(seed: int, count: int) -> Tensor:
    drawn = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))
    return torch.cat([drawn[:, :2], drawn[:, 2:].square() * 0.95 + 0.01], 1)


@given(st.integers(0, 10**6), st.integers(0, 12), st.sampled_from([GRIDS, [(4, 8), (2, 4), (1, 2)]]))
def test_assignment_is_what_a_loop_finds(seed: int, count: int, grids: list[Grid]) -> None:
    boxes = draw_boxes(seed, count)
    numbers = [torch.arange(3 * rows * columns).view(1, 3, rows, columns, 1) for rows, columns in grids]
    starts = [0, numbers[0].numel(), numbers[0].numel() + numbers[1].numel()]
    expected = []
    for box in boxes.tolist():
        scale, anchor, row, column = slow_assign(box, grids)
        expected.append(starts[scale] + int(numbers[scale][0, anchor, row, column, 0]))
    assert assign(boxes, grids).tolist() == expected


def test_a_box_with_an_anchors_shape_goes_to_this_anchor() -> None:
    boxes = torch.tensor([[0.5, 0.5, *shape] for shapes in ANCHORS for shape in shapes])
    at = pick(slots(GRIDS), assign(boxes, GRIDS))
    torch.testing.assert_close(at.anchor, boxes[:, 2:])
    assert at.grid[:, 0].tolist() == [8, 8, 8, 4, 4, 4, 2, 2, 2]


def test_a_centre_on_the_far_border_belongs_to_the_last_cell() -> None:
    at = pick(slots(GRIDS), assign(torch.tensor([[1.0, 1.0, 0.9, 0.9], [0.0, 1.0, 0.02, 0.03]]), GRIDS))
    assert at.cell.tolist() == [[1, 1], [0, 7]]


@given(st.integers(0, 10**6))
def test_decode_undoes_encode(seed: int) -> None:
    boxes = draw_boxes(seed, 9)
    at = pick(slots(GRIDS), assign(boxes, GRIDS))
    encoded = encode(boxes, at)
    assert ((encoded[:, :2] >= 0) & (encoded[:, :2] <= 1)).all()
    raw = torch.cat([encoded[:, :2].logit(eps=1e-6), encoded[:, 2:]], 1)
    torch.testing.assert_close(decode(raw, at), boxes, atol=1e-5, rtol=1e-5)


def test_zeros_stand_for_the_anchor_in_the_middle_of_its_cell() -> None:
    all_slots = slots(GRIDS)
    boxes = decode(torch.zeros(2, len(all_slots.cell), 4), all_slots)
    assert boxes[1, 0].tolist() == torch.tensor([0.5 / 8, 0.5 / 8, 10 / 416, 13 / 416]).tolist()
    last = torch.tensor([1.5 / 2, 1.5 / 2, 373 / 416, 326 / 416])
    torch.testing.assert_close(boxes[0, -1], last)


def test_huge_answers_stay_finite() -> None:
    all_slots = slots(GRIDS)
    assert decode(torch.full((len(all_slots.cell), 4), 1e30), all_slots).isfinite().all()


def test_slots_and_answers_have_the_same_order() -> None:
    outputs = [torch.zeros(1, 3, rows, columns, 4) for rows, columns in GRIDS]
    for scale, (rows, columns) in enumerate(GRIDS):
        for anchor in range(3):
            for row in range(rows):
                for column in range(columns):
                    numbers = [column, row, columns, ANCHORS[scale][anchor][0]]
                    outputs[scale][0, anchor, row, column] = torch.tensor(numbers)
    assert grids_of(outputs) == GRIDS
    at = slots(GRIDS)
    expected = torch.stack([at.cell[:, 0], at.cell[:, 1], at.grid[:, 0], at.anchor[:, 0]], 1)
    assert torch.equal(flatten(outputs)[0], expected)


LOSS_GRIDS: list[Grid] = [(4, 4), (2, 2), (1, 1)]
CLASSES = 3
SLOTS = 3 * (16 + 4 + 1)


def to_outputs(flat: Tensor) -> list[Tensor]:
    """Return answers `(N, S, numbers)` as a model gives them: the inverse of `flatten`."""
    parts = flat.split([3 * rows * columns for rows, columns in LOSS_GRIDS], 1)
    return [part.unflatten(1, (3, *grid)) for part, grid in zip(parts, LOSS_GRIDS, strict=True)]


def draw_targets(seed: int, images: int, most: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(images, most, 4, generator=generator)
    boxes = torch.cat([drawn[..., :2], drawn[..., 2:].square() * 0.9 + 0.02], -1)
    return boxes, torch.randint(-1, CLASSES, (images, most), generator=generator)


def cross_entropy(logit: float, wanted: float) -> float:
    chance = 1 / (1 + math.exp(-logit))
    return -math.log(chance if wanted else 1 - chance)


def slow_parts(raw: Tensor, boxes: Tensor, labels: Tensor) -> tuple[float, float, float, int]:
    """Return box, objectness and category loss and the right answers, one slot and one object after the other."""
    box_loss = objectness = category = 0.0
    right = 0
    at = slots(LOSS_GRIDS)
    for image in range(len(raw)):
        objects = [(box, int(label)) for box, label in zip(boxes[image], labels[image], strict=True) if label >= 0]
        taken = set()
        for box, label in objects:
            slot = int(assign(box[None], LOSS_GRIDS))
            taken.add(slot)
            answer = raw[image, slot]
            (column, row), (columns, rows), (width, height) = (
                part[slot].tolist() for part in (at.cell, at.grid, at.anchor)
            )
            x, y, across, down = box.tolist()
            errors = [
                answer[0].sigmoid().item() - (x * columns - column),
                answer[1].sigmoid().item() - (y * rows - row),
                answer[2].item() - math.log(across / width),
                answer[3].item() - math.log(down / height),
            ]
            box_loss += (2 - across * down) * sum(error**2 for error in errors)
            kinds = answer[5:].tolist()
            category += sum(cross_entropy(logit, kind == label) for kind, logit in enumerate(kinds))
            right += kinds.index(max(kinds)) == label
        for slot in range(SLOTS):
            found = to_corners(decode(raw[image, slot : slot + 1, :4], pick(at, torch.tensor([slot]))))
            overlaps = [pairwise_iou(found, to_corners(box[None])).item() for box, _ in objects]
            if slot in taken or max(overlaps, default=0) <= 0.5:
                objectness += cross_entropy(raw[image, slot, 4].item(), slot in taken)
    return box_loss, objectness, category, right


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 2), st.integers(1, 4))
def test_the_loss_is_what_a_loop_finds(seed: int, images: int, most: int) -> None:
    raw = torch.randn(images, SLOTS, 5 + CLASSES, generator=torch.Generator().manual_seed(seed))
    boxes, labels = draw_targets(seed, images, most)
    parts = loss_parts(to_outputs(raw), boxes, labels)
    right, objects = right_classes(to_outputs(raw), boxes, labels)
    fast = torch.stack([parts.box, parts.objectness, parts.category, right])
    torch.testing.assert_close(fast, torch.tensor(slow_parts(raw, boxes, labels)), rtol=1e-5, atol=1e-5)
    assert parts.objects == objects == int((labels >= 0).sum())


def perfect(boxes: Tensor, labels: Tensor) -> Tensor:
    """Return the answers of a model that knows: sure of what is there, sure that nothing else is."""
    raw = torch.zeros(len(boxes), SLOTS, 5 + CLASSES)
    raw[..., 4:] = -20
    for image, place in (labels >= 0).nonzero().tolist():
        box = boxes[image, place][None]
        slot = assign(box, LOSS_GRIDS)
        aim = encode(box, pick(slots(LOSS_GRIDS), slot))
        raw[image, slot, :4] = torch.cat([aim[:, :2].logit(eps=1e-6), aim[:, 2:]], 1)
        raw[image, slot, 4] = 20
        raw[image, slot, 5 + labels[image, place]] = 20
    return raw


def test_a_perfect_answer_has_next_to_no_loss_and_any_fault_costs() -> None:
    boxes = torch.tensor([[[0.3, 0.3, 0.1, 0.2], [0.6, 0.7, 0.5, 0.5]], [[0.5, 0.5, 0.9, 0.8], [0, 0, 0, 0]]])
    labels = torch.tensor([[0, 2], [1, -1]])
    raw = perfect(boxes, labels)
    parts = loss_parts(to_outputs(raw), boxes, labels)
    assert parts.total.item() < 1e-5
    right, objects = right_classes(to_outputs(raw), boxes, labels)
    assert (int(right), objects) == (3, 3)
    slot = assign(boxes[1, :1], LOSS_GRIDS)
    for number in range(5 + CLASSES):
        spoilt = raw.clone()
        spoilt[1, slot, number] = -spoilt[1, slot, number] + 0.5
        assert loss_parts(to_outputs(spoilt), boxes, labels).total.item() > 1e-2
    noisy = raw.clone()
    noisy[0, 5, 4] = 5  # an object where there is none
    assert loss_parts(to_outputs(noisy), boxes, labels).total.item() > 1


def test_a_slot_that_overlaps_an_object_is_not_blamed() -> None:
    width, height = ANCHORS[2][2]
    box, label = torch.tensor([[[0.5, 0.5, width, height]]]), torch.tensor([[0]])
    raw = perfect(box, label)
    near = int(assign(box[0], LOSS_GRIDS)) - 1  # the next smaller anchor in the same cell
    raw[0, near, 2:4] = torch.tensor([width, height]).div(torch.tensor(ANCHORS[2][1])).log()
    raw[0, near, 4] = 3
    assert loss_parts(to_outputs(raw), box, label).total.item() < 1e-5
    raw[0, near, 2:4] = -3
    assert loss_parts(to_outputs(raw), box, label).total.item() > 1


def test_images_without_objects_teach_that_nothing_is_there() -> None:
    raw = torch.zeros(2, SLOTS, 5 + CLASSES, requires_grad=True)
    parts = loss_parts(to_outputs(raw), torch.zeros(2, 1, 4), torch.full((2, 1), -1))
    assert (parts.box.item(), parts.category.item(), parts.objects) == (0, 0, 0)
    parts.total.backward()
    assert raw.grad is not None
    assert (raw.grad[..., 4] > 0).all()
    torch.testing.assert_close(parts.objectness.detach(), torch.tensor(2 * SLOTS * math.log(2)))


def test_two_objects_may_share_a_slot() -> None:
    box = torch.tensor([[[0.5, 0.5, 0.9, 0.8], [0.5, 0.5, 0.9, 0.8]]])
    outputs, labels = to_outputs(torch.zeros(1, SLOTS, 5 + CLASSES)), torch.tensor([[0, 1]])
    assert loss_parts(outputs, box, labels).objects == 2
    assert int(right_classes(outputs, box, labels)[0]) == 1


def test_the_best_answer_comes_first_and_its_doubles_are_dropped() -> None:
    outputs = [torch.full((2, 3, size, size, 7), -9.0) for size in (4, 2, 1)]
    for output in outputs:
        output[..., :4] = 0
    outputs[2][0, 1, 0, 0, 4:] = torch.tensor([5.0, -9.0, 4.0])  # anchor 156x198 of 416, class 1
    outputs[2][0, 0, 0, 0, 2:] = torch.tensor([np.log(156 / 116), np.log(198 / 90), 4.0, 3.0, 3.0])  # the same box
    best, nothing = detect(outputs)
    half = np.array([156 / 832, 198 / 832])
    np.testing.assert_allclose(best.corners[0], [*(0.5 - half), *(0.5 + half)], rtol=1e-5)
    assert best.labels[:2].tolist() == [1, 0]  # class 0 has no rival there; the double of class 1 is gone
    expected = torch.tensor([5.0, 4.0]).sigmoid().prod(), torch.tensor([4.0, 3.0]).sigmoid().prod()
    np.testing.assert_allclose(best.scores[:2], expected, rtol=1e-5)
    assert (best.scores[2:] < 0.01).all()
    assert len(best.scores) <= 100
    assert (np.diff(best.scores) <= 0).all()
    assert (nothing.scores < 1e-6).all()
    assert best.corners.min() >= 0
    assert best.corners.max() <= 1


UNIT = [0.0, 0.0, 0.5, 0.5]
AWAY = [0.6, 0.6, 0.9, 0.9]


def objects(*things: tuple[list[float], int, bool]) -> Objects:
    corners = np.array([box for box, _, _ in things], np.float32).reshape(-1, 4)
    labels = np.array([label for _, label, _ in things], np.int64)
    return Objects(corners, labels, np.array([difficult for *_, difficult in things], np.bool_))


def detections(*things: tuple[list[float], int, float]) -> Detections:
    corners = np.array([box for box, _, _ in things], np.float32).reshape(-1, 4)
    labels = np.array([label for _, label, _ in things], np.int64)
    return Detections(corners, labels, np.array([score for *_, score in things], np.float32))


def test_average_precision_by_hand() -> None:
    # Class 0 has three objects. Best first: right (recall 1/3, precision 1), wrong, right (recall 2/3, precision 2/3);
    # the third object is never found. Of the 101 recalls 0, 0.01, ..., 1 those up to 0.33 (34 of them) see precision 1,
    # those from 0.34 to 0.66 (33) see 2/3, the rest 0: AP = (34 + 33 * 2/3) / 101. Class 1 is found at once: AP = 1.
    truth = [objects((UNIT, 0, False), (AWAY, 1, False)), objects((UNIT, 0, False), (AWAY, 0, False))]
    found = [
        detections((UNIT, 0, 0.9), (AWAY, 1, 0.3), (AWAY, 0, 0.8)),
        detections((UNIT, 0, 0.7)),
    ]
    np.testing.assert_allclose(average_precisions(found, truth, 2), [(34 + 33 * 2 / 3) / 101, 1.0])


def test_an_overlap_of_half_is_needed_and_a_second_hit_is_wrong() -> None:
    truth = [objects((UNIT, 0, False)), objects((UNIT, 0, False))]
    enough, little = [0.0, 0.0, 0.5, 0.26], [0.0, 0.0, 0.5, 0.24]
    np.testing.assert_allclose(average_precisions([detections((enough, 0, 0.9)), detections()], truth, 1), [51 / 101])
    np.testing.assert_allclose(average_precisions([detections((little, 0, 0.9)), detections()], truth, 1), [0])
    twice = [detections((UNIT, 0, 0.9), (UNIT, 0, 0.8)), detections((UNIT, 0, 0.7))]
    np.testing.assert_allclose(average_precisions(twice, truth, 1), [(51 + 50 * 2 / 3) / 101])


def test_difficult_objects_count_for_nothing() -> None:
    truth = [objects((UNIT, 0, True), (AWAY, 0, False), (UNIT, 1, True))]
    np.testing.assert_allclose(
        average_precisions([detections((UNIT, 0, 0.9), (AWAY, 0, 0.8))], truth, 2), [1.0, np.nan]
    )
    np.testing.assert_allclose(average_precisions([detections((AWAY, 0, 0.8))], truth, 2), [1.0, np.nan])


def test_without_detections_precision_is_zero() -> None:
    truth = [objects((UNIT, 0, False), (UNIT, 2, True)), objects()]
    np.testing.assert_allclose(average_precisions([detections(), detections()], truth, 3), [0.0, np.nan, np.nan])


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    average_precisions([detections((UNIT, 0, 0.9))], [objects((UNIT, 0, False))], 1)
    assert capsys.readouterr().out == ""


def test_a_missing_library_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError) as caught:
        require_pycocotools()
    assert str(caught.value) == ("pycocotools is needed for mean average precision: pip install '.[detect]'.")
