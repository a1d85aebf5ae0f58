"""What became of every published number over all budgets, from finished parts alone: nothing is run.

OUT/BUDGET/            a study of each budget, as far as its parts are in the records
OUT/published.csv      every published number and claim, decided by the largest budget that has a verdict on it
OUT/verdicts.md, .csv  the counts, then the verdicts of each experiment at the largest budget that it was concluded at
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from adagp.core.files import write_atomically
from adagp.errors import RunError
from adagp.program.reproduce.coverage import CoverageRow, coverage, coverage_markdown
from adagp.program.reproduce.experiment import BUDGETS, Experiment, read_missing, read_verdicts
from adagp.program.reproduce.parts import Workspace
from adagp.program.reproduce.published import published_sections
from adagp.program.reproduce.study import MARKER, Study, experiment_markdown, verdict_rows
from adagp.program.reproduce.verdict import Verdict, tally
from adagp.program.run.folder import flat_csv


def write_overview(experiments: Sequence[Experiment], records: Path | None, out: Path) -> list[CoverageRow]:
    """Conclude at every budget what the records allow, and write the outcome of every published number and claim."""
    if (out / MARKER).is_file():
        raise RunError(f"'{out}' holds results of one budget; give another --out for a report on all, or --budget.")
    budgets = list(reversed(BUDGETS))
    concluded: dict[str, dict[Experiment, list[Verdict]]] = {budget: {} for budget in budgets}
    waiting = list(experiments)
    for budget in budgets:
        chosen = [experiment for experiment in waiting if budget in experiment.minutes]
        if not chosen:
            continue
        Study(chosen, budget, Workspace(out / budget), records, report_only=True).report()
        for experiment in chosen:
            folder = out / budget / experiment.name
            verdicts = read_verdicts(folder)
            if verdicts is not None:
                concluded[budget][experiment] = verdicts
                if not read_missing(folder):  # a smaller budget has nothing to add to a whole conclusion
                    waiting.remove(experiment)
    rows = coverage(
        published_sections(),
        {budget: [verdict for own in found.values() for verdict in own] for budget, found in concluded.items()},
    )
    write_atomically(out / "published.csv", flat_csv([asdict(row) for row in rows]).encode())
    flat = [
        {"budget": budget, **row}
        for budget, found in concluded.items()
        for experiment, verdicts in found.items()
        for row in verdict_rows(experiment, verdicts)
    ]
    write_atomically(out / "verdicts.csv", flat_csv(flat).encode())
    write_atomically(out / "verdicts.md", _markdown(experiments, concluded, rows, out).encode())
    return rows


def _markdown(
    experiments: Sequence[Experiment],
    concluded: dict[str, dict[Experiment, list[Verdict]]],
    rows: Sequence[CoverageRow],
    out: Path,
) -> str:
    counts = tally(verdict for found in concluded.values() for verdicts in found.values() for verdict in verdicts)
    lines = ["All verdicts: " + ", ".join(f"{count} {word}" for word, count in counts.items()) + ".", ""]
    lines += [coverage_markdown(rows)]
    for experiment in experiments:
        for budget, found in concluded.items():
            if experiment in found:
                missing = read_missing(out / budget / experiment.name)
                lines += experiment_markdown(experiment, found[experiment], missing, budget)
    return "\n".join(lines).rstrip() + "\n"
