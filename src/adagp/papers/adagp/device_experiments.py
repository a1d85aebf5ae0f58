"""ADA-GP's hardware: Table 4 (FPGA) and Table 5 (ASIC), beside our own chips of the four designs, synthesised by Yosys.

Also checked: the tables' own arithmetic, the predictor's memory, and what the baseline would gain from the power and the area
of ADA-GP-MAX. Power is that of the cells of Table 5, from simulated activity; of FPGAs it is not measured here.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from adagp.hw.designs import equal_pes
from adagp.papers.adagp.accelerator_experiments import EXACT, PREDICTING, SETS, average, simulations
from adagp.papers.adagp.synthesis_experiments import (
    ELEMENTS,
    FORMATS,
    design_parts,
    element_parts,
    limited_luts,
    power_parts,
)
from adagp.program.figures.style import subplots
from adagp.program.reproduce.bars import grouped_bars
from adagp.program.reproduce.experiment import Conclusion, Experiment, add_experiment
from adagp.program.reproduce.parts import Part, Place
from adagp.program.reproduce.published import Number, Section, published
from adagp.program.reproduce.verdict import Terms, Verdict, compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE_4, TABLE_5 = "adagp-table4", "adagp-table5"
BLOCK_BITS = 36 * 1024
"""Of one RAMB36."""
NO_POWER = Terms(reduced="the power of an FPGA was not measured")
OTHER_CHIP = Terms(
    unlike="another chip: the paper states neither the number format, nor the buffers, nor what else is counted"
)
OURS = {
    "lut": "lut",
    "registers": "ff",
    "ramb36": "ramb36",
    "ramb18": "ramb18",
    "dsp48": "dsp",
    "area": "area",
    "power": "power",
}
"""Published resources by the names of ours."""
MOSTLY_PES = "most of our chip is PEs; what the published one has around them is not stated"
SHAPES = Terms(
    reduced="the arrangement of the PEs is not stated; here both arrays take the shape that suits each model best"
)


def _percent_more(section: Section, resource: str, design: str) -> float:
    values = section.numbers(resource)
    return 100 * (values[design] / values["baseline"] - 1)


def _resources(
    section: Section, names: Sequence[str], parts: Mapping[str, Part], place: Place
) -> tuple[list[dict[str, Any]], list[Verdict]]:
    """Return the published resources and ours as rows; absolute numbers are shown, not compared."""
    rows, verdicts = [], []
    found = {design: place.result(part) for design, part in parts.items()}
    base = found["baseline"].get("totals", {})
    for name in names:
        for design in section.numbers(name):
            number, totals = section.number(name, design), found[design].get("totals", {})
            ours = totals.get(OURS.get(name, ""))
            more = 100 * (ours / base[OURS[name]] - 1) if ours is not None and base.get(OURS[name]) else None
            rows.append(
                {
                    "resource": name,
                    "design": design,
                    "published": number.value,
                    "computed_percent_more": _percent_more(section, name, design),
                    "measured": ours,
                    "measured_percent_more": more,
                }
            )
            missing = found[design].get("missing", "")
            terms = Terms(reduced=missing) if missing else NO_POWER if name not in OURS else OTHER_CHIP
            verdicts.append(compare(f"{name}, {design}", number, ours, "measured", terms))
    return rows, verdicts


def _synthesised_increases(section: Section, name: str, parts: Mapping[str, Part], place: Place) -> list[Verdict]:
    """Return how much more each design takes than the baseline, published and ours."""
    found = {design: place.result(part).get("totals") for design, part in parts.items()}
    verdicts = []
    for design in PREDICTING:
        tolerance = float(section.content["growth"]["tolerance"])
        number = Number(_percent_more(section, name, design), "% more", section.number(name, design).source, tolerance)
        ours, base = found[design], found["baseline"]
        more = None if ours is None or base is None else 100 * (ours[OURS[name]] / base[OURS[name]] - 1)
        terms = Terms(reduced="synthesis tools are missing" if more is None else MOSTLY_PES)
        verdicts.append(compare(f"{name} of our {design} over our baseline", number, more, "measured", terms))
    return verdicts


def _multipliers(section: Section, parts: Mapping[str, Part], place: Place) -> list[Verdict]:
    """Test what the published LUTs beside 166 DSPs say about the multipliers: LUTs of our chip with as many DSPs."""
    baseline = place.result(parts["baseline"])
    elements = {key: place.result(part).get("element") for key, part in element_parts().items()}
    dsps = int(section.number("dsp48", "baseline").value)
    number = section.number("lut", "baseline")
    verdicts = []
    for name in FORMATS:
        with_dsp, without = elements[name, True], elements[name, False]
        for limit in (dsps, 0):
            ours = None
            if "totals" in baseline and with_dsp is not None and without is not None:
                rest = baseline["totals"]["lut"] - ELEMENTS * baseline["element"]["lut"]
                ours = limited_luts(rest, with_dsp, without, limit)
            words = f"LUTs with {name} PEs and at most {limit} DSPs in them"
            terms = Terms(reduced="synthesis tools are missing") if ours is None else OTHER_CHIP
            verdicts.append(compare(words, number, ours, "measured", terms))
    return verdicts


def _more_pes(section: Section, name: str, resource: str, parts: Mapping[str, Part], place: Place) -> Verdict:
    """Return how many more PEs a baseline has that takes as much of a resource as `max`, published and by our chips."""
    found = {design: place.result(part) for design, part in parts.items()}
    figures = {design: one["totals"][resource] for design, one in found.items() if "totals" in one}
    times = equal_pes(figures, ELEMENTS, found["baseline"].get("element", {}).get(resource, 0.0))
    terms = Terms(reduced="synthesis tools are missing" if times is None else MOSTLY_PES)
    words = f"PEs of a baseline of the {resource} of our max"
    return compare(words, section.number(name, "max"), None if times is None else 100 * (times - 1), "measured", terms)


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
    parts = design_parts("xc7")
    rows, verdicts = _resources(section, ("lut", "registers", "ramb36", "ramb18", "dsp48", "watts"), parts, place)
    verdicts += _synthesised_increases(section, "lut", parts, place)
    verdicts += _synthesised_increases(section, "registers", parts, place)
    verdicts += _multipliers(section, parts, place)
    verdicts += _increases(section, "watts")
    for design, parts in section.content["components"].items():
        if design != "unit":
            number = section.number("watts", design)
            terms = Terms(reduced="the components of Table 4b do not add up to its total")
            verdicts.append(compare(f"sum of the components, {design}", number, sum(parts), "computed", terms))
    results = [place.result(part) for part in simulations().values()]
    bits = max(result["predictor_words"] * result["word_bits"] for result in results)
    terms = Terms(reduced="the paper's predictor is not specified; ours has 64 features of 16 bits, 512 would fit")
    number = section.number("predictor_memory", "extra")
    verdicts.append(
        compare("blocks of the largest predictor's memory", number, -(-bits // BLOCK_BITS), "modelled", terms)
    )
    verdicts += _enlarged(section, "equal_power", "equal-power", place)
    return Conclusion(rows, verdicts, lambda: _draw(rows, "FPGA resources over the baseline (published)"))


def conclude_asic(budget: str, place: Place) -> Conclusion:
    """Check Table 5's percentages, and the baseline of equal area."""
    section = published(TABLE_5)
    parts = design_parts("liberty")
    powers = power_parts()
    rows, verdicts = _resources(section, ("area",), parts, place)
    power_rows, power_verdicts = _resources(section, ("power",), powers, place)
    rows, verdicts = rows + power_rows, verdicts + power_verdicts
    verdicts += _synthesised_increases(section, "area", parts, place)
    verdicts += _synthesised_increases(section, "power", powers, place)
    verdicts.append(_more_pes(section, "equal_area_pes", "area", parts, place))
    verdicts.append(_more_pes(published(TABLE_4), "equal_power_pes", "power", powers, place))
    verdicts += _increases(section, "area") + _enlarged(section, "equal_area", "equal-area", place)
    return Conclusion(rows, verdicts, lambda: _draw(rows, "ASIC area and power over the baseline (published)"))


def _draw(rows: Sequence[dict[str, Any]], title: str) -> "Figure":
    names = list(dict.fromkeys(row["resource"] for row in rows))
    figure, axes = subplots(1, 1, (9, 4))
    more = {design: [row["computed_percent_more"] for row in rows if row["design"] == design] for design in PREDICTING}
    grouped_bars(axes[0][0], names, more, turned=False)
    axes[0][0].set(ylabel="% more than the baseline", title=title)
    return figure


def _fpga_parts(budget: str) -> Sequence[Part]:
    return (*simulations().values(), *design_parts("xc7").values(), *element_parts().values())


def _asic_parts(budget: str) -> Sequence[Part]:
    return (*simulations().values(), *design_parts("liberty").values(), *power_parts().values())


for _experiment in (
    Experiment(TABLE_4, "FPGA resources and power; a baseline of equal power", EXACT, _fpga_parts, conclude_fpga),
    Experiment(TABLE_5, "ASIC area and power; a baseline of equal area", EXACT, _asic_parts, conclude_asic),
):
    add_experiment(_experiment)
