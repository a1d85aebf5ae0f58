"""Every published number and claim has an outcome, which follows from our verdicts on it."""

from adagp.program.reproduce.coverage import coverage, coverage_markdown
from adagp.program.reproduce.published import Section
from adagp.program.reproduce.verdict import Terms, Verdict, compare, judge

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
