"""ADA-GP's hardware: Table 4 (FPGA) and Table 5 (ASIC), next to our own chips of the four designs, synthesised by Yosys.

Also checked: the tables' own arithmetic, the predictor's memory, and what the baseline would gain from the power and the area
of ADA-GP-MAX. Power is that of the cells of Table 5, from simulated activity; of FPGAs it is not measured here.
"""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from adagp.errors import ToolError
from adagp.papers.adagp.accelerator_experiments import EXACT, PREDICTING, SETS, average, simulations
from adagp.papers.adagp.hardware import equal_pes
from adagp.program.figures.style import grouped_bars, subplots
from adagp.program.reproduce.experiment import Conclusion, Experiment, Part, Workspace, add_experiment
from adagp.program.reproduce.published import Number, Section, published
from adagp.program.reproduce.verdict import Terms, Verdict, compare, covering, judge
from adagp.program.run.documents import ABSENT, AMOUNT, COUNT, POSITIVE, TEXT, Either, TableOf, record_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DESIGNS = ("baseline", "low", "efficient", "max")
FORMATS = ("int16", "bf16", "fp32")
ARRAY, PREDICTOR_ARRAY = "12x15", "8x10"
ELEMENTS = 180


def synthesize_design(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Synthesise one design; where a tool is missing, the result names it."""
    from adagp.errors import OptionError
    from adagp.hw.dataflows import parse_array
    from adagp.rtl.tools import need_amaranth

    options = part.options
    try:
        need_amaranth()
        from adagp.rtl.blueprint import make_blueprint
        from adagp.rtl.formats import find_format
        from adagp.rtl.synthesis import parse_target, synthesize

        predictor_array = parse_array(PREDICTOR_ARRAY)
        array, number = parse_array(ARRAY), find_format(options["format"])
        blueprint = make_blueprint(options["design"], array, number, predictor_array=predictor_array)
        report = synthesize(blueprint, parse_target(options["target"]))
    except (ToolError, OptionError) as error:
        return {"missing": str(error)}
    return {"totals": report.totals, "memory_bits": blueprint.memory_bits, "element": dict(report.modules["element"])}


NETWORK, BATCH, MEGAHERTZ = "64-32-10", 8, 10.0
"""What the chips train while their gates' changes are counted, and the clock at which these are power."""


def design_power(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Return the power of one design's gates in a simulation of two batches of digits; where a tool is missing, which."""
    from adagp.errors import OptionError
    from adagp.hw.dataflows import parse_array
    from adagp.rtl.tools import need_amaranth

    try:
        need_amaranth()
        from adagp.rtl.blueprint import make_blueprint
        from adagp.rtl.formats import find_format
        from adagp.rtl.network import digits, parse_network, random_state
        from adagp.rtl.power import measure_power
        from adagp.rtl.synthesis import parse_target

        predictor_array = parse_array(PREDICTOR_ARRAY)
        blueprint = make_blueprint(
            part.options["design"], parse_array(ARRAY), find_format("int16"), predictor_array=predictor_array
        )
        network = parse_network(NETWORK, batch=BATCH)
        state = random_state(network, blueprint.core.single, samples=digits(network))
        report = measure_power(blueprint, parse_target("liberty"), network, state, MEGAHERTZ)
    except (ToolError, OptionError) as error:
        return {"missing": str(error)}
    total = report.total
    kinds = {"power": total.total, "internal": total.internal, "switching": total.switching, "leakage": total.leakage}
    return {
        "totals": {name: 1e6 * watts for name, watts in kinds.items()},
        "element": {"power": 1e6 * report.modules["element"].total},
    }


def power_parts() -> dict[str, Part]:
    """Return the part of each design's power."""
    return {design: Part(design_power, f"power-{design}", {"design": design}, 120, POWER) for design in DESIGNS}


def synthesize_element(part: Part, workspace: Workspace) -> dict[str, Any]:
    """Synthesise one PE of a number format, with or without DSPs."""
    from adagp.hw.dataflows import parse_array
    from adagp.rtl.tools import need_amaranth

    options = part.options
    try:
        need_amaranth()
        from adagp.rtl.blueprint import make_blueprint
        from adagp.rtl.chip import chip_modules
        from adagp.rtl.formats import find_format
        from adagp.rtl.synthesis import Target, synthesize_kind

        blueprint = make_blueprint("baseline", parse_array(ARRAY), find_format(options["format"]))
        report = synthesize_kind(chip_modules(blueprint), "element", Target(dsp=options["dsp"]))
    except ToolError as error:
        return {"missing": str(error)}
    return {"element": dict(report.resources)}


_MISSING = record_of({"missing": TEXT}, others=ABSENT)
_CELLS = record_of({"lut": AMOUNT, "dsp": AMOUNT}, others=AMOUNT)
ELEMENT = Either(_MISSING, record_of({"element": _CELLS}, others=ABSENT))
"""The shape of what a PE takes."""
POWER = Either(
    _MISSING,
    record_of(
        {
            "totals": record_of(dict.fromkeys(("power", "internal", "switching", "leakage"), POSITIVE)),
            "element": record_of({"power": POSITIVE}),
        }
    ),
)
"""The shape of what a chip and a PE of it draw."""
SYNTHESISED = {
    target: Either(
        _MISSING,
        record_of(
            {
                "totals": record_of(dict.fromkeys(needed, POSITIVE), others=AMOUNT),
                "memory_bits": COUNT,
                "element": cells,
            },
            others=ABSENT,
        ),
    )
    for target, needed, cells in (("xc7", ("lut", "ff"), _CELLS), ("liberty", ("area",), TableOf(AMOUNT)))
}
"""The shape of what a chip takes, by target."""


def design_parts(target: str) -> dict[str, Part]:
    """Return the part of each design for a target."""
    return {
        design: Part(
            synthesize_design,
            f"{target}-{design}",
            {"target": target, "design": design, "format": "int16"},
            60,
            SYNTHESISED[target],
        )
        for design in DESIGNS
    }


def element_parts() -> dict[tuple[str, bool], Part]:
    """Return the part of each format's PE, with and without DSPs."""
    return {
        (name, dsp): Part(
            synthesize_element, f"{name}-{'dsp' if dsp else 'lut'}", {"format": name, "dsp": dsp}, 20, ELEMENT
        )
        for name in FORMATS
        for dsp in (True, False)
    }


def limited_luts(rest: float, with_dsp: dict[str, float], without: dict[str, float], dsps: int) -> float:
    """Return the LUTs of a chip with `rest` outside its PEs, if only so many DSPs may be used for the PEs."""
    each = with_dsp["dsp"]
    lucky = min(ELEMENTS, int(dsps // each)) if each else 0
    return rest + lucky * with_dsp["lut"] + (ELEMENTS - lucky) * without["lut"]


TABLE_4, TABLE_5 = "adagp-table4", "adagp-table5"
BLOCK_BITS = 36 * 1024
"""Of one RAMB36."""
UNMEASURED = {
    "watts": Terms(reduced="the power of an FPGA was not measured"),
    "interconnect": Terms(reduced="wires are not laid out here"),
}
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
    "cells": "area",
    "combinational": "area",
    "buffers": "area",
    "power": "power",
    "internal": "internal",
    "switching": "switching",
    "leakage": "leakage",
}
"""Published resources by the names of ours. Our synthesis gives the area of all cells; it stands for the parts of it."""
REASONS = {
    "combinational": "ours: all cells; most of our chip is PEs",
    "buffers": "ours: all cells, as buffers and inverters are not counted apart",
    "ramb36": "our memories differ in depth; MAX has the predictor's in its own core",
}
MOSTLY_PES = "most of our chip is PEs; what the published one has around them is not stated"
SHAPES = Terms(
    reduced="the arrangement of the PEs is not stated; here both arrays take the shape that suits each model best"
)


def _percent_more(section: Section, resource: str, design: str) -> float:
    values = section.numbers(resource)
    return 100 * (values[design] / values["baseline"] - 1)


def _resources(
    section: Section, names: Sequence[str], parts: Mapping[str, Part], workspace: Workspace
) -> tuple[list[dict[str, Any]], list[Verdict]]:
    """Return the published resources and ours as rows; absolute numbers are shown, not compared."""
    rows, verdicts = [], []
    results = {design: workspace.result(part) for design, part in parts.items()}
    base = results["baseline"].get("totals", {})
    for name in names:
        for design in section.numbers(name):
            number, totals = section.number(name, design), results[design].get("totals", {})
            measured = totals.get(OURS.get(name, ""))
            more = 100 * (measured / base[OURS[name]] - 1) if measured is not None and base.get(OURS[name]) else None
            rows.append(
                {
                    "resource": name,
                    "design": design,
                    "published": number.value,
                    "computed_percent_more": _percent_more(section, name, design),
                    "measured": measured,
                    "measured_percent_more": more,
                }
            )
            missing = results[design].get("missing", "")
            terms = Terms(reduced=missing) if missing else UNMEASURED.get(name, OTHER_CHIP)
            verdicts.append(compare(f"{name}, {design}", number, measured, "measured", terms))
    return rows, verdicts


def _synthesised_increases(
    section: Section, name: str, parts: Mapping[str, Part], workspace: Workspace
) -> list[Verdict]:
    """Return how much more of a resource each design takes than the baseline, published and ours."""
    totals = {design: workspace.result(part).get("totals") for design, part in parts.items()}
    verdicts = []
    for design in PREDICTING:
        tolerance = float(section.content["growth"]["tolerance"])
        number = Number(_percent_more(section, name, design), "% more", section.number(name, design).source, tolerance)
        own, base = totals[design], totals["baseline"]
        more = None if own is None or base is None else _more(own.get(OURS[name], 0.0), base.get(OURS[name], 0.0))
        terms = Terms(reduced="synthesis tools are missing" if more is None else REASONS.get(name, MOSTLY_PES))
        verdict = compare(f"{name} of our {design} over our baseline", number, more, "measured", terms)
        verdicts.append(covering(verdict, section.number(name, "baseline"), section.number(name, design)))
    return verdicts


def _more(own: float, base: float) -> float:
    """Return by how many percent a design takes more; of what the baseline has nothing of, one block counts as all."""
    return 100 * (own / base - 1) if base else 0.0 if not own else 100.0 * own


def _multipliers(section: Section, parts: Mapping[str, Part], workspace: Workspace) -> list[Verdict]:
    """Compare the published LUTs (next to 166 DSPs) with those of our chip with as many DSPs, by number format."""
    baseline = workspace.result(parts["baseline"])
    elements = {key: workspace.result(part).get("element") for key, part in element_parts().items()}
    dsps = int(section.number("dsp48", "baseline").value)
    number = section.number("lut", "baseline")
    verdicts = []
    for name in FORMATS:
        with_dsp, without = elements[name, True], elements[name, False]
        for limit in (dsps, 0):
            measured = None
            if "totals" in baseline and with_dsp is not None and without is not None:
                rest = baseline["totals"]["lut"] - ELEMENTS * baseline["element"]["lut"]
                measured = limited_luts(rest, with_dsp, without, limit)
            words = f"LUTs with {name} PEs and at most {limit} DSPs in them"
            terms = Terms(reduced="synthesis tools are missing") if measured is None else OTHER_CHIP
            verdicts.append(compare(words, number, measured, "measured", terms))
    return verdicts


def _more_pes(section: Section, name: str, resource: str, parts: Mapping[str, Part], workspace: Workspace) -> Verdict:
    """Return how many more PEs a baseline has that takes as much of a resource as `max`, published and by our chips."""
    results = {design: workspace.result(part) for design, part in parts.items()}
    figures = {design: chip["totals"][resource] for design, chip in results.items() if "totals" in chip}
    times = equal_pes(figures, ELEMENTS, results["baseline"].get("element", {}).get(resource, 0.0))
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


def _enlarged(section: Section, table: str, design: str, workspace: Workspace) -> list[Verdict]:
    """Compare what the baseline gains by more PEs, and judge whether MAX is still faster."""
    ratios = {dataset: _over_enlarged(dataset, design, workspace) for dataset in SETS}
    text = ", ".join(f"{dataset} {ratio:.2f} times" for dataset, ratio in ratios.items())
    faster = all(ratio > 1 for ratio in ratios.values())
    return [
        judge(f"MAX over the {design} baseline", section.claim("equal"), faster, f"{text}, 13 CNNs", "modelled"),
        *(
            compare(
                f"{design} baseline faster than the baseline, {dataset}",
                section.number(table, dataset),
                100 * (average(workspace, dataset, "speedup", design) - 1),
                "modelled",
                SHAPES,
            )
            for dataset in SETS
        ),
    ]


def _over_enlarged(dataset: str, design: str, workspace: Workspace) -> float:
    """Return the mean speed-up of MAX over an enlarged baseline."""
    designs = [
        workspace.result(part)["dataflows"]["ws"] for (_, name), part in simulations().items() if name == dataset
    ]
    return float(mean(own[design]["cycles"] / own["max"]["cycles"] for own in designs))


def conclude_fpga(budget: str, workspace: Workspace) -> Conclusion:
    """Check Table 4's sums and percentages, the predictor's memory, and the baseline of equal power."""
    section = published(TABLE_4)
    parts = design_parts("xc7")
    rows, verdicts = _resources(section, ("lut", "registers", "ramb36", "ramb18", "dsp48", "watts"), parts, workspace)
    for name in ("lut", "registers", "ramb36", "ramb18", "dsp48"):
        verdicts += _synthesised_increases(section, name, parts, workspace)
    verdicts += _multipliers(section, parts, workspace)
    verdicts += _increases(section, "watts")
    for design, parts in section.content["components"].items():
        if design != "unit":
            number = section.number("watts", design)
            terms = Terms(reduced="the components of Table 4b do not add up to its total")
            each = [section.number("components", design, str(index)) for index in range(len(parts))]
            verdict = compare(f"sum of the components, {design}", number, sum(parts), "computed", terms)
            verdicts.append(covering(verdict, *each))
    results = [workspace.result(part) for part in simulations().values()]
    bits = max(result["predictor_words"] * result["word_bits"] for result in results)
    terms = Terms(reduced="the paper's predictor is not specified; ours has 64 features of 16 bits, 512 would fit")
    number = section.number("predictor_memory", "extra")
    verdicts.append(
        compare("blocks of the largest predictor's memory", number, -(-bits // BLOCK_BITS), "modelled", terms)
    )
    verdicts += _enlarged(section, "equal_power", "equal-power", workspace)
    more = _percent_more(section, "lut", "low")
    text = f"the table itself has {more:.1f}% more LUTs for LOW"
    verdicts.append(judge("hardware of LOW", section.claim("free"), more == 0, text, "computed"))
    return Conclusion(rows, verdicts, lambda: _draw(rows, "FPGA resources over the baseline (published)"))


def conclude_asic(budget: str, workspace: Workspace) -> Conclusion:
    """Check Table 5's percentages, and the baseline of equal area."""
    section = published(TABLE_5)
    parts = design_parts("liberty")
    powers = power_parts()
    rows, verdicts = _resources(section, AREAS, parts, workspace)
    power_rows, power_verdicts = _resources(section, POWERS, powers, workspace)
    rows, verdicts = rows + power_rows, verdicts + power_verdicts
    for name in AREAS:
        if name != "interconnect":
            verdicts += _synthesised_increases(section, name, parts, workspace)
    for name in POWERS:
        verdicts += _synthesised_increases(section, name, powers, workspace)
    verdicts += _sums(section)
    verdicts.append(_leakage(section, powers, workspace))
    verdicts.append(_more_pes(section, "equal_area_pes", "area", parts, workspace))
    verdicts.append(_more_pes(published(TABLE_4), "equal_power_pes", "power", powers, workspace))
    verdicts += _increases(section, "area") + _enlarged(section, "equal_area", "equal-area", workspace)
    return Conclusion(rows, verdicts, lambda: _draw(rows, "ASIC area and power over the baseline (published)"))


AREAS, POWERS = (
    ("combinational", "buffers", "interconnect", "cells", "area"),
    ("internal", "switching", "leakage", "power"),
)
"""The columns of Tables 5a and 5b; the last of each is the total."""


def _sums(section: Section) -> list[Verdict]:
    """Check that Table 5's parts add up to its totals."""
    verdicts = []
    for total, parts in (("area", ("cells", "interconnect")), ("power", ("internal", "switching", "leakage"))):
        for design in DESIGNS:
            numbers = [section.number(name, design) for name in parts]
            terms = Terms(reduced="the printed parts do not add up to the printed total")
            verdict = compare(
                f"sum of {' and '.join(parts)}, {design}",
                section.number(total, design),
                sum(number.value for number in numbers),
                "computed",
                terms,
            )
            verdicts.append(covering(verdict, *numbers))
    return verdicts


def _leakage(section: Section, parts: Mapping[str, Part], workspace: Workspace) -> Verdict:
    """Compare the share of leakage in the baseline's power: it decides what a design's power can grow by."""
    leakage, power = section.number("leakage", "baseline"), section.number("power", "baseline")
    dynamic = {
        design: section.number("internal", design).value + section.number("switching", design).value
        for design in ("baseline", "max")
    }
    totals = {design: workspace.result(parts[design]).get("totals") for design in dynamic}
    share, text = None, "synthesis tools are missing"
    if totals["baseline"] is not None and totals["max"] is not None:
        share = 100 * totals["baseline"]["leakage"] / totals["baseline"]["power"]
        ours = {design: own["internal"] + own["switching"] for design, own in totals.items() if own is not None}
        text = (
            f"without leakage MAX draws {100 * (dynamic['max'] / dynamic['baseline'] - 1):.1f} % more than the baseline in "
            f"the paper, ours {100 * (ours['max'] / ours['baseline'] - 1):.1f} %; its node and library are not stated, "
            f"ours switches at {MEGAHERTZ:g} MHz"
        )
    number = Number(100 * leakage.value / power.value, "% of the power", leakage.source, LEAKAGE_TOLERANCE)
    verdict = compare("share of leakage, baseline", number, share, "measured", Terms(reduced=text))
    return covering(verdict, leakage, power)


LEAKAGE_TOLERANCE = 5.0
"""Percent of the power."""


def _draw(rows: Sequence[dict[str, Any]], title: str) -> "Figure":
    names = list(dict.fromkeys(row["resource"] for row in rows))
    figure, axes = subplots(1, 1, (9, 4))
    more = {design: [row["computed_percent_more"] for row in rows if row["design"] == design] for design in PREDICTING}
    grouped_bars(axes[0][0], names, more, rotated=False)
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
