"""Which published numbers and claims our verdicts cover: one row for each of them, reproduced, refuted or not tested."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adagp.program.reproduce.published import Claim, Number, Section
from adagp.program.reproduce.verdict import FAILS, HOLDS, OUTSIDE, WITHIN, Verdict

REPRODUCED, PARTLY, REFUTED, NOT_TESTED = "reproduced", "reproduced in part", "refuted", "not tested"
OUTCOMES = (REPRODUCED, PARTLY, REFUTED, NOT_TESTED)
_AGREE, _DISAGREE = (WITHIN, HOLDS), (OUTSIDE, FAILS)


@dataclass(frozen=True)
class CoverageRow:
    """A published number or claim, and what our verdicts on it say together."""

    path: str
    published: str
    source: str
    outcome: str
    reason: str = ""


def coverage(sections: Mapping[str, Section], verdicts: Iterable[Verdict]) -> list[CoverageRow]:
    """Return a row for every published number and claim, in the order of the sections."""
    by_path: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        for path in verdict.covers.split():
            by_path.setdefault(path, []).append(verdict)
    return [
        _row(item, by_path.get(item.path, []), section.name)
        for section in sections.values()
        for item in section.items()
    ]


def _row(item: Number | Claim, verdicts: Sequence[Verdict], section: str) -> CoverageRow:
    text = f"{item.value:g} {item.unit}".strip() if isinstance(item, Number) else item.text
    agree = sum(verdict.verdict in _AGREE for verdict in verdicts)
    disagree = sum(verdict.verdict in _DISAGREE for verdict in verdicts)
    if agree and disagree:
        return CoverageRow(item.path, text, item.source, PARTLY, f"{agree} of {agree + disagree} verdicts agree")
    if agree or disagree:
        return CoverageRow(item.path, text, item.source, REPRODUCED if agree else REFUTED)
    reasons = dict.fromkeys(verdict.reason for verdict in verdicts if verdict.reason)
    reason = "; ".join(reasons) or item.not_tested or f"the runs of {section} are not finished at this budget"
    return CoverageRow(item.path, text, item.source, NOT_TESTED, reason)


def count_outcomes(rows: Sequence[CoverageRow]) -> dict[str, int]:
    """Count the rows by outcome, in a fixed order."""
    return {outcome: sum(row.outcome == outcome for row in rows) for outcome in OUTCOMES}


def coverage_markdown(rows: Sequence[CoverageRow]) -> str:
    """Return the counts, and what was not tested by its reason."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in count_outcomes(rows).items())
    reasons: dict[str, int] = {}
    for row in rows:
        if row.outcome == NOT_TESTED:
            reasons[row.reason] = reasons.get(row.reason, 0) + 1
    lines = [f"Published numbers and claims: {len(rows)}, of which {counts}.", ""]
    lines += [
        f"- not tested, {count}: {reason}." for reason, count in sorted(reasons.items(), key=lambda item: -item[1])
    ]
    return "\n".join(lines) + "\n"
