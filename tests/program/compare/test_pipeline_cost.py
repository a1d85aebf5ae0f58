"""Costs of runs on a modelled pipeline: windows against whole programs, and what is charged to feedback."""

import pytest

from adagp.core.plan import Phase
from adagp.errors import OptionError
from adagp.hw import Linear, Workload
from adagp.pipe import generate, simulate, with_broadcast
from adagp.pipe.modelled import modelled_costs
from adagp.program.compare.modelled_cost import AcceleratorPlatform, PipelineCost, PipelinePlatform, parse_pipeline
from adagp.program.run import TrainConfig

NET = Workload("four layers", tuple(Linear(f"fc{place}", 1, 64, 64) for place in range(4)))


def run(method: str, batches: int = 12, **options: object) -> TrainConfig:
    given = {"method": method, "batches": batches, "batch_size": 128, "ratio": "2:1", "warmup_batches": 2, **options}
    if method == "bp":
        given = {name: value for name, value in given.items() if name not in ("ratio", "warmup_batches")}
    return TrainConfig.from_dict(given, "test", foreign="drop")


def pipeline(text: str) -> PipelineCost:
    return PipelineCost(parse_pipeline(text), AcceleratorPlatform("efficient"), NET, lambda config: 1000)


def test_windows_add_up_to_the_dry_run_of_the_whole_run() -> None:
    """1F1B drains after each BP batch, so a run is exactly its windows; the first batch finds the pipeline empty anyway."""
    platform = AcceleratorPlatform("efficient")
    accelerator = platform.accelerator(run("bp"))
    for method, broadcast in (("feedback", True), ("adagp", False)):
        config = run(method, 11)  # two of warm-up, then BP GP GP three times
        source = {"feedback": "feedback", "adagp": "predicted"}[method]
        costs = modelled_costs(NET, accelerator, 4, 32, design="efficient", source=source, micro_batches=4)
        phases = [Phase.BP] * 2 + [Phase.BP, Phase.GP, Phase.GP] * 3
        program = generate("dapple", 4, 4, phases)
        whole = simulate(with_broadcast(program) if broadcast else program, costs).steps
        found = pipeline("dapple,devices=4,micro-batches=4")
        assert found.run_cost(config) == whole
        kinds = {one.phase: one for one in found.batch_costs(config)}
        assert sum(one.batches * one.cost for one in kinds.values()) == pytest.approx(whole)
        assert (kinds[Phase.BP].batches, kinds[Phase.GP].batches) == (5, 6)


MIXING = 11 * 5 * (65 + 37)
"""128 samples of 64 inputs mixed to 64 features and a mean."""
PREDICTED = 2 * 6 * 5 * (1 + 37) + MIXING + 6 * 5 * (64 + 37) + 6 * 5 * (66 + 25)
"""The mean's part of 64 patterns, for the batch and for recent ones; mixing; the recent ones' mixed inputs times the inverse;
the weight gradient of 66 samples."""
MOMENTS = 11 * 5 * (65 + 37) + 11 * 5 * (64 + 37)
"""64 differences and ones with the 128 samples' output gradients, and the differences with themselves."""


def test_a_feedback_batch_by_hand() -> None:
    """Forwards through all stages, the error back to each of them, mixed inputs of the whole batch, the next forward."""
    accelerator = AcceleratorPlatform("efficient").accelerator(run("bp"))
    costs = modelled_costs(NET, accelerator, 4, 32, design="efficient", source="feedback", micro_batches=4)
    one = costs.stages[0]
    forward = 6 * 5 * (32 + 12 + 12 + 15 - 2)
    assert one.forward == forward
    assert one.update_gp == PREDICTED
    assert one.error_bytes == 128 * 64 * 2
    assert one.update_bp == MOMENTS + MIXING
    config = run("feedback", 4, ratio="1:1")  # BP BP GP BP
    kinds = {kind.phase: kind.cost for kind in pipeline("dapple,devices=4,micro-batches=4").batch_costs(config)}
    assert kinds[Phase.GP] == 7 * forward + PREDICTED


def test_feedback_costs_extra_only_in_every_nth_batch() -> None:
    """BP BP GP BP GP BP: of the four batches by backprop the first and the third correct, the first alone teaches."""
    config = run("feedback", 6, ratio="1:1", learn_every=4, correct_every=2)
    accelerator = AcceleratorPlatform("efficient").accelerator(config)
    plain = modelled_costs(NET, accelerator, 4, 32, design="baseline", micro_batches=4).stages[0].update_bp
    model = pipeline("dapple,devices=4,micro-batches=4")
    kinds = model.batch_costs(config)
    assert [(one.phase, one.batches) for one in kinds] == [
        (Phase.BP, 1),
        (Phase.BP, 2),
        (Phase.BP, 1),
        (Phase.GP, 2),
    ]
    both, neither, corrected = (one.cost for one in kinds[:3])
    without = model.batch_costs(run("feedback", 3, ratio="1:1", learn_every=9, correct_every=9))
    assert plain == 0
    assert both - neither == MOMENTS + MIXING
    assert corrected - neither == MIXING
    assert neither == without[1].cost
    forward = 6 * 5 * (32 + 12 + 12 + 15 - 2)
    assert kinds[3].cost == 7 * forward + PREDICTED


def test_backprop_gets_the_best_pipeline_and_long_windows_are_extended() -> None:
    model = pipeline("gpipe,devices=2,micro-batches=4")
    name, cost = model.best(run("bp"))
    assert name == min(("gpipe", "dapple", "chimera", "interleaved", "zb-h1", "zb-v"), key=lambda one: cost_of(one))
    assert cost == pytest.approx(cost_of(name))
    assert cost >= 12 * model.bound(run("bp"))
    assert model.best(run("adagp"))[0] == "gpipe"
    costs = [model.run_cost(run("adagp", 2 + length, ratio="1:0")) for length in (12, 13, 14, 20)]
    assert costs[3] - costs[2] == pytest.approx(6 * (costs[1] - costs[0]))


def cost_of(name: str) -> float:
    model = PipelineCost(PipelinePlatform(name, 2, 4), AcceleratorPlatform(), NET, lambda config: 1000)
    program = generate(name, 2, 4, [Phase.BP] * 2)
    return 12 * (simulate(program, model._stage_costs(name, None, run("bp"))).steps / 2)


def test_a_broadcast_keeps_the_inputs_of_all_micro_batches() -> None:
    """128 samples of 64 words for a stage of one layer: 1F1B keeps four micro-batches on its first stage, as here on all."""
    model = pipeline("dapple,devices=4,micro-batches=8")
    word = 2
    assert model.kept_bytes("dapple", run("feedback")) == 128 * 64 * word
    assert model.kept_bytes("dapple", run("bp")) == model.kept_bytes("dapple", run("adagp")) == 128 * 64 * word / 2
    assert model.details(run("feedback"))["kept_bytes"] == 128 * 64 * word


def test_skipped_batches_cost_nothing() -> None:
    model = pipeline("best,devices=2,micro-batches=4")
    assert model.run_cost(run("skip", 11)) == pytest.approx(model.run_cost(run("bp", 5)))


def test_gp_batches_of_an_adaptive_schedule_are_mixed_evenly() -> None:
    model = pipeline("dapple,devices=2,micro-batches=4")
    alternating = run("adagp", 12, ratio="1:1", warmup_batches=0)
    assert model.run_cost(run("adagp", 12), share=0.5) == model.run_cost(alternating)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "best,devices=5,micro-batches=5",
            "--pipeline 'best,devices=5,micro-batches=5': 5 stages on 5 devices are more than the 4 layers of 'four layers'; "
            "give fewer devices, or costs=balanced.",
        ),
        (
            "zb-v,devices=4,micro-batches=4",
            "--pipeline 'zb-v,devices=4,micro-batches=4': 8 stages on 4 devices are more than the 4 layers of 'four layers'; "
            "give fewer devices, or costs=balanced.",
        ),
    ],
)
def test_more_devices_than_layers_are_rejected(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        pipeline(text).run_cost(run("adagp"))
    assert str(caught.value) == message
    assert pipeline(f"{text},costs=balanced").run_cost(run("adagp")) > 0


def test_partial_schedules_are_rejected() -> None:
    with pytest.raises(OptionError, match="^its schedule mixes predicted and true gradients in one"):
        pipeline("best").run_cost(run("zero", ratio="sites=fc1"))


FORM = "write for example dapple,devices=4,micro-batches=4 or best,devices=8,micro-batches=8,costs=balanced"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"cannot read '' in --pipeline ''; {FORM}."),
        ("best,gpipe", f"cannot read 'gpipe' in --pipeline 'best,gpipe'; {FORM}."),
        ("best,stages=4", f"cannot read 'stages=4' in --pipeline 'best,stages=4'; {FORM}."),
        ("devices=x", "cannot read 'devices=x' in --pipeline 'devices=x'; give a whole number from 1 to 4096."),
        (
            "dappel",
            "unknown pipeline 'dappel'. Did you mean 'dapple'? Choose from: best, chimera, dapple, gpipe, interleaved, "
            "zb-h1, zb-v.",
        ),
        ("costs=free", "unknown costs of a pipeline 'free'. Choose from: balanced, modelled."),
    ],
)
def test_unreadable_text_is_rejected(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_pipeline(text)
    assert str(caught.value) == message


def test_text_forms() -> None:
    assert parse_pipeline("dapple, devices=8, micro-batches=2") == PipelinePlatform("dapple", 8, 2)
    assert str(parse_pipeline("costs=balanced")) == "best,devices=4,micro-batches=4,costs=balanced"


def test_small_batches_fill_a_pipeline_worse() -> None:
    """A sample costs more in a small batch; one of fewer samples than micro-batches is rejected."""
    costs = pipeline("dapple,devices=2,micro-batches=4")

    def per_sample(size: int) -> float:
        return costs.run_cost(TrainConfig(method="bp", batches=1, batch_size=size)) / size

    assert per_sample(8) > per_sample(64) > per_sample(512)
    with pytest.raises(OptionError) as caught:
        per_sample(3)
    assert str(caught.value) == (
        "--pipeline 'dapple,devices=2,micro-batches=4': a batch of 3 samples does not split into 4 micro-batches."
    )
