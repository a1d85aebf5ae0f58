"""Our own chips, synthesised, and their power: the parts behind Tables 4 and 5."""

from typing import Any

from adagp.errors import ToolError
from adagp.program.reproduce.parts import Part, Place
from adagp.program.run.documents import ABSENT, AMOUNT, COUNT, POSITIVE, TEXT, Either, TableOf, record_of

DESIGNS = ("baseline", "low", "efficient", "max")
FORMATS = ("int16", "bf16", "fp32")
ARRAY, PREDICTOR_ARRAY = "12x15", "8x10"
ELEMENTS = 180


def synthesize_design(part: Part, place: Place) -> dict[str, Any]:
    """Synthesise one design; where a tool is missing, the result says which."""
    from adagp.errors import OptionError
    from adagp.hw.array import parse_array
    from adagp.rtl.tools import need_amaranth

    options = part.options
    try:
        need_amaranth()
        from adagp.rtl.blueprint import make_blueprint
        from adagp.rtl.formats import find_format
        from adagp.rtl.synthesis import parse_target, synthesize

        beside = parse_array(PREDICTOR_ARRAY)
        array, number = parse_array(ARRAY), find_format(options["format"])
        blueprint = make_blueprint(options["design"], array, number, predictor_array=beside)
        found = synthesize(blueprint, parse_target(options["target"]))
    except (ToolError, OptionError) as error:
        return {"missing": str(error)}
    return {"totals": found.totals, "memory_bits": blueprint.memory_bits, "element": dict(found.modules["element"])}


NETWORK, BATCH, MEGAHERTZ = "64-32-10", 8, 10.0
"""What the chips train while their gates' changes are counted, and the clock at which these are power."""


def design_power(part: Part, place: Place) -> dict[str, Any]:
    """Return the power of one design's gates in a simulation of two batches of digits; where a tool is missing, which."""
    from adagp.errors import OptionError
    from adagp.hw.array import parse_array
    from adagp.rtl.tools import need_amaranth

    try:
        need_amaranth()
        from adagp.rtl.blueprint import make_blueprint
        from adagp.rtl.formats import find_format
        from adagp.rtl.network import digits, parse_network, random_state
        from adagp.rtl.power import measure_power
        from adagp.rtl.synthesis import parse_target

        beside = parse_array(PREDICTOR_ARRAY)
        blueprint = make_blueprint(
            part.options["design"], parse_array(ARRAY), find_format("int16"), predictor_array=beside
        )
        network = parse_network(NETWORK, batch=BATCH)
        state = random_state(network, blueprint.core.single, samples=digits(network))
        found = measure_power(blueprint, parse_target("liberty"), network, state, MEGAHERTZ)
    except (ToolError, OptionError) as error:
        return {"missing": str(error)}
    return {"totals": {"power": 1e6 * found.total.total}, "element": {"power": 1e6 * found.modules["element"].total}}


def power_parts() -> dict[str, Part]:
    """Return the part of each design's power."""
    return {design: Part(design_power, f"power-{design}", {"design": design}, 120, POWER) for design in DESIGNS}


def synthesize_element(part: Part, place: Place) -> dict[str, Any]:
    """Synthesise one PE of a number format, with or without DSPs."""
    from adagp.hw.array import parse_array
    from adagp.rtl.tools import need_amaranth

    options = part.options
    try:
        need_amaranth()
        from adagp.rtl.blueprint import make_blueprint
        from adagp.rtl.formats import find_format
        from adagp.rtl.synthesis import Target, synthesize_kind
        from adagp.rtl.verilog import chip_modules

        blueprint = make_blueprint("baseline", parse_array(ARRAY), find_format(options["format"]))
        found = synthesize_kind(chip_modules(blueprint), "element", Target(dsp=options["dsp"]))
    except ToolError as error:
        return {"missing": str(error)}
    return {"element": dict(found.resources)}


_MISSING = record_of({"missing": TEXT}, others=ABSENT)
_CELLS = record_of({"lut": AMOUNT, "dsp": AMOUNT}, others=AMOUNT)
ELEMENT = Either(_MISSING, record_of({"element": _CELLS}, others=ABSENT))
"""The shape of what a PE takes."""
_WATTS = record_of({"power": POSITIVE}, others=ABSENT)
POWER = Either(_MISSING, record_of({"totals": _WATTS, "element": _WATTS}, others=ABSENT))
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
