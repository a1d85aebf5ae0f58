import pytest

from adagp.program.reproduce.published import Claim, Number, Section
from adagp.program.reproduce.verdict import (
    Terms,
    Verdict,
    compare,
    coverage,
    coverage_markdown,
    figure,
    judge,
    markdown,
    tally,
)

NUMBER = Number(1.46, "times", "Figure 1, page 2", 0.03)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(1.46, "within"), (1.49, "within"), (1.43, "within"), (1.4901, "outside"), (1.42, "outside")]
)
def test_the_tolerance_is_the_line(ours: float, verdict: str) -> None:
    assert compare("speed-up", NUMBER, ours, "modelled").verdict == verdict


def test_a_bound_is_kept_from_below_only() -> None:
    assert compare("q", NUMBER, 0.1, "modelled", at_most=True).verdict == "within"
    assert compare("q", NUMBER, 2.0, "modelled", at_most=True).verdict == "outside"


def test_the_reason_is_given_where_it_is_needed() -> None:
    terms = Terms(reduced="4 epochs instead of 90")
    assert compare("q", NUMBER, 1.46, "measured", terms).reason == ""
    assert compare("q", NUMBER, 1.2, "measured", terms).reason == "4 epochs instead of 90"
    missing = compare("q", NUMBER, None, "measured", terms)
    assert (missing.verdict, missing.reason, missing.difference) == ("not measured", "4 epochs instead of 90", None)


def test_other_data_are_not_comparable_however_near() -> None:
    verdict = compare("q", NUMBER, 1.46, "measured", Terms(unlike="digits instead of CIFAR-10"))
    assert (verdict.verdict, verdict.reason) == ("not comparable", "digits instead of CIFAR-10")
    assert verdict.ours == 1.46


def test_what_was_read_off_a_picture_says_so() -> None:
    number = Number(5.0, "J", "Figure 1", 0.0, read_off=True)
    reason = compare("q", number, 1.0, "modelled", at_most=True).reason
    assert reason == "a bound: ours is below; published number read off the picture's axis"


def test_measured_and_modelled_never_share_a_column() -> None:
    rows = [compare("q", NUMBER, 1.5, kind).row() for kind in ("measured", "modelled", "computed")]
    assert [[row[kind] for kind in ("measured", "modelled", "computed")] for row in rows] == [
        [1.5, None, None],
        [None, 1.5, None],
        [None, None, 1.5],
    ]
    assert all("ours" not in row for row in rows)


def test_claims_hold_or_not_or_were_not_looked_at() -> None:
    words = [judge("q", Claim("a is above b", "page 1"), holds, "a 1, b 2").verdict for holds in (True, False, None)]
    assert words == ["holds", "does not hold", "not measured"]


def test_markdown_shows_what_was_measured_and_counts_the_rest() -> None:
    verdicts = [
        compare("speed-up", NUMBER, 1.2, "modelled", Terms(reduced="a | b")),
        judge("order", Claim("a above b", "page 1"), True, "3 of 3", "computed"),
        compare("x", NUMBER, None, "measured", Terms(reduced="no data")),
        compare("y", NUMBER, None, "measured", Terms(reduced="no data")),
    ]
    assert markdown(verdicts) == (
        "| quantity | published | ours, measured | ours, modelled | ours, computed | difference | tolerance | verdict |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| speed-up (times) | 1.46 |  | 1.2 |  | -0.26 | 0.03 | **outside**: a / b |\n"
        "| order | a above b |  |  |  |  |  | holds: 3 of 3 |\n"
        "\n"
        "Not measured: 2 numbers or claims (no data).\n"
    )
    assert markdown(verdicts[2:3]) == "Not measured: 1 number or claim (no data).\n"
    assert tally(verdicts) == {"outside": 1, "holds": 1, "not measured": 2}


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.0, "0"), (92.974, "92.97"), (472004.0, "472,004"), (1.24587e12, "1.246e+12"), (-0.0012, "-0.0012")],
)
def test_figures_for_reading(value: float | None, text: str) -> None:
    assert figure(value) == text
    assert Verdict("q", "measured", "within", ours=value).row()["measured"] == value


CONTENT = {
    "source": "Table 9",
    "unit": "%",
    "tolerance": 1.0,
    "set_up": {"batch": 32},
    "accuracy": {"a": 90.0, "b": 80.0},
    "cases": [{"speed": 2.0}],
    "watts": {"not_tested": "no such board here", "idle": 3.0},
    "claims": {"slack": 0.5, "source": "section 1", "faster": "it is faster", "better": "it is better"},
}
SECTION = Section("table", "paper", CONTENT)


def _verdicts() -> list[Verdict]:
    first, second = SECTION.number("accuracy", "a"), SECTION.number("accuracy", "b")
    return [
        compare("a", first, 90.5, "measured"),
        compare("a again", first, 70.0, "measured"),
        compare("b", second, 70.0, "measured", Terms(unlike="digits")),
        compare("speed", SECTION.number("cases", "0", "speed"), 2.0, "modelled"),
        judge("faster", SECTION.claim("faster"), False, "1 against 2"),
    ]


def test_outcomes_follow_from_the_verdicts() -> None:
    rows = {row.path: row for row in coverage({"table": SECTION}, {"quick": _verdicts()})}
    assert {path: (row.outcome, row.reason) for path, row in rows.items()} == {
        "table/accuracy/a": ("agrees in part at a small size", "1 of 2 verdicts agree; a: measured 90.5 %"),
        "table/accuracy/b": ("not tested", "digits"),
        "table/cases/0/speed": ("reproduced", "speed: modelled 2 %"),
        "table/watts/idle": ("not tested", "no such board here"),
        "table/claims/faster": ("disagrees at a small size", "1 against 2"),
        "table/claims/better": ("not tested", "the runs of table are not finished at this budget"),
    }
    assert rows["table/accuracy/a"].published == "90 %"
    assert rows["table/claims/faster"].published == "it is faster"
    assert rows["table/claims/faster"].source == "section 1"


def test_what_was_not_tested_is_counted_by_reason() -> None:
    text = coverage_markdown(coverage({"table": SECTION}, {"quick": _verdicts()}))
    assert text.startswith(
        "Published numbers and claims: 6, of which 1 reproduced, 0 reproduced in part, 0 refuted, 0 agrees at a small size, "
        "1 agrees in part at a small size, 1 disagrees at a small size, 3 not tested.\n"
    )
    assert "- not tested, 1: no such board here.\n" in text


def test_the_first_budget_with_a_verdict_decides() -> None:
    first, second = SECTION.number("accuracy", "a"), SECTION.number("accuracy", "b")
    verdicts = {
        "standard": [
            compare("a", first, 70.0, "measured"),
            compare("b", second, None, "measured", Terms(reduced="later")),
        ],
        "quick": [compare("a", first, 90.0, "measured"), compare("b", second, 80.0, "measured")],
    }
    rows = {row.path: row for row in coverage({"table": SECTION}, verdicts)}
    assert (rows["table/accuracy/a"].outcome, rows["table/accuracy/a"].budget) == ("refuted", "standard")
    assert (rows["table/accuracy/b"].outcome, rows["table/accuracy/b"].budget) == ("agrees at a small size", "quick")
    assert "Decided by the largest budget that has a verdict: 1 at standard, 1 at quick (full:" in coverage_markdown(
        list(rows.values())
    )


def test_the_papers_own_arithmetic_does_not_outweigh_a_measurement() -> None:
    number = SECTION.number("accuracy", "a")
    verdicts = {"full": [compare("sum", number, 90.0, "computed")], "short": [compare("a", number, 70.0, "measured")]}
    row = next(row for row in coverage({"table": SECTION}, verdicts) if row.path == "table/accuracy/a")
    assert (row.outcome, row.budget, row.kind) == ("disagrees at a small size", "short", "measured")
