"""Which published numbers and claims our verdicts cover: one row for each of them, reproduced, refuted or not tested.

A small run, on the digits or on a few images, neither reproduces nor refutes what was published of a large one: it agrees or
disagrees at its size. Where several budgets have verdicts on a number, the largest one decides: a run nearer to the published
one says more. Where a number was measured or modelled here, arithmetic on the published numbers does not count: that a printed
speed-up is the ratio of two printed times does not repeat the measurement.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adagp.program.reproduce.published import Claim, Number, Section
from adagp.program.reproduce.verdict import FAILS, HOLDS, OUTSIDE, WITHIN, Verdict, figure

REPRODUCED, PARTLY, REFUTED, NOT_TESTED = "reproduced", "reproduced in part", "refuted", "not tested"
SMALL_BUDGETS = ("short", "quick")
AT_SMALL_SIZE = {
    REPRODUCED: "agrees at a small size",
    PARTLY: "agrees in part at a small size",
    REFUTED: "disagrees at a small size",
}
OUTCOMES = (REPRODUCED, PARTLY, REFUTED, *AT_SMALL_SIZE.values(), NOT_TESTED)
_AGREE, _DISAGREE = (WITHIN, HOLDS), (OUTSIDE, FAILS)


@dataclass(frozen=True)
class CoverageRow:
    """A published number or claim, and what our verdicts on it say; `budget` and `kind` are those of the verdicts."""

    paper: str
    path: str
    published: str
    source: str
    outcome: str
    budget: str = ""
    kind: str = ""
    reason: str = ""


def coverage(sections: Mapping[str, Section], verdicts: Mapping[str, Iterable[Verdict]]) -> list[CoverageRow]:
    """Return a row for every published number and claim, in the order of the sections.

    `verdicts` are by budget, the budget that decides first.
    """
    by_path: dict[str, dict[str, list[Verdict]]] = {}
    for budget, of_budget in verdicts.items():
        for verdict in of_budget:
            for path in verdict.covers.split():
                by_path.setdefault(path, {}).setdefault(budget, []).append(verdict)
    return [
        _row(section, item, by_path.get(item.path, {})) for section in sections.values() for item in section.items()
    ]


def _row(section: Section, item: Number | Claim, verdicts: Mapping[str, Sequence[Verdict]]) -> CoverageRow:
    text = f"{item.value:g} {item.unit}".strip() if isinstance(item, Number) else item.text

    def row(outcome: str, reason: str, budget: str = "", kind: str = "") -> CoverageRow:
        return CoverageRow(section.paper, item.path, text, item.source, outcome, budget, kind, reason)

    decisive = {
        budget: [verdict for verdict in of_budget if verdict.verdict in _AGREE + _DISAGREE]
        for budget, of_budget in verdicts.items()
    }
    for kinds in (("measured", "modelled"), ("computed",)):
        for budget, of_budget in decisive.items():
            decided = [verdict for verdict in of_budget if verdict.kind in kinds]
            if decided:
                outcome, reason = _outcome(decided)
                if budget in SMALL_BUDGETS and decided[0].kind == "measured":
                    outcome = AT_SMALL_SIZE[outcome]
                return row(outcome, reason, budget, decided[0].kind)
    reasons = dict.fromkeys(verdict.reason for group in verdicts.values() for verdict in group if verdict.reason)
    reason = "; ".join(reasons) or item.not_tested or f"the runs of {section.name} are not finished at this budget"
    return row(NOT_TESTED, reason)


def _outcome(verdicts: Sequence[Verdict]) -> tuple[str, str]:
    """Return what verdicts that agree or disagree say together, and why."""
    agree = [verdict for verdict in verdicts if verdict.verdict in _AGREE]
    if len(verdicts) == 1:
        return (REPRODUCED if agree else REFUTED), _words(verdicts[0])
    count = f"{len(agree)} of {len(verdicts)} verdicts agree"
    outcome = PARTLY if 0 < len(agree) < len(verdicts) else REPRODUCED if agree else REFUTED
    return outcome, f"{count}; {_words(verdicts[0])}"


def _words(verdict: Verdict) -> str:
    ours = "" if verdict.ours is None else f"{verdict.quantity}: {verdict.kind} {figure(verdict.ours)} {verdict.unit}"
    return "; ".join(filter(None, (ours.strip(), verdict.reason)))


def count_outcomes(rows: Sequence[CoverageRow]) -> dict[str, int]:
    """Count the rows by outcome, in a fixed order."""
    return {outcome: sum(row.outcome == outcome for row in rows) for outcome in OUTCOMES}


def coverage_markdown(rows: Sequence[CoverageRow]) -> str:
    """Return the counts, by paper and budget where there are several, and what was not tested by its reason."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in count_outcomes(rows).items())
    lines = [f"Published numbers and claims: {len(rows)}, of which {counts}.", ""]
    papers = list(dict.fromkeys(row.paper for row in rows))
    if len(papers) > 1:
        lines += ["| paper | numbers and claims | " + " | ".join(OUTCOMES) + " |", "|" + " --- |" * (len(OUTCOMES) + 2)]
        for paper in papers:
            own = [row for row in rows if row.paper == paper]
            lines.append(f"| {paper} | {len(own)} | {' | '.join(map(str, count_outcomes(own).values()))} |")
        lines.append("")
    budgets = dict.fromkeys(row.budget for row in rows if row.budget)
    if len(budgets) > 1:
        decided = ", ".join(f"{sum(row.budget == budget for row in rows)} at {budget}" for budget in budgets)
        kinds = dict.fromkeys(row.kind for row in rows if row.kind)
        kind_counts = ", ".join(f"{sum(row.kind == kind for row in rows)} {kind}" for kind in kinds)
        lines += [
            f"Decided by the largest budget that has a verdict: {decided} (full: arithmetic and models). "
            f"Of these, {kind_counts}; computed are formulas, steps and the papers' own sums.",
            "",
        ]
    reasons: dict[str, int] = {}
    for row in rows:
        if row.outcome == NOT_TESTED:
            reasons[row.reason] = reasons.get(row.reason, 0) + 1
    lines += [
        f"- not tested, {count}: {reason}." for reason, count in sorted(reasons.items(), key=lambda item: -item[1])
    ]
    return "\n".join(lines) + "\n"
