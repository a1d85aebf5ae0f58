"""ADA-GP's hardware: Table 4 (FPGA) and Table 5 (ASIC), from the published numbers and as far as our model goes.

There is no FPGA or ASIC flow here. What can be checked is the tables' own arithmetic, the predictor's memory, and what the
baseline would gain from the power and the area of ADA-GP-MAX.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adagp.figures.style import subplots
from adagp.reproduce.accelerator import EXACT, PREDICTING, SETS, average, simulations
from adagp.reproduce.bars import grouped_bars
from adagp.reproduce.experiment import Conclusion, Experiment
from adagp.reproduce.parts import Part, Place
from adagp.reproduce.published import Section, published
from adagp.reproduce.verdict import Terms, Verdict, compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_4, TABLE_5 = "adagp-table4", "adagp-table5"
BLOCK_BITS = 36 * 1024
"""Of one RAMB36."""
NO_SYNTHESIS = Terms(reduced="adagp has no FPGA or ASIC synthesis")
SHAPES = Terms(
    reduced="the arrangement of the additional PEs is not stated; ours takes the best shape for each model, "
    "and the shape alone is worth 6 %"
)


def _percent_more(section: Section, resource: str, design: str) -> float:
    values = section.numbers(resource)
    return 100 * (values[design] / values["baseline"] - 1)


def _resources(section: Section, names: Sequence[str]) -> tuple[list[dict[str, Any]], list[Verdict]]:
    """Return the published resources as rows, and that none of them was synthesized here."""
    rows, verdicts = [], []
    for name in names:
        for design in section.numbers(name):
            number = section.number(name, design)
            rows.append(
                {
                    "resource": name,
                    "design": design,
                    "published": number.value,
                    "computed_percent_more": _percent_more(section, name, design),
                }
            )
            verdicts.append(compare(f"{name}, {design}", number, None, "measured", NO_SYNTHESIS))
    return rows, verdicts


def _increases(section: Section, resource: str) -> list[Verdict]:
    return [
        compare(
            f"{resource} of {design} over the baseline",
            section.number("increase", design),
            _percent_more(section, resource, design),
            "computed",
            Terms(reduced="printed percentages are truncated"),
        )
        for design in PREDICTING
    ]


def _enlarged(section: Section, table: str, design: str, place: Place) -> list[Verdict]:
    return [
        compare(
            f"{design} baseline faster than the baseline, {dataset}",
            section.number(table, dataset),
            100 * (average(place, dataset, "speedup", design) - 1),
            "modelled",
            SHAPES,
        )
        for dataset in SETS
    ]


def conclude_fpga(budget: str, place: Place) -> Conclusion:
    """Check Table 4's sums and percentages, the predictor's memory, and the baseline of equal power."""
    section = published(TABLE_4)
    rows, verdicts = _resources(section, ("lut", "registers", "ramb36", "ramb18", "dsp48", "watts"))
    verdicts += _increases(section, "watts")
    for design, parts in section.content["components"].items():
        if design != "unit":
            number = section.number("watts", design)
            terms = Terms(reduced="the components of Table 4b do not add up to its total")
            verdicts.append(compare(f"sum of the components, {design}", number, sum(parts), "computed", terms))
    results = [place.result(part) for part in simulations().values()]
    bits = max(result["predictor_words"] * result["word_bits"] for result in results)
    terms = Terms(reduced="the paper's predictor is not specified; ours is 64 features wide, 16 bits a word")
    number = section.number("predictor_memory", "extra")
    verdicts.append(
        compare("blocks of the largest predictor's memory", number, -(-bits // BLOCK_BITS), "modelled", terms)
    )
    verdicts += _enlarged(section, "equal_power", "equal-power", place)
    return Conclusion(rows, verdicts, lambda: _draw(rows, "FPGA resources over the baseline (published)"))


def conclude_asic(budget: str, place: Place) -> Conclusion:
    """Check Table 5's percentages, and the baseline of equal area."""
    section = published(TABLE_5)
    rows, verdicts = _resources(section, ("area", "power"))
    verdicts += _increases(section, "area") + _enlarged(section, "equal_area", "equal-area", place)
    return Conclusion(rows, verdicts, lambda: _draw(rows, "ASIC area and power over the baseline (published)"))


def _draw(rows: Sequence[dict[str, Any]], title: str) -> "Figure":
    names = list(dict.fromkeys(row["resource"] for row in rows))
    figure, axes = subplots(1, 1, (9, 4))
    more = {design: [row["computed_percent_more"] for row in rows if row["design"] == design] for design in PREDICTING}
    grouped_bars(axes[0][0], names, more, turned=False)
    axes[0][0].set(ylabel="% more than the baseline", title=title)
    return figure


def _every_simulation(budget: str) -> Sequence[Part]:
    return tuple(simulations().values())


EXPERIMENTS = (
    Experiment(TABLE_4, "FPGA resources and power; a baseline of equal power", EXACT, _every_simulation, conclude_fpga),
    Experiment(TABLE_5, "ASIC area and power; a baseline of equal area", EXACT, _every_simulation, conclude_asic),
)
