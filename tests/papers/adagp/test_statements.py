"""The reversed ladder, a whole run of a pipeline, and the figures that are arithmetic."""

from adagp.papers.adagp.accelerator_experiments import PIPELINES, whole_run
from adagp.papers.adagp.training_experiments import reversed_ladder
from adagp.pipe import constant_costs
from adagp.program.reproduce.experiment import EXPERIMENTS, Workspace


def test_the_reversed_ladder_has_as_many_epochs_on_each_rung() -> None:
    assert reversed_ladder(90) == "1:1x68,2:1x4,3:1x4,4:1"
    assert reversed_ladder(5) == "1:1x1,2:1x1,3:1x1,4:1"


def test_a_whole_run_gains_less_than_a_pair_of_batches() -> None:
    plain = constant_costs(4)
    gains = {name: whole_run(name, plain, plain) for name in PIPELINES}
    # GPipe: 10 epochs of 21 steps a batch, then 5, 4, 3 and 2 batches (4 + ... + 21 steps) on the rungs.
    steps = 10 * 21 + 4 * (4 * 4 + 21) / 5 + 4 * (3 * 4 + 21) / 4 + 4 * (2 * 4 + 21) / 3 + 68 * 25 / 2
    assert abs(gains["gpipe"] - 90 * 21 / steps) < 1e-9
    assert all(gain < 42 / 25 for gain in gains.values())


def test_figures_that_are_arithmetic(tmp_path: object) -> None:
    workspace = Workspace(tmp_path)  # type: ignore[arg-type]  # nothing is read
    for name in ("adagp-figure3", "adagp-figure14", "notes-facts"):
        verdicts = EXPERIMENTS[name].conclude("quick", workspace).verdicts
        wrong = [verdict.quantity for verdict in verdicts if verdict.verdict not in ("within", "holds")]
        assert wrong == (["models, count", "references, count"] if name == "notes-facts" else [])
