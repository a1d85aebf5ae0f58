import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from adagp.program.tasks.detection.anchors import ANCHORS, Grid, assign, decode, encode, flatten, grids_of, pick, slots

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
