import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from adagp.program.tasks.detection.anchors import ANCHORS, Grid, assign, decode, encode, pick, slots
from adagp.program.tasks.detection.boxes import pairwise_iou, to_corners
from adagp.program.tasks.detection.loss import loss_parts, right_classes

GRIDS: list[Grid] = [(4, 4), (2, 2), (1, 1)]
CLASSES = 3
SLOTS = 3 * (16 + 4 + 1)


def to_outputs(flat: Tensor) -> list[Tensor]:
    """Return answers `(N, S, numbers)` as a model gives them: the inverse of `flatten`."""
    parts = flat.split([3 * rows * columns for rows, columns in GRIDS], 1)
    return [part.unflatten(1, (3, *grid)) for part, grid in zip(parts, GRIDS, strict=True)]


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
    at = slots(GRIDS)
    for image in range(len(raw)):
        objects = [(box, int(label)) for box, label in zip(boxes[image], labels[image], strict=True) if label >= 0]
        taken = set()
        for box, label in objects:
            slot = int(assign(box[None], GRIDS))
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
        slot = assign(box, GRIDS)
        aim = encode(box, pick(slots(GRIDS), slot))
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
    slot = assign(boxes[1, :1], GRIDS)
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
    near = int(assign(box[0], GRIDS)) - 1  # the next smaller anchor in the same cell
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
