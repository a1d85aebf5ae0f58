"""The memory of a step: torch's own bytes with fused attention, the planner against all plans, GP batches."""

from itertools import product
from math import ceil

import pytest

from adagp.errors import ModelError, OptionError
from adagp.hw import Accelerator, Attention, Elementwise, Linear, Workload
from adagp.hw.memory import (
    OFFLOAD,
    RECOMPUTE,
    STASH,
    Choice,
    cheapest_plan,
    parse_capacity,
    peak,
    recomputed_blocks,
    step_memory,
)
from adagp.hw.workload import Saved

LAYERS = tuple(
    layer
    for block in range(3)
    for layer in (
        Linear(f"layers.{block}.up", 4, 16, 64 + 16 * block),
        Elementwise(f"layers.{block}.act", "gelu", 256 + 64 * block, 256 + 64 * block),
        Linear(f"layers.{block}.down", 4, 64 + 16 * block, 16),
    )
)
SAVED = tuple(
    tensor
    for block in range(3)
    for tensor in (
        Saved(3 * block, f"layers.{block}.up", "addmm", 64, of_site=True),
        Saved(3 * block + 1, f"layers.{block}.act", "gelu", 256 + 64 * block),
        Saved(3 * block + 2, f"layers.{block}.down", "addmm", 256 + 64 * block, of_site=True),
    )
)
MODEL = Workload(
    "blocks", LAYERS, SAVED, parameters=sum(layer.weights for layer in LAYERS if isinstance(layer, Linear))
)
CHIP = Accelerator(optimizer_words=2, state_bits=32, master_bits=32)


def test_what_is_there_all_the_time() -> None:
    words = MODEL.parameters
    assert step_memory(MODEL, CHIP, 8).fixed == {
        "weights": 2 * words,
        "copy of the weights": 4 * words,
        "optimizer state": 8 * words,
        "gradients": 2 * words,
    }


def test_memory_grows_forward_and_goes_backward() -> None:
    memory = step_memory(MODEL, CHIP, 8)
    kept = [8 * 2 * (64 + 2 * (256 + 64 * block)) for block in range(3)]
    assert [(unit.name, unit.kept) for unit in memory.units] == [(f"layers.{n}", kept[n]) for n in range(3)]
    moments = memory.moments()
    assert [moment.kept for moment in moments] == [*[sum(kept[: n + 1]) for n in (0, 1, 2, 2, 1, 0)], 0]
    assert [moment.unit for moment in moments] == [
        "layers.0",
        "layers.1",
        "layers.2",
        "layers.2",
        "layers.1",
        "layers.0",
        "",
    ]
    assert memory.by_operation() == {"addmm": 8 * 2 * (3 * 64 + 960), "gelu": 8 * 2 * 960}


def test_recomputed_blocks_keep_their_input_alone() -> None:
    memory = step_memory(MODEL, CHIP, 8, recompute="block")
    choices = recomputed_blocks(memory)
    assert [(choice.way, choice.held, choice.cycles) for choice in choices] == [
        (RECOMPUTE, 8 * 2 * 64, unit.forward) for unit in memory.units
    ]
    assert peak(memory.moments(choices)).kept == 2 * 8 * 2 * 64 + memory.units[2].kept


def test_micro_batches_divide_what_is_kept() -> None:
    whole, parts = (step_memory(MODEL, CHIP, 8, micro_batches=count) for count in (1, 4))
    assert [4 * unit.kept for unit in parts.units] == [unit.kept for unit in whole.units]
    assert parts.fixed == whole.fixed


def test_gp_batches_keep_nothing_but_the_inputs_that_feedback_needs() -> None:
    memory = step_memory(MODEL, CHIP, 8)
    predicted, feedback = (peak(memory.predicted_moments(source)) for source in ("predicted", "feedback"))
    assert predicted.kept == 0
    assert feedback.kept == 8 * 2 * (3 * 64 + 960)
    assert predicted.fixed == feedback.fixed == sum(memory.fixed.values()) - memory.fixed["gradients"]


@pytest.mark.parametrize("rate", [1e6, 1e8, 1e10])
def test_a_plan_is_the_cheapest_of_all_that_fit(rate: float) -> None:
    memory = step_memory(MODEL, CHIP, 8)
    ways = []
    for unit in memory.units:
        moved = ceil(2 * unit.kept / rate * CHIP.clock_hz)
        choices = Choice(STASH, unit.kept, 0), Choice(RECOMPUTE, unit.first, unit.forward), Choice(OFFLOAD, 0, moved)
        ways.append(choices)
    most = peak(memory.moments()).bytes
    least = peak(memory.moments([choices[2] for choices in ways])).bytes
    for capacity in range(least, most + 1, (most - least) // 7):
        fitting = [plan for plan in product(*ways) if peak(memory.moments(plan)).bytes <= capacity]
        found = cheapest_plan(memory, capacity, rate)
        assert peak(memory.moments(found)).bytes <= capacity
        assert sum(choice.cycles for choice in found) == min(sum(choice.cycles for choice in plan) for plan in fitting)
    with pytest.raises(OptionError, match=r"^a step of 'blocks' does not fit into .* Use smaller micro-batches\.$"):
        cheapest_plan(memory, least - 1, rate)


SCORES, USE = Attention("a", 4, 10, 16, 10), Attention("a", 4, 10, 10, 16)
ATTENTION = Workload(
    "attention",
    (SCORES, Elementwise("a", "_softmax", 400, 400), USE),
    (Saved(0, "a", "bmm", 640), Saved(1, "a", "_softmax", 400), Saved(2, "a", "bmm", 640)),
)


def test_fused_attention_and_selective_recomputation_keep_no_scores() -> None:
    def kept(memory: object) -> list[tuple[str, int]]:
        return [(tensor.operation, tensor.words) for tensor in memory.tensors]  # type: ignore[attr-defined]

    products = [("bmm", 640), ("bmm", 640)]
    fused = step_memory(ATTENTION, Accelerator(fused_attention=True), 2)
    selective = step_memory(ATTENTION, Accelerator(), 2, recompute="selective")
    assert kept(fused) == [*products, ("attention", 40)]
    assert kept(selective) == products
    assert (fused.extra_cycles, selective.extra_cycles > 0) == (0, True)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            ATTENTION,
            {"recompute": "block"},
            "'attention' has no repeated blocks, so there is nothing to recompute by block.",
        ),
        (
            MODEL,
            {"recompute": "selective"},
            "'blocks' has no attention, so there is nothing to recompute selectively.",
        ),
        (MODEL, {"micro_batches": 3}, "a batch of 8 samples does not split into 3 equal micro-batches."),
        (
            Workload("old", LAYERS),
            {},
            "'old' has no record of what autograd stores: it is an ONNX file or was saved by an older version. "
            "Give the model itself, or a torch.export program.",
        ),
    ],
)
def test_what_cannot_be(model: Workload, options: dict[str, object], message: str) -> None:
    with pytest.raises((OptionError, ModelError)) as raised:
        step_memory(model, Accelerator(), 8, **options)  # type: ignore[arg-type]
    assert str(raised.value) == message


def test_capacities() -> None:
    assert [parse_capacity(text) for text in ("8GB", "512MB", "1.5 KB")] == [8e9, 512e6, 1500]
    with pytest.raises(
        OptionError, match=r"^cannot read the capacity '8'; write a number above 0 with KB, MB, GB or TB"
    ):
        parse_capacity("8")
