"""Verdicts: a published number or claim, ours, and whether they agree; and which published ones they cover.

A small run, on the digits or on a few images, neither reproduces nor refutes what was published of a large one: it agrees or
disagrees at its size. If several budgets have verdicts on a number, the largest one decides, as its runs are nearer to the
published ones. If a number was measured or modelled here, arithmetic on the published numbers does not count: that a printed
speed-up is the ratio of two printed times does not repeat the measurement.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from adagp.program.reproduce.published import Claim, Number, Section
from adagp.program.run.documents import ABSENT, FIGURE, TEXT, Fields, ListOf, one_of

Kind = Literal["measured", "modelled", "computed"]
"""Measured: by training or timing here. Modelled: by the accelerator or pipeline model. Computed: arithmetic."""

WITHIN, OUTSIDE = "within", "outside"
NOT_COMPARABLE, NOT_MEASURED = "not comparable", "not measured"
HOLDS, FAILS = "holds", "does not hold"


@dataclass(frozen=True)
class Verdict:
    """One row. A claim has its words in `claim` and no published number; `reason` explains the verdict, or has the figures.

    `covers` has the paths of the published numbers or claims that it is about, separated by spaces.
    """

    quantity: str
    kind: Kind
    verdict: str
    reason: str = ""
    claim: str = ""
    published: float | None = None
    ours: float | None = None
    unit: str = ""
    tolerance: float | None = None
    source: str = ""
    covers: str = ""

    @property
    def difference(self) -> float | None:
        """Our number minus the published one; None if either is missing."""
        # Rounded, as printed decimals are not binary fractions: 0.28 - 0.28 must not be 1e-14.
        return None if self.ours is None or self.published is None else round(self.ours - self.published, 9)

    def row(self) -> dict[str, Any]:
        """Return the row for a table: measured, modelled and computed figures have columns of their own."""
        values: dict[str, Any] = {kind: self.ours if kind == self.kind else None for kind in KINDS}
        row = asdict(self)
        first = {name: row.pop(name) for name in ("quantity", "kind", "claim", "published")}
        row.pop("ours")
        return first | values | {"difference": self.difference} | row


KINDS: tuple[Kind, ...] = ("measured", "modelled", "computed")
_TEXTS = ("quantity", "reason", "claim", "unit", "source", "covers")
_NUMBERS = ("published", "ours", "tolerance", "difference")
VERDICTS = ListOf(
    Fields(
        {
            "kind": one_of(*KINDS),
            "verdict": one_of(WITHIN, OUTSIDE, NOT_COMPARABLE, NOT_MEASURED, HOLDS, FAILS),
            **dict.fromkeys(_TEXTS, TEXT),
            **dict.fromkeys(_NUMBERS, FIGURE),
        },
        others=ABSENT,
        required=("quantity", "kind", "verdict"),
    )
)
"""The shape of the verdicts that an experiment keeps."""


@dataclass(frozen=True)
class Terms:
    """How far a comparison is fair: `unlike` is why numbers cannot be compared at all, `reduced` what ours had less of."""

    unlike: str = ""
    reduced: str = ""


FAIR = Terms()


def compare(
    quantity: str, number: Number, ours: float | None, kind: Kind, terms: Terms = FAIR, *, at_most: bool = False
) -> Verdict:
    """Return the verdict on a published number; with `at_most` it is a bound that ours must keep, not a value to meet.

    Without ours, `terms.reduced` is why it was not measured.
    """
    if ours is None:
        verdict, reason = NOT_MEASURED, terms.reduced
    elif terms.unlike:
        verdict, reason = NOT_COMPARABLE, terms.unlike
    elif _agree(number, ours, at_most):
        verdict, reason = WITHIN, "a bound: ours is below" if at_most else ""
    else:
        verdict, reason = OUTSIDE, terms.reduced
    notes = [reason, "published number read off the picture's axis" if number.read_off else ""]
    return Verdict(
        quantity,
        kind,
        verdict,
        "; ".join(note for note in notes if note),
        published=number.value,
        ours=ours,
        unit=number.unit,
        tolerance=number.tolerance,
        source=number.source,
        covers=number.path,
    )


def compare_difference(
    quantity: str,
    numbers: Sequence[Number],
    ours: Sequence[float],
    terms: Terms = FAIR,
    *,
    tolerance: float | None = None,
    extent: str = "",
) -> Verdict:
    """Compare the difference of two published numbers, the second minus the first, with the difference of ours.

    The difference of two runs may be comparable even if the runs themselves are too small. The reason has all four numbers, and
    `extent` in words how much was trained. Without ours, `terms.reduced` is why.
    """
    first, second = numbers
    unit = "points" if first.unit.startswith("%") else first.unit
    number = Number(
        round(second.value - first.value, 6), unit, first.source, first.tolerance if tolerance is None else tolerance
    )
    verdict = compare(quantity, number, ours[1] - ours[0] if ours else None, "measured", terms)
    reason = verdict.reason
    if ours:
        sign = first.unit.partition(" ")[0]
        text = f"published {first.value:g} to {second.value:g} {sign}".rstrip()
        text += f", ours {ours[0]:.2f} to {ours[1]:.2f} {sign}".rstrip()
        reason = "; ".join(filter(None, (reason, text, extent)))
    return replace(verdict, reason=reason, covers=f"{first.path} {second.path}")


def _agree(number: Number, ours: float, at_most: bool) -> bool:
    off = ours - number.value
    # Printed decimals are not binary fractions: 1.46 + 0.03 must not miss 1.49 by rounding.
    return (off if at_most else abs(off)) <= (number.tolerance or 0.0) + 1e-9 * abs(number.value)


def judge(quantity: str, claim: Claim, holds: bool | None, figures: str, kind: Kind = "measured") -> Verdict:
    """Return the verdict on a claim in words; `figures` has the numbers behind it. None: not measured."""
    verdict = NOT_MEASURED if holds is None else HOLDS if holds else FAILS
    return Verdict(quantity, kind, verdict, figures, claim=claim.text, source=claim.source, covers=claim.path)


def covering(verdict: Verdict, *numbers: Number) -> Verdict:
    """Return a verdict that is about further published numbers, too: a ratio about both of its numbers."""
    return replace(verdict, covers=" ".join(filter(None, (verdict.covers, *(number.path for number in numbers)))))


def noted(verdict: Verdict, note: str) -> Verdict:
    """Return a verdict whose reason ends with a note: its control, or how much was trained."""
    return replace(verdict, reason="; ".join(filter(None, (verdict.reason, note))))


def tally(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """Count verdicts by their word, in a fixed order; words that do not occur are left out."""
    all_words = [verdict.verdict for verdict in verdicts]
    words = (WITHIN, OUTSIDE, HOLDS, FAILS, NOT_COMPARABLE, NOT_MEASURED)
    return {word: all_words.count(word) for word in words if word in all_words}


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Return the rows as a Markdown table; numbers that were not measured are counted below it, by their reason."""
    measured = [verdict for verdict in verdicts if verdict.verdict != NOT_MEASURED]
    lines = []
    if measured:
        head = ("quantity", "published", *(f"ours, {kind}" for kind in KINDS), "difference", "tolerance", "verdict")
        lines += [_line(head), _line(["---"] * len(head)), *map(_row, measured), ""]
    counts: dict[str, int] = {}
    for verdict in verdicts:
        if verdict.verdict == NOT_MEASURED:
            counts[verdict.reason] = counts.get(verdict.reason, 0) + 1
    lines += [f"Not measured: {_plural(count)} ({reason})." for reason, count in counts.items()]
    return "\n".join(lines).strip() + "\n"


def _plural(count: int) -> str:
    return "1 number or claim" if count == 1 else f"{count} numbers or claims"


def _row(verdict: Verdict) -> str:
    unit = f" ({verdict.unit})" if verdict.unit else ""
    word = f"**{verdict.verdict}**" if verdict.verdict in (OUTSIDE, FAILS) else verdict.verdict
    return _line(
        [
            verdict.quantity + unit,
            verdict.claim or figure(verdict.published),
            *(figure(verdict.ours) if kind == verdict.kind else "" for kind in KINDS),
            figure(verdict.difference, signed=True),
            figure(verdict.tolerance),
            word + (f": {verdict.reason}" if verdict.reason else ""),
        ]
    )


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def figure(value: float | None, *, signed: bool = False) -> str:
    """Return a number for reading: four significant digits, thousands apart, powers of ten where it is very large."""
    if value is None:
        return ""
    sign = "+" if signed else ""
    if value == 0:
        return "0"
    if 1e4 <= abs(value) < 1e8:
        return f"{value:{sign},.0f}"
    return f"{value:{sign}.4g}"


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
        _coverage_row(section, item, by_path.get(item.path, {}))
        for section in sections.values()
        for item in section.items()
    ]


def _coverage_row(section: Section, item: Number | Claim, verdicts: Mapping[str, Sequence[Verdict]]) -> CoverageRow:
    text = f"{item.value:g} {item.unit}".strip() if isinstance(item, Number) else item.text

    def row(outcome: str, reason: str, budget: str = "", kind: str = "") -> CoverageRow:
        return CoverageRow(section.paper, item.path, text, item.source, outcome, budget, kind, reason)

    budget, decided = _decisive(verdicts)
    if decided:
        outcome, reason = _outcome(decided)
        if budget in SMALL_BUDGETS and decided[0].kind == "measured":
            outcome = AT_SMALL_SIZE[outcome]
        return row(outcome, reason, budget, decided[0].kind)
    reasons = dict.fromkeys(verdict.reason for group in verdicts.values() for verdict in group if verdict.reason)
    reason = "; ".join(reasons) or item.not_tested or f"the runs of {section.name} are not finished at this budget"
    return row(NOT_TESTED, reason)


def _decisive(verdicts: Mapping[str, Sequence[Verdict]]) -> tuple[str, list[Verdict]]:
    """Return the first budget with verdicts that agree or disagree, and these; computed ones only if there are no others."""
    for kinds in (("measured", "modelled"), ("computed",)):
        for budget, of_budget in verdicts.items():
            decided = [
                verdict for verdict in of_budget if verdict.kind in kinds and verdict.verdict in _AGREE + _DISAGREE
            ]
            if decided:
                return budget, decided
    return "", []


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
    lines += [*_paper_table(rows), *_decided_by_budget(rows)]
    reasons = Counter(row.reason for row in rows if row.outcome == NOT_TESTED)
    lines += [f"- not tested, {count}: {reason}." for reason, count in reasons.most_common()]
    return "\n".join(lines) + "\n"


def _paper_table(rows: Sequence[CoverageRow]) -> list[str]:
    """Return the lines of a table of outcomes by paper; none for a single paper."""
    papers = list(dict.fromkeys(row.paper for row in rows))
    if len(papers) < 2:
        return []
    lines = ["| paper | numbers and claims | " + " | ".join(OUTCOMES) + " |", "|" + " --- |" * (len(OUTCOMES) + 2)]
    for paper in papers:
        paper_rows = [row for row in rows if row.paper == paper]
        lines.append(f"| {paper} | {len(paper_rows)} | {' | '.join(map(str, count_outcomes(paper_rows).values()))} |")
    return [*lines, ""]


def _decided_by_budget(rows: Sequence[CoverageRow]) -> list[str]:
    """Return the lines on how many rows each budget and each kind of verdict decided; none for a single budget."""
    budgets = Counter(row.budget for row in rows if row.budget)
    if len(budgets) < 2:
        return []
    kinds = Counter(row.kind for row in rows if row.kind)
    decided = ", ".join(f"{count} at {budget}" for budget, count in budgets.items())
    kind_counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return [
        f"Decided by the largest budget that has a verdict: {decided} (full: arithmetic and models). "
        f"Of these, {kind_counts}; computed are formulas, steps and the papers' own sums.",
        "",
    ]
