"""A step on many chips: one chip is the accelerator, a pipeline that of `adagp.pipe`, and every term by hand."""

from dataclasses import replace
from typing import Any

import pytest
from tests.pipe.chips.transformers import gpt2, llama

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.hw import Accelerator, Attention, Linear, Workload, scheduled_run
from adagp.hw import simulate as simulate_run
from adagp.hw.memory import step_memory
from adagp.hw.stages import SUPPLIED
from adagp.hw.workload import Saved
from adagp.pipe import generate, parse_phases, simulate
from adagp.pipe.chips import TERMS, ChipTraining, Fabric, ManyChips, parse_fabric, parse_parallelism
from adagp.pipe.chips.parallel import split_tensors
from adagp.pipe.modelled import modelled_costs
from adagp.pipe.timeline import Link
from adagp.schedules import parse_schedule

NET = Workload("eight layers", tuple(Linear(f"fc{index}", 1, 64, 64) for index in range(8)))
LINK = Link(1e9, 2e-6)
ADAGP, FEEDBACK = "predicted", "feedback"


def training(text: str = "data=1", chips: int = 1, batch: int = 64, link: Link = LINK, **more: Any) -> ChipTraining:
    workload = more.pop("workload", NET)
    fabric = Fabric(parse_fabric("switch", chips), link)
    return ChipTraining(workload, Accelerator(), parse_parallelism(text, chips), fabric, batch, **more)


@pytest.mark.parametrize("design", ["efficient", "max"])
@pytest.mark.parametrize("source", [ADAGP, FEEDBACK, "zero"])
def test_one_chip_is_the_accelerator(design: str, source: str) -> None:
    chips = ManyChips(training(design=design, source=source))
    run = scheduled_run(parse_schedule("1:1", 2, 0, source), 2, 128, 64, NET)
    outcomes = simulate_run(NET, Accelerator(), run, [design]).outcomes
    alone = {phase: cost.cycles / 2 for phase, cost in outcomes[design].by_phase.items()}
    clock = Accelerator().clock_hz
    assert chips.backprop.seconds * clock == pytest.approx(outcomes["baseline"].cost.cycles / 4)
    assert chips.learning.seconds * clock == pytest.approx(alone[Phase.BP])
    assert chips.predicted.seconds * clock == pytest.approx(alone[Phase.GP])
    assert set(chips.predicted.terms) == set(TERMS)
    assert not chips.predicted.sent


@pytest.mark.parametrize("fused", [False, True])
def test_a_chip_keeps_what_the_memory_of_a_step_has(fused: bool) -> None:
    """One chip keeps all of it; the stages of GPipe, which begins no backward pass before the last forward, share it."""
    net = gpt2()
    attention = [index for index, layer in enumerate(net.layers) if isinstance(layer, Attention)]
    saved = [Saved(index, "h", "bmm", 256) for index in attention]
    saved += [Saved(index + 1, "h", "softmax", 256) for index in attention[::2]]
    net = replace(net, saved=(Saved(0, "wte", "embedding", 8, 64), *saved, Saved(8, "h", "gelu", 1024)))
    chip = Accelerator(fused_attention=fused)
    expected = sum(unit.kept for unit in step_memory(net, chip, 64).units)
    alone = ManyChips(replace(training(workload=net), accelerator=chip))
    assert alone.memory.activations == expected
    shared = ManyChips(replace(training("pipeline=2", 2, workload=net, schedule="gpipe"), accelerator=chip))
    assert sum(shared.timeline((Phase.BP,), SUPPLIED).peak_bytes) == expected


@pytest.mark.parametrize("schedule", ["gpipe", "dapple", "chimera", "interleaved", "zb-h1"])
def test_a_pipeline_is_that_of_the_program(schedule: str) -> None:
    """Without links that take time: Figure 20 of ADA-GP is this case, with four devices and four micro-batches."""
    chips = ManyChips(training("pipeline=4", 4, link=Link(), micro_batches=4, schedule=schedule, source=ADAGP))
    stages = generate(schedule, 4, 4, [Phase.BP]).stages
    plain, method = (
        modelled_costs(NET, Accelerator(), stages, 16, design=design, source=source, micro_batches=4)
        for design, source in (("baseline", SUPPLIED), ("max", ADAGP))
    )
    clock = Accelerator().clock_hz

    def steps(phases: str, costs: object) -> float:
        return simulate(generate(schedule, 4, 4, parse_phases(phases)), costs).steps / clock  # type: ignore[arg-type]

    assert chips.backprop.seconds == pytest.approx(steps("BP", plain))
    assert chips.learning.seconds + chips.predicted.seconds == pytest.approx(steps("GP,BP", method))
    assert chips.backprop.terms["bubble"] > 0
    assert sum(chips.backprop.terms[name] for name in ("tensor", "pipeline", "weights", "gradients", "source")) == 0


def ring(amount: float, size: int, link: Link = LINK) -> float:
    return 2 * (size - 1) * (link.latency + amount / size / link.bandwidth)


def test_data_parallel_by_hand() -> None:
    chips = ManyChips(training("data=4", 4, source=ADAGP, overlap=False))
    weights, summaries = 8 * 64 * 64, 8 + 8 * 64 * 16
    assert chips.backprop.sent == {"gradients": 2 * weights}
    assert chips.learning.sent == {"gradients": 2 * weights, "summaries": 2 * summaries}
    assert chips.predicted.sent == {"summaries": 2 * summaries}
    assert chips.backprop.terms["gradients"] == pytest.approx(ring(2 * weights, 4))
    assert chips.predicted.terms["source"] == pytest.approx(ring(2 * summaries, 4))
    share = ManyChips(training(batch=16, source=ADAGP))
    assert chips.backprop.terms["compute"] == share.backprop.seconds
    assert chips.predicted.terms["compute"] == share.predicted.seconds


def test_gradients_hide_behind_the_backward_pass() -> None:
    apart, hidden, one_bucket = (
        ManyChips(training("data=4", 4, batch=4096, overlap=overlap, bucket=bucket)).backprop.terms["gradients"]
        for overlap, bucket in ((False, 1), (True, 1), (True, 25e6))
    )
    assert hidden == pytest.approx(ring(2 * 64 * 64, 4)), "the first layer's gradients come last"
    assert apart == pytest.approx(8 * hidden)
    assert one_bucket == pytest.approx(ring(2 * 8 * 64 * 64, 4)), "one bucket is complete at the end"


def test_what_zero_exchanges() -> None:
    weights, volume = 2 * 8 * 64 * 64, 3 * (LINK.latency + 2 * 8 * 64 * 64 / 4 / LINK.bandwidth)
    for zero in (1, 2, 3):
        chips = ManyChips(training(f"data=4,zero={zero}", 4, source=ADAGP, overlap=False))
        gathers = 2 if zero == 3 else 1
        assert chips.backprop.sent == {"weights": gathers * weights / 4, "gradients": weights}
        assert chips.backprop.terms["gradients"] == pytest.approx(volume), "reduce-scatter"
        assert chips.backprop.terms["weights"] == pytest.approx(gathers * volume)
        assert chips.predicted.terms["weights"] == pytest.approx(volume)
        assert chips.predicted.sent["weights"] == weights / 4
        assert "predictor" not in chips.predicted.sent
        assert chips.learning.sent["predictor"] == 2 * Accelerator().predictor.parameters(64)


def test_zero_updates_and_predicts_a_part() -> None:
    """A chip's own work beyond the passes shrinks with the shards, for predictors and for feedback's gradient."""
    for source in (ADAGP, FEEDBACK):
        whole, part = (ManyChips(training(text, 4, source=source)) for text in ("data=4", "data=4,zero=1"))
        assert part.predicted.terms["compute"] < whole.predicted.terms["compute"]


@pytest.mark.parametrize("workload", [gpt2(), llama()], ids=lambda workload: workload.name)
def test_tensor_parallel_by_hand(workload: Workload) -> None:
    chips = ManyChips(training("tensor=2", 2, batch=4, workload=workload, source=FEEDBACK))
    hidden = 2 * 4 * 8 * 32
    assert chips.backprop.sent == {"tensor": 10 * hidden}
    assert chips.backprop.terms["tensor"] == pytest.approx(10 * ring(hidden, 2))
    assert chips.predicted.terms["tensor"] == pytest.approx(5 * ring(hidden, 2))
    features = 2 * 4 * 8 * 64
    assert chips.predicted.sent == {"tensor": 5 * hidden, "error features": features}
    assert chips.predicted.terms["source"] == pytest.approx(ring(features, 2))
    part = ManyChips(training(batch=4, workload=split_tensors(workload, 2).workload))
    assert chips.backprop.terms["compute"] == pytest.approx(part.backprop.seconds)


def test_all_three_together() -> None:
    options: dict[str, Any] = {"workload": gpt2(layers=4), "batch": 32, "micro_batches": 4, "source": FEEDBACK}
    chips = ManyChips(training("data=2,tensor=2,pipeline=2", 8, **options))
    for batch in (chips.backprop, chips.learning, chips.predicted):
        assert sum(batch.terms.values()) == pytest.approx(batch.seconds)
        assert all(batch.terms[name] > 0 for name in ("compute", "bubble", "tensor", "pipeline"))
    assert chips.predicted.sent["summaries"] > chips.learning.sent["summaries"] * 0
    assert chips.predicted.seconds < chips.backprop.seconds
    slower = ManyChips(training("data=2,tensor=2,pipeline=2", 8, link=Link(1e8, 2e-6), **options))
    assert slower.backprop.seconds > chips.backprop.seconds


def test_copies_of_stages_of_feedback_exchange_weight_gradients() -> None:
    chips = ManyChips(training("data=2,pipeline=2", 4, micro_batches=2, source=FEEDBACK))
    assert chips.predicted.sent["summaries"] == chips.backprop.sent["gradients"]


def test_memory() -> None:
    memory = ManyChips(training("data=2,pipeline=2", 4, micro_batches=2)).memory
    weights = 4 * 64 * 64
    assert (memory.weights, memory.gradients) == (2 * weights, 2 * weights)
    assert memory.optimizer == 4 * (1 + Accelerator().optimizer_words) * weights
    assert memory.activations == 2 * (2 * 16 * 4 * 64), "two micro-batches of 16 samples, four inputs of 64 words"
    skipped = ManyChips(training("data=2", 2, source="skip"))
    assert skipped.predicted.seconds == 0


def test_what_does_not_fit() -> None:
    cases = (
        (training("data=4", 4, batch=30), "a batch of 30 samples does not split into 4 equal parts (data=4)."),
        (
            training("data=4", 4, batch=32, micro_batches=3),
            "a batch of 8 samples does not split into 3 equal parts (3 micro-batches for each of 4).",
        ),
        (training("pipeline=9", 9, batch=9), "8 layers cannot be cut into 9 stages; give 1 to 8."),
        (
            training("data=4", 4, source="remapped"),
            "source 'remapped' does not declare what chips exchange for it, so it cannot be simulated on several. Declare it: "
            "`AcceleratorWork(exchange=...)` (see adagp.core.methods).",
        ),
    )
    for wrong, words in cases:
        with pytest.raises(OptionError) as caught:
            _ = ManyChips(wrong).predicted
        assert str(caught.value) == words
    with pytest.raises(OptionError) as caught:
        replace(training("data=4", 4), parallel=parse_parallelism("data=2", 2))
    assert str(caught.value) == "a fabric of 4 chips does not fit data=2,tensor=1,pipeline=1."
