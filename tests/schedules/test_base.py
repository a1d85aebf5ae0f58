from adagp.core.plan import BACKPROP, Phase, Plan
from adagp.schedules import BackpropOnly, EpochAlternation, Ladder, Row, Rung, WarmUp
from adagp.schedules.base import predicted_plan

SMALL = WarmUp(Ladder(rungs=(Rung(4, 1, 2), Rung(1, 1))), epochs=1)


def test_table_verbatim() -> None:
    assert SMALL.table(epochs=4, batches_per_epoch=7).splitlines() == [
        "   epochs  ratio           bp       gp  gp share",
        "      1-1  warm-up          7        0     0.000",
        "      2-3  4:1              2       12     0.857",
        "      4-4  1:1              3        4     0.571",
        "      all                  12       16     0.571",
    ]


def test_table_of_whole_epochs_verbatim() -> None:
    schedule = WarmUp(EpochAlternation(ratio=Rung(2, 1)), epochs=1)
    assert schedule.table(epochs=5, batches_per_epoch=10).splitlines() == [
        "   epochs  ratio           bp       gp  gp share",
        "      1-1  warm-up         10        0     0.000",
        "      2-3  all gp           0       20     1.000",
        "      4-4  all bp          10        0     0.000",
        "      5-5  all gp           0       10     1.000",
        "      all                  20       30     0.600",
    ]


def test_rows_and_counts() -> None:
    assert SMALL.rows(epochs=4, batches_per_epoch=7) == [
        Row(0, 0, "warm-up", {Phase.WARMUP: 7}),
        Row(1, 2, "4:1", {Phase.GP: 12, Phase.BP: 2}),
        Row(3, 3, "1:1", {Phase.GP: 4, Phase.BP: 3}),
    ]
    assert [row.total for row in SMALL.rows(epochs=4, batches_per_epoch=7)] == [7, 14, 7]
    assert SMALL.count(epochs=4, batches_per_epoch=7) == {Phase.WARMUP: 7, Phase.BP: 5, Phase.GP: 16}
    assert SMALL.predicted_share(epochs=4, batches_per_epoch=7) == 16 / 28


def test_backprop_only_predicts_nothing() -> None:
    schedule = BackpropOnly()
    assert schedule.count(epochs=3, batches_per_epoch=5) == {Phase.BP: 15}
    assert schedule.sources == frozenset()
    assert schedule.text == "bp"


def test_the_plan_of_phase_gp_holds_what_is_not_predicted() -> None:
    assert predicted_plan("predicted") == Plan(Phase.GP, default="predicted", hold_rest=True)
    assert predicted_plan(BACKPROP) == Plan(Phase.BP)
