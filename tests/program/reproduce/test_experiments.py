"""What every experiment concludes from results of the right form, and the verdicts that follow from chosen ones."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.program.reproduce.conftest import by_epoch

from adagp.data.registry import DATASETS
from adagp.errors import OptionError
from adagp.models import MODELS
from adagp.program.reproduce.experiment import (
    BUDGETS,
    EXPERIMENTS,
    Conclusion,
    Experiment,
    Part,
    Workspace,
    all_experiments,
    choose,
    read_missing,
    read_verdicts,
    write_conclusion,
)
from adagp.program.reproduce.published import published
from adagp.program.reproduce.verdict import Verdict

pytestmark = pytest.mark.medium

Pretend = Callable[..., Workspace]


def verdict(outcome: Conclusion, quantity: str) -> Verdict:
    (found,) = [one for one in outcome.verdicts if f"{one.quantity},".startswith((f"{quantity},", f"{quantity} ("))]
    return found


def test_every_table_and_figure_is_there() -> None:
    assert [experiment.name for experiment in all_experiments()] == [
        "adagp-statements",
        "adagp-table1",
        "adagp-seeds",
        *(f"adagp-table{number}" for number in range(2, 6)),
        "adagp-figure3",
        "adagp-figure14",
        "adagp-figures7to9",
        *(f"adagp-figure{number}" for number in range(15, 22)),
        "adagp-hypotheses",
        "adagp-chip",
        "ratio-sweep",
        "notes-facts",
        "notes-checks",
        "dni-comparison",
        *(f"remap-table{number}" for number in range(1, 4)),
        "remap-losses",
        "remap-example",
        "remap-output-size",
        "approximation-statements",
        *(f"approximation-table{number}" for number in range(1, 6)),
        "approximation-curves",
        "feedback-platforms",
        "worth-batch-size",
        "long-run",
        "feedback-alignment",
        "control-vit",
        "fast-training",
        "fast-speed",
        "fast-time-to-accuracy",
        "fast-combined",
        "camel-training",
        "camel-lifetimes",
        "camel-hardware",
        "procrustes-rule",
        "procrustes-training",
        "procrustes-masks",
        "procrustes-hardware",
        "lecture-products",
        "lecture-backward",
        "lecture-reversible",
        "lecture-noise",
    ]


def test_choosing() -> None:
    assert [one.name for one in choose(["dni-comparison", "adagp-table1"])] == ["adagp-table1", "dni-comparison"]
    assert len(choose(["all"])) == len(EXPERIMENTS)
    with pytest.raises(OptionError, match=r"^unknown experiment 'adagp-tabel1'\. Did you mean 'adagp-table1'\? Choose"):
        choose(["adagp-tabel1"])
    with pytest.raises(
        OptionError, match=r"^name an experiment, several, or all; `adagp reproduce list` shows them\.$"
    ):
        choose([])


def test_every_part_has_a_model_and_data_set_that_exist() -> None:
    parts = [
        part for name in EXPERIMENTS for budget in EXPERIMENTS[name].minutes for part in EXPERIMENTS[name].parts(budget)
    ]
    named = {(part.options.get("model"), part.options.get("dataset")) for part in parts}
    assert {model for model, _ in named} - {None} - set(MODELS) == set()
    assert {dataset for _, dataset in named} - {None} - set(DATASETS) == set()
    assert {"digits_cnn", "vgg13", "yolov3"} <= {model for model, _ in named}


def test_quick_works_offline() -> None:
    assert [name for name in EXPERIMENTS if EXPERIMENTS[name].datasets("quick")] == []


def test_every_budget_has_an_estimate_of_its_time() -> None:
    """Only the short budget may be missing: what is not trained is the same as at quick."""
    assert [name for name in EXPERIMENTS if set(EXPERIMENTS[name].minutes) | {"short"} != set(BUDGETS)] == []


def test_an_experiment_without_the_budget_is_an_error() -> None:
    with pytest.raises(OptionError) as caught:
        choose(["fast-speed"], "short")
    assert str(caught.value) == "fast-speed has no size for budget short; choose from: quick, standard, full."
    assert "fast-speed" not in {one.name for one in choose(["all"], "short")}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_writes_all_of_its_files(name: str, pretend: Pretend) -> None:
    experiment = EXPERIMENTS[name]
    workspace = pretend(experiment, "quick")
    outcome = experiment.conclude("quick", workspace)
    folder = workspace.out / name
    write_conclusion(outcome, folder)
    for file in ("table.csv", "figure.svg", "figure.png", "verdict.csv"):
        assert (folder / file).stat().st_size > 0
    assert read_verdicts(folder) == list(outcome.verdicts)
    assert all(one.reason for one in outcome.verdicts if one.verdict not in ("within", "outside"))


@pytest.mark.parametrize("budget", ["short", "standard", "full"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_uses_its_published_numbers_at_larger_budgets(name: str, budget: str, pretend: Pretend) -> None:
    """All numbers and claims that have a verdict at `quick` have one; what was trained was trained on real data."""
    experiment = EXPERIMENTS[name]
    if budget not in experiment.minutes:
        return
    quick = {one.claim or one.published for one in experiment.conclude("quick", pretend(experiment, "quick")).verdicts}
    outcome = experiment.conclude(budget, pretend(experiment, budget))
    assert quick <= {one.claim or one.published for one in outcome.verdicts}
    assert not any("digits" in one.reason for one in outcome.verdicts)
    assert outcome.missing == ""


def concluded(
    experiment: Experiment, pretend: Pretend, accuracies: Callable[[dict[str, Any]], float], budget: str = "quick"
) -> Conclusion:
    """Return the conclusion of an experiment whose runs have these accuracies."""

    def result(part: Part) -> dict[str, Any]:
        accuracy = accuracies(dict(part.options))
        return {
            "test_accuracy": accuracy,
            "best_test_accuracy": accuracy,
            "float_test_accuracy": accuracy,
            "seconds_by_phase": {"bp": float(part.options["batch_size"]) if "batch_size" in part.options else 1.0},
            "batches": {"bp": 1, "gp": 1, "guarded": 0, "warmup": 0},
            "by_epoch": by_epoch(),
        }

    return experiment.conclude(budget, pretend(experiment, budget, result))


ORDER = {"bp": 0.9, "topk": 0.89, "zero": 0.88, "random": 0.8}


@pytest.mark.parametrize(("zero", "word"), [(0.88, "holds"), (0.8, "does not hold"), (0.7, "does not hold")])
def test_the_order_of_approximations(zero: float, word: str, pretend: Pretend) -> None:
    found = ORDER | {"zero": zero}
    outcome = concluded(EXPERIMENTS["approximation-table5"], pretend, lambda options: found[options["method"]])
    assert verdict(outcome, "claim: order").verdict == word


@pytest.mark.parametrize(("adagp", "word"), [(0.8925, "holds"), (0.892, "does not hold")])
def test_ada_gp_may_lose_as_much_as_its_paper_does(adagp: float, word: str, pretend: Pretend) -> None:
    outcome = concluded(
        EXPERIMENTS["adagp-table1"], pretend, lambda options: adagp if options["method"] == "adagp" else 0.9
    )
    assert published("adagp-table1").slack == 0.76
    assert verdict(outcome, "ADA-GP as accurate as backprop: digits_cnn").verdict == word
    number = verdict(outcome, "vgg13, cifar10: ADA-GP less backprop")
    assert number.verdict == "not comparable"
    assert number.ours == pytest.approx(100 * adagp - 90)
    assert number.reason == (
        f"digits instead of CIFAR-10; published 91.52 to 92.55 %, ours 90.00 to {100 * adagp:.2f} %; 3 seeds, 20 epochs"
    )
    assert number.covers == "adagp-table1/cifar10/vgg13/bp adagp-table1/cifar10/vgg13/adagp"


def test_table_1_has_verdicts_beside_the_control(pretend: Pretend) -> None:
    accuracies = {"bp": 0.9, "adagp": 0.895, "skip": 0.88, "feedback": 0.87}
    outcome = concluded(
        EXPERIMENTS["adagp-table1"], pretend, lambda options: accuracies[options["method"]], budget="standard"
    )
    words = {
        "ADA-GP as accurate as backprop": "holds",  # within the paper's own 0.76 points
        "ADA-GP more accurate than leaving the same batches out": "holds",
        "feedback as accurate as backprop": "does not hold",
        "feedback more accurate than leaving the same batches out": "does not hold",
    }
    for quantity, word in words.items():
        assert verdict(outcome, f"{quantity}: over all models").verdict == word
        assert verdict(outcome, f"{quantity}: densenet201, cifar10").verdict == word
        assert verdict(outcome, f"{quantity}: densenet121, tinyimagenet100").verdict == word
    assert verdict(outcome, "ADA-GP as accurate as backprop: over all models").reason == (
        "adagp less bp: -0.50 points on average over 23 models, 95% interval -0.50 to -0.50; one seed each; "
        "the same batches left out: -2.00"
    )
    assert verdict(outcome, "ADA-GP as accurate as backprop: densenet201, cifar10").reason == (
        "adagp 89.50, bp 90.00 %; the same batches left out: 88.00 %; one seed, 20 epochs, 0.2 of the training images"
    )
    assert verdict(outcome, "vgg13, cifar10: ADA-GP less backprop").reason.endswith(
        "ours 90.00 to 89.50 %; the same batches left out: 88.00 %; one seed, 20 epochs"
    )
    assert len(outcome.rows) == (13 + 5 + 5) * 4


def test_table_1_concludes_from_the_models_that_are_finished(pretend: Pretend) -> None:
    experiment = EXPERIMENTS["adagp-table1"]
    workspace = pretend(experiment, "standard")
    assert experiment.enough is not None
    for part in experiment.parts("standard"):
        if "vgg16" in part.key or ("inception" in part.key and "-skip" in part.key):
            workspace.result_file(part).unlink()
    assert experiment.enough("standard", workspace)
    outcome = experiment.conclude("standard", workspace)
    assert outcome.missing == (
        "18 of 23 models are finished; not yet: inception_v3 on cifar10, inception_v3 on imagenette, "
        "inception_v3 on tinyimagenet100, inception_v4 on cifar10, vgg16 on cifar10"
    )
    assert {row["model"] for row in outcome.rows}.isdisjoint({"vgg16_bn", "inception_v3", "inception_v4"})
    waiting = verdict(outcome, "vgg16, cifar10: ADA-GP less backprop")
    assert (waiting.verdict, waiting.reason) == ("not measured", "not finished yet")
    folder = workspace.out / "adagp-table1"
    write_conclusion(outcome, folder)
    assert read_missing(folder) == outcome.missing
    write_conclusion(replace(outcome, missing=""), folder)
    assert read_missing(folder) == ""
    for part in experiment.parts("standard"):
        workspace.result_file(part).unlink(missing_ok=True)
    assert not experiment.enough("standard", workspace)


def test_the_papers_own_arithmetic_does_not_depend_on_ours(pretend: Pretend) -> None:
    outcome = concluded(EXPERIMENTS["adagp-table1"], pretend, lambda options: 0.5)
    assert verdict(outcome, "average gain over 13 models, cifar10").ours == pytest.approx(0.806, abs=0.001)
    assert verdict(outcome, "average gain over 13 models, cifar10").verdict == "outside"
    assert verdict(outcome, "largest gain over 13 models, cifar100").verdict == "within"


def test_what_fast_claims(pretend: Pretend) -> None:
    found = {"fp32": 0.9, "bfp4": 0.9, "bfp2": 0.8, "fast": 0.895, "temporal:2-4@0.5": 0.7, "temporal:4-2@0.5": 0.8}
    outcome = concluded(EXPERIMENTS["fast-training"], pretend, lambda options: found.get(options["precision"], 0.9))
    assert verdict(outcome, "adaptive against single precision").verdict == "holds"  # within a point
    assert verdict(outcome, "low first or high first").verdict == "does not hold"
    assert verdict(outcome, "mean mantissa bits by epoch").verdict == "holds"
    assert verdict(outcome, "mean mantissa bits in the first and second half of the layers").verdict == "does not hold"
    assert verdict(outcome, "adaptive or random widths of the same mean").verdict == "does not hold"


def test_batch_sizes(pretend: Pretend) -> None:
    outcome = concluded(EXPERIMENTS["remap-table3"], pretend, lambda options: 1 / options["batch_size"])
    assert verdict(outcome, "accuracy by batch size").verdict == "holds"
    assert verdict(outcome, "time by batch size").verdict == "does not hold"  # the larger the slower, here


def test_a_fixed_ratio_that_is_better_refutes_the_ladder(pretend: Pretend) -> None:
    better = {"4:1": 0.95}
    outcome = concluded(EXPERIMENTS["ratio-sweep"], pretend, lambda options: better.get(options.get("ratio", ""), 0.9))
    found = verdict(outcome, "ladder or fixed k:m")
    # The pretended runs all have the same share of GP batches, so ratios as accurate as the ladder count too.
    assert found.verdict == "does not hold"
    assert "as accurate with as many GP batches: 1:4, 1:1, 2:1, 4:1, 8:1" in found.reason
    assert "4:1 95.00 %" in found.reason


def test_hardware_tables_say_what_was_not_done(tmp_path: Path, pretend: Pretend) -> None:
    experiment = EXPERIMENTS["adagp-table4"]
    outcome = experiment.conclude("quick", pretend(experiment, "quick"))
    assert verdict(outcome, "lut, max").ours == 1030
    assert verdict(outcome, "lut, max").verdict == "not comparable"
    assert verdict(outcome, "lut of our efficient over our baseline").ours == pytest.approx(2)
    assert verdict(outcome, "lut of our efficient over our baseline").verdict == "outside"  # of 4.5 % within 2
    # 100 LUTs outside the PEs; 166 of the 180 PEs have a DSP.
    assert verdict(outcome, "LUTs with int16 PEs and at most 166 DSPs in them").ours == 100 + 166 * 10 + 14 * 30
    assert verdict(outcome, "watts, max").reason == "the power of an FPGA was not measured"
    assert verdict(outcome, "sum of the components, max").difference == pytest.approx(-0.119)
    assert verdict(outcome, "watts of efficient over the baseline").verdict == "within"
    assert verdict(outcome, "blocks of the largest predictor's memory").ours == 1  # 16,000 bits


def test_cells_have_area_and_power(pretend: Pretend) -> None:
    experiment = EXPERIMENTS["adagp-table5"]
    outcome = experiment.conclude("quick", pretend(experiment, "quick"))
    assert verdict(outcome, "power, max").ours == pytest.approx(1300)
    assert verdict(outcome, "power of our max over our baseline").ours == pytest.approx(30)
    assert verdict(outcome, "area of our max over our baseline").ours == pytest.approx(3)
    # 300 microwatts more pay for 60 PEs of 5 more, of 180; an area of 30 for 6.
    assert verdict(outcome, "PEs of a baseline of the power of our max").ours == pytest.approx(100 / 3)
    assert verdict(outcome, "PEs of a baseline of the area of our max").ours == pytest.approx(100 / 30)


def test_hypotheses_are_tried_and_the_set_that_explains_most_is_named(pretend: Pretend) -> None:
    outcome = EXPERIMENTS["adagp-hypotheses"].conclude("quick", pretend(EXPERIMENTS["adagp-hypotheses"], "quick"))
    assert len(outcome.rows) == 3 * 2 * 2 * 3
    first = outcome.verdicts[0]
    assert first.verdict == "holds"
    best = "512 features, backward in-place, a port as wide as needed, tasks short, small batches"
    assert first.reason == f"{best}: 19 of 19; the defaults: 0; within no set: none"
    assert all(one.verdict == "within" for one in outcome.verdicts[1:])
    assert {row["within"] for row in outcome.rows} == {0, 18, 19}


@pytest.mark.parametrize(("name", "number"), [("adagp-figure17", 1.46), ("adagp-figure20", 1.654)])
def test_pictures_of_speed_ups_have_the_published_numbers(pretend: Pretend, name: str, number: float) -> None:
    experiment = EXPERIMENTS[name]
    drawn = experiment.conclude("quick", pretend(experiment, "quick")).draw
    assert drawn is not None
    axes: Any = drawn().axes[0]
    assert number in {float(line.get_ydata()[0]) for line in axes.lines}
    assert any(text.get_text() == f"average {number:g}" for text in axes.texts)
