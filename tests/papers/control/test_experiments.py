from typing import Any

from tests.program.reproduce.test_experiments import concluded

from adagp.papers.control.experiments import VIT, equal_cost_batches
from adagp.program.reproduce.experiment import EXPERIMENTS


def test_equal_cost() -> None:
    assert equal_cost_batches(700, 0.5) == 1000  # half at the price of backprop, half at 0.4 of it


def test_the_claim_holds_if_the_best_share_is_ahead_with_every_seed(pretend: Any) -> None:
    def accuracy(options: Any, ahead: float) -> float:
        if options["method"] == "bp":
            return 0.5
        return 0.5 + (ahead if options["true_share"] == "0.25" else -0.1)

    better = concluded(EXPERIMENTS[VIT], pretend, lambda options: accuracy(options, 0.01))
    assert [verdict.verdict for verdict in better.verdicts] == ["holds"]
    assert better.verdicts[0].reason == (
        "backprop 50.00 (50.00 to 50.00) %, control, 0.25 by backprop 51.00 (51.00 to 51.00) %, control, 0.5 by backprop "
        "40.00 (40.00 to 40.00) %; 2 seeds, 200 batches"
    )
    assert [row["runs"] for row in better.rows] == ["backprop", "control, 0.25 by backprop", "control, 0.5 by backprop"]


def test_the_claim_fails_otherwise(pretend: Any) -> None:
    level = concluded(EXPERIMENTS[VIT], pretend, lambda options: 0.5)
    assert [verdict.verdict for verdict in level.verdicts] == ["does not hold"]
